"""The options of commands that take a study, how its runs are planned, and how a command that is stopped ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ablations import catalog
from lit_transformers.cli.completion import completed_from
from lit_transformers.cli.console import SteadyConsole
from lit_transformers.wandb_target import PROJECT, WandbMode
from sweeps.ledger.ticket import State

if TYPE_CHECKING:
    from ablations.plan import PlannedStudy, Request
    from sweeps.live import Row

out, err = SteadyConsole(), SteadyConsole(stderr=True)
SCALES = ("demo", "hour", "gpu", "paper")
"""The scales that a study usually has."""


Study = Annotated[
    str,
    typer.Argument(
        help="A study's name, or the path of a .py file that defines ABLATION.",
        autocompletion=completed_from(catalog.all_names),
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="NAME",
        help="demo: minutes on a CPU; hour: on text, where a study has it; gpu: one GPU; paper: as published.",
        autocompletion=completed_from(lambda: SCALES),
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a path of all arms, e.g. model.dim=64. Repeatable."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", metavar="N", min=1, help="Seeds per arm.", show_default="the study's own")
]
Until = Annotated[
    Literal["decided"] | None,
    typer.Option("--until", help="Take one planned look after another until all comparisons are decided."),
]
MaxHours = Annotated[
    float | None,
    typer.Option("--max-hours", metavar="H", help="With --until, stop after H hours."),
]
RateSeeds = Annotated[
    int | None,
    typer.Option(
        "--rates", metavar="N", min=0,
        help="Also train N seeds of each arm at half and twice the learning rate; 0 omits them.",
        show_default="2, or as the study states",
    ),
]  # fmt: skip
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda. Same as --set training.device=...")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Number of runs at a time.", show_default="one per core or GPU"),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, help="Threads per run.", show_default="OMP_NUM_THREADS, else cores / workers"
    ),
]
Retry = Annotated[
    bool,
    typer.Option("--retry-failed", help="Also retry runs that failed by themselves."),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Maximum time per run, e.g. 2h. A run over the limit fails and keeps its checkpoint.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit", metavar="SIZE", help="Maximum memory per run, e.g. 4GiB. A run over the limit fails."
    ),
]
MemoryPerRun = Annotated[
    str | None,
    typer.Option(
        "--memory-per-run",
        metavar="SIZE",
        help="Memory that one run needs; as many runs as fit start at a time.",
        show_default="estimated",
    ),
]
Wandb = Annotated[
    WandbMode,
    typer.Option("--wandb", help="Log every run to Weights & Biases; online needs a key and the network at the start."),
]
Project = Annotated[
    str | None,
    typer.Option("--project", help="The project on W&B.", show_default=f"WANDB_PROJECT, else {PROJECT}"),
]
Entity = Annotated[
    str | None,
    typer.Option("--entity", help="The user or team on W&B.", show_default="WANDB_ENTITY, else your own"),
]
Tags = Annotated[
    str | None,
    typer.Option("--tags", metavar="A,B", help="Tags of every run on W&B.", show_default="WANDB_TAGS"),
]
Artifacts = Annotated[
    bool,
    typer.Option("--artifacts", help="Send study file, checkpoints and outputs to W&B as artifacts with lineage."),
]
SystemMetrics = Annotated[
    bool, typer.Option("--system-metrics", help="Send the load of processors, memory and devices to W&B.")
]
WithMixer = Annotated[
    bool,
    typer.Option("--with-mixer-space", help="Also search the knobs of an arm's mixer: windows, ranks, blocks."),
]
Space = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        metavar="KNOB",
        help="Also search a path: PATH=log:1e-4..0.1, PATH=1..8 or PATH=a,b,c; ' if PATH=a' behind it. Repeatable.",
    ),
]
Prune = Annotated[
    bool, typer.Option("--prune/--no-prune", help="End a trial early if it lags behind the median of earlier trials.")
]
TRIALS = 12
"""Trials of each arm, by default."""


def request_of(scale: str, changes: list[str] | None, seeds: int | None, device: str | None) -> Request:
    """Builds the request from the options that select a study's runs."""
    from ablations.plan import Request

    return Request(scale, (*(changes or ()), *([f"training.device={device}"] if device else ())), seeds)


def plan_for(study: str, runs: Path, request: Request, *, in_server: bool = False) -> PlannedStudy:
    """Returns the plan of a study at its present look. in_server: as of ``whole_plan_for``."""
    from ablations.looks import at_present_look

    return at_present_look(whole_plan_for(study, runs, request, in_server=in_server), runs, request.seeds)


def whole_plan_for(study: str, runs: Path, request: Request, *, in_server: bool = False) -> PlannedStudy:
    """Returns the plan of a study with the seeds of all its looks, from the cache where it still holds.

    in_server: runs or measurements will follow, so a study of models of this package is planned in a process forked
    from the server, and torch is imported once for all of them.
    """
    from ablations.cache import cached_plan

    path = catalog.find(study)

    def make() -> PlannedStudy:
        with err.status(f"planning {path.stem}"):
            if in_server and catalog.uses_own_models(path):
                from sweeps.process.call import call_forked

                return call_forked(catalog.RUNNER, load_and_plan, path, request, runs, study)
            return load_and_plan(path, request, runs, study)

    return cached_plan(runs, path, study, request, make)


def load_and_plan(path: Path, request: Request, runs: Path, typed: str) -> PlannedStudy:
    """Plans the study of a file, and notes the inputs that this reads. typed: the study as the command line names
    it."""
    from ablations.inputs import recorded_inputs
    from ablations.plan import make_plan

    with recorded_inputs() as inputs:
        planned = make_plan(path.stem, catalog.load(path), request, runs=runs, typed=typed)
    return replace(planned, inputs=inputs.to_dict() if inputs.certain else {})


@contextmanager
def ends_when_stopped() -> Iterator[None]:
    """Ends a command whose runs a signal stopped, with 128 plus the number of the signal."""
    from ablations.training import Stopped

    try:
        yield
    except Stopped as stop:
        out.print("stopped; run the same command to resume", style="yellow")
        raise typer.Exit(128 + stop.number) from None


def exit_of(rows: Iterable[Row]) -> typer.Exit:
    """Returns the end of a command that did runs: with status 1 where one of them failed or is invalid."""
    return typer.Exit(int(any(row.state in (State.FAILED, State.INVALID) for row in rows)))
