"""How often the judgement of studies errs: studies whose arms do not differ, made up and judged as real ones are.

A study errs if one of its comparisons is called better or worse though the quantity that the report names is the same
in both arms, or equal though it lies at the margin. The power is the share of comparisons that are decided where arms
differ. ``python -m claims measure error_rates`` makes the tables of docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lit_transformers.config import Plain
from lit_transformers.records.plan import LookPlan, Margin, Metric, Plan, PlannedArm, PlannedRun
from lit_transformers.records.record import Record
from lit_transformers.records.reference import Reference
from reports.judge.comparisons import Comparison, compare
from reports.read.measurements import DocumentLosses, Measurements
from reports.read.study import Run, Study

__all__ = ["LEARNED", "POPULATIONS", "SEEDS", "Simulation", "error_rate", "measured", "power"]

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]

SEEDS = (2, 3, 4, 6, 8, 12, 16, 24)
LATE_BY = 10.0
"""By how many standard deviations a seed that learns late lies off."""
LOOKS = (4, 8, 16)
ARMS = (1, 5)
DOCUMENTS = 48


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def _lognormal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.exp(generator.standard_normal(shape)) - np.exp(0.5)


def _late(share: float) -> Draw:
    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        late = generator.random(shape) < share
        return np.asarray(generator.standard_normal(shape) + LATE_BY * (late - share))

    return draw


POPULATIONS: Mapping[str, Draw] = {
    "normal": _normal,
    "t with 3 degrees of freedom": lambda generator, shape: generator.standard_t(3, shape),
    "lognormal": _lognormal,
    "one seed in twenty late": _late(0.05),
    "one seed in ten late": _late(0.1),
}
"""The distributions of paired differences over seeds, all with mean zero."""


class Simulation(NamedTuple):
    """A study that is made up: the number of arms besides the baseline, and of seeds.

    looks: those of the study; None for one judgement. effect: the difference of every arm, in standard deviations.
    margin: of the study. known: the share of the known optimum from which a seed has learned, so that late seeds are
    seen not to have learned; None where no optimum is known. documents: how documents vary; None for values without
    documents.
    """

    arms: int
    seeds: int
    looks: tuple[int, ...] | None = None
    effect: float = 0.0
    margin: float | None = None
    known: float | None = None
    documents: str | None = None

    def plan(self, seeds: int) -> Plan:
        """Returns the plan of the study with this many seeds."""
        arms = tuple(
            PlannedArm(name=f"arm {arm}", runs=tuple(PlannedRun(seed=s, key=f"{arm}-{s}") for s in range(seeds)))
            for arm in range(self.arms + 1)
        )
        margin = Margin(self.margin, "made up") if self.margin else None
        references = (Reference("nothing", _START), Reference("all", _END)) if self.known is not None else ()
        return Plan(
            version=1,
            study="made_up",
            question="None?",
            metric=Metric("val/bpb", goal="minimize", margin=margin, learned=self.known),
            baseline="arm 0",
            arms=arms,
            looks=LookPlan(self.looks, tuple(one for one in self.looks if one <= seeds)) if self.looks else None,
            references=references,
        )


_START, _END, _LEVEL_OF_ARMS = 1000.0, 0.0, 500.0
"""Of made-up data: the value without learning, the best value, and the one around which arms lie."""
LEARNED = 0.495
"""The share of the known optimum that separates late seeds of made-up studies, at 505, from the others, near 500."""


def _study(case: Simulation, generator: np.random.Generator, draw: Draw, seeds: int) -> Study:
    differences = draw(generator, (case.arms, seeds)) + case.effect
    baseline = 0.0 * generator.standard_normal(seeds)
    values = _LEVEL_OF_ARMS + np.vstack([baseline, baseline + differences])
    plan, documents = case.plan(seeds), [Measurements()] * values.size
    if case.documents:
        documents = [Measurements(documents=one) for one in _documents(case, generator, values)]
    runs = []
    for number, arm in enumerate(plan.arms):
        for planned in arm.runs:
            measured = documents[number * seeds + planned.seed]
            value = float(values[number, planned.seed])
            if measured.documents is not None:
                value = float(measured.documents.nats.sum() / measured.documents.bytes.sum() / np.log(2))
            record = Record(
                version=1, key=planned.key, outcome="finished", seed=planned.seed, metrics={"val/bpb": value}
            )
            runs.append(Run(arm.name, planned.seed, planned.key, record, None, value, measured))
    return Study(plan, tuple(runs))


def _documents(case: Simulation, generator: np.random.Generator, values: Array) -> list[DocumentLosses]:
    """Returns the documents of each run. The loss of an arm on a document is drawn once for all of its seeds, so that
    it does not average out: skewed, or alike in clusters of 4 to 16 documents."""
    arms, seeds = values.shape
    count, names = DOCUMENTS, [f"{n} file {n}" for n in range(DOCUMENTS)]
    if case.documents == "skewed":
        shared = generator.exponential(1.0, (arms, count)) - 1
    else:
        size = int(case.documents or 1)
        cluster = np.arange(count * size) // size
        shared = generator.standard_normal((arms, count))[:, cluster]
        names, count = [f"{n} file {c}@{n}" for n, c in enumerate(cluster)], count * size
    ones = np.ones(count)
    losses = []
    for arm in range(arms):
        for seed in range(seeds):
            bits = values[arm, seed] + 3 * shared[arm] + 0.3 * generator.standard_normal(count)
            losses.append(DocumentLosses(tuple(names), bits * np.log(2), ones, ones))
    return losses


def _judged(case: Simulation, generator: np.random.Generator, draw: Draw) -> Sequence[Comparison]:
    """Returns the comparisons of one study as they are in the end: with looks, at the first one that decides all."""
    if not case.looks:
        return compare(_study(case, generator, draw, case.seeds), [])
    study = _study(case, generator, draw, case.looks[-1])
    comparisons: Sequence[Comparison] = ()
    for seeds in case.looks:
        plan = case.plan(seeds)
        runs = tuple(run for run in study.runs if run.seed < seeds)
        comparisons = compare(replace(study, plan=plan, runs=runs), [])
        if all(one.verdict != "unresolved" for one in comparisons):
            break
    return comparisons


def error_rate(case: Simulation, draw: Draw, studies: int, seed: int = 0) -> float:
    """Returns the share of studies with a false statement; with an effect at the margin, that of equal ones."""
    generator, wrong = np.random.default_rng(seed), 0
    false = ("equal",) if case.effect else ("better", "worse")
    for _ in range(studies):
        wrong += any(one.verdict in false for one in _judged(case, generator, draw))
    return wrong / studies


def power(case: Simulation, draw: Draw, studies: int, seed: int = 0) -> float:
    """Returns the share of comparisons that are called different."""
    generator, decided = np.random.default_rng(seed), 0
    for _ in range(studies):
        decided += sum(one.verdict in ("better", "worse") for one in _judged(case, generator, draw))
    return decided / studies / case.arms


def measured(studies: int = 300) -> dict[str, Plain]:
    """Returns the tables: errors of every population by seeds, at looks and over clusters of documents, and power."""
    numbers = {"studies": studies, **_errors(studies)}
    numbers["worst"] = max(value for name, value in numbers.items() if name.startswith("error "))
    return {**numbers, "table": _table(numbers), "power": _power(studies // 3)}


def _errors(studies: int) -> dict[str, float]:
    rates = {}
    for arms in ARMS:
        for name, draw in {**POPULATIONS, **LATE_AND_KNOWN}.items():
            known = LEARNED if name in LATE_AND_KNOWN else None
            for seeds in SEEDS:
                rates[f"error {name}, {arms}, {seeds}"] = error_rate(
                    Simulation(arms, seeds, known=known), draw, studies
                )
            rates[f"error {name}, {arms}, looks"] = error_rate(
                Simulation(arms, LOOKS[-1], LOOKS, known=known), draw, studies
            )
    for documents in ("skewed", "4", "16"):
        for seeds in (2, 4, 8):
            case = Simulation(2, seeds, documents=documents)
            rates[f"error documents {documents}, 2, {seeds}"] = error_rate(case, POPULATIONS["normal"], studies // 3)
    return rates


def _table(rates: Mapping[str, float]) -> str:
    columns = [*map(str, SEEDS), "looks"]
    lines = [f"| Differences | Comparisons | {' | '.join(columns)} |", f"| --- | ---: |{' ---: |' * len(columns)}"]
    for name in (*POPULATIONS, *LATE_AND_KNOWN):
        for arms in ARMS:
            cells = [f"{100 * rates[f'error {name}, {arms}, {column}']:.1f}" for column in columns]
            lines.append(f"| {name} | {arms} | {' | '.join(cells)} |")
    for documents, title in (("skewed", "skewed documents"), ("4", "clusters of 4"), ("16", "clusters of 16")):
        found = {seeds: rates.get(f"error documents {documents}, 2, {seeds}") for seeds in columns}
        cells = ["-" if rate is None else f"{100 * rate:.1f}" for rate in found.values()]
        lines.append(f"| normal, {title} | 2 | {' | '.join(cells)} |")
    return "\n".join(lines)


def _power(studies: int) -> str:
    lines = ["| Seeds | Comparisons | 1 | 2 | 4 | 8 | 100 |", "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for seeds in (4, 8, 12, 24):
        for arms in ARMS:
            cases = (Simulation(arms, seeds, effect=effect) for effect in (1.0, 2.0, 4.0, 8.0, 100.0))
            cells = (f"{power(case, POPULATIONS['normal'], studies):.0%}" for case in cases)
            lines.append(f"| {seeds} | {arms} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _late_and_known(share: float) -> Draw:
    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.asarray(generator.standard_normal(shape) + LATE_BY * (generator.random(shape) < share))

    return draw


LATE_AND_KNOWN: Mapping[str, Draw] = {
    "one seed in twenty has not learned": _late_and_known(0.05),
    "one seed in ten has not learned": _late_and_known(0.1),
}
"""Populations of which late seeds are known not to have learned, and the others have mean zero."""
