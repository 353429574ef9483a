"""Trains the runs of planned studies, on this machine or on a cluster, one look after another."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from ablations.looks import arms_begun_anew, at_present_look, next_look
from ablations.plan import PlannedStudy
from ablations.plan_report import WrittenReport, write_report
from ablations.rates import keep_rates, plan_rates
from ablations.study_context import keep_context
from ablations.study_floors import missing_floors
from lit_transformers.cli.console import SteadyConsole
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan
from lit_transformers.wandb_target import NO_TARGET, WandbTarget
from sweeps.launchers.devices import cuda_devices
from sweeps.launchers.limits import parse_bytes, parse_seconds
from sweeps.launchers.share import Share, memory_of, require_cores, share_machine
from sweeps.live import Board, Row

if TYPE_CHECKING:
    from ablations.launchers import RemoteLauncher
    from sweeps.launchers.local import Options, Summary

__all__ = [
    "LaunchSettings",
    "Limits",
    "Stopped",
    "deadline_of",
    "launch_rows",
    "limits_of",
    "survey_plan",
    "survey_to_train",
    "take_looks",
    "train_left",
    "train_rates",
    "train_study",
    "warn",
]

err = SteadyConsole(stderr=True)


class Limits(NamedTuple):
    """The limits of one run: the seconds it may take, the bytes it may hold, and the bytes it declares to need."""

    seconds: float | None = None
    memory: int | None = None
    needed: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class LaunchSettings:
    """How the runs of a study are launched.

    workers, threads: runs at a time and threads of each, by default as they fit this machine. retry_failed: whether
    runs that failed by themselves are tried again. wandb: whether and where they are sent. loggers: by which each run
    is shown besides. storage: the address of the ledger. remote: does the runs on a cluster, in place of this machine.
    deadline: the monotonic time at which runs stop, to be resumed later.
    """

    workers: int | None = None
    threads: int | None = None
    limits: Limits = NO_LIMITS
    retry_failed: bool = False
    wandb: WandbTarget = NO_TARGET
    loggers: tuple[str, ...] = ()
    storage: str | None = None
    remote: RemoteLauncher | None = None
    deadline: float | None = None

    def options(self, planned: PlannedStudy, todo: int) -> Options:
        """Returns the options of a plan's runs, of which ``todo`` are left, with their share of this machine.

        Raises ConfigError where a CUDA device is required and there is none, or a run has more ranks than cores or
        devices.
        """
        from sweeps.launchers.local import Options

        return Options(
            planned.runner,
            Share(1, 1) if self.remote else self._share(planned, todo),
            planned.metric,
            self.retry_failed,
            planned.study,
            self.wandb._replace(metric=planned.metric, goal=planned.plan.goal),
            planned.folder,
            self.limits.seconds,
            self.limits.memory,
            self.deadline,
            self.loggers,
            parameters={arm: cost["parameters"] for arm, cost in planned.costs.items()},
        )

    def _share(self, planned: PlannedStudy, todo: int) -> Share:
        """Returns the share of this machine that each run gets."""
        settings = [config.get("training") or {} for config in planned.configs.values()]
        devices = {training.get("device") for training in settings}
        cuda = bool(devices & {"auto", "cuda"}) and bool(cuda_devices())
        ranks = max(training.get("devices", 1) for training in settings)
        memory = self.limits.needed
        if memory is None and not cuda:  # on a CUDA device it is not known without trying
            memory = ranks * memory_of(int(max(cost["parameters"] or 0 for cost in planned.costs.values())))
        if "cuda" in devices and not cuda:
            raise ConfigError(
                "no CUDA device is to be found here; take another machine, or --device cpu", "training.device"
            )
        if not cuda:
            require_cores(ranks)
        return share_machine(todo, self.workers, self.threads, cuda=cuda, ranks=ranks, memory=memory)


class Stopped(KeyboardInterrupt):
    """A signal stopped the runs; their progress is stored."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; run it again to resume")
        self.number = number
        """Of the signal."""


def limits_of(time_limit: str | None, memory_limit: str | None, memory_per_run: str | None) -> Limits:
    """Parses the options that limit a run. Raises ConfigError that names the option."""
    return Limits(
        parse_seconds(time_limit, "--time-limit") if time_limit else None,
        parse_bytes(memory_limit, "--memory-limit") if memory_limit else None,
        parse_bytes(memory_per_run, "--memory-per-run") if memory_per_run else None,
    )


