"""``python -m ablations``: the command line that lists, plans, runs and reports ablation studies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from ablations import catalog
from ablations.config_command import config
from ablations.launchers import LauncherName, remote_launcher, require_fitting
from ablations.options import (
    Artifacts,
    Device,
    Entity,
    MaxHours,
    MemoryLimit,
    MemoryPerRun,
    Project,
    RateSeeds,
    Retry,
    Scale,
    Seeds,
    Set,
    Study,
    SystemMetrics,
    Tags,
    Threads,
    TimeLimit,
    Until,
    Wandb,
    Workers,
    ends_when_stopped,
    exit_of,
    out,
    plan_for,
    request_of,
    whole_plan_for,
)
from ablations.plan import existing_plan
from ablations.plan_report import write_report
from ablations.study_floors import floors_of_published
from ablations.training import (
    LaunchSettings,
    deadline_of,
    limits_of,
    survey_plan,
    survey_to_train,
    take_looks,
    train_left,
    warn,
)
from ablations.tune_command import tune
from ablations.wandb_command import agent, dashboard, wandb
from ablations.worker_command import worker
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.cli.callback_options import Callbacks, Loggers, callback_assignments, chosen_loggers
from lit_transformers.cli.commands import run_command
from lit_transformers.cli.program import is_script, program_name
from lit_transformers.config import ConfigError
from lit_transformers.records.files import RESULTS
from lit_transformers.records.study_folder import folder_name
from lit_transformers.runner import load_runner, runner_of
from lit_transformers.trust import require_allowed
from lit_transformers.wandb_target import wandb_target
from sweeps.launchers.devices import cuda_devices
from sweeps.launchers.share import Share, share_machine
from sweeps.object_store import address_of, store_of
from sweeps.options import Runs, Storage

HELP = """Run ablation studies: train every arm over several seeds, and report the differences with intervals.

STUDY is the name of a file in ablations/studies, or the path to your .py file.
"""

EXAMPLES = """Examples:

python -m ablations list                                       list the studies

python -m ablations plan xl_recurrence                         show runs, FLOPs and time; train nothing

python -m ablations plan xl_recurrence --power 0.8             forecast the verdicts of more seeds

python -m ablations run xl_recurrence                          train and report; after a stop the same command resumes

python -m ablations run xl_recurrence --seeds 5                add two seeds; after a report they count as a look

python -m ablations run xl_recurrence --rates 2                show whether verdicts stand at half and twice the rate

python -m ablations run NAME --until decided --max-hours 2     take the looks of seeds=Looks(3, 6, 10, 16) in turn

python -m ablations run xl_recurrence --set training.steps=50  try a short run; it has a separate report

python -m ablations run xl_recurrence --scale gpu --device cuda

python -m ablations run xl_recurrence --scale gpu --devices 2  train each run on two ranks, started by torchrun

python -m ablations run xl_recurrence --launcher slurm --slurm partition=gpu --slurm gpus_per_node=1 --slurm time=2h

python -m ablations run xl_recurrence --launcher ray --ray address=auto --ray cpus=2

python -m ablations run xl_recurrence --runs s3://bucket/prefixkeep runs in an object store

python -m ablations tune xl_recurrence --trials 16             tune each arm with the same budget, then compare

python -m ablations worker xl_recurrence                       take waiting runs, on any further machine

python -m ablations wandb xl_recurrence                        create a W&B sweep, for python -m ablations agent

python -m ablations remark diet_masks                          publish the study's remarks on disagreements

python -m ablations answers                                    publish which comparisons answer the questions

python -m ablations floors star_links                          publish floors that were measured later

python -m ablations restore xl_memory                          restore published runs, to add seeds or arms

python -m ablations adopt logs xl_recurrence --metric val/bpb  take over runs that were done elsewhere

python -m ablations reproduce xl_recurrence                    repeat a published run with today's code

python -m ablations new longer_memory                          write a study file with comments

