"""Checks that arms are comparable: their planned and measured budgets, and how they were tuned and evaluated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lit_transformers.records.measurement import split_of
from lit_transformers.records.record import Record
from lit_transformers.records.reproduction import Reproduction
from reports.read.brought_in import origin_of
from reports.read.study import Run, Study

__all__ = [
    "CHAIN",
    "at_one_place",
    "before_these_seeds",
    "cost_of",
    "counted_cost",
    "environments",
    "mean_cost",
    "measured_splits",
    "mismatch",
    "place_of",
    "provenance",
    "repetitions",
    "spent",
]

_SPENT: Mapping[str, str] = {
    "tokens": "planned_tokens",
    "parameters": "parameters",
    "flops": "planned_flops",
    "seconds": "seconds",
    "memory": "peak_memory_bytes",
}
"""The cost of each quantity that arms may be matched on, as budgets count it: of tokens, those that are planned."""

CHAIN = "chain_"
"""The prefix of the names of costs of all stages of a run together."""
_MOST = 4


def cost_of(run: Run, key: str) -> float | None:
    """Returns one cost of a run, counted or measured, or None where the record does not hold it. A cost of all stages
    together is that of the run alone where it starts from no other."""
    if run.record is None:
        return None
    own = counted_cost(run.record, key.removeprefix(CHAIN), run.record.measured.get(key))
    value = counted_cost(run.record, key, own)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def counted_cost(record: Record, key: str, otherwise: Any = None) -> Any:
    """Returns a cost of a record that was not measured, or ``otherwise`` where it has none of this name: ``tokens`` are
    those that were read, ``planned_tokens`` and ``planned_flops`` those that budgets count."""
    of_record = {"tokens": "read_tokens", "planned_tokens": "planned_tokens", "planned_flops": "planned_flops"}.get(key)
    return record.cost.get(key, otherwise) if of_record is None else getattr(record, of_record)


def mean_cost(runs: Iterable[Run], key: str) -> float | None:
    """Returns one cost as the mean over the finished runs, or None where none of them holds it."""
    values = [value for run in runs if run.missing is None and (value := cost_of(run, key)) is not None]
    return float(np.mean(values)) if values else None


def place_of(run: Run) -> str:
    """Returns where a run was done: the source that it was brought in from, empty of one that was done here."""
    origin = origin_of(run.record)
    return "" if origin is None else origin.source


def at_one_place(arms: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """Returns of the runs of each arm those of one place, the one where all arms that have runs have the most: times
    that were measured in different places are of different machines. No runs where the arms share no place."""
    counts = [Counter(map(place_of, runs)) for runs in arms.values() if runs]
    fewest = {place: min(count[place] for count in counts) for count in counts for place in sorted(count)}
    place = max(fewest, key=lambda place: fewest[place], default="")
    shared = bool(fewest.get(place))
    return {arm: [run for run in runs if shared and place_of(run) == place] for arm, runs in arms.items()}


def spent(study: Study, arm: str) -> float | None:
    """Returns the mean of the matched quantity that an arm's finished runs spent, or None where none records it. The
    time of a run that was done elsewhere says nothing of a budget that was planned here."""
    match = study.plan.match
    key = _SPENT.get(match.on) if match else None
    if key is None or match is None:
        return None
    runs = study.finished(arm)
    if match.on in ("seconds", "memory"):
        runs = tuple(run for run in runs if not place_of(run))
    return mean_cost(runs, f"{CHAIN}{key}" if match.chain else key)


def mismatch(study: Study, arms: Sequence[str]) -> str | None:
    """Returns why the planned or measured budgets of these arms differ too much for a verdict, or None."""
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
    """Returns the relative excess of the largest value over the smallest, 0 where it is not defined."""
    return max(values) / min(values) - 1 if values and min(values) > 0 else 0.0


def environments(study: Study, key: str) -> list[str]:
    """Returns the distinct values that finished runs record for one entry of their environment, sorted."""
    return sorted({str(record.environment[key]) for record in _records(study) if record.environment.get(key)})


def _records(study: Study) -> list[Record]:
    """Returns the records of the finished runs."""
    return [run.record for run in study.runs if run.record and run.missing is None]


def provenance(study: Study) -> str:
    """Returns one line on how all arms were evaluated, tuned and selected, on which hardware and with which code."""
    return " ".join(f"{name}: {text}." for name, text in _facts(study) if text)


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    yield "Evaluation", ", ".join(_protocol([record.protocol for record in _records(study)]))
    yield "Stages", "; ".join(_stages(study))
    yield "Tuning", _tuning(study)
    yield "Selection", _selection(study)
    yield "Stopped early", _stopped_early(study)
    yield "Before these seeds", before_these_seeds(study)
    yield "Hardware", "; ".join(environments(study, "hardware"))
    yield "Code", "; ".join(_code(study))
    yield "Repeated", "; ".join(repetitions(study.reproductions))


def before_these_seeds(study: Study) -> str:
    """Returns the study's description of the seeds before its first one, or a note that it has none; empty without such
    seeds."""
    looks, first = study.plan.looks, min((run.seed for run in study.runs), default=0)
    if looks is None or not first:
        return ""
    return looks.pilot.rstrip(".") or f"seeds 0 to {first - 1}, which the study does not describe"


def _stages(study: Study) -> Iterator[str]:
    """Yields the stages from which the runs of each arm start, and the place of the config of each stage."""
    plan = study.plan
    for arm in plan.arms:
        names = [stage.name for stage in plan.chain(arm.runs[0].sources)] if arm.runs else []
        if plan.stages:
            start = f"after {' and '.join(names)}" if names else "starts from no run"
            yield f"{plan.labels.alone(arm.name)} {start}"
    places = {stage.name: stage.place for stage in plan.stages}
    yield from (f"{name} is {place}" for name, place in places.items())


def repetitions(reproductions: Sequence[Reproduction]) -> Iterator[str]:
    """Yields for every commit how many published runs were repeated there, and how far they lie from these."""
    for commit in dict.fromkeys(str(one.environment.get("commit")) for one in reproductions):
        repeated = [one for one in reproductions if str(one.environment.get("commit")) == commit]
        runs = f"{len(repeated)} run{'s' if len(repeated) > 1 else ''} at commit {commit}"
        if all(one.is_equal for one in repeated):
            yield f"{runs}, equal to the last digit"
        else:
            yield f"{runs}, within {max(abs(one.repeated - one.published) for one in repeated):.2g}"


def _code(study: Study) -> Iterator[str]:
    """Yields the commits of our own code that were run, and the versions of torch."""
    for commit in environments(study, "commit"):
        yield f"commit {commit.removesuffix('+')}{' with changes' if commit.endswith('+') else ''}"
    for torch in environments(study, "torch"):
        yield f"torch {torch}"


def _protocol(protocols: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields every setting of the protocol with its value, or with its values where arms were measured differently."""
    for name in dict.fromkeys(name for protocol in protocols for name in protocol):
        values = list(dict.fromkeys(_value_text(protocol.get(name)) for protocol in protocols))
        if values == [""]:
            continue
        texts = [value or "none" for value in values[:_MOST]]
        if len(values) > _MOST:
            texts.append(f"{len(values) - _MOST} more")
        yield f"{name.replace('_', ' ')} {texts[0] if len(texts) == 1 else ' or '.join(texts) + ' by arm'}"


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_value_text(part)}" for name, part in value.items())
    return "" if value is None else str(value)


