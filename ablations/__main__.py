"""``python -m ablations``: the command line that lists, plans, runs and reports ablation studies."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console

from ablations import catalog
from ablations.cache import cached_plan
from ablations.launchers import cluster_for, require_fitting
from ablations.plan import Plan, Request, make_plan, read_plan_document
from ablations.results import write_report
from lit_transformers.config import ConfigError
from lit_transformers.runner import load_runner
from sweeps.limits import parse_bytes, parse_seconds
from sweeps.live import Board, Row
from sweeps.share import Share, cuda_devices, memory_of, require_cores, share_machine
from sweeps.study_folder import folder_name
from sweeps.ticket import State

if TYPE_CHECKING:
    from sweeps.launch import Options, Summary
    from sweeps.slurm import Cluster

HELP = """Ask a question of a model: runs every arm over several seeds, and reports the differences with intervals.

A study is one file in ablations/studies; its name, or the path of a file of your own, is what STUDY means below.
"""

EXAMPLES = """Examples:

python -m ablations list                                       what can be asked

python -m ablations plan xl_recurrence                         what it will take, before anything is trained

python -m ablations run xl_recurrence                          train and report; stop it and run it again at will

python -m ablations run xl_recurrence --seeds 5                two seeds more: the three that are there are kept

python -m ablations run xl_recurrence --set training.steps=50  a quick look, with a report of its own

python -m ablations run xl_recurrence --scale gpu --device cuda

python -m ablations run xl_recurrence --scale gpu --devices 2  every run by two ranks, which torchrun starts

python -m ablations run xl_recurrence --launcher slurm --slurm partition=gpu --slurm gpus_per_node=1 --slurm time=2h

python -m ablations new longer_memory                          a study of your own, from a commented skeleton

python -m lit_transformers kinds                               what models, mixers, tasks and data can be chosen