python -m ablations new rates --command "python train.py --lr 0.1 --seed 0"  write a study of any command

python -m ablations config xl_recurrence > mine.yaml           write the config with all fields, to edit and fit

python -m lit_transformers kinds                               list models, mixers, tasks and data

Exit status: 0 success, 1 runs or gates failed, 2 bad input, 130 or 143 stopped.
"""

app = typer.Typer(
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=is_script("ablations"),
    pretty_exceptions_enable=False,
)

READING = ("answers", "config", "list", "new", "plan", "remark", "report", "show", "status")
"""The commands that only read, and import no plug-in of the project file but for a study of its folder."""
Unmatched = Annotated[bool, typer.Option("--unmatched", help="Also judge arms whose matched budgets differ.")]
Full = Annotated[bool, typer.Option("--full", help="Print every table of the report, not one screen.")]
Power = Annotated[
    float | None,
    typer.Option("--power", metavar="P", help="Forecast the verdicts of more seeds at this power, e.g. 0.8."),
]
Launcher = Annotated[
    LauncherName,
    typer.Option("--launcher", help="Where runs execute: this machine, a SLURM cluster or a Ray cluster."),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="NAME=VALUE", help="For sbatch: partition=gpu, time=2h, mem=8GiB. Repeatable."),
]
Ray = Annotated[
    list[str] | None,
    typer.Option("--ray", metavar="NAME=VALUE", help="For Ray: address=auto, cpus=4, gpus=1, memory=8GiB. Repeatable."),
]
PublishedIn = Annotated[
    Path | None, typer.Option("--in", metavar="DIR", help="Folder of the publications.", show_default="published")
]
PublishedArms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm", metavar="NAME", help="An arm by its name in the report. Repeatable.", show_default="the baseline"
    ),
]
RepeatedSeeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Number of seeds of each arm, from the first.")
]
WriteRepeated = Annotated[bool, typer.Option("--write", help="Also write the result into the publication.")]
OfCommand = Annotated[
    str | None,
    typer.Option("--command", metavar="LINE", help='Study a command, e.g. "python train.py --lr 0.1 --seed 0".'),
]
TryCommand = Annotated[
    bool, typer.Option("--try", help="Run the command once, as typed, to see which numbers it prints.")
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices", metavar="N", min=1, help="Ranks per run, started by torchrun. Same as --set training.devices=..."
    ),
]


@app.command("list")
def list_studies() -> None:
    """List all studies with their questions."""
    from ablations.show import study_list

    own = [catalog.headline(catalog.own_folder() / f"{name}.py") for name in catalog.own_names()]
    out.print(study_list([*own, *(catalog.headline(catalog.STUDIES / f"{name}.py") for name in catalog.names())]))


@app.command()
def show(study: Study) -> None:
    """Show a study: factors, levels, scales and published numbers."""
    from ablations.show import study_view

    path = catalog.find(study)
    out.print(study_view(path.stem, catalog.load(path)))


@app.command()
def plan(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, power: Power = None,
) -> None:  # fmt: skip
    """Show the runs with parameters, FLOPs and estimated time; with --power, forecast verdicts. Train nothing."""
    from ablations.estimate import estimate
    from ablations.power import power_view
    from ablations.show import plan_view

    planned = plan_for(study, runs, request_of(scale, changes, seeds, device), in_server=True)
    rows, _ = survey_plan(planned, runs)
    time_estimate = estimate(planned, runs)
    ended = time_estimate.seconds.keys() - {row.ticket.key for row in rows if not row.state.over}
    if time_estimate.cuda and not cuda_devices():  # nothing is known of the other machine but that it has a device
        share = Share(workers or 1, threads or 1)
    else:
        share = share_machine(sum(not row.state.over for row in rows), workers, threads, cuda=time_estimate.cuda)
    out.print(plan_view(planned, time_estimate, ended, share.workers))
    if power is not None:
        if not time_estimate.cuda:
            share = share_machine(len(rows), workers, threads, cuda=False)
        out.print(power_view(planned, runs, power, time_estimate, share.workers))


@app.command()
def check(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, device: Device = None
) -> None:
    """Check the gates of every arm: no leak from the future, padding ignored, every parameter trains. Takes seconds."""
    from ablations.show import gate_table

    planned = plan_for(study, runs, request_of(scale, changes, 1, device))
    runner = load_runner(planned.runner)
    results: dict[str, Sequence[Any]] = {}
    with out.status("checking"):
        for ticket in planned.tickets():
            results[ticket.arm] = runner.check(runner.config.from_dict(ticket.config))
    out.print(gate_table(results, planned.plan.labels))
    raise typer.Exit(int(any(not gate.passed for arm_results in results.values() for gate in arm_results)))


@app.command()
def run(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, retry_failed: Retry = False,
    wandb: Wandb = "disabled", storage: Storage = None, launcher: Launcher = "local",
    slurm: Slurm = None, ray: Ray = None, devices: Devices = None, time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None, memory_per_run: MemoryPerRun = None, unmatched: Unmatched = False,
    until: Until = None, max_hours: MaxHours = None, callbacks: Callbacks = None, loggers: Loggers = None,
    full: Full = False, rates: RateSeeds = None, project: Project = None, entity: Entity = None, tags: Tags = None,
    artifacts: Artifacts = False, system_metrics: SystemMetrics = False,
) -> None:  # fmt: skip
    """Train every arm and report. Finished runs are reused. Stop at any time: the same command resumes."""
    of_this_machine = {"--workers": workers, "--threads": threads, "--memory-per-run": memory_per_run}
    require_fitting(launcher, {"slurm": slurm, "ray": ray}, of_this_machine)
    deadline = deadline_of(until is not None, max_hours, seeds)
    limits = limits_of(time_limit, memory_limit, memory_per_run)
    changes = [*(changes or ()), *([f"training.devices={devices}"] if devices else ())]
    changes, chosen = [*changes, *callback_assignments(callbacks or ())], chosen_loggers(loggers, wandb)
    file = catalog.find(study) if artifacts else None
    target = wandb_target(chosen.wandb, project, entity, tags, file, system_metrics)
    request = request_of(scale, changes, seeds, device)
    whole = whole_plan_for(study, runs, request, in_server=launcher == "local").with_rates(rates)
    remote = remote_launcher(launcher, slurm or ray or (), storage, (study, runs, request))
    settings = LaunchSettings(workers, threads, limits, retry_failed, target, chosen.names, storage, remote, deadline)
    with ends_when_stopped():
        _, rows = take_looks(
            whole, seeds, runs, settings, out, out, until_decided=until is not None, unmatched=unmatched, full=full
        )
    raise exit_of(rows)


@app.command()
def status(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, storage: Storage = None,
) -> None:  # fmt: skip
    """Show the state of every run, its worker, and the time left."""
    from ablations.show import status_view
    from sweeps.status import bring_up_to_date, standings

    planned = plan_for(study, runs, request_of(scale, changes, seeds, device))
    rows, notes = survey_plan(planned, runs)
    warn(notes)
    active_runs = {} if all(row.state.over for row in rows) else standings(runs, storage)
    bring_up_to_date(rows, runs, active_runs)
    out.print(status_view(planned.plan, rows, active_runs))
    if storage is None and address_of(runs) and not all(row.state.over for row in rows):
        out.print("give --storage to see the runs of other machines at this store", highlight=False)


@app.command()
def report(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, unmatched: Unmatched = False, full: Full = False,
) -> None:  # fmt: skip
    """Write and print the report of the finished runs. Without --seeds, it has the seeds of the last run."""
    request = request_of(scale, changes, seeds, device)
    folder = folder_name(catalog.find(study).stem, request.scale, request.changes)
    plan = None if seeds else existing_plan(runs, folder)
    if plan is None:
        planned = plan_for(study, runs, request)
        planned.require_all_seeds(runs)
        plan = planned.plan
    write_report(runs, plan, unmatched=unmatched, computed=False).print_to(out, full)


@app.command()
def remark(study: Study, folder: PublishedIn = None, scale: Scale = "demo", changes: Set = None) -> None:
    """Write the study's remarks on its results, and what its pilot was, into its publication. Needs no run."""
    from reports.publish import publish_remarks

    path = catalog.find(study)
    ablation = catalog.load(path)
    numbers, pilot = ablation.published, ablation.resolve(scale).pilot
    directory = publication_of(path, folder, scale, changes)
    print_publication(publish_remarks(directory, numbers.remarks if numbers else {}, pilot))


