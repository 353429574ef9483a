"""The options of commands that take a study, and how its runs are planned, share the machine and are trained."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from rich.console import Console

from ablations import catalog
from ablations.cache import cached_plan
from ablations.looks import at_present_look
from ablations.plan import PlannedStudy, Request, make_plan
from lit_transformers.config import ConfigError
from sweeps.launchers.limits import parse_bytes, parse_seconds
from sweeps.launchers.share import Share, cuda_devices, memory_of, require_cores, share_machine
from sweeps.live import Board, Row

if TYPE_CHECKING:
    from ablations.launchers import RemoteLauncher
    from sweeps.launchers.local import Options, Summary

out, err = Console(), Console(stderr=True)
SCALES = ("demo", "hour", "gpu", "paper")
"""The scales that a study usually has."""


def _complete_study(incomplete: str) -> list[str]:
    """Returns the names of studies that begin with what is typed, for the completion of a shell."""
    return [name for name in (*catalog.own_names(), *catalog.names()) if name.startswith(incomplete)]


def _complete_scale(incomplete: str) -> list[str]:
    """Returns the usual scales that begin with what is typed."""
    return [name for name in SCALES if name.startswith(incomplete)]


Study = Annotated[
    str,
    typer.Argument(
        help="A study's name, or the path of a .py file that defines ABLATION.", autocompletion=_complete_study
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        help="demo: minutes on a CPU; hour: on text, where a study has it; gpu: one GPU; paper: as published.",
        autocompletion=_complete_scale,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override the baseline, e.g. model.dim=64. Repeatable."),
]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.", show_default="the study's own")]
Until = Annotated[
    Literal["decided"] | None,
    typer.Option("--until", help="Take one planned look after another until all comparisons are decided."),
]
MaxHours = Annotated[
    float | None, typer.Option("--max-hours", metavar="H", help="With --until: stop after H hours, to go on later.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda: short for --set training.device=...")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs at a time.", show_default="one a core or GPU")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads a run.", show_default="OMP_NUM_THREADS, else cores / workers"),
]
Retry = Annotated[
    bool, typer.Option("--retry-failed", help="Try again what failed by itself, not only what was killed.")
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", metavar="TIME", help="What a run may take, 2h: then it fails, with a checkpoint."),
]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="What a run may hold, 4GiB: with more it fails.")
]
MemoryPerRun = Annotated[
    str | None,
    typer.Option(
        "--memory-per-run", metavar="SIZE", help="What a run needs: so many at a time.", show_default="estimated"
    ),
]
Wandb = Annotated[
    Literal["disabled", "offline", "online"],
    typer.Option("--wandb", help="Sends every run to Weights & Biases; costs each run about a second."),
]
WithMixer = Annotated[
    bool, typer.Option("--with-mixer-space", help="Search what an arm's mixer declares too: windows, ranks, blocks.")
]
TRIALS = 12
"""Trials of each arm, where nothing else is asked for."""


class Limits(NamedTuple):
    """The limits of one run: the seconds it may take, the bytes it may hold, and the bytes it declares to need."""

    seconds: float | None
    memory: int | None
    needed: int | None


def limits_of(time_limit: str | None, memory_limit: str | None, memory_per_run: str | None) -> Limits:
    """Parses the options that limit a run. Raises ConfigError that names the option."""
    return Limits(
        parse_seconds(time_limit, "--time-limit") if time_limit else None,
        parse_bytes(memory_limit, "--memory-limit") if memory_limit else None,
        parse_bytes(memory_per_run, "--memory-per-run") if memory_per_run else None,
    )


def request_of(scale: str, changes: list[str] | None, seeds: int | None, device: str | None) -> Request:
    """Builds the request from the options that select a study's runs."""
    return Request(scale, (*(changes or ()), *([f"training.device={device}"] if device else ())), seeds)


def plan_for(study: str, runs: Path, request: Request, *, in_server: bool = False) -> PlannedStudy:
    """Returns the plan of a study at its present look. in_server: as of ``whole_plan_for``."""
    return at_present_look(whole_plan_for(study, runs, request, in_server=in_server), runs, request.seeds)


