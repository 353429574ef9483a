"""What makes arms comparable: the same budget, planned and measured, and how runs were made and measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reports.records import Record, Run, Study

__all__ = ["cost_of", "mean_cost", "mismatch", "provenance", "spent"]

_SPENT: Mapping[str, str] = {
    "tokens": "tokens",
    "parameters": "parameters",
    "flops": "train_flops",
    "seconds": "seconds",
    "memory": "peak_memory_bytes",
}
"""What a record calls what arms may be matched on."""

_MOST = 4


def cost_of(run: Run, key: str) -> float | None:
    """One cost of a run, planned or measured; None where the record does not hold it."""
    if run.record is None:
        return None
    value = run.record.cost.get(key, run.record.measured.get(key))
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def mean_cost(runs: Iterable[Run], key: str) -> float | None:
    """One cost as the mean over the runs that finished; None where none of them holds it."""
    values = [value for run in runs if run.missing is None and (value := cost_of(run, key)) is not None]
    return float(np.mean(values)) if values else None


def spent(study: Study, arm: str) -> float | None:
    """What the finished runs of an arm have spent of the matched budget, as their mean; None where none tells."""
    key = _SPENT.get(study.plan.match.on) if study.plan.match else None
    return mean_cost(study.finished(arm), key) if key else None


def mismatch(study: Study, arms: Sequence[str]) -> str | None:
    """Why the budgets of these arms lie too far apart for a verdict: as planned, or as their runs spent them."""
    match = study.plan.match
    if match is None:
        return None
    planned = [match.per_arm[arm] for arm in arms if arm in match.per_arm]
    gaps = [abs(arm.reached / arm.target - 1) for arm in planned if arm.target]
    widest = max([*gaps, _range([arm.reached for arm in planned])], default=0.0)
    if widest > match.tolerance:
        return f"not matched: {match.on} differ by {widest:.1%}"
    measured = _range([value for arm in arms if (value := spent(study, arm)) is not None])
    return f"not matched: measured {match.on} differ by {measured:.1%}" if measured > match.tolerance else None


def _range(values: Sequence[float]) -> float:
    """How far the largest lies above the smallest, relatively."""
    return max(values) / min(values) - 1 if values and min(values) > 0 else 0.0


def environments(study: Study, key: str) -> list[str]:
    """The different values that finished runs record for a part of their environment."""
    return sorted({str(record.environment[key]) for record in _records(study) if record.environment.get(key)})


def _records(study: Study) -> list[Record]:
    """Of the runs that finished."""
    return [run.record for run in study.runs if run.record and run.missing is None]


def provenance(study: Study) -> str:
    """How all arms were measured, tuned and selected, and on what, in a line."""
    return " ".join(f"{name}: {told}." for name, told in _facts(study) if told)


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    yield "Evaluation", ", ".join(_protocol([record.protocol for record in _records(study)]))
    yield "Tuning", _tuning(study)
    yield "Selection", _selection(study)
    yield "Hardware", "; ".join(environments(study, "hardware"))
    yield "Code", "; ".join(_code(study))


def _code(study: Study) -> Iterator[str]:
    """What was run: of our own, the commit."""
    for commit in environments(study, "commit"):
        yield f"commit {commit.removesuffix('+')}{' with changes' if commit.endswith('+') else ''}"
    for torch in environments(study, "torch"):
        yield f"torch {torch}"


def _protocol(protocols: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every setting with its value, or with its values where arms are measured differently."""
    for name in dict.fromkeys(name for protocol in protocols for name in protocol):
        values = list(dict.fromkeys(_said(protocol.get(name)) for protocol in protocols))
        if values == [""]:
            continue
        told = [value or "none" for value in values[:_MOST]]
        if len(values) > _MOST:
            told.append(f"{len(values) - _MOST} more")
        yield f"{name.replace('_', ' ')} {told[0] if len(told) == 1 else ' or '.join(told) + ' by arm'}"


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_said(part)}" for name, part in value.items())
    return "" if value is None else str(value)


def _tuning(study: Study) -> str:
    tuning = study.plan.tuning
    if tuning is None:
        return "none, the same hyperparameters for all arms but for what they vary"
    budget = " and ".join(f"{value:,} {name}" for name, value in tuning.budget.items())
    return f"each arm by a search of its own with {budget}" if budget else "each arm by a search of its own"


def _selection(study: Study) -> str:
    """What hyperparameters were chosen on, and what is reported: the last weights, for no run keeps its best ones."""
    tuning, split = study.plan.tuning, study.plan.metric.name.partition("/")[0]
    if tuning is not None and tuning.selected_on:
        return f"hyperparameters on the {tuning.selected_on} split, reported on {tuning.reported_on}"
    if split not in ("val", "test"):
        return ""
    return f"none, the last weights are measured on the {'validation' if split == 'val' else 'test'} split"
