"""Seeds that are added after looks at the results: levels, verdicts, and how often statements are false."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from scipy import stats
from scipy.special import stdtr
from scipy.stats import binomtest
from study_on_disk import BYTES, name_of, product_arms, write_plan, write_run

from lit_transformers.config import ConfigError
from lit_transformers.records.plan import LookPlan, parse_plan
from reports.judge import multiplicity
from reports.judge.comparisons import Comparison, Verdict, _judge, compare
from reports.judge.multiplicity import looks_taken, spent
from reports.judge.normality import WIDENING
from reports.judge.statistics import POWER, Array
from reports.read.study import load_study
from reports.report import find, markdown
from reports.show.answer import sentence
from reports.show.sections import all_tables

ON, _, OFF, _ = map(name_of, product_arms())
LOOKS = (3, 6, 10, 16)


@pytest.mark.parametrize(
    ("parameter", "shares"), [(0.0, (0.2, 0.4, 1.0)), (-1.0, (0.0090195874 / 0.07, 0.020036136 / 0.07, 1.0))]
)
def test_the_error_is_spent_as_rpact_spends_it(
    monkeypatch: pytest.MonkeyPatch, parameter: float, shares: Sequence[float]
) -> None:
    """These are its ``alphaSpent`` at 20, 40 and 100 % of the information, in rpact 3.0's own tests of "asHSD"."""
    monkeypatch.setattr(multiplicity, "SPENDING", parameter or 1e-9)
    assert [spent(fraction) for fraction in (0.2, 0.4, 1.0)] == pytest.approx(shares, rel=1e-6)


def test_the_shares_of_planned_looks_add_up_and_those_not_yet_taken_wait() -> None:
    taken = looks_taken(LookPlan(LOOKS, LOOKS))
    assert [look.seeds for look in taken] == list(LOOKS)
    assert sum(look.share for look in taken) == pytest.approx(1.0)
    assert looks_taken(LookPlan(LOOKS, (3, 6))) == taken[:2]
    assert looks_taken(None) == ((None, 1.0),)


def test_a_look_that_was_added_by_hand_takes_an_equal_share() -> None:
    assert looks_taken(LookPlan((3,), (3, 5))) == ((3, 0.5), (5, 0.5))
    planned, added = looks_taken(LookPlan(LOOKS, LOOKS)), looks_taken(LookPlan(LOOKS, (*LOOKS, 20)))
    assert [look.share for look in added] == pytest.approx([*(0.8 * look.share for look in planned), 0.2])


@pytest.mark.parametrize("looks", [(3, 3), (6, 3), (0, 3)])
def test_looks_that_do_not_rise_are_one_line(tmp_path: Path, looks: tuple[int, ...]) -> None:
    plain = write_plan(tmp_path) | {"looks": {"planned": list(looks), "taken": []}}
    with pytest.raises(ConfigError, match=r"^looks: looks \(\d, 3\) do not rise; name each number of seeds once"):
        parse_plan(plain)


def write_two_arms(runs: Path, differences: Sequence[float], looks: dict[str, Sequence[int]] | None) -> None:
    write_plan(runs, product_arms()[::2], seeds=len(differences), design="explicit", looks=looks)
    for seed, difference in enumerate(differences):
        write_run(runs, ON, seed, 2.0 * BYTES * math.log(2))
        write_run(runs, OFF, seed, (2.0 + difference) * BYTES * math.log(2))


def compare_two(runs: Path, notes: list[str] | None = None) -> Comparison:
    [comparison] = compare(load_study(runs, "xl_recurrence"), [] if notes is None else notes)
    return comparison


NEARLY = (0.1, 0.116, 0.108, 0.104, 0.112, 0.108)


def test_a_comparison_is_shown_as_it_was_when_it_was_decided(tmp_path: Path) -> None:
    write_two_arms(tmp_path, (0.1, 0.1001, 0.1002, 9, -9, 9), {"planned": (3, 6), "taken": (3, 6)})
    comparison = compare_two(tmp_path)
    assert comparison.verdict == "worse" and comparison.estimate and comparison.estimate.seeds == 3
    assert comparison.of_all_seeds == (pytest.approx((0.3003 + 9) / 6), 6), (
        "an effect that is decided early is too large"
    )
    assert "; +1.5500 in all 6)" in sentence(find(load_study(tmp_path, "xl_recurrence")), comparison)


def test_a_p_value_is_set_against_the_share_of_its_look_and_the_interval_is_at_that_level(tmp_path: Path) -> None:
    write_two_arms(tmp_path, NEARLY[:3], None)
    once = compare_two(tmp_path)
    write_two_arms(tmp_path, NEARLY[:3], {"planned": LOOKS, "taken": (3,)})
    comparison, share = compare_two(tmp_path), spent(3 / 16)
    assert (once.verdict, comparison.verdict) == ("worse", "unresolved")
    assert once.estimate and once.estimate.p and comparison.level == pytest.approx(0.05 * share)
    assert comparison.adjusted == pytest.approx(once.estimate.p / share)
    assert comparison.estimate and comparison.estimate.interval
    half_width = WIDENING * stats.t.ppf(1 - 0.025 * share, 2) * np.std(NEARLY[:3], ddof=1) / math.sqrt(3)
    assert comparison.estimate.interval.high - 0.108 == pytest.approx(half_width, rel=1e-4)


def test_before_the_first_look_is_complete_there_is_no_verdict(tmp_path: Path) -> None:
    write_two_arms(tmp_path, NEARLY, {"planned": (6, 10), "taken": ()})
    comparison = compare_two(tmp_path)
    assert (comparison.verdict, comparison.reason) == (None, "the look of 6 seeds is not complete")


