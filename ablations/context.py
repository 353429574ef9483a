"""Measures how much of its context the baseline of a language study uses, after its runs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ablations.plan import PlannedStudy
from lit_transformers.records.context import ContextLoss, ContextUse, load_context, write_context
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.records.record import load_record
from lit_transformers.records.schema import first_fault
from lit_transformers.runner import load_runner
from sweeps.process.call import call_forked

__all__ = ["keep_context"]


def keep_context(runs: Path, planned: PlannedStudy, console: Console) -> None:
    """Measures the baseline's first finished run with its context cut, once, and writes it beside the plan.

    What fails is named as its reason, and by no line: most studies are of no text.
    """
    plan = planned.plan
    baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
    key = next((run.key for run in baseline.runs if _has_finished(runs / run.key)), None)
    if key is None or _measured_key(runs, plan.folder) == key:
        return
    try:
        with console.status(f"the context that the baseline of {planned.study} uses"):
            losses = call_forked(planned.runner, context_losses, planned.runner, runs / key / CHECKPOINT)
        context = ContextUse(key, losses)
    except Exception as error:  # whatever it is, the report can do without
        context = ContextUse(key, reason=first_fault(error))
    write_context(runs, plan.folder, context)


def context_losses(runner: str, checkpoint: Path) -> tuple[ContextLoss, ...]:
    """Measures the network of a checkpoint by the runner of its run, for a process that has imported it."""
    return tuple(load_runner(runner).context_losses(checkpoint))


def _has_finished(directory: Path) -> bool:
    """Whether a folder holds a run that has finished, and its checkpoint."""
    try:
        return load_record(directory / RECORD).outcome == "finished" and (directory / CHECKPOINT).is_file()
    except (OSError, ValueError, RecursionError):
        return False


def _measured_key(runs: Path, folder: str) -> str | None:
    """Returns the key of the run that was measured; None where there is none, or a file that cannot be read."""
    try:
        context = load_context(runs, folder)
    except (OSError, ValueError, RecursionError):
        return None
    return context.key if context else None
