"""Curves and labels, before they are drawn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from study_on_disk import name_of, product_arms, write_product

from reports.read.records import load_study
from reports.show.curves import band, load_curves
from reports.show.looks import spread


def test_a_band_is_the_mean_and_the_range_of_seeds_where_all_have_been() -> None:
    first, second = np.array([[0.0, 4.0], [10.0, 2.0], [20.0, 1.0]]), np.array([[0.0, 6.0], [10.0, 4.0]])
    tokens, mean, least, greatest = band([first, second])
    assert tokens.tolist() == [0.0, 10.0]
    assert mean.tolist() == [5.0, 3.0]
    assert (least.tolist(), greatest.tolist()) == ([4.0, 2.0], [6.0, 4.0])


def test_seeds_that_logged_at_other_tokens_are_interpolated() -> None:
    tokens, mean, _, _ = band([np.array([[0.0, 0.0], [10.0, 10.0]]), np.array([[0.0, 0.0], [5.0, 5.0], [10.0, 10.0]])])
    assert tokens.tolist() == [0.0, 5.0, 10.0]
    assert mean.tolist() == [0.0, 5.0, 10.0]


def test_a_long_noisy_curve_is_thinned_by_means() -> None:
    generator = np.random.default_rng(0)
    curve = np.column_stack([np.arange(12_000.0), 2 + generator.normal(0, 1, 12_000)])
    tokens, mean, _, _ = band([curve])
    assert len(tokens) == 120
    assert np.abs(mean - 2).max() < 0.5


def test_seeds_without_common_tokens_have_no_band() -> None:
    tokens, *_ = band([np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([[5.0, 1.0], [6.0, 1.0]])])
    assert len(tokens) == 0


@pytest.mark.parametrize("heights", [[0.5, 0.5, 0.5], [0.0, 0.01, 0.9], [0.95, 0.97, 0.99], [0.2, 0.8]])
def test_labels_keep_their_distance_and_their_order_inside_the_panel(heights: list[float]) -> None:
    positions = spread(heights, 0.1)
    assert all(b - a >= 0.1 - 1e-12 for a, b in pairwise(positions))
    assert positions[0] >= 0 and positions[-1] <= 1


def test_labels_far_apart_stay_where_they_are() -> None:
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])


def test_crowded_labels_give_way_to_either_side() -> None:
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


def test_curves_of_the_metric_and_of_the_training_loss_are_read_per_arm_and_seed(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    curves = load_curves(load_study(tmp_path, "xl_recurrence"))
    assert list(curves) == ["train/loss", "val/bpb"]
    assert {arm: len(seeds) for arm, seeds in curves["val/bpb"].items()} == {name_of(arm): 3 for arm in product_arms()}
