"""Which worker does which run, and for how long: by the ledger, and by locks for runs that it did not assign."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from lit_transformers.records.files import CHECKPOINT
from sweeps.ledger.lock import is_locked
from sweeps.ledger.ticket import State
from sweeps.live import Row, clock

if TYPE_CHECKING:
    from sweeps.ledger.ledger import ActiveRun

__all__ = ["add_columns", "bring_up_to_date", "cells", "plain_table", "standings", "work_table"]

SILENT_SECONDS = 30.0
"""After how long without a pulse a worker is shown as silent; it sends one every ten seconds."""
TITLES = ("state", "step", "left", "who", "for", "attempt")


def standings(runs: Path, storage: str | None) -> dict[str, ActiveRun]:
    """Returns the runs that workers hold, by key; empty where there is no ledger yet, which is not created."""
    if storage is None and not (runs / "ledger.db").exists():
        return {}
    from sweeps.ledger.ledger import Ledger  # Optuna takes a second, and most looks need none

    ledger = Ledger(runs, storage)
    try:
        return {standing.key: standing for standing in ledger.standings()}
    finally:
        ledger.close()


def bring_up_to_date(rows: Sequence[Row], runs: Path, active_runs: Mapping[str, ActiveRun]) -> None:
    """Updates every row that has not ended: whether it is in progress, and how far, or stopped with a checkpoint."""
    for row in rows:
        directory, standing = row.ticket.directory(runs), active_runs.get(row.ticket.key)
        if row.state.over:
            continue
        if standing:
            row.state = State(standing.pulse.phase)
            row.step, row.steps, row.seconds_left = standing.pulse.step, standing.pulse.steps, _seconds_left(standing)
        elif is_locked(directory / "lock"):
            row.state = State.FIT
        elif (directory / CHECKPOINT).exists():
            row.state = State.STOPPED


def add_columns(table: Table) -> None:
    """Adds the columns that ``cells`` fills."""
    for title in TITLES:
        is_left_aligned = title in ("state", "who")
        table.add_column(
            title, justify="left" if is_left_aligned else "right", no_wrap=title in ("step", "left", "for")
        )


def cells(standing: ActiveRun) -> list[str | Text]:
    """Returns the cells of a worker: phase, step of steps, time left, host and process, time so far, and attempt."""
    now, pulse = time.time(), standing.pulse
    silent_seconds = now - standing.last_pulse
    state = (
        Text(f"silent for {clock(silent_seconds)}", style="bold yellow")
        if silent_seconds > SILENT_SECONDS
        else Text(pulse.phase)
    )
    return [
        state,
        f"{pulse.step}/{pulse.steps}" if pulse.steps else "",
        clock(_seconds_left(standing)),
        Text(f"{standing.host}:{standing.process}", overflow="fold"),
        clock(now - standing.since),
        str(standing.attempts),
    ]


def plain_table(*titles: str) -> Table:
    """Returns a table without lines, as all commands print it; text too long for a column is wrapped."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    return table


def work_table(active_runs: Iterable[ActiveRun]) -> Table:
    """Returns a table of the runs that workers hold, of all studies."""
    table = plain_table("study", "arm", "seed")
    add_columns(table)
    for standing in active_runs:
        table.add_row(Text(standing.study), Text(standing.arm), str(standing.seed), *cells(standing))
    return table


def _seconds_left(standing: ActiveRun) -> float | None:
    """Returns the seconds left now, from those of the last pulse."""
    seconds_left = standing.pulse.seconds_left
    return None if seconds_left is None else max(seconds_left - max(time.time() - standing.last_pulse, 0.0), 0.0)