@app.command()
def answers(folder: PublishedIn = None) -> None:
    """Write which comparisons answer the questions of published studies whose plans do not state it."""
    from lit_transformers.records.files import PUBLISHED
    from reports.publish import published
    from reports.read.answers import write_answers
    from reports.read.results import read_results

    plans = {path.name: read_results(path / RESULTS).plan for path in published(folder or PUBLISHED)}
    stated = {
        name: catalog.load(catalog.find(plan.study)).answer for name, plan in plans.items() if plan.answer is None
    }
    path = write_answers(folder or PUBLISHED, {name: answer for name, answer in stated.items() if answer})
    out.print(f"{path}; next: python -m reports gallery --render", markup=False, soft_wrap=True)


@app.command()
def floors(study: Study, folder: PublishedIn = None, scale: Scale = "demo", changes: Set = None) -> None:
    """Measure the floors of a published study that has none, and write them into its publication."""
    from reports.publish import publish_floors

    path = catalog.find(study)
    runner = runner_of(catalog.load(path).baseline)
    measure = partial(floors_of_published, runner=runner, console=out)
    print_publication(publish_floors(publication_of(path, folder, scale, changes), measure))


@app.command()
def clean(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, device: Device = None
) -> None:  # fmt: skip
    """Remove the checkpoints of stages that no run of the study will start from any more. Their records stay."""
    from ablations.stages import spare_checkpoints

    planned = whole_plan_for(study, runs, request_of(scale, changes, None, device))
    paths = spare_checkpoints(planned.plan, runs)
    size = sum(path.stat().st_size for path in paths)
    store = store_of(runs)
    for path in paths:
        path.unlink()
        if store is not None:
            store.remove_checkpoint(path.parent.name)
    out.print(f"{len(paths)} checkpoints removed, {size / (1 << 20):,.0f} MiB", highlight=False)


