"""The content of figures: curves and labels before they are drawn, and panels with nothing cut off."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_on_disk import BYTES, name_of, product_arms, write_plan, write_product, write_run

from lit_transformers.records.plan import Metric
from lit_transformers.records.record import NOT_A_NUMBER
from reports.judge.findings import Findings
from reports.read.study import load_study
from reports.report import find
from reports.show.charts import Point, cost_against_quality, differences, front
from reports.show.curves import band, learning_curves, load_curves, load_further
from reports.show.figures import drawings
from reports.show.seeds import draw_seeds, seed_table
from reports.show.style import spread


@pytest.mark.parametrize(("goal", "sign"), [("minimize", 1), ("maximize", -1)])
def test_an_arm_that_costs_a_few_bytes_less_is_beaten_by_a_better_one(goal: str, sign: int) -> None:
    values = {
        "cheap": (100.0, 5.0),
        "cheaper by a byte": (99.9, 6.0),
        "dear": (200.0, 3.0),
        "dear and bad": (210.0, 4.0),
    }
    points = [Point(arm, cost, sign * value, 0.0) for arm, (cost, value) in values.items()]
    assert [point.arm for point in front(points, goal)] == ["cheap", "dear"]
    assert [point.arm for point in front([*points, Point("half", 50.0, sign * 9.0, 0.0)], goal)] == [
        "half",
        "cheap",
        "dear",
    ]


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


def test_learning_curves_show_every_point_and_apart_what_follows_a_steep_beginning(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    findings = find(load_study(tmp_path, "xl_recurrence"))
    arm, *_ = findings.study.arm_names
    steep = np.array([[1.0, 9.0], [10.0, 3.0], [50.0, 1.4], [100.0, 1.5]])  # the end is above the least value
    level = np.array([[50.0, 2.5], [100.0, 2.0]])
    figure = learning_curves(findings, {"train/loss": {arm: [steep]}, "val/bpb": {arm: [level]}})
    panels = {(panel.get_title(loc="left"), panel.get_ylabel()): panel for panel in figure.axes}
    loss, bits = "training loss (nats per target)", findings.metric.title + " (val)"
    assert list(panels) == [
        (part, name) for part in ("all of training", "without the first fifth") for name in (loss, bits)
    ]
    for (part, name), panel in panels.items():
        points = [point for point in (steep if name == loss else level).tolist() if part[0] == "a" or point[0] >= 20]
        [line] = panel.lines
        assert np.column_stack([line.get_xdata(), line.get_ydata()]).tolist() == points
        (left, right), (low, high) = panel.get_xlim(), panel.get_ylim()
        assert all(left <= x <= right and low <= y <= high for x, y in points)
    assert len(learning_curves(findings, {"val/bpb": {arm: [level]}}).axes) == 1


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


def test_curves_of_further_metrics_are_drawn_with_their_labels(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    study = load_study(tmp_path, "xl_recurrence")
    assert load_further(study) == {}
    also = (Metric("val/unknown", goal="minimize"), Metric("train/loss", goal="minimize", label="what is learned"))
    findings = find(replace(study, plan=replace(study.plan, also=also)))
    further = load_further(findings.study)
    assert list(further) == ["train/loss"]
    assert learning_curves(findings, further).axes[0].get_ylabel() == "what is learned (train)"
    assert "further_curves" in [drawing.name for drawing in drawings(findings)]


LEVELS = {"attention": 2.5, "window": 2.7, "lsh": 2.3}
"""The levels of one factor, the baseline's first, with their bits per byte."""


def one_factor(runs: Path, **changes: Any) -> Findings:
    """The findings of a study of one factor, whose seeds differ by a tenth."""
    arms = [{"mixer": level} for level in LEVELS]
    write_plan(runs, arms, factors={"mixer": list(LEVELS)}, **changes)
    for arm in arms:
        for seed, deviation in enumerate((-0.1, 0.0, 0.1)):
            bits = LEVELS[arm["mixer"]] + deviation * (1 + len(arm["mixer"]) / 10)
            write_run(runs, name_of(arm), seed, bits * BYTES * math.log(2))
    return find(load_study(runs, "xl_recurrence"))


def names_at(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.get_yticklabels()]


def test_arms_are_ranked_with_their_costs_beside_them_and_nothing_is_cut_off(tmp_path: Path) -> None:
    findings = one_factor(tmp_path)
    costs = {"attention": 300.0, "window": 100.0, "lsh": 200.0}
    points = [Point(f"mixer={level}", costs[level], value, 0.3) for level, value in LEVELS.items()]
    values, cost = cost_against_quality(findings, {"FLOPs per token": points}).axes
    assert names_at(values) == ["lsh", "attention (baseline)", "window"] and values.get_ylabel() == "mixer"
    assert values.get_xlabel() == "bits per byte (left is better)" and cost.get_xlabel() == "FLOPs per token"
    low, high = values.get_xlim()
    assert low < 2.3 - 0.3 and high > 2.7 + 0.3
    assert [line.get_xdata()[0] for line in values.lines if line.get_linestyle() == "--"] == [2.5], "the baseline"
    assert cost.get_xlim()[0] == 0 and cost.get_xlim()[1] > 300
    filled = {line.get_xdata()[0]: line.get_markerfacecolor() for line in cost.lines if line.get_marker() == "o"}
    assert filled[200.0] == filled[100.0] != filled[300.0], "attention is beaten in both by lsh"


def test_differences_show_zero_every_interval_and_levels_from_the_best_to_the_worst(tmp_path: Path) -> None:
    findings = one_factor(tmp_path)
    (panel,) = differences(findings, findings.comparisons).axes
    assert names_at(panel) == ["lsh", "window"] and panel.get_ylabel() == "mixer against the baseline"
    ends = [end for one in findings.comparisons if one.estimate for end in one.estimate.interval or ()]
    low, high = panel.get_xlim()
    assert low < min(0.0, *ends) and max(0.0, *ends) < high


def test_ratios_have_ticks_that_can_be_read(tmp_path: Path) -> None:
    metric = {"name": "val/bpb", "goal": "minimize", "label": "bits per byte", "compare": "ratio"}
    findings = one_factor(tmp_path, metric=metric)
    (panel,) = differences(findings, findings.comparisons).axes
    marks = [panel.xaxis.get_major_formatter()(place) for place in panel.get_xticks()]
    assert panel.get_xscale() == "log" and len(marks) > 2 and all(float(mark) > 0 for mark in marks)


def test_every_seed_is_a_dot_and_what_diverged_is_counted(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2}, seeds=4)
    arm = "recurrence=off positions=relative"
    write_run(tmp_path, arm, 1, [1.0] * 10, outcome="failed", reason=NOT_A_NUMBER, metrics={})
    findings = find(load_study(tmp_path, "xl_recurrence"))
    panel = draw_seeds(findings).axes[0]
    dots = [line for line in panel.lines if line.get_marker() == "o"]
    number = findings.study.arm_names.index(arm)
    assert len(dots[number].get_xdata()) == 3
    assert sorted(dots[number].get_xdata()) == sorted(run.value for run in findings.study.finished(arm))
    assert [text.get_text() for text in panel.texts] == ["1 diverged"]
    values = str(seed_table(findings).rows[number][1].value)
    assert values.startswith("0: ") and ", 1: diverged, 2: " in values and values.count(":") == 4
