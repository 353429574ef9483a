"""Tells whether arms are measured in the same unit and on the same text, so that a difference between them means
something.

A record describes its measurement (``lit_transformers.records.measurement``). An older record without a description is
compared by the fingerprint of its corpus and the signatures of its scores alone. An effect may be averaged over
corpora, or over units, if the weights of each seed sum to zero within each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from lit_transformers.records.measurement import Measurement
from lit_transformers.records.record import Record
from reports.read.brought_in import origin_of
from reports.read.study import Run, Study

__all__ = ["incomparable"]

_ROUNDING = 1e-9
_REMEDIES: Mapping[str, str] = {
    "hidden symbol": "set data.evaluation.noise and data.evaluation.packing to those of all arms",
    "target symbol": "set data.evaluation.noise and data.longest_target to those of all arms",
    "relation": "set data.evaluation.relation to that of all arms",
    "minimal pair": "set data.evaluation.pairs to that of all arms",
}
"""For each unit that data define, the remedy that makes it the same in all arms."""

Facts = Mapping[str, Any]
"""The facts that must be equal in compared runs, by name; a fact that is not known has no entry."""


def incomparable(study: Study, weights: Mapping[str, float], seeds: Sequence[int]) -> str | None:
    """Returns why the value of the study's metric does not mean the same in all of these arms, in a line that names the
    remedy; None where it does, or where no difference is known, as for seeds that were brought in."""
    runs = [run for run in study.runs if run.arm in weights and run.missing is None and run.seed in seeds]
    brought_in = {run.seed for run in runs if origin_of(run.record) is not None}
    runs = [run for run in runs if run.seed not in brought_in]
    facts = [(run, _facts(run.record, study.plan.metric.name)) for run in runs if run.record]
    for name, reason in _REASONS.items():
        if not all(name in known for _, known in facts) or (name == "documents" and _have_one_data_module(runs)):
            continue
        sums: defaultdict[tuple[int, str], float] = defaultdict(float)
        for run, known in facts:
            sums[run.seed, repr(known[name])] += weights[run.arm]
        if any(abs(weight) > _ROUNDING for weight in sums.values()):
            return reason(study, facts)
    return None


def _facts(record: Record, metric: str) -> dict[str, Any]:
    name = metric.rpartition("/")[2].partition("@")[0]
    facts: dict[str, Any] = {"corpus": record.data.get("fingerprint")}
    scores = record.protocol.get("scores")
    score = "rouge" if name.startswith("rouge") else name
    facts["signature"] = scores.get(score) if isinstance(scores, Mapping) else None
    measurement = record.measurement
    if measurement is None:
        return facts
    is_rate, unit = metric.startswith("measured/"), measurement.units.get(name)
    if is_rate:
        unit = "symbol" if "tokens" in name else None
    else:
        facts |= {"split": measurement.split, "documents": measurement.documents, "examples": measurement.examples}
    if unit is not None:
        facts |= {"unit": unit, "definition": _definition(measurement, unit)}
    return facts


def _definition(measurement: Measurement, unit: str) -> tuple[str, str]:
    """Returns the unit that data define which a unit is made of, and its definition; empty ones where there is none."""
    name = max((name for name in measurement.definitions if name in unit), key=len, default="")
    return name, measurement.definitions.get(name, "")


def _have_one_data_module(runs: Sequence[Run]) -> bool:
    """Whether runs read the same named data with the same arguments: such a module draws anew for each measurement, but
    from the same examples."""
    data = [run.record.config.get("data") for run in runs if run.record]
    return all(isinstance(one, Mapping) and one == data[0] and one.get("class_path") for one in data)


def _corpus(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    return "not the same data: the fingerprints of the corpus differ"


def _split(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    return f"not measured on the same text: {_each(facts, 'split', lambda split: f'the {split} split')}"


def _documents(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    counts = {known.get("examples") for _, known in facts}
    if len(counts) > 1 and None not in counts:
        return f"not measured on the same text: {_each(facts, 'examples', lambda count: f'{count:,} examples')}"
    return "not measured on the same text: the documents that were measured differ; measure all arms on the same"


def _signature(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    return f"not scored alike: {_each(facts, 'signature', str)}"


def _unit(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    units = _each(facts, "unit", lambda unit: f"per {unit}")
    return f"not in the same unit: {study.plan.metric.name} is {units}; {_offer(study, facts)}"


def _defined(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    metric, (name, definition) = study.plan.metric.name, facts[0][1]["definition"]
    nouns = {known["definition"][1].partition(" ")[0] for _, known in facts}
    if name in _REMEDIES:
        return f"not in the same unit: a {name} of {metric} is another one in each arm; {_REMEDIES[name]}"
    is_what = f"a {definition.partition(' ')[0]} of another tokenizer in each arm"
    if len(nouns) > 1:
        is_what = _each(facts, "definition", lambda known: f"a {known[1].partition(' ')[0]}")
    return f"not in the same unit: {metric} is per {name}, which is {is_what}; {_offer(study, facts)}"


def _each(facts: Sequence[tuple[Run, Facts]], name: str, text: Callable[[Any], str]) -> str:
    """Returns the values of a fact, each once, with the arms that have it."""
    arms: dict[str, list[str]] = {}
    for run, known in facts:
        names = arms.setdefault(text(known[name]), [])
        names += [] if run.arm in names else [run.arm]
    return " and ".join(f"{value} in {', '.join(names)}" for value, names in arms.items())


def _offer(study: Study, facts: Sequence[tuple[Run, Facts]]) -> str:
    """Returns by which metric of the records these arms can be compared, or that there is none."""
    records = [run.record for run, _ in facts if run.record]
    shared = [name for name in records[0].metrics if all(record.metrics.get(name) is not None for record in records)]
    for name in sorted(shared, key=lambda name: name.rpartition("/")[2] != "bpb"):
        others = [_facts(record, name) for record in records]
        if all("unit" in known for known in others) and all(_alike(*pair) for pair in combinations(others, 2)):
            what = ", bits per byte" if name.endswith("/bpb") else ""
            return f"compare them by {name}{what}, which their records hold"
    return "no metric of their records has one unit in all of them"


def _alike(one: Facts, other: Facts) -> bool:
    return all(one.get(name) == other.get(name) for name in ("unit", "definition", "split", "documents"))


_REASONS: Mapping[str, Callable[[Study, Sequence[tuple[Run, Facts]]], str]] = {
    "corpus": _corpus,
    "split": _split,
    "examples": _documents,
    "documents": _documents,
    "signature": _signature,
    "unit": _unit,
    "definition": _defined,
}
"""The reason that each fact gives where it differs, in the order in which facts are checked."""
