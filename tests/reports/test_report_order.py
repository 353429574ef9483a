"""The order of a factor's levels in two studies: ranks, their correlation, and the pairs that both studies decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from study_on_disk import BYTES, name_of, write_plan, write_run

from reports.__main__ import main
from reports.judge.order import LevelOrder, order_of
from reports.read.study import ReportError, load_study

LEVELS = ("a", "b", "c", "d", "e")


def write_levels(runs: Path, study: str, bits: Mapping[str, float], seeds: int = 4, noise: float = 0.01) -> None:
    """Writes a study of one factor whose levels reach these bits per byte."""
    arms = [{"mixer": level} for level in bits]
    factors = {"mixer": [*bits]}
    write_plan(runs, arms, seeds, study=study, factors=factors, design="one_factor")
    generator = np.random.default_rng(len(study))
    for level, total in bits.items():
        for seed in range(seeds):
            values = total + generator.normal(0, noise) + generator.normal(0, noise, len(BYTES))
            write_run(runs, name_of({"mixer": level}), seed, values * BYTES * math.log(2))


def order_in(folder: Path, one: Mapping[str, float], other: Mapping[str, float], **changes: Any) -> LevelOrder:
    for name, bits in (("one", one), ("other", other)):
        write_levels(folder / name, name, bits, **changes)
    return order_of(*(load_study(folder / name, name) for name in ("one", "other")))


def test_ranks_correlation_interval_and_p_are_those_of_their_definitions(tmp_path: Path) -> None:
    order = order_in(
        tmp_path,
        {"a": 2.0, "b": 2.2, "c": 2.4, "d": 2.6, "e": 2.8, "only here": 1.0},
        {"a": 3.2, "b": 3.0, "c": 3.4, "d": 3.8, "e": 3.6},
    )
    assert order.factor == "mixer" and order.levels == LEVELS
    assert [order.ranks(order.other)[level] for level in LEVELS] == [2, 1, 3, 5, 4]
    expected = stats.spearmanr([1, 2, 3, 4, 5], [2, 1, 3, 5, 4])
    assert order.correlation == pytest.approx(expected.statistic) == pytest.approx(0.8)
    half = 1.959964 * math.sqrt((1 + 0.8**2 / 2) / 2)
    assert order.interval is not None
    assert [*order.interval] == pytest.approx([math.tanh(math.atanh(0.8) - half), math.tanh(math.atanh(0.8) + half)])
    assert order.p == pytest.approx(16 / 120), (
        "of 120 orders, 8 have a correlation of at least .8, and 8 of at most -.8"
    )
    assert order.agreed == (10, 10, 8)


def test_pairs_within_the_noise_of_a_study_are_not_decided(tmp_path: Path) -> None:
    close = dict.fromkeys(LEVELS, 2.0) | {"e": 3.0}
    order = order_in(tmp_path, close, {level: 3.0 - number / 10 for number, level in enumerate(LEVELS)}, noise=0.02)
    assert order.agreed.pairs == 10 and 4 <= order.agreed.decided <= 5 and order.agreed.alike <= 1


def test_a_metric_that_is_maximized_has_its_best_level_first(tmp_path: Path) -> None:
    write_levels(tmp_path, "losses", {level: 2.0 + number / 10 for number, level in enumerate(LEVELS)})
    losses = load_study(tmp_path, "losses")
    arms = [{"mixer": level} for level in LEVELS]
    metric = {"name": "val/accuracy", "goal": "maximize"}
    write_plan(tmp_path, arms, 4, study="scores", factors={"mixer": [*LEVELS]}, design="one_factor", metric=metric)
    generator = np.random.default_rng(0)
    for number, level in enumerate(LEVELS):
        for seed in range(4):
            values = {"val/accuracy": 0.9 - number / 10 + generator.normal(0, 0.001)}
            write_run(tmp_path, name_of({"mixer": level}), seed, 2.0 * BYTES, metrics=values)
    order = order_of(losses, load_study(tmp_path, "scores"))
    assert order.correlation == pytest.approx(1) and order.interval is None and order.agreed == (10, 10, 10)
    assert order.p == pytest.approx(2 / 120)


def test_the_command_prints_the_order_and_refuses_what_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_levels(tmp_path / "one", "one", {level: 2.0 + number / 10 for number, level in enumerate(LEVELS)})
    write_levels(tmp_path / "other", "other", dict.fromkeys("abcx", 2.0))
    sides = [str(tmp_path / name / "studies" / name) for name in ("one", "other")]
    assert main(["order", sides[0], sides[0], "--to", str(tmp_path / "order.csv")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Spearman's rank correlation over 5 levels: 1.00 (p = 0.017 by permutations)." in text
    assert "Both studies decide 10 of 10 pairs of levels, each at 95 %: 10 in the same order, 0 in opposite" in text
    assert (tmp_path / "order.csv").read_text().count("\n") >= 6
    assert main(["order", *sides]) == 2
    assert "fewer than 4 levels of mixer with finished runs in both: a, b, c" in capsys.readouterr().err
    pairs = [f"--match={level}={other}" for level, other in (("d", "x"), ("a", "b"), ("b", "a"))]
    assert main(["order", *sides, "--factor", "mixer=mixer", *pairs]) == 0
    assert "There is no rank" not in (printed := capsys.readouterr().out) and "correlation over 4 levels" in printed
    assert main(["order", *sides, "--match", "d=y"]) == 2
    assert "mixer of other has no level 'y'" in capsys.readouterr().err
    with pytest.raises(ReportError, match="one has no factor 'mixers'; its factors: mixer"):
        order_of(*(load_study(tmp_path / "one", "one") for _ in range(2)), "mixers")