@app.command()
def restore(
    study: Study, folder: PublishedIn = None, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None
) -> None:  # fmt: skip
    """Restore published runs (without weights) so that `run` can add seeds or arms. Runs of other code, configs or data
    are refused."""
    from ablations.restore import restore_published
    from lit_transformers.records.files import PUBLISHED

    whole = whole_plan_for(study, runs, request_of(scale, changes, None, None))
    restored, known = restore_published((folder or PUBLISHED) / whole.folder, whole, runs)
    text = f"{restored} runs restored, {known - restored} were there"
    out.print(f"{text}; next: {whole.plan.commands['run']}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def adopt(
    source: Annotated[str, typer.Argument(help="Runs of a tracker: a folder, a database, or wandb:ENTITY/PROJECT.")],
    study: Study,
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="The study's metric, as its name is there.")],
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="KEY", help="The config key of arms. Repeat it for factors.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="KEY", help="The config key of seeds.")] = None,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="ARM=LEVEL", help="Name the level there of an arm of the study. Repeatable."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Adopt missing runs, and leave those as they are that were done here.")
    ] = False,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Keep runs with this config. Repeatable.")
    ] = None,
    tracker: Annotated[str | None, typer.Option("--from", metavar="TRACKER", help="Read runs of this tracker.")] = None,
    values: Annotated[
        str | None,
        typer.Option("--values", metavar="FILE", help="Read values of Hydra's jobs from this file in their folders."),
    ] = None,
    runs: Runs = Path("runs"),
    scale: Scale = "demo",
    changes: Set = None,
    seeds: Seeds = None,
) -> None:
    """Adopt runs that were done elsewhere as runs of a study, so that `run` does the missing seeds and judges all."""
    from lit_transformers.cli.pairs import pairs_of
    from reports.adopt import AdoptQuestion
    from reports.adopt import adopt as adopt_runs
    from reports.read.trackers.selection import TrackerQuestion

    whole = whole_plan_for(study, runs, request_of(scale, changes, seeds, None))
    of_tracker = TrackerQuestion(tracker, pairs_of("--where", where), values=values)
    question = AdoptQuestion(metric, tuple(arm or ()), seed, pairs_of("--match", match), missing, of_tracker)
    adopted = adopt_runs(source, whole.plan, runs, question)
    for note in adopted.notes:
        out.print(note, markup=False, highlight=False)
    text = f"{adopted.written} runs adopted, {adopted.present} were there"
    out.print(f"{text}; next: {whole.plan.commands['run']}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def reproduce(
    study: Study, folder: PublishedIn = None, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None,
    arms: PublishedArms = None, seeds: RepeatedSeeds = 1, write: WriteRepeated = False, workers: Workers = None,
    threads: Threads = None, storage: Storage = None, allowed: AllowedModules = None,
) -> None:  # fmt: skip
    """Repeat published runs with today's code and compare. By default: the baseline's first seed, with the same number
    of threads."""
    from ablations.reproduce import prepare_repetition
    from ablations.show import reproduction_view
    from reports.publish import publish_reproductions
    from reports.read.results import read_results

    path = catalog.find(study)
    directory = publication_of(path, folder, scale, changes)
    published = read_results(directory / RESULTS)
    ablation = catalog.load(path)
    configs = [run.record.config for run in published.runs if run.record]
    require_allowed(configs, str(directory / RESULTS), ablation.classes)
    repetition = prepare_repetition(published, runner_of(ablation.baseline), arms or (), seeds)
    planned, apart = repetition.planned, runs / "reproduced"
    settings = LaunchSettings(workers, threads or repetition.threads, storage=storage)
    with ends_when_stopped():
        rows = train_left(planned, apart, survey_to_train(planned, apart, settings), settings, out)
    reproductions = repetition.reproductions(apart)
    out.print(reproduction_view(published, reproductions))
    if write and reproductions:
        print_publication(publish_reproductions(directory, reproductions))
    raise exit_of(rows)