def whole_plan_for(study: str, runs: Path, request: Request, *, in_server: bool = False) -> PlannedStudy:
    """Returns the plan of a study with the seeds of all its looks, from the cache where it still holds.

    in_server: runs or measurements will follow, so a study of models of this package is planned in a process forked
    from the server, and torch is imported once for all of them.
    """
    path = catalog.find(study)

    def make() -> PlannedStudy:
        with err.status(f"planning {path.stem}"):
            if in_server and catalog.uses_own_models(path):
                from sweeps.process.call import call_forked

                return call_forked(catalog.RUNNER, load_and_plan, path, request, runs, study)
            return load_and_plan(path, request, runs, study)

    return cached_plan(runs, path, study, request, make)


def load_and_plan(path: Path, request: Request, runs: Path, typed: str) -> PlannedStudy:
    """Plans the study of a file. typed: the study as the command line names it."""
    return make_plan(path.stem, catalog.load(path), request, runs=runs, typed=typed)


def survey_plan(
    planned: PlannedStudy, runs: Path, *, retry_failed: bool = False, time_limit: float | None = 0.0
) -> tuple[list[Row], list[str]]:
    """Returns a row for every run, filled from its record, and notes about damaged records."""
    from sweeps.survey import survey

    return survey(runs, planned.tickets(), planned.metric, retry_failed=retry_failed, time_limit=time_limit)


def share_for(
    planned: PlannedStudy, todo: int, workers: int | None, threads: int | None, memory: int | None = None
) -> Share:
    """Returns the share of the machine that each run gets; ``memory`` is the bytes that a run declares to need.

    Raises ConfigError where a CUDA device is required and there is none, or a run has more ranks than cores or devices.
    """
    settings = [config.get("training") or {} for config in planned.configs.values()]
    devices = {training.get("device") for training in settings}
    cuda = bool(devices & {"auto", "cuda"}) and bool(cuda_devices())
    ranks = max(training.get("devices", 1) for training in settings)
    if memory is None and not cuda:  # on a CUDA device it is not known without trying
        memory = ranks * memory_of(int(max(cost["parameters"] or 0 for cost in planned.costs.values())))
    if "cuda" in devices and not cuda:
        raise ConfigError(
            "no CUDA device is to be found here; take another machine, or --device cpu", "training.device"
        )
    if not cuda:
        require_cores(ranks)
    return share_machine(todo, workers, threads, cuda=cuda, ranks=ranks, memory=memory)


def options_for(
    planned: PlannedStudy,
    share: Share,
    limits: Limits,
    *,
    retry_failed: bool,
    wandb: str,
    loggers: tuple[str, ...] = (),
    deadline: float | None = None,
) -> Options:
    """Builds the launch options of a plan's runs. deadline: the monotonic time at which they stop."""
    from sweeps.launchers.local import Options

    return Options(
        planned.runner,
        share,
        planned.metric,
        retry_failed,
        planned.study,
        wandb,
        limits.seconds,
        limits.memory,
        deadline,
        loggers,
    )


def warn(notes: Iterable[str]) -> None:
    """Prints each note, of what was damaged and set aside, as a line on standard error."""
    for note in notes:
        err.print(note, markup=False, highlight=False, soft_wrap=True)


def launched(
    runs: Path, rows: list[Row], options: Options, storage: str | None, remote: RemoteLauncher | None = None,
    begin: Callable[[], None] = lambda: None, board: Board | None = None,
) -> Summary:  # fmt: skip
    """Does the runs under the live table, on this machine or by ``remote``.

    begin: called once the ledger is open and a cluster has accepted the runs. board: shows the runs.
    """
    from sweeps.launchers.local import launch
    from sweeps.ledger.ledger import Ledger

    ledger, board = Ledger(runs, storage), board or Board(out, options.metric)
    try:
        warn(ledger.notes)
        if remote is not None:
            return remote(runs, ledger, board, rows, options, begin=begin)
        begin()
        return launch(runs, ledger, board, rows, options)
    finally:
        ledger.close()


def train(
    runs: Path, rows: list[Row], options: Options, storage: str | None, remote: RemoteLauncher | None = None,
    begin: Callable[[], None] = lambda: None, board: Board | None = None,
) -> list[Row]:  # fmt: skip
    """Does the runs and returns their rows. Where a signal stopped them, raises typer.Exit with 128 plus its number;
    runs that stopped at the deadline are returned as they are."""
    summary = launched(runs, rows, options, storage, remote, begin, board)
    if summary.stopped_by is not None and summary.stopped_by != signal.SIGALRM:
        out.print("stopped; run the same command to go on", style="yellow")
        raise typer.Exit(128 + summary.stopped_by)
    return list(summary.rows)
