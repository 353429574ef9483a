"""Studies from Python: ``from ablations import run_study`` runs a study as ``python -m ablations run`` does, in the
same folders, and returns the comparisons as a pandas DataFrame."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console

from ablations.ablation import Ablation
from ablations.launchers import LauncherName, RemoteLauncher, remote_launcher, require_fitting
from ablations.looks import at_present_look
from ablations.options import request_of, whole_plan_for
from ablations.plan import PlannedStudy, Request, make_plan
from ablations.plan_report import comparisons_of
from ablations.training import LaunchSettings, deadline_of, limits_of, take_looks
from lit_transformers.cli.callback_options import callback_assignments, chosen_loggers
from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.plugins import load_plugins
from lit_transformers.records.plan import Plan
from lit_transformers.wandb_target import WandbMode, wandb_target
from sweeps.ledger.ticket import State
from sweeps.object_store import opened

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
"""A study by its name, by the path of its file, or as an object, whose name is a separate argument."""


def run_study(
    study: StudyLike,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    scale: str = "demo",
    changes: Mapping[str, Plain] | None = None,
    seeds: int | None = None,
    until_decided: bool = False,
    max_hours: float | None = None,
    device: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    launcher: LauncherName = "local",
    launcher_options: Mapping[str, Plain] | None = None,
    storage: str | None = None,
    time_limit: str | None = None,
    memory_limit: str | None = None,
    memory_per_run: str | None = None,
    callbacks: Sequence[str] = (),
    loggers: Sequence[str] = (),
    wandb: WandbMode = "disabled",
    project: str | None = None,
    entity: str | None = None,
    tags: Sequence[str] | None = None,
    retry_failed: bool = False,
    unmatched: bool = False,
    rates: int | None = None,
    progress: bool = True,
) -> pandas.DataFrame:
    """Trains every arm of a study, writes its report, and returns its comparisons, a row each (``comparisons``).

    Finished runs are read, not repeated: after an interruption, by Ctrl-C or a kill, the same call resumes the study,
    and so does the command. A run that fails is a warning, and its comparisons have a ``reason`` in place of numbers.

    study: a name, the path of a .py file, or an ``Ablation``. name: of the folder of an ``Ablation``; runs are done in
    separate processes, which must be able to import everything that its configs name: your own parts are plug-ins.
    runs: a folder, or the address of a store (``s3://bucket/prefix``). changes: values by paths of the baseline's
    config, as of ``--set``. until_decided: takes one planned look after another, for at most ``max_hours``.
    launcher_options: those of ``--slurm`` or ``--ray``: ``launcher="ray", launcher_options={"address": "auto"}``.
    The others are the options of ``python -m ablations run`` of the same names, with the same values: a time limit is
    ``"2h"``, a memory limit ``"4GiB"``, a callback ``"module.Class{patience: 3}"``, a logger ``"csv"``, tags a list.
    progress: prints how runs stand; errors and warnings come in any case.
    Raises ConfigError or DataError before anything starts, and KeyboardInterrupt where a signal stopped the runs.
    """
    of_this_machine = {"--workers": workers, "--threads": threads, "--memory-per-run": memory_per_run}
    options = [f"{option}={value}" for option, value in (launcher_options or {}).items()]
    require_fitting(launcher, {}, of_this_machine)
    deadline = deadline_of(until_decided, max_hours, seeds)
    limits = limits_of(time_limit, memory_limit, memory_per_run)
    chosen = chosen_loggers(loggers, wandb)
    target = wandb_target(chosen.wandb, project, entity, None if tags is None else ",".join(tags))
    request = request_of(scale, [*_assignments(changes), *callback_assignments(callbacks)], seeds, device)
    console = Console(quiet=not progress)
    with opened(runs) as folder:
        whole = _whole_plan(study, name, folder, request).with_rates(rates)
        remote = _remote_launcher(launcher, options, storage, study, folder, request)
        settings = LaunchSettings(
            workers, threads, limits, retry_failed, target, chosen.names, storage, remote, deadline
        )
        plan, rows = take_looks(
            whole, seeds, folder, settings, console, Console(quiet=True),
            until_decided=until_decided, unmatched=unmatched,
        )  # fmt: skip
        for row in rows:
            if row.state in (State.FAILED, State.INVALID):
                reason = f"{row.state.value}: {row.reason}"
                warnings.warn(f"{row.ticket.arm}, seed {row.ticket.seed}, {reason}", stacklevel=2)
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
    worse, equal, differs, unresolved); reason, where there is no verdict; margin and p_equal, of the test of equality;
    seeds; documents, over which the estimate was resampled; detectable, the smallest difference that could have been
    seen; seeds_needed, which would decide. Unknown values are missing (NaN). ``attrs`` has the study, the metric
    with its goal and label, and the folder of the report.
    """
    request = request_of(scale, _assignments(changes), seeds, device)
    with opened(runs) as folder:
        planned = at_present_look(_whole_plan(study, name, folder, request), folder, seeds)
        return _frame(folder, planned.plan, unmatched)


def _remote_launcher(
    launcher: str, options: Sequence[str], storage: str | None, study: StudyLike, runs: Path, request: Request
) -> RemoteLauncher | None:
    """Returns the launcher of a cluster, None for this machine.

    Raises ConfigError for options without a cluster, and for an object on SLURM, whose job of the report reads a file.
    """
    if launcher not in get_args(LauncherName):
        raise ConfigError(f"no launcher {launcher!r}; {nearest(launcher, get_args(LauncherName))}", "launcher")
    if launcher == "local" and options:
        raise ConfigError(
            "are those of a cluster; add launcher='slurm' or 'ray', or leave them out", "launcher_options"
        )
    if launcher == "slurm" and isinstance(study, Ablation):
        raise ConfigError("an Ablation has no file that a job of SLURM could read; write it into one", "run_study")
    return remote_launcher(launcher, options, storage, (str(study), runs, request))


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
        "goal": plan.goal,
        "label": plan.metric.title,
        "compare": plan.metric.compare,
        "report": str(runs / "studies" / plan.folder / "report"),
    }
    return frame
