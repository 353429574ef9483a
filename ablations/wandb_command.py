"""``python -m ablations wandb | agent | dashboard``: a study on Weights & Biases."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ablations import catalog
from ablations.options import (
    TRIALS,
    Artifacts,
    Device,
    Entity,
    Project,
    Prune,
    Scale,
    Seeds,
    Set,
    Space,
    Study,
    SystemMetrics,
    Tags,
    WithMixer,
    out,
    plan_for,
    request_of,
)
from ablations.plan import PlannedStudy, Request, as_typed
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.records.plan import PlannedArm, plan_path
from lit_transformers.records.record import Record
from lit_transformers.records.study_folder import search_group
from lit_transformers.runner import load_runner
from lit_transformers.trust import class_paths_in, require_allowed
from lit_transformers.wandb_target import PROJECT, WandbMode, WandbTarget, wandb_target
from sweeps.object_store import shown_address
from sweeps.options import Runs

if TYPE_CHECKING:
    from ablations.tuning import PreparedTuning

Method = Annotated[
    Literal["grid", "bayes", "random"],
    typer.Option("--method", help="grid: arms by seeds, one sweep. bayes, random: a search, a sweep for each arm."),
]
Trials = Annotated[int, typer.Option("--trials", metavar="N", min=1, help="Trials of each arm, where it is a search.")]
Searching = Annotated[
    bool, typer.Option("--search", help="A trial: with the seed of trials, measured on the validation split.")
]
Mode = Annotated[
    WandbMode, typer.Option("--wandb", help="Whether the run is sent at once, which is checked before it begins.")
]
Winners = Annotated[bool, typer.Option("--tuned", help="Show the winners of the search of python -m ablations tune.")]


def wandb(
    study: Study, method: Method = "grid", trials: Trials = TRIALS, runs: Runs = Path("runs"), scale: Scale = "demo",
    changes: Set = None, seeds: Seeds = None, device: Device = None, with_mixer_space: WithMixer = False,
    prune: Prune = True, space: Space = None, project: Project = None, entity: Entity = None, tags: Tags = None,
) -> None:  # fmt: skip
    """Write the study as W&B sweeps, whose agents run python -m ablations agent. Needs no network and no key.

    After a search, python -m ablations tune STUDY --from-wandb trains the winners over the study's seeds and reports.
    """
    from sweeps.tuning.tune import validations
    from sweeps.wandb.sweep import agent_command, file_name, grid, search, write_sweep

    request = request_of(scale, changes, seeds, device)
    target = wandb_target("online", project, entity, tags)
    words = [study, "--runs", shown_address(runs), *request.arguments()]
    words += ["--tags", ",".join(target.tags)] if target.tags else []
    if method == "grid":
        planned = plan_for(study, runs, request)
        folder = _wandb_folder(runs, planned)
        arms = planned.plan.arms
        numbers = [run.seed for run in arms[0].runs]
        metric = {"name": planned.metric, "goal": planned.plan.goal}
        command = agent_command(words, _rank_count(planned))
        definitions = {"grid": grid(planned.study, [arm.name for arm in arms], numbers, metric, command)}
    else:
        tuning = _prepare_tuning(study, request, runs, with_mixer_space, space or ())
        folder = _wandb_folder(runs, tuning.planned)
        metric = {"name": tuning.goal.metric, "goal": tuning.goal.direction}
        command = agent_command([*words, "--search"], _rank_count(tuning.planned))
        definitions = {
            file_name(arm.name): search(
                tuning.planned.study,
                arm.name,
                arm.space,
                method,
                trials,
                metric,
                command,
                validations(arm.config) if prune else None,
            )
            for arm in tuning.arms
        }
        if tuning.planned.plan.retention:
            out.print("trials of a search measure no retention; --method grid measures it", highlight=False)
    for name, definition in definitions.items():
        write_sweep(folder / f"{name}.yaml", definition)
        words = ["wandb", "sweep", "--project", target.project, *_entity_words(target), f"{folder / name}.yaml"]
        out.print(shlex.join(words), markup=False, highlight=False, soft_wrap=True)
    out.print("each prints the command of its agents: start as many as there are machines", highlight=False)
    if method != "grid":
        winners = ["python", "-m", "ablations", "tune", study, "--from-wandb", *request.arguments()]
        winners += ["--with-mixer-space"] if with_mixer_space else []
        winners += [word for knob in space or () for word in ("--space", knob)]
        out.print("after the search, train and report the winners:", highlight=False)
        out.print(as_typed(winners, runs), markup=False, highlight=False, soft_wrap=True)


def agent(
    context: typer.Context, study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None,
    seeds: Seeds = None, device: Device = None, searching: Searching = False, mode: Mode = "online",
    project: Project = None, entity: Entity = None, tags: Tags = None, artifacts: Artifacts = False,
    system_metrics: SystemMetrics = False, allowed: AllowedModules = None,
) -> None:  # fmt: skip
    """Do the run that a W&B sweep asks for, by --arm=NAME, --seed=N and --path=value as its agent gives them.

    An ordinary run in its own directory: one that is finished is read. Under torchrun the ranks train as one run. Where
    the study states retention, it is measured before and after the run; trials of a search measure none.
    """
    from lit_transformers.machine.cores import limit_threads
    from lit_transformers.runs.wandb_logging import WandbConfig
    from lit_transformers.training.ranks import is_first_rank
    from sweeps.wandb.agent import carry_out, describe, measure_retention, parameters
    from sweeps.wandb.connection import require_connection

    limit_threads()
    file = catalog.find(study) if artifacts else None
    target = wandb_target(mode, project, entity, tags, file, system_metrics)
    values = parameters(context.args)
    config, arm, planned, retention = _requested_run(
        study, request_of(scale, changes, seeds, device), dict(values), runs, searching=searching
    )
    if is_first_rank():
        require_connection(target)
    group = search_group(planned.folder) if searching else planned.folder
    metric = planned.metric
    if searching:
        from sweeps.tuning.tune import SELECTED_ON

        metric = load_runner(planned.runner).named_on(metric, SELECTED_ON)
    target = target._replace(metric=metric, goal=planned.plan.goal)
    record = carry_out(config, planned.runner, runs, WandbConfig(target, group, arm.name, arm.levels))
    records = {record.key: record}
    _print_outcome(record, describe(values))
    if record.outcome == "finished":
        for measuring in measure_retention(config, retention, planned.runner, runs):
            records[measuring.key] = measuring
            _print_outcome(measuring, "retention")
    raise typer.Exit(int(any(one.outcome in ("failed", "invalid") for one in records.values())))


def dashboard(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, project: Project = None, entity: Entity = None, tags: Tags = None, tuned: Winners = False,
) -> None:  # fmt: skip
    """Show the study on W&B: its answer as a run, a workspace and a report. Without a key, leave them as files.

    The answer has verdicts, paired differences, seeds, floors and costs as tables, and the figures of the report. It
    is not sent twice: a new answer replaces the old one. Exits with 1 where there is a key and W&B cannot be reached.
    """
    from ablations.dashboard import build_dashboard, winners_plan

    target = wandb_target("online", project, entity, tags)
    request = request_of(scale, changes, seeds, device)
    planned = plan_for(study, runs, request)
    plan = winners_plan(runs, planned.plan) if tuned else planned.plan
    again = ["python", "-m", "ablations", "dashboard", study, *request.arguments(), *(["--tuned"] if tuned else [])]
    again += _target_words(target)
    if not build_dashboard(plan, catalog.find(study), runs, target, as_typed(again, runs)):
        raise typer.Exit(1)


def _target_words(target: WandbTarget) -> list[str]:
    """Returns the options that name a target again, in a shell without the variables of this one."""
    tags = ["--tags", ",".join(target.tags)] if target.tags else []
    return [*(["--project", target.project] if target.project != PROJECT else []), *_entity_words(target), *tags]


def _entity_words(target: WandbTarget) -> list[str]:
    return ["--entity", target.entity] if target.entity else []


def _print_outcome(record: Record, purpose: str) -> None:
    """Prints how a run ended. purpose: the parameters of the run, or its measurement."""
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


def _prepare_tuning(study: str, request: Request, runs: Path, own: bool, added: Sequence[str]) -> PreparedTuning:
    from ablations.tuning import prepare

    return prepare(study, request, runs, own=own, added=added)


def _rank_count(planned: PlannedStudy) -> int:
    """Returns the number of ranks of a run. Raises ConfigError where arms differ: a sweep's arms share one command."""
    rank_counts = {(config.get("training") or {}).get("devices", 1) for config in planned.configs.values()}
    if len(rank_counts) > 1:
        raise ConfigError(f"arms with {sorted(rank_counts)} ranks need a command each; set one", "training.devices")
    return int(rank_counts.pop())


def _wandb_folder(runs: Path, planned: PlannedStudy) -> Path:
    return plan_path(runs, planned.folder).with_name("wandb")
