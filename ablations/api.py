"""Studies from Python: ``from ablations import run_study`` does what ``python -m ablations run`` does, in the same
folders, and returns the comparisons as a pandas DataFrame."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ablations.ablation import Ablation
from ablations.context import keep_context
from ablations.floors import missing_floors
from ablations.looks import at_present_look, next_look
from ablations.options import (
    launched,
    limits_of,
    options_for,
    request_of,
    share_for,
    survey_plan,
    warn,
    whole_plan_for,
)
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.results import comparisons_of, write_report
from lit_transformers.config import ConfigError, Plain
from lit_transformers.plugins import load_plugins
from lit_transformers.records.plan import Plan
from sweeps.ledger.ticket import State
from sweeps.live import Board
from sweeps.store import opened

if TYPE_CHECKING:
    import pandas

    from reports.judge.comparisons import Comparison

__all__ = ["comparisons", "run_study"]

NUMBERS = ("difference", "low", "high", "p", "p_holm", "margin", "p_equal", "detectable", "seeds_needed")
"""The columns of numbers that may be missing."""
COLUMNS = (
    "comparison", "kind", "difference", "low", "high", "p", "p_holm", "verdict", "reason", "margin", "p_equal",
    "seeds", "documents", "detectable", "seeds_needed",
)  # fmt: skip
StudyLike = Ablation | str | Path
"""A study by its name, by the path of its file, or as an object, which is given a name beside it."""


def run_study(
    study: StudyLike,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    scale: str = "demo",
    changes: Mapping[str, Plain] | None = None,
    seeds: int | None = None,
    until_decided: bool = False,
    device: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    retry_failed: bool = False,
    unmatched: bool = False,
    progress: bool = True,
) -> pandas.DataFrame:
    """Trains every arm of a study, writes its report, and returns its comparisons, a row each (``comparisons``).

    Finished runs are read, not repeated: interrupted, by Ctrl-C or a kill, the same call goes on, and so does the
    command. A run that fails is a warning, and its comparisons have a ``reason`` in place of numbers.

    study: a name, the path of a .py file, or an ``Ablation``. name: of the folder of an ``Ablation``; runs are done in
    processes of their own, so what its configs name can be imported there: parts of your own are plug-ins.
    changes: values by paths of the baseline's config, as of ``--set``. until_decided: takes one planned look after
    another. progress: prints how runs stand; errors and warnings come in any case. runs: a folder, or the address of a
    store (``s3://bucket/prefix``).
    Raises ConfigError or DataError before anything starts, and KeyboardInterrupt where a signal stopped the runs.
    """
    request = request_of(scale, _assignments(changes), seeds, device)
    with opened(runs) as folder:
        return _run_study(
            study, name, folder, request, until_decided, workers, threads, retry_failed, unmatched, progress
        )


def _run_study(
    study: StudyLike, name: str | None, folder: Path, request: Request, until_decided: bool, workers: int | None,
    threads: int | None, retry_failed: bool, unmatched: bool, progress: bool,
) -> pandas.DataFrame:  # fmt: skip
    """Does what ``run_study`` does, in a folder of this machine."""
    seeds, whole = request.seeds, _whole_plan(study, name, folder, request)
    if until_decided and (whole.plan.looks is None or seeds):
        raise ConfigError("until_decided is of a study with seeds=Looks(...), and goes without seeds", whole.study)
    planned: PlannedStudy | None = at_present_look(whole, folder, seeds)
    console = Console(quiet=not progress)
    while planned is not None:
        planned.require_all_seeds(folder)
        _train(planned, folder, workers, threads, retry_failed, console)
        keep_context(folder, planned, console)
        plan = write_report(folder, planned.plan, Console(quiet=True), unmatched=unmatched)
        looks = plan.looks
        if not until_decided or looks is None or plan.seeds not in looks.taken:
            break
        planned = next_look(whole, plan, comparisons_of(folder, plan, unmatched=unmatched))
    return _frame(folder, plan, unmatched)


def comparisons(
    study: StudyLike,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    scale: str = "demo",
    changes: Mapping[str, Plain] | None = None,
    seeds: int | None = None,
    device: str | None = None,
    unmatched: bool = False,
) -> pandas.DataFrame:
    """Returns the comparisons of the runs that are there, a row each, in the order of the report; trains nothing.

    The columns: comparison and kind; difference, low and high, the ends of its 95 % interval, in units of the metric
    or, where it compares by ratio, of its natural logarithm; p, and p_holm after Holm's correction; verdict (better,
    worse, equal, differs, unresolved); reason, where there is no verdict; margin and p_equal, of what is equal;
    seeds; documents, over which the estimate was resampled; detectable, the smallest difference that could have been
    seen; seeds_needed, which would decide. What is not known is missing (NaN). ``attrs`` has the study, the metric
    with its goal and label, and the folder of the report.
    """
    request = request_of(scale, _assignments(changes), seeds, device)
    with opened(runs) as folder:
        planned = at_present_look(_whole_plan(study, name, folder, request), folder, seeds)
        return _frame(folder, planned.plan, unmatched)


def _assignments(changes: Mapping[str, Plain] | None) -> list[str]:
    """Returns changes as ``--set`` takes them, so that both have the same folder."""
    return [f"{path}={json.dumps(value)}" for path, value in (changes or {}).items()]


def _whole_plan(study: StudyLike, name: str | None, runs: Path, request: Request) -> PlannedStudy:
    """Returns the plan of a study with the seeds of all its looks. Raises ConfigError for a missing or extra name."""
    if not isinstance(study, Ablation):
        if name is not None:
            raise ConfigError("a study of a file has the file's name; leave name out", str(study))
        return whole_plan_for(str(study), runs, request, in_server=True)
    if name is None or not name.isidentifier():
        raise ConfigError(f"an Ablation is run under a name such as name='longer_memory'; got {name!r}", "run_study")
    load_plugins()
    planned = make_plan(name, study, request, runs=runs)
    return replace(planned, plan=replace(planned.plan, commands={}))  # no command knows an object


def _train(
    planned: PlannedStudy, runs: Path, workers: int | None, threads: int | None, retry_failed: bool, console: Console
) -> None:
    """Does the runs that are left. Raises KeyboardInterrupt where a signal stopped them."""
    rows, notes = survey_plan(planned, runs, retry_failed=retry_failed)
    warn(notes)
    todo = sum(not row.state.over for row in rows)
    floors = missing_floors(runs, planned, todo, console)
    if todo:
        share = share_for(planned, todo, workers, threads)
        options = options_for(planned, share, limits_of(None, None, None), retry_failed=retry_failed, wandb="disabled")
        board = Board(console, planned.metric)
        summary = launched(runs, rows, options, None, begin=lambda: planned.write(runs, floors), board=board)
        if summary.stopped_by is not None:
            raise KeyboardInterrupt("stopped; the same call goes on")
        rows = list(summary.rows)
    elif floors is not None:
        planned.write(runs, floors)
    for row in rows:
        if row.state in (State.FAILED, State.INVALID):
            warnings.warn(f"{row.ticket.arm}, seed {row.ticket.seed}, {row.state.value}: {row.reason}", stacklevel=3)


def _row(comparison: Comparison) -> tuple[object, ...]:
    """Returns the values of a comparison in the order of COLUMNS."""
    estimate = comparison.estimate
    low, high = estimate.interval if estimate and estimate.interval else (None, None)
    return (
        comparison.name,
        comparison.kind,
        estimate.difference if estimate else None,
        low,
        high,
        estimate.p if estimate else None,
        comparison.adjusted,
        comparison.verdict,
        comparison.reason,
        comparison.margin,
        comparison.equality,
        estimate.seeds if estimate else 0,
        comparison.documents,
        comparison.detectable,
        comparison.seeds_needed,
    )


def _frame(runs: Path, plan: Plan, unmatched: bool) -> pandas.DataFrame:
    """Returns the comparisons of a plan as a DataFrame."""
    import pandas

    rows = [_row(comparison) for comparison in comparisons_of(runs, plan, unmatched=unmatched)]
    frame = pandas.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    frame.attrs = {
        "study": plan.study,
        "metric": plan.metric.name,
        "goal": plan.metric.goal,
        "label": plan.metric.title,
        "compare": plan.metric.compare,
        "report": str(runs / "studies" / plan.folder / "report"),
    }
    return frame