def test_seeds_beyond_the_looks_that_were_taken_are_not_looked_at(tmp_path: Path) -> None:
    write_two_arms(tmp_path, NEARLY, {"planned": LOOKS, "taken": (3,)})
    estimate = compare_two(tmp_path).estimate
    assert estimate and estimate.seeds == 3


def test_seeds_that_were_added_by_hand_cost_what_the_report_says(tmp_path: Path) -> None:
    write_two_arms(tmp_path, NEARLY, {"planned": (3,), "taken": (3, 6)})
    notes: list[str] = []
    comparison = compare_two(tmp_path, notes)
    width = stats.t.ppf(1 - 0.0125, 5) / stats.t.ppf(0.975, 5)
    assert notes == [
        "Seeds were added by hand after a report of 3, which counts as a look: this one has 50% of the error, and "
        f"its intervals are {width:.2f} times as wide as with 6 seeds from the start. Verdicts of an earlier report "
        "that are not among these no longer hold; those of all reports together err in up to 7.5% of studies."
    ]
    assert comparison.verdict == "worse" and comparison.level == pytest.approx(0.025)
    result = find(load_study(tmp_path, "xl_recurrence"))
    page = markdown(result, all_tables(result), {})
    assert "Looks at the results were planned at 3 seeds per arm, and taken at 3, 6. Every look has a share" in page


def test_the_seeds_that_a_verdict_takes_are_those_of_a_look_to_come_at_its_own_share(tmp_path: Path) -> None:
    """At the look that is named, that look's level and the seeds that it may have decide."""
    write_two_arms(tmp_path, NEARLY[:3], {"planned": LOOKS, "taken": (3,)})
    first = compare_two(tmp_path)
    assert first.verdict == "unresolved" and first.seeds_needed == next(
        look.seeds for look in first.ahead if look.seeds and first.power_of(look.seeds, look.share) >= POWER
    )
    assert [look.seeds for look in first.ahead] == [6, 10, 16, None]
    write_two_arms(tmp_path, (0.1, 0.3, -0.1), {"planned": (3, 6), "taken": (3,)})
    beyond = compare_two(tmp_path)
    assert beyond.seeds_needed and beyond.seeds_needed > 6, "by hand, after all looks that were planned"
    write_two_arms(tmp_path, (0.1, 0.3, -0.1), None)
    once = compare_two(tmp_path)
    alone = replace(once, ahead=())
    assert once.seeds_needed and alone.seeds_needed and once.seeds_needed > alone.seeds_needed, "by hand is a look"
    fewest, most = once.seeds_range
    assert fewest is not None and 3 < fewest < once.seeds_needed and (most is None or most > once.seeds_needed)


@pytest.mark.parametrize("looks", [None, {"planned": LOOKS, "taken": (3,)}, {"planned": (2,), "taken": (2, 3)}])
def test_what_is_open_always_needs_more_seeds_than_it_has(
    tmp_path: Path, looks: dict[str, Sequence[int]] | None
) -> None:
    for spread in (0.001, 0.02, 0.1, 0.14, 0.2, 0.5):
        write_two_arms(tmp_path, (0.1, 0.1 + spread, 0.1 - spread), looks)
        comparison = compare_two(tmp_path)
        if comparison.verdict == "unresolved":
            assert comparison.seeds_needed is None or comparison.seeds_needed > 3


class Simulated(NamedTuple):
    """A difference with the p-values that it has at one look."""

    difference: float
    p: float
    within: float

    def p_within(self, margin: float) -> float:
        return self.within


def simulated(generator: np.random.Generator, truths: Array, spreads: Array, seeds: Sequence[int]) -> list[list[Any]]:
    """Returns independent comparisons of one study at each look; the margin is 1."""
    pairs = truths + spreads * generator.normal(size=(seeds[-1], len(truths)))
    looks = []
    for count in seeds:
        means, errors = pairs[:count].mean(axis=0), pairs[:count].std(axis=0, ddof=1) / math.sqrt(count)
        p = 2 * stdtr(count - 1, -np.abs(means) / errors)
        within = np.where(np.abs(means) < 1, 2 * stdtr(count - 1, (np.abs(means) - 1) / errors), 1.0)
        looks.append([Simulated(*map(float, one)) for one in zip(means, p, within, strict=True)])
    return [[Comparison("", "contrast", {}, cast("Any", one)) for one in look] for look in looks]


def is_false(verdict: Verdict | None, truth: float) -> bool:
    """Whether a verdict is false; lower is better."""
    wrong = {"better": truth >= 0, "worse": truth <= 0, "equal": abs(truth) >= 1}
    return verdict is not None and wrong.get(verdict, False)


TRUTHS = np.array([0.0, *[1.0, -1.0] * 5])
"""One comparison of two arms that do not differ, and ten whose difference is just as large as the margin."""
SPREADS = np.array([10.0, *[0.2] * 10])
"""The first is too uncertain ever to be called equal, the others are certain enough to be called so by chance."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "studies", "least"), [((16,), 1200, 0.035), (LOOKS, 500, 0.0)], ids=["one look", "four looks"]
)
def test_at_most_one_study_in_twenty_has_a_false_statement_of_either_kind_wherever_it_stops(
    seeds: tuple[int, ...], studies: int, least: float
) -> None:
    """The least share of studies that err at one look shows that errors could be made, and none is given away."""
    generator, looks = np.random.default_rng(0), looks_taken(LookPlan(seeds, seeds))
    wrong = []
    for _ in range(studies):
        judged = _judge(simulated(generator, TRUTHS, SPREADS, seeds), looks, "minimize", 1.0)
        wrong.append(any(is_false(one.verdict, truth) for one, truth in zip(judged, TRUTHS, strict=True)))
    assert binomtest(sum(wrong), studies, 0.05, "greater").pvalue > 0.01
    assert np.mean(wrong) >= least