def publication_of(study: Path, folder: Path | None, scale: str, changes: list[str] | None) -> Path:
    """Returns where the results of a study, by its file, are published at a scale and with changes."""
    from lit_transformers.records.files import PUBLISHED

    return (folder or PUBLISHED) / folder_name(study.stem, scale, request_of(scale, changes, None, None).changes)


def print_publication(page: Path) -> None:
    """Prints where a publication has changed, and how the index follows."""
    out.print(f"{page}; next: python -m reports gallery", markup=False, highlight=False, soft_wrap=True)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The study's name, or the path of a .py file.")],
    command: OfCommand = None, run: TryCommand = False,
) -> None:  # fmt: skip
    """Write a commented study file, ready to run: of networks of this suite, or of any command.

    With --command, the options in the line become parameters. Its --help names further ones, and the seed.
    """
    if run and command is None:
        raise ConfigError("goes with --command", "--try")
    path = catalog.write_new(name, command, run=run)
    out.print(f"{path} written; edit it, then: python -m ablations plan {name}", markup=False, soft_wrap=True)


app.command()(config)
app.command()(worker)
app.command()(tune)
app.command()(wandb)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(agent)
app.command()(dashboard)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, program_name("ablations"), arguments, reading=READING)


if __name__ == "__main__":
    sys.exit(main())
