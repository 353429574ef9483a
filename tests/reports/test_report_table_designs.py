"""Tables without any difference, of every design: at most 7 in 100 of them get a false verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from claims.error_rates import POPULATIONS
from reports import judge_table
from reports.judge.comparisons import Comparison

MOST = 0.07
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray[Any, np.dtype[np.float64]]]
Table = list[dict[str, object]]


class Design(NamedTuple):
    """A made-up table, by a generator and a population, and how it is judged. looks: judged at each of them."""

    table: Callable[[np.random.Generator, Draw], Table]
    question: Mapping[str, Any]
    populations: tuple[str, ...] = ("normal", "lognormal", "one seed in ten late")
    looks: tuple[int, ...] = ()
    tables: int = 240


def of_arms(seeds: int = 6, arms: int = 4, shared: bool = True, scales: tuple[float, ...] = (1.0,)) -> Any:
    def table(generator: np.random.Generator, draw: Draw) -> Table:
        common = 100 + (generator.standard_normal(seeds) if shared else np.zeros(seeds))
        return [
            {"arm": f"a{arm}", "seed": seed, "loss": value}
            for arm in range(arms)
            for seed, value in enumerate(common + scales[arm % len(scales)] * draw(generator, (seeds,)))
        ]

    return table


def of_unequal_arms(generator: np.random.Generator, draw: Draw) -> Table:
    """Independent arms of which the smallest varies ten times as much as the largest."""
    sizes, scales = (4, 12, 8), (10.0, 1.0, 3.0)
    return [
        {"arm": f"a{arm}", "seed": seed, "loss": 100 + value}
        for arm, (seeds, scale) in enumerate(zip(sizes, scales, strict=True))
        for seed, value in enumerate(scale * draw(generator, (seeds,)))
    ]


def of_tasks(generator: np.random.Generator, draw: Draw) -> Table:
    """Three tasks, of which a seed of an arm is good or bad at all."""
    common = draw(generator, (3, 6, 1))
    values = 100 + common + draw(generator, (3, 6, 3)) * np.array([1.0, 5.0, 0.2])
    return [
        {"arm": f"a{arm}", "seed": seed, "task": f"t{task}", "loss": values[arm, seed, task]}
        for arm, seed, task in np.ndindex(values.shape)
    ]


def of_counts(generator: np.random.Generator, draw: Draw) -> Table:
    """Arms that are as good on all examples there are, and differ on the 100 of the test, which all seeds share."""
    chances = generator.beta(0.7, 0.3, (3, 100))
    return [
        {"arm": f"a{arm}", "seed": seed, "correct": int((generator.random(100) < chances[arm]).sum()), "total": 100}
        for arm in range(3)
        for seed in range(8)
    ]


def of_times(share: float) -> Any:
    """Times to a target, which a share of all runs never reach."""

    def table(generator: np.random.Generator, draw: Draw) -> Table:
        rows: Table = []
        for arm in range(3):
            for seed, late in enumerate(np.exp(0.1 * draw(generator, (10,)))):
                value = 200.0 if generator.random() < share else 10 * late
                rows += [{"arm": f"a{arm}", "seed": seed, "step": s, "loss": 3 - 0.01 * s} for s in (1, value)]
                rows[-1]["loss"] = 2.0 if value < 200 else 2.9
        return rows

    return table


DESIGNS = {
    "paired": Design(of_arms(), {}),
    "paired, baselines": Design(of_arms(), {"baseline": ["a0", "a1"]}),
    "unpaired": Design(of_arms(shared=False), {"unpaired": True}),
    "unpaired, unequal": Design(of_unequal_arms, {"unpaired": True}),
    "unpaired, near normal": Design(of_arms(20, shared=False, scales=(1.0, 4.0)), {"unpaired": True}, ("normal",)),
    "target": Design(of_arms(shared=False), {"target": 100.0}),
    "tasks": Design(of_tasks, {"task": "task"}, tables=80),
    "tasks, unpaired": Design(of_tasks, {"task": "task", "unpaired": True}, tables=80),
    "counts": Design(of_counts, {"correct": "correct", "total": "total", "metric": None}, ("normal",)),
    "counts, unpaired": Design(
        of_counts, {"correct": "correct", "total": "total", "metric": None, "unpaired": True}, ("normal",)
    ),
    "time to a target": Design(of_times(0.0), {"to_target": 2.5}),
    "time to a target, half reach it": Design(of_times(0.5), {"to_target": 2.5}, ("normal",)),
    "time to a target, unpaired": Design(of_times(0.5), {"to_target": 2.5, "unpaired": True}, ("normal",)),
    "looks": Design(of_arms(16, 3), {}, looks=(4, 8, 16), tables=80),
    "looks, unpaired": Design(of_arms(16, 3, shared=False), {"unpaired": True}, looks=(4, 8, 16), tables=80),
}


def is_wrong(comparisons: tuple[Comparison, ...]) -> bool:
    decided = any(one.frequency and one.frequency.is_decided for one in comparisons)
    return decided or any(one.verdict in ("better", "worse") for one in comparisons)


def judgements(design: Design, table: Table) -> Iterator[tuple[Comparison, ...]]:
    question = {"metric": "loss", **design.question}
    if not design.looks:
        yield judge_table(table, **question).comparisons
    for seeds in design.looks:
        taken = [row for row in table if int(str(row["seed"])) < seeds]
        yield judge_table(taken, looks=design.looks, **question).comparisons


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_tables_of_every_design_keep_their_error(name: str) -> None:
    design = DESIGNS[name]
    for population in design.populations:
        generator = np.random.default_rng(0)
        wrong = 0
        for _ in range(design.tables):
            table = design.table(generator, POPULATIONS[population])
            wrong += any(map(is_wrong, judgements(design, table)))
        assert wrong / design.tables <= MOST, population
