"""``python -m ablations plan | check | run | status | report | clean``: the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations import catalog
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
from ablations.training import LaunchSettings, deadline_of, limits_of, survey_plan, take_looks, warn
from lit_transformers.cli.callback_options import Callbacks, Loggers, callback_assignments, chosen_loggers
from lit_transformers.records.study_folder import folder_name
from lit_transformers.runner import load_runner
from lit_transformers.wandb_target import wandb_target
from sweeps.launchers.devices import cuda_devices
from sweeps.launchers.share import Share, share_machine
from sweeps.object_store import address_of, store_of
from sweeps.options import Runs, Storage

__all__ = ["check", "clean", "plan", "report", "run", "status"]

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
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices", metavar="N", min=1, help="Ranks per run, started by torchrun. Same as --set training.devices=..."
    ),
]


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


def status(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, storage: Storage = None,
) -> None:  # fmt: skip
    """Show the state of every run, its worker, and the time left. Beyond 500 runs, count them by arm and state."""
    from ablations.show import status_view
    from reports.read.study import read_rates
    from sweeps.status import bring_up_to_date, standings

    planned = plan_for(study, runs, request_of(scale, changes, seeds, device))
    rows, notes = survey_plan(planned, runs)
    rates = read_rates(runs, planned.plan, notes)
    warn(notes)
    active_runs = {} if all(row.state.over for row in rows) else standings(runs, storage)
    bring_up_to_date(rows, runs, active_runs)
    out.print(status_view(planned.plan, rows, active_runs, rates))
    if storage is None and address_of(runs) and not all(row.state.over for row in rows):
        out.print("give --storage to see the runs of other machines at this store", highlight=False)


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
