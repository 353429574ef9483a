"""Intervals, verdicts and the numbers of seeds have the right values on small examples, and keep their promise."""

from __future__ import annotations

import math
import statistics as standard
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.judge.measures import measure_of
from reports.judge.statistics import (
    MOST_GROUPS,
    Resampled,
    Variances,
    dominates,
    effective_count,
    estimate,
    grouped,
    holm,
    levels,
    resampled_sums,
)
from reports.read.measurements import DocumentLosses


def test_three_paired_differences_give_the_t_interval_computed_by_hand() -> None:
    result = estimate([1.0, 2.0, 3.0])
    half_width = 4.302653 * 1.0 / math.sqrt(3)
    assert result.difference == 2.0
    assert result.interval == pytest.approx((2 - half_width, 2 + half_width), rel=1e-6)
    assert result.over_seeds == result.interval


def test_without_documents_p_is_that_of_the_paired_t_test() -> None:
    pairs = [0.3, 0.5, 0.1, 0.45]
    assert estimate(pairs).p == pytest.approx(stats.ttest_1samp(pairs, 0.0).pvalue, rel=1e-6)


def test_p_is_the_level_whose_interval_touches_zero() -> None:
    variances = Variances(seeds=3, seed=0.03, document=0.004, document_freedom=19.0)
    p = variances.p(0.25)
    assert variances.half_width(p) == pytest.approx(0.25, rel=1e-9)


def test_seeds_and_documents_have_the_degrees_of_freedom_of_welch_as_scipy_computes_them() -> None:
    """The mean of a sample of seeds, less that of a sample of documents, has the sum of their two variances."""
    generator = np.random.default_rng(6)
    of_seeds, of_documents = generator.normal(0, 1, 4), generator.normal(0, 4, 12)
    test = stats.ttest_ind(of_seeds, of_documents, equal_var=False)
    interval = test.confidence_interval(0.95)
    document = float(of_documents.var(ddof=1)) / 12
    variances = Variances(4, float(of_seeds.var(ddof=1)), document, document_freedom=11.0)
    assert test.df == pytest.approx(9.89, abs=0.01)
    assert variances.half_width(0.05) == pytest.approx((interval.high - interval.low) / 2, rel=1e-9)
    assert variances.p(of_seeds.mean() - of_documents.mean()) == pytest.approx(test.pvalue, rel=1e-6)


def test_one_seed_has_a_difference_but_no_interval() -> None:
    result = estimate([0.5])
    assert result.difference == 0.5
    assert (result.interval, result.p, result.detectable()) == (None, None, None)
    assert result.decided(100, 0.05, 1.0, 0.05, 1.0) == (0.0, 0.0, 0.0)


def test_seeds_that_never_differ_carry_no_interval() -> None:
    assert estimate([0.25, 0.25, 0.25]).interval is None


def test_what_is_not_finite_is_refused_and_never_counts_as_no_variance() -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="not finite"):
            estimate([0.1, value, 0.3])
        with pytest.raises(ValueError, match="not finite"):
            Resampled(np.array([[0.1, 0.2], [value, 0.4]]), np.ones(2))
    with pytest.raises(ValueError, match="not finite"), np.errstate(over="ignore", invalid="ignore"):
        Resampled(np.array([[1e300, -1e300], [-1e300, 1e300]]), np.ones(2)).variance()


def test_documents_widen_the_interval_by_what_all_seeds_share() -> None:
    generator = np.random.default_rng(0)
    shared = generator.normal(0, 1, 40)
    rows = shared + generator.normal(0, 0.01, (3, 1)) + generator.normal(0, 0.01, (3, 40))
    resampled = Resampled(resampled_sums(rows.T) / 40, np.ones(40))
    result = estimate(rows.mean(axis=1), resampled)
    assert result.interval is not None and result.over_seeds is not None
    half_width = (result.interval.high - result.interval.low) / 2
    assert half_width == pytest.approx(2.02 * standard.stdev(shared) / math.sqrt(40), rel=0.05)
    assert half_width > 5 * (result.over_seeds.high - result.over_seeds.low) / 2