def _tuning(study: Study) -> str:
    tuning = study.plan.tuning
    if not study.knows_configs:
        return "not known: the table holds values alone"
    if tuning is None:
        return "none; all arms share the hyperparameters that they do not vary"
    budget = " and ".join(f"{value:,} {name}" for name, value in tuning.budget.items())
    return f"each arm by a separate search with {budget}" if budget else "each arm by a separate search"


def measured_splits(study: Study) -> list[str]:
    """Returns the splits that finished runs were measured on, sorted; nothing where the metric is of no split. A record
    from before records said it has it in its config."""
    named = split_of(study.plan.metric.name)
    return sorted({_measured_split(record, named) for record in _trained_here(study)}) if named else []


def _trained_here(study: Study) -> list[Record]:
    """Returns the records that were not brought in, whose configs are those of the study."""
    return [record for record in _records(study) if origin_of(record) is None]


def _measured_split(record: Record, named: str) -> str:
    if record.measurement is not None:
        return record.measurement.split
    evaluation = (record.config.get("data") or {}).get("evaluation") or {}
    return str(evaluation.get("split", named))


def _selection(study: Study) -> str:
    """Returns the splits that hyperparameters and weights were selected on, and the one that is reported."""
    tuning, splits = study.plan.tuning, measured_splits(study)
    trained = [record.config.get("training") or {} for record in _trained_here(study)]
    by = sorted({training["stop"]["metric"] for training in trained if training.get("keep") == "best"})
    weights = f"weights by {' or '.join(by)} on the validation split" if by else ""
    if tuning is not None and tuning.selected_on:
        parts = (f"hyperparameters on the {tuning.selected_on} split", weights, f"reported on {tuning.reported_on}")
        return ", ".join(part for part in parts if part)
    if not splits:
        return weights
    measured = f"measured on the {' or '.join(splits)} split"
    return f"{f'{weights},' if weights else 'none, the last weights are'} {measured}"


def _stopped_early(study: Study) -> str:
    """Returns the step at which each arm that stopped early ended, and whether arms have read unequal numbers of
    tokens."""
    finished = [study.finished(arm) for arm in study.arm_names if study.finished(arm)]
    arms, tokens = [], {mean_cost(runs, "planned_tokens") for runs in finished}
    for arm in study.arm_names:
        records = [run.record for run in study.finished(arm) if run.record and "steps" in run.record.measured]
        ends = sorted({record.measured["steps"] for record in records})
        planned = max((record.config["training"]["steps"] or 0 for record in records), default=0)
        if ends and ends[0] < planned:
            steps = f"{ends[0]:,}" if len(ends) == 1 else f"{ends[0]:,} to {ends[-1]:,}"
            arms.append(f"{arm} after {steps} of {planned:,} steps")
    consequence = "; arms have not read equally many tokens" if len(tokens) > 1 else ""
    return f"{'; '.join(arms)}{consequence}" if arms else ""