def deadline_of(until_decided: bool, max_hours: float | None, seeds: int | None) -> float | None:
    """Returns the monotonic time at which looks end, or None. Raises ConfigError for options at odds."""
    if until_decided and seeds:
        raise ConfigError("the looks of the study say how many seeds; give one of both", "--seeds")
    if max_hours is None:
        return None
    if not until_decided or not max_hours > 0:
        raise ConfigError("goes with --until decided, and is above zero", "--max-hours")
    return time.monotonic() + 3600 * max_hours


def survey_plan(
    planned: PlannedStudy, runs: Path, *, retry_failed: bool = False, time_limit: float | None = 0.0
) -> tuple[list[Row], list[str]]:
    """Returns a row for every run, filled from its record, and notes about damaged records."""
    from sweeps.survey import survey

    rows, notes = survey(runs, planned.tickets(), planned.metric, retry_failed=retry_failed, time_limit=time_limit)
    return planned.needed(rows), notes


def survey_to_train(planned: PlannedStudy, runs: Path, settings: LaunchSettings) -> list[Row]:
    """Returns a row for every run, filled from its record where it need not be repeated; prints notes on damaged
    files."""
    limit = settings.limits.seconds
    rows, notes = survey_plan(planned, runs, retry_failed=settings.retry_failed, time_limit=limit)
    warn(notes)
    return rows


def warn(notes: Iterable[str]) -> None:
    """Prints each note, on a damaged file that was set aside, as a line on standard error."""
    for note in notes:
        err.print(note, markup=False, highlight=False, soft_wrap=True)


