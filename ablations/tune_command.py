"""``python -m ablations tune STUDY``: tunes every arm under the live table, and reports the best configs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablations.options import (
    TRIALS,
    Device,
    Entity,
    MemoryLimit,
    MemoryPerRun,
    Project,
    Prune,
    Retry,
    Scale,
    Seeds,
    Set,
    Space,
    Study,
    Tags,
    Threads,
    TimeLimit,
    Wandb,
    WithMixer,
    Workers,
    ends_when_stopped,
    exit_of,
    out,
    request_of,
)
from ablations.training import LaunchSettings, Stopped, launch_rows, limits_of, take_looks
from lit_transformers.config import ConfigError
from lit_transformers.records.study_folder import search_group
from lit_transformers.wandb_target import wandb_target
from sweeps.live import Board, Row
from sweeps.object_store import address_of
from sweeps.options import Runs, Storage

if TYPE_CHECKING:
    from sweeps.launchers.local import Options, Summary

Trials = Annotated[
    int | None,
    typer.Option("--trials", metavar="N", min=1, help="Trials of each arm.", show_default=f"{TRIALS}, unless --tokens"),
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", metavar="N", min=1, help="Training tokens per arm. Pruned trials leave tokens to others."),
]
Objectives = Annotated[
    str | None,
    typer.Option(
        "--objectives",
        metavar="METRIC,COST",
        help="Search for a Pareto front of the metric and costs: cost/train_flops, cost/tokens. Prunes no trial.",
    ),
]
FromWandb = Annotated[
    bool,
    typer.Option(
        "--from-wandb", help="Train no trial: take those that agents of W&B sweeps have done in the folder of runs."
    ),
]


def tune(
    study: Study, trials: Trials = None, tokens: Tokens = None, runs: Runs = Path("runs"), scale: Scale = "demo",
    changes: Set = None, seeds: Seeds = None, device: Device = None, workers: Workers = None, threads: Threads = None,
    with_mixer_space: WithMixer = False, prune: Prune = True, retry_failed: Retry = False, wandb: Wandb = "disabled",
    storage: Storage = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None, project: Project = None, entity: Entity = None, tags: Tags = None,
    from_wandb: FromWandb = False, space: Space = None, objectives: Objectives = None,
) -> None:  # fmt: skip
    """Tune every arm with the same budget, then train the winners over the study's seeds and report.

    Each arm searches the same space (learning rate, warm-up, dropout) by TPE on the validation split. The report uses
    the test split. Stop at any time: the same command resumes. With --from-wandb, the search was done by agents of the
    sweeps that python -m ablations wandb STUDY --method bayes has written.
    """
    from ablations.pareto import train_front, with_objectives
    from ablations.show import tuning_table
    from ablations.tuning import prepare, tuned_plan
    from lit_transformers.runner import load_runner
    from sweeps.tuning.recorded_trials import recorded_results
    from sweeps.tuning.search import Budget
    from sweeps.tuning.tune import tune as search

    if from_wandb and tokens:
        raise ConfigError("W&B's sweeps have a budget of trials; leave it out", "--tokens")
    if trials and tokens:
        raise ConfigError("a budget is of trials or of tokens, not of both", "--trials")
    if storage is None and address_of(runs):
        out.print(
            "this search uses this machine only; to share it, give --storage",
            highlight=False,
        )
    budget = Budget(tokens=tokens) if tokens else Budget(trials or TRIALS)
    tuning = prepare(study, request_of(scale, changes, seeds, device), runs, own=with_mixer_space, added=space or ())
    if tokens and not all(arm.price for arm in tuning.arms):
        raise ConfigError("the tokens of its runs are not known; give a number of --trials", "--tokens")
    if objectives:
        if from_wandb:
            raise ConfigError("W&B's sweeps have one metric; leave it out", "--objectives")
        tuning = with_objectives(tuning, objectives)
    limits = limits_of(time_limit, memory_limit, memory_per_run)
    target = wandb_target(wandb, project, entity, tags)
    settings = LaunchSettings(workers, threads, limits, retry_failed, target, storage=storage)
    options = settings.options(tuning.planned, len(tuning.arms))
    options = options._replace(group=search_group(tuning.planned.folder), metric=tuning.goal.metric)

    def launch_trials(rows: list[Row], options: Options) -> Summary:
        return launch_rows(runs, rows, options, settings, Board(out, options.metric))

    if from_wandb:
        runner, stopped_by = load_runner(tuning.planned.runner), None
        results, count = recorded_results(runs, tuning.arms, tuning.goal, runner, trials)
        budget, tuning = Budget(count), replace(tuning, from_wandb=True)
        out.print(f"the first {count} trials of each arm count, so that all have the same budget", highlight=False)
    else:
        results, stopped_by = search(
            runs, storage, tuning.planned.study, tuning.arms, tuning.goal, budget, options, launch_trials, prune=prune
        )  # fmt: skip
    out.print(tuning_table(tuning.goal.metric, results, tuning.planned.plan.labels))
    with ends_when_stopped():
        if stopped_by is not None:
            raise Stopped(stopped_by)
        if objectives:
            raise exit_of(train_front(tuning, results, runs, settings, out))
        planned = tuned_plan(tuning, results, budget, runs)
        _, rows = take_looks(planned, planned.plan.seeds, runs, settings, out, out)
    raise exit_of(rows)