Exit status: 0 all is well, 1 runs or gates failed, 2 bad input, 130 or 143 stopped.
"""

app = typer.Typer(
    help=HELP, epilog=EXAMPLES, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
out, err = Console(), Console(stderr=True)

Study = Annotated[str, typer.Argument(help="A study's name, or the path of a .py file that defines ABLATION.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs, ledger and reports are kept.")]
Scale = Annotated[str, typer.Option("--scale", help="demo: minutes on a CPU; gpu: under an hour; paper: as published.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override the baseline, e.g. model.dim=64. Repeatable."),
]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.", show_default="the study's own")]
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
Unmatched = Annotated[
    bool, typer.Option("--unmatched", help="Give verdicts between arms whose matched budgets differ, too.")
]
Launcher = Annotated[
    Literal["local", "slurm"],
    typer.Option("--launcher", help="Where runs are done: on this machine, or as jobs of a SLURM cluster."),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="NAME=VALUE", help="For sbatch: partition=gpu, time=2h, mem=8GiB. Repeatable."),
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", min=1, help="Ranks of a run, by torchrun: short for --set training.devices=..."),
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
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        envvar="LIT_TRANSFORMERS_STORAGE",
        help="The ledger that machines share; for addresses see: python -m sweeps --help.",
        show_default="runs/ledger.db",
    ),
]


@app.command("list")
def list_studies() -> None:
    """All studies with their questions."""
    from ablations.show import study_list

    out.print(study_list(catalog.headline(catalog.find(name)) for name in catalog.names()))


@app.command()
def show(study: Study) -> None:
    """One study: its factors, levels, scales and the published numbers."""
    from ablations.show import study_view

    path = catalog.find(study)
    out.print(study_view(path.stem, catalog.load(path)))


@app.command()
def plan(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None,
) -> None:  # fmt: skip
    """The runs with their parameters, FLOPs and estimated time. Trains nothing."""
    from ablations.estimate import estimate
    from ablations.show import plan_view

    planned = plan_for(study, runs, request_of(scale, changes, seeds, device))
    rows, _ = look(planned, runs)
    ended = {row.ticket.key for row in rows if row.state.over}
    time_estimate = estimate(planned, runs)
    if time_estimate.cuda and not cuda_devices():  # nothing is known of the other machine but that it has a device
        share = Share(workers or 1, threads or 1)
    else:
        share = share_machine(len(rows) - len(ended), workers, threads, cuda=time_estimate.cuda)
    out.print(plan_view(planned, time_estimate, ended, share.workers))


@app.command()
def check(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, device: Device = None
) -> None:
    """The gates of every arm: no leak from the future, padding ignored, every parameter trains. Takes seconds."""
    from ablations.show import gate_table

    planned = plan_for(study, runs, request_of(scale, changes, 1, device))
    runner = load_runner(planned.runner)
    results: dict[str, Sequence[Any]] = {}
    with out.status("checking"):
        for ticket in planned.tickets():
            results[ticket.arm] = runner.check(runner.config.from_dict(ticket.config))
    out.print(gate_table(results))
    raise typer.Exit(int(any(not gate.passed for arm_results in results.values() for gate in arm_results)))


@app.command()
def run(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, retry_failed: Retry = False,
    wandb: Wandb = "disabled", storage: Storage = None, launcher: Launcher = "local",
    slurm: Slurm = None, devices: Devices = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None, unmatched: Unmatched = False,
) -> None:  # fmt: skip
    """Train every arm and report. Finished runs are read, not repeated; stop it any time and run it again to go on."""
    from ablations.estimate import estimate
    from ablations.show import preliminary_view, remaining_work

    require_fitting(launcher, slurm, {"--workers": workers, "--threads": threads, "--memory-per-run": memory_per_run})
    limits = limits_of(time_limit, memory_limit, memory_per_run)
    changes = [*(changes or ()), *([f"training.devices={devices}"] if devices else ())]
    request = request_of(scale, changes, seeds, device)
    planned = plan_for(study, runs, request, warm_up=launcher == "local")
    planned.require_all_seeds(runs)
    rows, notes = look(planned, runs, retry_failed=retry_failed, time_limit=limits.seconds)
    warn(notes)
    todo = sum(not row.state.over for row in rows)
    if todo:
        cluster = cluster_for(study, runs, request, slurm or [], storage) if launcher == "slurm" else None
        share = Share(1, 1) if cluster else share_for(planned, todo, workers, threads, limits.needed)
        options = options_for(planned, share, limits, retry_failed=retry_failed, wandb=wandb)
        if cluster is None:
            ended = {row.ticket.key for row in rows if row.state.over}
            out.print(f"{planned.study}: {remaining_work(estimate(planned, runs), ended, share.workers)}", markup=False)
        board = Board(out, planned.metric, partial(preliminary_view, planned.document))
        rows = train(runs, rows, options, storage, cluster, begin=lambda: planned.write(runs), board=board)
    write_report(runs, planned.document, out, unmatched=unmatched)
    raise typer.Exit(int(any(row.state in (State.FAILED, State.INVALID) for row in rows)))


@app.command()
def status(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, storage: Storage = None,
) -> None:  # fmt: skip
    """Where every run stands, who is at it, since when, and the time left."""
    from ablations.show import status_view
    from sweeps.status import bring_up_to_date, standings

    planned = plan_for(study, runs, request_of(scale, changes, seeds, device))
    rows, notes = look(planned, runs)
    warn(notes)
    active_runs = {} if all(row.state.over for row in rows) else standings(runs, storage)
    bring_up_to_date(rows, runs, active_runs)
    out.print(status_view(rows, planned.metric, active_runs))


@app.command()
def report(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, unmatched: Unmatched = False,
) -> None:  # fmt: skip
    """The report of what is there for these options; without --seeds, of as many seeds as their last run had."""
    request = request_of(scale, changes, seeds, device)
    folder = folder_name(catalog.find(study).stem, request.scale, request.changes)
    document = None if seeds else read_plan_document(runs, folder)
    if document is None:
        planned = plan_for(study, runs, request)
        planned.require_all_seeds(runs)
        document = planned.document
    write_report(runs, document, out, unmatched=unmatched, computed=False)


@app.command()
def new(name: Annotated[str, typer.Argument(help="The study's name, or the path of a .py file.")]) -> None:
    """A commented skeleton of a study, ready to run."""
    path = catalog.write_new(name)
    out.print(f"{path} is there; edit it, then: python -m ablations plan {name}", markup=False, soft_wrap=True)


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


def plan_for(study: str, runs: Path, request: Request, *, warm_up: bool = False) -> Plan:
    """Returns the plan of a study, from the cache where it still holds.

    warm_up: runs will follow, so the fork server imports torch while the plan is made.
    """
    path = catalog.find(study)

    def make() -> Plan:
        if warm_up and path.parent == catalog.STUDIES:
            from sweeps.process import prepare_server

            prepare_server(catalog.RUNNER)
        with err.status(f"planning {path.stem}"):
            return make_plan(path.stem, catalog.load(path), request, runs=runs, typed=study)

    return cached_plan(runs, path, study, request, make)


def look(
    planned: Plan, runs: Path, *, retry_failed: bool = False, time_limit: float | None = 0.0
) -> tuple[list[Row], list[str]]:
    """Returns a row for every run, filled from its record, and notes about damaged records."""
    from sweeps.survey import survey

    return survey(runs, planned.tickets(), planned.metric, retry_failed=retry_failed, time_limit=time_limit)


def share_for(planned: Plan, todo: int, workers: int | None, threads: int | None, memory: int | None = None) -> Share:
    """Returns the share of the machine that each run gets; ``memory`` is the bytes that a run declares to need.

    Raises ConfigError where a CUDA device is required and there is none, or a run has more ranks than cores or devices.
    """
    settings = [config.get("training") or {} for config in planned.configs.values()]
    devices = {training.get("device") for training in settings}
    cuda = bool(devices & {"auto", "cuda"}) and bool(cuda_devices())
    ranks = max(training.get("devices", 1) for training in settings)
    if memory is None and not cuda:  # on a CUDA device it is not known without trying
        memory = ranks * memory_of(int(max(cost["parameters"] for cost in planned.costs.values())))
    if "cuda" in devices and not cuda:
        raise ConfigError(
            "no CUDA device is to be found here; take another machine, or --device cpu", "training.device"
        )
    if not cuda:
        require_cores(ranks)
    return share_machine(todo, workers, threads, cuda=cuda, ranks=ranks, memory=memory)


def options_for(planned: Plan, share: Share, limits: Limits, *, retry_failed: bool, wandb: str) -> Options:
    """Builds the launch options of a plan's runs."""
    from sweeps.launch import Options

    return Options(
        planned.runner, share, planned.metric, retry_failed, planned.study, wandb, limits.seconds, limits.memory
    )


