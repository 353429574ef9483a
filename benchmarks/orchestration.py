"""The cost of a study besides its runs: ``python -m benchmarks.orchestration [--json NAME]``.

A study of equal small runs is done as ``python -m ablations run`` does it: with a ledger, a process for each run, and a
table. Each run records when its own work (``fit``) began and ended. The rest of the workers' time is orchestration: the
start of the command until the first run works, the gaps between a worker's runs, and the end. A worker without a
further run does not wait for anything, so the time after the last run counts once, for the command.

Goals: the study takes at most 2 %, or 1 s a run, whichever is more, longer than its runs would take on workers that are
never idle; a worker's next run starts within 2 s.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.noted import NOTE, RUNNER, TimedRunConfig
from benchmarks.overhead import config
from sweeps.launchers.local import Options, launch
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.process.child import prepare_server
from sweeps.survey import survey

GOAL_SHARE, GOAL_SECONDS, GOAL_GAP = 0.02, 1.0, 2.0
METRIC = "val/bpb"


class Span(NamedTuple):
    """When a run's own work began and ended, in seconds of the system's clock."""

    begun: float
    ended: float


class StudyTime(NamedTuple):
    """Seconds of a study: on the clock, of the runs themselves, and of each part of orchestration.

    gaps: between the end of one run's work and the beginning of the next one's on the same worker.
    """

    wall: float
    work: float
    start: float
    gaps: Sequence[float]
    end: float

    @property
    def orchestration(self) -> float:
        """Seconds of the workers' time spent neither on runs nor on idling after the last one."""
        return self.start + sum(self.gaps) + self.end

    def longer(self, workers: int) -> float:
        """By how many seconds the study takes longer than its runs would on workers that are never idle."""
        return self.wall - self.work / workers


def measure(runs: Path, count: int, steps: int, share: Share) -> StudyTime:
    """Does a study of ``count`` runs that differ in their seed. Raises RuntimeError where one does not finish."""
    small = TimedRunConfig.from_dict(config(64, 2, 4, 32, 32).to_dict()).override({"training.steps": steps})
    configs = [small.override({"seed": seed}) for seed in range(count)]
    tickets = [Ticket(RUNNER.run_key(each), "plain", each.seed, each.to_dict()) for each in configs]
    begun = time.time()
    prepare_server(TimedRunConfig.runner)
    rows, _ = survey(runs, tickets, METRIC, retry_failed=False)
    ledger = Ledger(runs)
    try:
        board = Board(Console(file=io.StringIO()), METRIC)
        launch(runs, ledger, board, rows, Options(TimedRunConfig.runner, share, METRIC))
    finally:
        ledger.close()
    failed = [row.reason for row in rows if row.state != State.FINISHED]
    if failed:
        raise RuntimeError(f"{len(failed)} runs did not finish: {failed[0]}")
    spans = [Span(*json.loads((ticket.directory(runs) / NOTE).read_text())) for ticket in tickets]
    return split(spans, begun, time.time(), share.workers)


def split(spans: Sequence[Span], begun: float, ended: float, workers: int) -> StudyTime:
    """Splits a study's time into its parts. A run is taken to follow the last one that freed a worker before it."""
    free = [begun] * workers
    start, gaps = 0.0, []
    for span in sorted(spans):
        freed = max(moment for moment in free if moment <= span.begun)
        free.remove(freed)
        free.append(span.ended)
        if freed == begun:
            start += span.begun - begun
        else:
            gaps.append(span.begun - freed)
    work = sum(span.ended - span.begun for span in spans)
    return StudyTime(ended - begun, work, start, gaps, ended - max(span.ended for span in spans))


def shown(cost: StudyTime, count: int, workers: int) -> Table:
    """A table of the parts of a study's time, next to the goals."""
    table = Table("", "seconds", "goal", title="the cost of a study besides its runs", title_justify="left")
    allowed = max(GOAL_SHARE * cost.wall, GOAL_SECONDS * count)
    table.add_row("the study, on the clock", f"{cost.wall:.1f}", "")
    table.add_row("its runs' own work, summed", f"{cost.work:.1f}", "")
    table.add_row("workers' time until the first runs work", f"{cost.start:.2f}", "")
    table.add_row("between a worker's runs, mean", f"{sum(cost.gaps) / max(1, len(cost.gaps)):.2f}", "")
    table.add_row("between a worker's runs, longest", f"{max(cost.gaps, default=0):.2f}", f"{GOAL_GAP:.0f}")
    table.add_row("after the last run", f"{cost.end:.2f}", "")
    table.add_row("workers' time around the runs, a run", f"{cost.orchestration / count:.2f}", "")
    table.add_row("the clock, longer than the runs", f"{cost.longer(workers):.2f}", f"{allowed:.1f}")
    table.add_row("the same, a run", f"{cost.longer(workers) / count:.2f}", f"{allowed / count:.2f}")
    return table


def main(
    runs: Annotated[int, typer.Option("--runs", min=2, help="How many runs.")] = 12,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Updates of each run.")] = 100,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of runs at a time.")] = 2,
    name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Time a study of equal small runs, and its overhead."""
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(Path(folder), runs, steps, Share(workers, threads=1))
    out = Console()
    out.print(shown(cost, runs, workers))
    if name:
        results: dict[str, Any] = describe(("torch", "lightning", "optuna"))
        results |= {"runs": runs, "steps": steps, "workers": workers, **cost._asdict()}
        results |= {"orchestration": cost.orchestration, "longer": cost.longer(workers)}
        out.print(f"kept: {save(name, results)}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