def test_noise_that_seeds_do_not_share_is_counted_once() -> None:
    generator = np.random.default_rng(1)
    ratios = []
    for _ in range(200):
        rows = generator.normal(0, 1, (5, 30))
        variances = Variances.measure(rows.mean(axis=1), Resampled(resampled_sums(rows.T, 500) / 30, np.ones(30)))
        ratios.append((variances.seed / 5 + variances.document) / (1 / 150))
    # Clipping the shared part at zero adds a little; counting the rest twice would give 2.
    assert 0.95 < np.mean(ratios) < 1.35


def test_resampled_sums_have_the_bootstrap_distribution_of_a_ratio() -> None:
    columns = np.array([[3.0, 1.0], [8.0, 4.0], [5.0, 5.0]])
    sums = resampled_sums(columns, resamples=40_000)
    draws = np.stack(np.meshgrid([0, 1, 2], [0, 1, 2], [0, 1, 2])).reshape(3, -1).T
    exact = columns[draws].sum(axis=1)
    ratios, expected = sums[:, 0] / sums[:, 1], exact[:, 0] / exact[:, 1]
    assert ratios.mean() == pytest.approx(expected.mean(), rel=0.01)
    assert ratios.std() == pytest.approx(expected.std(), rel=0.02)
    assert set(np.unique(ratios.round(9))) == set(np.unique(expected.round(9)))


def test_the_same_documents_are_drawn_for_every_column() -> None:
    column = np.arange(20.0)
    sums = resampled_sums(np.column_stack([column, 2 * column]), resamples=100)
    assert np.array_equal(sums[:, 1], 2 * sums[:, 0])


def test_many_documents_are_pooled_without_losing_any() -> None:
    columns = np.random.default_rng(0).random((5000, 3))
    pooled = grouped(columns)
    assert pooled.shape == (MOST_GROUPS, 3)
    assert pooled.sum(axis=0) == pytest.approx(columns.sum(axis=0))
    assert grouped(columns[:100]) is not None and len(grouped(columns[:100])) == 100


def test_one_huge_document_counts_as_about_one() -> None:
    assert effective_count(np.array([1000.0, 1.0, 1.0, 1.0])) == pytest.approx(1.006, abs=1e-3)
    assert effective_count(np.full(7, 3.0)) == pytest.approx(7.0)


def test_holm_multiplies_by_the_hypotheses_still_standing_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_detectable_difference_is_found_four_times_out_of_five(seeds: int) -> None:
    detectable = Variances(seeds, seed=1.0, document=0.0, document_freedom=1.0).detectable(seeds)
    draws = np.random.default_rng(0).normal(detectable, 1.0, (40_000, seeds))
    p = stats.ttest_1samp(draws, 0.0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.01)


def test_the_seeds_needed_are_the_fewest_that_detect_the_difference() -> None:
    variances = Variances(seeds=3, seed=1.0, document=0.0, document_freedom=1.0)
    needed = variances.seeds_needed(0.8)
    assert needed is not None
    assert variances.detectable(needed) <= 0.8 < variances.detectable(needed - 1)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12))
def test_a_comparison_is_rejected_where_its_p_lies_below_the_level_asked_of_it(
    values: list[float],
) -> None:
    assert [p < level for p, level in zip(values, levels(values), strict=True)] == [p < 0.05 for p in holm(values)]


def test_no_number_of_seeds_resolves_what_only_more_documents_can() -> None:
    variances = Variances(seeds=3, seed=0.01, document=1.0, document_freedom=30.0)
    assert variances.seeds_needed(0.5) is None


def test_estimates_are_the_same_bit_for_bit_each_time() -> None:
    values = np.random.default_rng(3).normal(size=(30, 4))
    first, second = (estimate(values.mean(0), Resampled(resampled_sums(values) / 30, np.ones(30))) for _ in range(2))
    assert first == second


TRIALS = 2000


