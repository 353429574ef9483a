"""The benchmark of demos: its cases exist, and its ratios are those of neighbouring blocks."""

from __future__ import annotations

import pytest

from benchmarks.demo_speed import CASES, Rate, RatePair, summarise


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_of_the_size_of_a_demo(name: str) -> None:
    config = CASES[name].config()
    assert config.model.dim == 64 and config.training.device == "cpu" and config.training.validate_every is None


def test_ratios_are_taken_between_neighbours_so_that_load_cancels() -> None:
    loads = (1.0, 0.5, 0.1, 1.0)
    pairs = [RatePair(Rate(300 * load, 600 * load), Rate(200 * load, 300 * load)) for load in loads]
    summary = summarise(pairs)
    assert summary["clock"]["ratio"] == pytest.approx(1.5) and summary["processor"]["ratio"] == pytest.approx(2.0)
    assert summary["processor"]["here"] == pytest.approx(450) and summary["processor"]["there"] == pytest.approx(225)
