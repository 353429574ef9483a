"""The comparisons that more seeds would decide, by the results that the present seeds leave possible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lit_transformers.records.plan import LookPlan
from reports.judge.comparisons import Comparison, Verdict
from reports.judge.forecast import forecast
from reports.judge.multiplicity import spent
from reports.judge.statistics import PairedDifference, Variances, estimate

STUDIES, POWER = 200, 0.8
WHOLE = (0.05, None, 0.0, 1.0)
"""The level of a comparison alone, without a margin, of near-normal seeds."""
SPREAD = Variances(5, seed=1.0, document=0.0, document_freedom=1.0)


def comparison(name: str, difference: float, verdict: Verdict | None = None, margin: float | None = None) -> Comparison:
    estimate = PairedDifference(difference, 5, p=SPREAD.p(difference), variances=SPREAD)
    return Comparison(name, "contrast", {f"{name} arm": 1.0, "base": -1.0}, estimate, verdict=verdict, margin=margin)


def test_a_power_is_what_planning_by_it_realises() -> None:
    """A difference that was observed by luck, taken as the truth, gave a power of .17 to .61 in place of .8."""
    generator, decided = np.random.default_rng(0), 0
    for _ in range(STUDIES):
        pilot = generator.normal(0.7, 1.0, 5)
        first = estimate(pilot)
        seeds = next(
            n for n in (*range(6, 60), *range(60, 1000, 20), 1000) if first.decided(n, *WHOLE).different >= POWER
        )
        later = estimate([*pilot, *generator.normal(0.7, 1.0, seeds - 5)])
        decided += later.p is not None and later.p < 0.05
    assert decided / STUDIES >= POWER


def test_a_comparison_is_decided_at_the_level_that_holm_asks() -> None:
    """Of two comparisons the clearer one has half of the level, and leaves all of it to the other."""
    large, small = comparison("large", 4.0), comparison("small", 3.0)
    counts = range(6, 40)
    rows = forecast([large, small], counts, None, POWER)
    first = {name: next(row.seeds for row in rows if name in row.different) for name in ("large", "small")}
    for one, level in ((large, 0.025), (small, 0.05)):
        assert one.estimate
        needed = next(n for n in counts if one.estimate.decided(n, level, None, 0.0, 1.0).different >= POWER)
        assert first[one.name] == needed


def test_what_is_decided_already_leaves_its_level_and_needs_no_arm() -> None:
    settled, small = comparison("settled", 9.0, "worse"), comparison("small", 3.0)
    [row] = forecast([settled, small], [30], None, POWER)
    assert set(row.different) == {"settled", "small"} and row.arms == {"small arm", "base"}


def test_equality_is_forecast_from_what_lies_within_the_margin() -> None:
    narrow, wide = comparison("narrow", 0.1, margin=0.2), comparison("wide", 0.1, margin=4.0)
    [row] = forecast([narrow, wide], [40], None, POWER)
    assert row.equal == ("wide",) and row.undecided == ("narrow",)


def test_a_look_decides_at_its_share_of_the_error() -> None:
    one = comparison("one", 2.0)
    assert one.estimate
    level = 0.05 * spent(0.5)
    needed = next(n for n in range(6, 100) if one.estimate.decided(n, level, None, 0.0, 1.0).different >= POWER)
    for looks, decided in (((needed, 2 * needed), True), ((needed - 1, 2 * needed - 2), False)):
        row = forecast([one], looks, LookPlan(looks), POWER)[0]
        assert bool(row.different) == decided


def test_comparisons_without_an_interval_are_left_out() -> None:
    nothing = Comparison("nothing", "contrast", {"a": 1.0, "b": -1.0}, PairedDifference(0.1, 1))
    assert forecast([nothing, comparison("one", 9.0)], [6], None, POWER)[0].different == ("one",)


def test_where_seeds_do_not_show_that_they_are_near_normal_a_forecast_waits_for_those_that_do() -> None:
    one = replace(comparison("one", 1.2), widening=2.5, normal_from=30)
    rows = forecast([one], [12, 29, 30], None, POWER)
    assert [bool(row.different) for row in rows] == [False, False, True]
