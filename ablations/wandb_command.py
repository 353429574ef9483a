"""``python -m ablations wandb | agent | dashboard``: a study on Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ablations import catalog
from ablations.options import TRIALS, Device, Scale, Seeds, Set, Study, WithMixer, out, plan_for, request_of
from ablations.plan import PlannedStudy, Request, as_typed
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.records.plan import PlannedArm, plan_path
from lit_transformers.records.record import Record
from lit_transformers.records.study_folder import search_group
from lit_transformers.trust import class_paths_in, require_allowed
from sweeps.object_store import shown_address
from sweeps.options import Runs

if TYPE_CHECKING:
    from ablations.tuning import PreparedTuning

PROJECT = "lit-transformers"

Method = Annotated[
    Literal["grid", "bayes", "random"],
    typer.Option("--method", help="grid: arms by seeds, one sweep. bayes, random: a search, a sweep for each arm."),
]
Trials = Annotated[int, typer.Option("--trials", metavar="N", min=1, help="Trials of each arm, where it is a search.")]
Searching = Annotated[
    bool, typer.Option("--search", help="A trial: with the seed of trials, measured on the validation split.")
]
Mode = Annotated[
    Literal["disabled", "offline", "online"],
    typer.Option("--wandb", help="Whether the run is sent at once; online without a network goes offline."),
]


def wandb(
    study: Study, method: Method = "grid", trials: Trials = TRIALS, runs: Runs = Path("runs"), scale: Scale = "demo",
    changes: Set = None, seeds: Seeds = None, device: Device = None, with_mixer_space: WithMixer = False,
) -> None:  # fmt: skip
    """Write the study as W&B sweeps, whose agents run python -m ablations agent. Needs no network and no key."""
    from sweeps.wandb.sweep import agent_command, file_name, grid, search, write_sweep

    request = request_of(scale, changes, seeds, device)
    words = [study, "--runs", shown_address(runs), *request.arguments()]
    if method == "grid":
        planned = plan_for(study, runs, request)
        folder = _wandb_folder(runs, planned)
        arms = planned.plan.arms
        numbers = [run.seed for run in arms[0].runs]
        metric = {"name": planned.metric, "goal": planned.plan.goal}
        command = agent_command(words, _rank_count(planned))
        definitions = {"grid": grid(planned.study, [arm.name for arm in arms], numbers, metric, command)}
    else:
        tuning = _prepare_tuning(study, request, runs, own=with_mixer_space)
        folder = _wandb_folder(runs, tuning.planned)
        metric = {"name": tuning.goal.metric, "goal": tuning.goal.direction}
        command = agent_command([*words, "--search"], _rank_count(tuning.planned))
        definitions = {
            file_name(arm.name): search(tuning.planned.study, arm.name, arm.space, method, trials, metric, command)
            for arm in tuning.arms
        }
        if tuning.planned.plan.retention:
            out.print("trials of a search measure no retention; --method grid measures it", highlight=False)
    for name, definition in definitions.items():
        write_sweep(folder / f"{name}.yaml", definition)
        out.print(f"wandb sweep --project {PROJECT} {folder / name}.yaml", markup=False, soft_wrap=True)
    out.print("each prints the command of its agents: start as many as there are machines", highlight=False)


def agent(
    context: typer.Context, study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None,
    seeds: Seeds = None, device: Device = None, searching: Searching = False, mode: Mode = "online",
    allowed: AllowedModules = None,
) -> None:  # fmt: skip
    """Do the run that a W&B sweep asks for, by --arm=NAME, --seed=N and --path=value as its agent gives them.

    An ordinary run in its own directory: one that is finished is read. Under torchrun the ranks train as one run. Where
    the study states retention, it is measured before and after the run; trials of a search measure none.
    """
    from lit_transformers.machine.cores import limit_threads
    from lit_transformers.runs.wandb_logging import WandbConfig
    from sweeps.wandb.agent import carry_out, describe, measure_retention, parameters

    limit_threads()
    values = parameters(context.args)
    config, arm, planned, retention = _requested_run(
        study, request_of(scale, changes, seeds, device), dict(values), runs, searching=searching
    )
    group = search_group(planned.folder) if searching else planned.folder
    record = carry_out(config, planned.runner, runs, WandbConfig(mode, PROJECT, group, arm.name, arm.levels))
    records = {record.key: record}
    _print_outcome(record, describe(values))
    if record.outcome == "finished":
        for measuring in measure_retention(config, retention, planned.runner, runs):
            records[measuring.key] = measuring
            _print_outcome(measuring, "retention")
    raise typer.Exit(int(any(one.outcome in ("failed", "invalid") for one in records.values())))


def dashboard(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, entity: Annotated[str | None, typer.Option("--entity", help="A team on W&B.")] = None,
) -> None:  # fmt: skip
    """Build a W&B workspace and report of the study, where there is a network and a key; else say how, and leave both
    as a file. Exits with 1 where there is a key and W&B cannot be reached."""
    from sweeps.wandb.dashboard import build, define, has_key, write_definition

    request = request_of(scale, changes, seeds, device)
    planned = plan_for(study, runs, request)
    arms = [arm.name for arm in planned.plan.arms]
    definition = define(PROJECT, planned.folder, planned.plan.question, planned.metric, arms)
    path = write_definition(_wandb_folder(runs, planned), definition)
    out.print(f"definition: {path}", markup=False, highlight=False, soft_wrap=True)
    reason = None
    if has_key():
        reason = build(definition, entity, lambda line: out.print(line, markup=False, soft_wrap=True))
        if reason is None:
            return
        out.print(f"W&B cannot be reached: {reason}", markup=False, highlight=False, soft_wrap=True)
    else:
        out.print("no key for W&B was found; log in with: wandb login", highlight=False)
    for line in (
        "where there is a network:",
        f"wandb sync {runs}/*/wandb/offline-run-*",
        as_typed(["python", "-m", "ablations", "dashboard", study, *request.arguments()], runs),
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if reason is not None:
        raise typer.Exit(1)


def _print_outcome(record: Record, purpose: str) -> None:
    """Prints how a run ended. purpose: the parameters of the run, or what it measures."""
    from lit_transformers.training.ranks import is_first_rank

    if is_first_rank():
        outcome = f"{record.outcome}: {record.reason}" if record.reason else record.outcome
        out.print(f"{record.key} ({purpose}): {outcome}", markup=False, highlight=False, soft_wrap=True)


def _requested_run(
    study: str, request: Request, values: dict[str, Plain], runs: Path, *, searching: bool
) -> tuple[Config, PlannedArm, PlannedStudy, list[Config]]:
    """Returns the config of the requested run, its arm, its planned study, and the measurements of retention.

    Raises ConfigError for an unknown arm or an invalid seed.
    """
    from ablations.arms import seed_overrides
    from ablations.plan import make_plan

    path = catalog.find(study)
    ablation = catalog.load(path)
    name, seed = values.pop("arm", None), values.pop("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"a seed is a number from 0 on, not {seed!r}", "--seed")
    planned = make_plan(path.stem, ablation, request, runs=runs)
    arms = {planned_arm.name: planned_arm for planned_arm in planned.plan.arms}
    arm = arms[planned.plan.labels.find(str(name))]
    require_allowed(values, "the parameters of W&B", {*class_paths_in([*planned.configs.values()])})
    for parameter in values:
        if parameter.partition(".")[0] in ablation.baseline.program:
            raise ConfigError("decides which program is executed, which W&B cannot; set it in the study", parameter)
    config: Config = type(ablation.baseline).from_dict(planned.configs[arm.runs[0].key])
    if searching:
        from sweeps.tuning.tune import trial_config

        return trial_config(config, values), arm, planned, []
    retention = [one.run for one in ablation.retention.values()]
    return config.override({**seed_overrides(config, seed), **values}), arm, planned, retention


def _prepare_tuning(study: str, request: Request, runs: Path, *, own: bool) -> PreparedTuning:
    from ablations.tuning import prepare

    return prepare(study, request, runs, own=own)


def _rank_count(planned: PlannedStudy) -> int:
    """Returns the number of ranks of a run. Raises ConfigError where arms differ: a sweep's arms share one command."""
    rank_counts = {(config.get("training") or {}).get("devices", 1) for config in planned.configs.values()}
    if len(rank_counts) > 1:
        raise ConfigError(f"arms with {sorted(rank_counts)} ranks need a command each; set one", "training.devices")
    return int(rank_counts.pop())


def _wandb_folder(runs: Path, planned: PlannedStudy) -> Path:
    return plan_path(runs, planned.folder).with_name("wandb")