def trials(
    seeds: int, documents: int, seed: float, document: float, rest: float
) -> Iterator[tuple[np.ndarray[Any, Any], Resampled]]:
    """Yields paired differences [seeds] whose true mean is zero, and the same at resampled documents."""
    generator = np.random.default_rng(seeds)
    for _ in range(TRIALS // 100):
        values = (
            seed * generator.normal(size=(100, seeds, 1))
            + document * generator.normal(size=(100, 1, documents))
            + rest * generator.normal(size=(100, seeds, documents))
        )
        sums = resampled_sums(values.reshape(-1, documents).T, resamples=1000).reshape(-1, 100, seeds) / documents
        for trial in range(100):
            yield values[trial].mean(-1), Resampled(sums[:, trial], np.ones(documents))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("seed", "document", "rest"),
    [(1.0, 0.0, 0.1), (1.0, 0.0, 5.0), (0.0, 0.0, 1.0), (0.5, 2.0, 0.1), (0.1, 2.0, 1.0), (0.02, 2.0, 1.0)],
)
def test_intervals_cover_the_truth_as_often_as_they_say(seeds: int, seed: float, document: float, rest: float) -> None:
    covered = [
        abs(pairs.mean()) <= Variances.measure(pairs, resampled).half_width(0.05)
        for pairs, resampled in trials(seeds, 40, seed, document, rest)
    ]
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.slow
def test_a_percentile_bootstrap_over_three_seeds_would_not_cover() -> None:
    intervals = [
        estimate(pairs, resampled).bootstrap for pairs, resampled in islice(trials(3, 40, 1.0, 0.0, 0.1), 1000)
    ]
    assert np.mean([interval is not None and interval.low <= 0 <= interval.high for interval in intervals]) < 0.80


def test_a_dominating_document_is_taken_to_vary_as_the_others_do() -> None:
    generator = np.random.default_rng(4)
    deviations = generator.normal(size=(40, 1)) * np.ones(3)
    sizes = np.array([3900.0, *[100.0] * 39])
    shares = sizes / sizes.sum()
    resampled = Resampled(np.zeros((10, 3)), sizes, deviations)
    assert dominates(sizes) and not dominates(np.ones(40))
    assert resampled.variance() == pytest.approx(deviations[:, 0].var(ddof=1) * (shares**2).sum())
    assert resampled.freedom == 39


def test_unequal_sizes_do_not_hide_how_far_documents_vary() -> None:
    generator = np.random.default_rng(2)
    sizes = np.array([8.0] * 3 + [1.0] * 37)
    shares = sizes / sizes.sum()
    variances = []
    for _ in range(200):
        effects = generator.normal(size=40)
        sums = resampled_sums(np.column_stack([effects * sizes, sizes]), 500)
        values = np.repeat(sums[:, :1] / sums[:, 1:], 2, axis=1)
        variances.append(Resampled(values, sizes).variance())
    assert np.mean(variances) == pytest.approx(float((shares**2).sum()), rel=0.1)


def test_a_measure_of_a_head_is_of_the_documents_that_it_has_targets_in() -> None:
    """As of several tasks, each with separate documents."""
    columns = {
        "film_nats": [0.5, 0.25, 0.0, 0.0],
        "film_tokens": [1, 1, 0, 0],
        "film_correct": [1, 0, 0, 0],
        "tags_nats": [0.0, 0.0, 3.0, 1.0],
        "tags_tokens": [0, 0, 5, 3],
        "tags_correct": [0, 0, 4, 1],
        "tags_f1": [0.0, 0.0, 0.5, 1.0],
    }
    others = {name: np.array(values, float) for name, values in columns.items()}
    nats, tokens = (others[f"film_{name}"] + others[f"tags_{name}"] for name in ("nats", "tokens"))
    losses = DocumentLosses(("a", "b", "c", "d"), nats, tokens, np.zeros(4), others)
    for metric, value, documents in (
        ("val/film_accuracy", 1 / 2, 2),
        ("val/film_nats", 0.75 / 2, 2),
        ("val/tags_accuracy", 5 / 8, 2),
        ("val/tags_nats", 4 / 8, 2),
        ("val/tags_f1", 1.5 / 2, 2),
        ("val/nats", 4.75 / 10, 4),
    ):
        measure = measure_of(metric, losses.others)
        assert measure is not None and all(name in others for name in measure.needs)
        sums = measure.sums(losses)
        assert len(sums) == 4 and np.isfinite(sums).all(axis=1).sum() == documents
        assert float(measure.value(np.nansum(sums, axis=0))) == pytest.approx(value)
    assert measure_of("val/mean_score", losses.others) is None