def warn(notes: Iterable[str]) -> None:
    """Prints each note, of what was damaged and set aside, as a line on standard error."""
    for note in notes:
        err.print(note, markup=False, highlight=False, soft_wrap=True)


def launched(
    runs: Path, rows: list[Row], options: Options, storage: str | None, cluster: Cluster | None = None,
    begin: Callable[[], None] = lambda: None, board: Board | None = None,
) -> Summary:  # fmt: skip
    """Does the runs under the live table, on this machine or on a cluster.

    begin: called once the ledger is open and, on a cluster, SLURM has accepted the jobs. board: shows the runs.
    """
    from sweeps.launch import launch
    from sweeps.ledger import Ledger

    ledger, board = Ledger(runs, storage), board or Board(out, options.metric)
    try:
        warn(ledger.notes)
        if cluster:
            from sweeps.slurm import launch_on_slurm

            return launch_on_slurm(runs, ledger, board, rows, options, cluster, begin)
        begin()
        return launch(runs, ledger, board, rows, options)
    finally:
        ledger.close()


def train(
    runs: Path, rows: list[Row], options: Options, storage: str | None, cluster: Cluster | None = None,
    begin: Callable[[], None] = lambda: None, board: Board | None = None,
) -> list[Row]:  # fmt: skip
    """Does the runs and returns their rows. Where a signal stopped them, raises typer.Exit with 128 plus its number."""
    summary = launched(runs, rows, options, storage, cluster, begin, board)
    if summary.stopped_by is not None:
        out.print("stopped; run the same command to go on", style="yellow")
        raise typer.Exit(128 + summary.stopped_by)
    return list(summary.rows)


OWN = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports", "claims")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, "python -m ablations", arguments)


def run_command(commands: typer.Typer, name: str, arguments: Sequence[str] | None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    try:
        typer.main.get_command(commands).main(arguments, prog_name=name)
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else 0
    except ValueError as error:
        if type(error).__module__.split(".")[0] not in OWN:
            raise
        return complain(str(error))
    except OSError as error:
        cause = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        return complain(f"{error.filename or 'output'}: {cause}; nothing that was finished is lost")
    return 0


def complain(message: str) -> int:
    """Prints one line on standard error and returns exit status 2."""
    err.print(f"error: {' '.join(message.split())}", markup=False, highlight=False, soft_wrap=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
