"""Which worker does which run, and for how long: by the ledger, and by locks for runs that it did not assign."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lit_transformers.printing.arm_names import BreakableName
from lit_transformers.records.files import CHECKPOINT
from sweeps.ledger.lock import is_locked
from sweeps.ledger.ticket import State
from sweeps.live import Row, clock

if TYPE_CHECKING:
    from sweeps.ledger.ledger import ActiveRun

__all__ = ["bring_up_to_date", "plain_table", "standings", "work_table"]

SILENT_SECONDS = 30.0
"""After how long without a pulse a worker is shown as silent; it sends one every ten seconds."""


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


def plain_table(*titles: str) -> Table:
    """Returns a table without lines, as all commands print it; text too long for a column is wrapped."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    return table


def _study_and_arm(run: ActiveRun) -> str:
    """Returns the name of a run among those of all studies."""
    return f"{run.study}: {run.arm}"


def work_table(
    active_runs: Iterable[ActiveRun], heading: str = "study: arm", name: Callable[[ActiveRun], str] = _study_and_arm
) -> Table:
    """Returns a table of the runs that workers hold: phase and which attempt it is, step of steps, time left, host and
    process, time so far. heading, name: of the column by which a run is known."""
    table = plain_table(heading, "seed", "state", "step", "left", "who", "for")
    for column in table.columns[1:]:
        column.no_wrap = str(column.header) != "state"
    for standing in active_runs:
        table.add_row(BreakableName(name(standing)), str(standing.seed), *_cells(standing))
    return table


def _cells(standing: ActiveRun) -> list[RenderableType]:
    pulse = standing.pulse
    silent_seconds = max(time.time() - standing.last_pulse, 0.0)
    is_silent = silent_seconds > SILENT_SECONDS
    known_seconds = max(
        standing.last_pulse - standing.since, 0.0
    )  # by the clock of its machine, which may go otherwise
    phase = f"{pulse.phase}, attempt {standing.attempts}" if standing.attempts > 1 else pulse.phase
    return [
        Text(_silence(standing, silent_seconds), style="bold yellow") if is_silent else Text(phase),
        f"{pulse.step}/{pulse.steps}" if pulse.steps else "",
        clock(_seconds_left(standing)),
        Text(f"{standing.host}:{standing.process}"),
        clock(known_seconds + (0.0 if is_silent else silent_seconds)),
    ]


def _silence(standing: ActiveRun, seconds: float) -> str:
    """Returns for how long a worker has been silent; of another machine by two clocks, which may differ."""
    text = f"silent for {clock(seconds)}"
    return text if standing.host == socket.gethostname() else f"{text}, if its clock is right"


def _seconds_left(standing: ActiveRun) -> float | None:
    """Returns the seconds left now, from those of the last pulse."""
    seconds_left = standing.pulse.seconds_left
    return None if seconds_left is None else max(seconds_left - max(time.time() - standing.last_pulse, 0.0), 0.0)