def take_looks(
    whole: PlannedStudy,
    seeds: int | None,
    runs: Path,
    settings: LaunchSettings,
    console: Console,
    report: Console,
    *,
    until_decided: bool = False,
    unmatched: bool = False,
    full: bool = False,
) -> tuple[Plan, list[Row]]:
    """Trains the runs of a study that have not ended and writes its report; returns the plan and the rows of its last
    look.

    whole: the study with the seeds of all its looks, of which the present one comes first. seeds: those that were
    requested, as of ``at_present_look``. console: shows how runs stand; report: shows the report. until_decided: takes
    one planned look after another, until all comparisons are decided, no look is left, or time is up; otherwise no look
    is taken beyond the present one, to which arms come that were repaired. unmatched: gives verdicts between arms whose
    budgets differ, too. full: prints every table of the last report; each earlier look is one line.
    Raises ConfigError where looks are to be taken of a study that states none, and Stopped where a signal stopped runs.
    """
    if until_decided and whole.plan.looks is None:
        raise ConfigError("it states no looks to take; write seeds=Looks(3, 6, 10, 16) in it", f"study {whole.study}")
    planned = at_present_look(whole, runs, seeds)
    planned.require_all_seeds(runs)
    if anew := arms_begun_anew(whole, runs):
        changed = "all arms" if len(anew) == len(whole.plan.arms) else ", ".join(anew)
        text = f"configs, data or code have changed since a look was taken: of {changed} the looks begin anew"
        console.print(f"{whole.study}: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    while True:
        rows = train_study(planned, runs, settings, console)
        keep_context(runs, planned, console)
        written = write_report(runs, planned.plan, unmatched=unmatched)
        is_late = settings.deadline is not None and time.monotonic() > settings.deadline
        later = None if is_late else _later_look(whole, written, until_decided)
        is_complete = later is None and not is_late and all(row.state.over for row in rows)
        if is_complete and train_rates(
            planned, runs, settings, console, before=partial(written.print_before_rates_to, report)
        ):
            written = write_report(runs, written.plan, unmatched=unmatched)
        if later is None:
            written.print_to(report, full)
        else:
            written.print_look_to(report, later.plan.seeds)
        if absence := records_elsewhere(runs, rows):
            report.print(absence, style="yellow", markup=False, highlight=False, soft_wrap=True)
        if is_late:
            console.print("Time is up. Run the same command to resume.", style="yellow")
        if later is None:
            return written.plan, rows
        planned = later


def _later_look(whole: PlannedStudy, written: WrittenReport, until_decided: bool) -> PlannedStudy | None:
    """Returns the study at its next look; None where the present one is the last, or is not complete."""
    plan = written.plan
    if plan.looks is None or plan.seeds not in plan.looks.taken:
        return None
    if not until_decided and min(len(arm.runs) for arm in plan.arms) == plan.seeds:
        return None  # no arm lags behind the present look
    return next_look(whole, plan, written.findings.comparisons, last=None if until_decided else plan.seeds)


def records_elsewhere(runs: Path, rows: Iterable[Row]) -> str | None:
    """Returns a sentence on the runs that have finished for a ledger which several folders of runs share, and whose
    records no report of this folder can read; None where there is none."""
    from sweeps.ledger.run_records import read_record
    from sweeps.ledger.ticket import State

    finished = [row for row in rows if row.state == State.FINISHED]
    absent = [row for row in finished if read_record(row.ticket.directory(runs)).record is None]
    if not absent:
        return None
    places = "; ".join(sorted({str(row.reason) for row in absent}))
    return (
        f"{len(absent)} of {len(finished)} finished runs are in other folders than {runs} ({places}), so the report is "
        "without them: copy their folders here and run the same command again, or let all workers share one --runs"
    )


def train_study(planned: PlannedStudy, runs: Path, settings: LaunchSettings, console: Console) -> list[Row]:
    """Trains the runs that are left of a planned study, whose plan and floors it writes, and returns a row for every
    run. Raises Stopped where a signal stopped them."""
    from ablations.estimate import estimate
    from ablations.show import preliminary_view, remaining_work

    rows = survey_to_train(planned, runs, settings)
    todo = sum(not row.state.over for row in rows)
    floors = cache(partial(missing_floors, runs, planned, todo, console))
    if not todo:
        if floors() is not None:
            planned.write(runs, floors())
        return rows
    options = settings.options(planned, todo)
    if settings.remote is None:
        times = estimate(planned, runs)
        ended = times.seconds.keys() - {row.ticket.key for row in rows if not row.state.over}
        work = remaining_work(times, ended, options.share.workers)
        console.print(f"{planned.study}: {work}", markup=False)
    board = Board(console, planned.metric, partial(preliminary_view, planned.plan), planned.plan.labels)
    return _trained(runs, rows, options, settings, board, floors, lambda: planned.write(runs, floors()))


def train_left(
    planned: PlannedStudy, runs: Path, rows: list[Row], settings: LaunchSettings, console: Console
) -> list[Row]:
    """Trains the runs that are left of ``rows`` and nothing else: the plan of the study is not written. Returns a row
    for every run. Raises Stopped where a signal stopped them."""
    todo = sum(not row.state.over for row in rows)
    if not todo:
        return rows
    board = Board(console, planned.metric, labels=planned.plan.labels)
    return _trained(runs, rows, settings.options(planned, todo), settings, board)


def train_rates(
    planned: PlannedStudy, runs: Path, settings: LaunchSettings, console: Console,
    before: Callable[[int], None] = lambda left: None,
) -> bool:  # fmt: skip
    """Trains the runs at other learning rates that the plan states and that have not ended, writes their values next to
    the plan, and prints why runs have none. Returns whether the plan states any. Raises Stopped where a signal stopped
    the runs: the same command resumes them.

    before: called with the number of runs that are left, if there are any, before they begin."""
    from sweeps.process.call import call_forked

    rates = planned.plan.rates
    if rates is None:
        return False
    scaled = call_forked(planned.runner, plan_rates, planned, rates)
    rows = survey_to_train(scaled, runs, settings)
    if left := sum(not row.state.over for row in rows):
        before(left)
    train_left(scaled, runs, rows, settings, console)
    for reason in keep_rates(runs, planned, scaled, rates):
        console.print(reason, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return True


def launch_rows(
    runs: Path, rows: list[Row], options: Options, settings: LaunchSettings, board: Board,
    prepare: Callable[[], object] = lambda: None, begin: Callable[[], None] = lambda: None,
) -> Summary:  # fmt: skip
    """Launches runs under the live table, on this machine or a cluster.

    prepare: called once the ledger is open and a cluster answers, for preparations that take long. begin: called once
    the cluster has accepted the runs. Raises ConfigError, before either, where a ledger, a cluster or W&B is not to be
    reached.
    """
    from sweeps.launchers.local import launch
    from sweeps.ledger.ledger import Ledger
    from sweeps.wandb.connection import require_connection

    require_connection(settings.wandb)
    ledger = Ledger(runs, settings.storage)
    try:
        warn(ledger.notes)
        if settings.remote is not None:
            settings.remote.require_available()
        prepare()
        if settings.remote is not None:
            return settings.remote.launch(runs, ledger, board, rows, options, begin=begin)
        begin()
        return launch(runs, ledger, board, rows, options)
    finally:
        ledger.close()


def _trained(
    runs: Path, rows: list[Row], options: Options, settings: LaunchSettings, board: Board,
    prepare: Callable[[], object] = lambda: None, begin: Callable[[], None] = lambda: None,
) -> list[Row]:  # fmt: skip
    """Launches runs and returns their rows; those that stopped at the deadline are returned as they are."""
    summary = launch_rows(runs, rows, options, settings, board, prepare, begin)
    if summary.stopped_by is not None and summary.stopped_by != signal.SIGALRM:
        raise Stopped(summary.stopped_by)
    return list(summary.rows)
