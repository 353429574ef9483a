"""Forecasts the comparisons that more seeds of a study would decide, and their costs, from the existing runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from ablations.plan import PlannedStudy
from ablations.plan_report import comparisons_of
from lit_transformers.config import ConfigError
from sweeps.live import clock
from sweeps.status import plain_table

if TYPE_CHECKING:
    from ablations.estimate import TimeEstimate

__all__ = ["power_view"]

COUNTS = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
"""The numbers of seeds that are forecast for a study without a plan of looks."""


def power_view(planned: PlannedStudy, runs: Path, power: float, time_estimate: TimeEstimate, workers: int) -> Group:
    """Returns a table of the comparisons that each number of seeds beyond the present one would decide with this power,
    and of the time that this takes.

    Raises ConfigError for a power that is none, and where no comparison has an interval.
    """
    from reports.judge.forecast import forecast

    if not 0.5 <= power < 1:
        raise ConfigError(f"a power lies from 0.5 to less than 1; got {power:g}", "--power")
    plan = planned.plan
    looks = plan.looks
    comparisons = comparisons_of(runs, plan)
    seeds = max((one.estimate.seeds for one in comparisons if one.estimate and one.estimate.variances), default=0)
    if not seeds:
        raise ConfigError(
            f"no comparison has an interval, whose width is needed; do two seeds first: {plan.commands['run']}",
            f"study {plan.study}",
        )
    counts = [count for count in (looks.planned if looks else COUNTS) if count > seeds]
    rows = forecast(comparisons, counts, looks, power)
    table = plain_table("seeds", "runs more", "time", "differ", "equal", "undecided")
    total_runs, total_time, before = 0, 0.0, {arm.name: len(arm.runs) for arm in plan.arms}
    for row in rows:
        for arm in plan.arms:
            if looks is None or arm.name in row.arms:
                more = max(0, row.seeds - before[arm.name])
                total_runs, total_time = total_runs + more, total_time + more * time_estimate.seconds[arm.runs[0].key]
                before[arm.name] += more
        names = [Text(", ".join(row.undecided) or "none")]
        table.add_row(
            str(row.seeds),
            str(total_runs),
            clock(total_time / workers),
            str(len(row.different)),
            str(len(row.equal)),
            *names,
        )
        if not row.undecided:
            break
    origin = "at its planned looks" if looks else "if they were planned from the start"
    heading = f"With a power of {power:g}, by the differences and variances of {seeds} seeds, {origin}:"
    workers_text = "1 worker" if workers == 1 else f"{workers} workers"
    return Group(Text(heading, style="bold"), table, Text(f"time with {workers_text}, {time_estimate.basis}"))
