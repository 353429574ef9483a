"""What more seeds would decide, by the differences and variances that there are."""

from __future__ import annotations

import pytest

from lit_transformers.records.plan import LookPlan
from reports.judge.comparisons import Comparison, Verdict
from reports.judge.forecast import forecast
from reports.judge.multiplicity import spent
from reports.judge.statistics import PairedDifference, Variances

SPREAD = Variances(3, seed=1.0, document=0.0, document_freedom=1.0)


def comparison(name: str, difference: float, verdict: Verdict | None = None, margin: float | None = None) -> Comparison:
    estimate = PairedDifference(difference, 3, p=SPREAD.p(difference), variances=SPREAD)
    return Comparison(name, "contrast", {f"{name} arm": 1.0, "base": -1.0}, estimate, verdict=verdict, margin=margin)


def first_to_decide(*comparisons: Comparison) -> dict[str, int]:
    """Returns by how many seeds each comparison is decided, of up to 199."""
    forecasts = forecast(comparisons, range(3, 200), None, 0.8)
    names = [one.name for one in comparisons]
    decided = {name: [f.seeds for f in forecasts if name in f.different + f.equal] for name in names}
    return {name: seeds[0] for name, seeds in decided.items() if seeds}


def test_a_comparison_is_decided_by_the_seeds_it_needs_at_the_level_that_holm_asks() -> None:
    large, small = comparison("large", 2.0), comparison("small", 0.8)
    assert first_to_decide(large, small) == {
        "large": SPREAD.seeds_needed(2.0, 0.05 / 2),
        "small": SPREAD.seeds_needed(0.8, 0.05),
    }


def test_what_is_decided_already_leaves_its_level_and_needs_no_arm() -> None:
    settled, small = comparison("settled", 9.0, "worse"), comparison("small", 0.8)
    assert first_to_decide(settled, small) == {"settled": 3, "small": SPREAD.seeds_needed(0.8, 0.05)}
    assert forecast([settled, small], [5], None, 0.8)[0].arms == {"small arm", "base"}


def test_a_difference_within_the_margin_is_decided_by_the_seeds_that_show_it() -> None:
    [seeds] = first_to_decide(comparison("same", 0.1, margin=1.0)).values()
    assert seeds == SPREAD.seeds_needed(0.9, 0.05, 0.9)


def test_a_look_decides_at_its_share_of_the_error() -> None:
    needed = SPREAD.seeds_needed(1.0, 0.05 * spent(0.5))
    assert needed is not None
    for looks, decided in (((needed, 2 * needed), True), ((needed - 1, 2 * needed - 2), False)):
        row = forecast([comparison("one", 1.0)], looks, LookPlan(looks), 0.8)[0]
        assert bool(row.different) == decided


def test_comparisons_without_an_interval_are_left_out() -> None:
    nothing = Comparison("nothing", "contrast", {"a": 1.0, "b": -1.0}, PairedDifference(0.1, 1))
    assert forecast([nothing, comparison("one", 9.0)], [3], None, 0.8)[0].different == ("one",)


@pytest.mark.parametrize("power", [0.5, 0.8, 0.99])
def test_more_power_takes_more_seeds(power: float) -> None:
    needed = SPREAD.seeds_needed(1.0, 0.05, power)
    counts = list(range(3, 60))
    rows = forecast([comparison("one", 1.0)], counts, None, power)
    assert next(row.seeds for row in rows if row.different) == needed
