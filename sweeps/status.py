"""Who does what, since when, and for how long: by the ledger, and by locks for runs that it did not hand out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from lit_transformers.files import CHECKPOINT
from sweeps.live import Row, clock
from sweeps.lock import is_locked
from sweeps.ticket import State

if TYPE_CHECKING:
    from sweeps.ledger import Standing

__all__ = ["add_columns", "bring_up_to_date", "cells", "plain_table", "standings", "work_table"]

SILENT_SECONDS = 30.0
"""After how long without a pulse a worker is shown as silent; it beats every ten seconds."""
TITLES = ("state", "step", "left", "who", "for", "attempt")


def standings(runs: Path, storage: str | None) -> dict[str, Standing]:
    """The runs that are in somebody's hands, by key. None where there is no ledger yet; this makes none."""
    if storage is None and not (runs / "ledger.db").exists():
        return {}
    from sweeps.ledger import Ledger  # Optuna takes a second, and most looks need none

    ledger = Ledger(runs, storage)
    try:
        return {standing.key: standing for standing in ledger.standings()}
    finally:
        ledger.close()


def bring_up_to_date(rows: Sequence[Row], runs: Path, found: Mapping[str, Standing]) -> None:
    """Says of every run that is not over whether it is at work, and how far; or stopped, with a checkpoint."""
    for row in rows:
        directory, standing = row.ticket.directory(runs), found.get(row.ticket.key)
        if row.state.over:
            continue
        if standing:
            row.state = State(standing.pulse.phase)
            row.step, row.steps, row.seconds_left = standing.pulse.step, standing.pulse.steps, _left(standing)
        elif is_locked(directory / "lock"):
            row.state = State.FIT
        elif (directory / CHECKPOINT).exists():
            row.state = State.STOPPED


def add_columns(table: Table) -> None:
    """The columns that ``cells`` fills."""
    for title in TITLES:
        left = title in ("state", "who")
        table.add_column(title, justify="left" if left else "right", no_wrap=title in ("step", "left", "for"))


def cells(standing: Standing) -> list[str | Text]:
    """What a worker does: phase, step of steps, time left, host and process, for how long, and which attempt it is."""
    now, pulse = time.time(), standing.pulse
    quiet = now - standing.heard
    state = Text(f"silent for {clock(quiet)}", style="bold yellow") if quiet > SILENT_SECONDS else Text(pulse.phase)
    return [
        state,
        f"{pulse.step}/{pulse.steps}" if pulse.steps else "",
        clock(_left(standing)),
        Text(f"{standing.host}:{standing.process}", overflow="fold"),
        clock(now - standing.since),
        str(standing.attempts),
    ]


def plain_table(*titles: str) -> Table:
    """A table without lines, as all are that the commands print; what is too long for a column goes on below."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    return table


def work_table(found: Iterable[Standing]) -> Table:
    """Everything that the ledger has in somebody's hands, of all studies."""
    table = plain_table("study", "arm", "seed")
    add_columns(table)
    for standing in found:
        table.add_row(Text(standing.study), Text(standing.arm), str(standing.seed), *cells(standing))
    return table


def _left(standing: Standing) -> float | None:
    """The time left by now, from what was told with the last pulse."""
    told = standing.pulse.seconds_left
    return None if told is None else max(told - max(time.time() - standing.heard, 0.0), 0.0)
