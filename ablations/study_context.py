"""Measures how much of their context the models of a language study use, after its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ablations.plan import PlannedStudy
from lit_transformers.records.context_losses import ArmContext, ContextLoss, ContextUse, load_context, write_context
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.records.plan import PlannedArm
from lit_transformers.records.record import load_record
from lit_transformers.records.schema import first_fault
from lit_transformers.runner import load_runner
from sweeps.object_store import store_of
from sweeps.process.call import call_forked

__all__ = ["keep_context"]


def keep_context(runs: Path, planned: PlannedStudy, console: Console) -> None:
    """Measures the baseline's first finished run whose weights are stored, with its context cut, once, and writes the
    losses next to the plan.

    Where the plan has references, all arms are measured, because a loss then shows how much an arm lacks. The reason of
    a failed measurement is stored, and no line names it: most studies are not of text.
    """
    plan = planned.plan
    keys = {arm.name: key for arm in plan.arms if (key := _first_finished(runs, arm))}
    key = keys.get(plan.baseline)
    if key is None:
        return
    arms = keys if plan.references else {}
    before = _measured(runs, plan.folder)
    baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
    restored = _first_finished(runs, baseline, weights=False)
    if before is not None and before.key in (key, restored) and (before.reason or len(before.arms) >= len(arms)):
        return
    try:
        with console.status(f"the context that the baseline of {planned.study} uses"):
            losses = _measure(planned, runs / key)
        context = ContextUse(key, losses)
        for name, arm_key in arms.items():
            with console.status(f"the context that {name} of {planned.study} uses"):
                arm_losses = losses if arm_key == key else _measure(planned, runs / arm_key)
            context = replace(context, arms=(*context.arms, ArmContext(name, arm_key, arm_losses)))
    except Exception as error:  # the report can do without the measurement
        context = ContextUse(key, reason=first_fault(error))
    write_context(runs, plan.folder, context)


def _measure(planned: PlannedStudy, directory: Path) -> tuple[ContextLoss, ...]:
    return call_forked(planned.runner, context_losses, planned.runner, directory / CHECKPOINT)


def context_losses(runner: str, checkpoint: Path) -> tuple[ContextLoss, ...]:
    """Measures the network of a checkpoint by the runner of its run, for a process that has imported it."""
    return tuple(load_runner(runner).context_losses(checkpoint))


def _first_finished(runs: Path, arm: PlannedArm, weights: bool = True) -> str | None:
    """Returns the key of an arm's first run that has finished and has its weights or, if not ``weights``, may lack
    them, as a run that was restored from a publication does; None where there is none."""
    return next((run.key for run in arm.runs if _has_finished(runs / run.key, weights)), None)


def _has_finished(directory: Path, weights: bool) -> bool:
    """Whether a folder holds a run that has finished and, if ``weights``, its weights."""
    try:
        finished = load_record(directory / RECORD).outcome == "finished"
    except (OSError, ValueError, RecursionError):
        return False
    if finished and weights and (store := store_of(directory.parent)) is not None:
        store.pull_checkpoint(directory.name)
    return finished and (not weights or (directory / CHECKPOINT).is_file())


def _measured(runs: Path, folder: str) -> ContextUse | None:
    """Returns the earlier measurement; None where there is none, or its file cannot be read."""
    try:
        return load_context(runs, folder)
    except (OSError, ValueError, RecursionError):
        return None
