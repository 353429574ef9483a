"""``python -m ablations tune STUDY``: tunes every arm under the live table, and reports the best configs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablations.context import keep_context
from ablations.floors import missing_floors
from ablations.looks import at_present_look
from ablations.options import (
    TRIALS,
    Device,
    MemoryLimit,
    MemoryPerRun,
    Retry,
    Scale,
    Seeds,
    Set,
    Study,
    Threads,
    TimeLimit,
    Wandb,
    WithMixer,
    Workers,
    launched,
    limits_of,
    options_for,
    out,
    request_of,
    share_for,
    survey_plan,
    train,
    warn,
)
from ablations.results import write_report
from lit_transformers.config import ConfigError
from sweeps.ledger.ticket import State
from sweeps.live import Row
from sweeps.options import Runs, Storage
from sweeps.store import address_of

if TYPE_CHECKING:
    from sweeps.launchers.local import Options, Summary

Trials = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="Trials of each arm.", show_default=f"{TRIALS}, unless --tokens"),
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", min=1, help="Training tokens of each arm; what pruning saves buys trials.")
]
Prune = Annotated[
    bool, typer.Option("--prune/--no-prune", help="End trials early that lag behind the median of those before.")
]


def tune(
    study: Study, trials: Trials = None, tokens: Tokens = None, runs: Runs = Path("runs"), scale: Scale = "demo",
    changes: Set = None, seeds: Seeds = None, device: Device = None, workers: Workers = None, threads: Threads = None,
    with_mixer_space: WithMixer = False, prune: Prune = True, retry_failed: Retry = False, wandb: Wandb = "disabled",
    storage: Storage = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None,
) -> None:  # fmt: skip
    """Tune every arm alike, then train the winners over the study's seeds and report.

    Each arm searches the same space (learning rate, warm-up, dropout) with the same budget, by TPE, on the validation
    split; the report is of the test split. Stop it at any time and run it again to go on.
    """
    from ablations.show import tuning_table
    from ablations.tuning import prepare, tuned_plan
    from sweeps.tuning.search import Budget
    from sweeps.tuning.tune import tune as search

    if trials and tokens:
        raise ConfigError("a budget is of trials or of tokens, not of both", "--trials")
    if storage is None and address_of(runs):
        out.print("a search goes on here alone; on other machines with a shared ledger: --storage", highlight=False)
    budget = Budget(tokens=tokens) if tokens else Budget(trials or TRIALS)
    tuning = prepare(study, request_of(scale, changes, seeds, device), runs, own=with_mixer_space)
    if tokens and not all(arm.price for arm in tuning.arms):
        raise ConfigError("the tokens of its runs are not known; give a number of --trials", "--tokens")
    limits = limits_of(time_limit, memory_limit, memory_per_run)
    share = share_for(tuning.planned, len(tuning.arms), workers, threads, limits.needed)
    options = options_for(tuning.planned, share, limits, retry_failed=retry_failed, wandb=wandb)

    def launch_rows(rows: list[Row], options: Options) -> Summary:
        return launched(runs, rows, options, storage)

    results, stopped_by = search(
        runs, storage, tuning.planned.study, tuning.arms, tuning.goal, budget, options, launch_rows, prune=prune
    )  # fmt: skip
    out.print(tuning_table(tuning.goal.metric, results, tuning.planned.plan.labels))
    if stopped_by is not None:
        out.print("stopped; run the same command to go on", style="yellow")
        raise typer.Exit(128 + stopped_by)
    planned = tuned_plan(tuning, results, budget, runs)
    planned = at_present_look(planned, runs, planned.plan.seeds)
    planned.require_all_seeds(runs)
    rows, notes = survey_plan(planned, runs, retry_failed=retry_failed, time_limit=limits.seconds)
    warn(notes)
    todo = sum(not row.state.over for row in rows)
    floors = missing_floors(runs, planned, todo, out)
    if todo:
        share = share_for(planned, todo, workers, threads, limits.needed)
        options = options_for(planned, share, limits, retry_failed=retry_failed, wandb=wandb)
        rows = train(runs, rows, options, storage, begin=lambda: planned.write(runs, floors))
    elif floors is not None:
        planned.write(runs, floors)
    keep_context(runs, planned, out)
    write_report(runs, planned.plan, out)
    raise typer.Exit(int(any(row.state in (State.FAILED, State.INVALID) for row in rows)))
