"""Seconds to a decided comparison follow from spread and time, and a study has to state the margin of a decision."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from benchmarks.noise import main, measure
from reports.read.results import read_results

PUBLISHED = Path(__file__).parents[2] / "published"


def test_what_varies_more_needs_more_seeds_and_each_costs_both_arms() -> None:
    rows = measure(read_results(PUBLISHED / "linear_feature_map" / "results.jsonl"))["contrasts"]
    assert len(rows) > 2
    by_deviation = sorted(rows, key=lambda row: float(row["deviation"]))
    assert [row["seeds"] for row in by_deviation] == sorted(row["seeds"] for row in rows)
    for row in rows:
        assert row["seconds_to_decide"] == row["seeds"] * row["seconds_of_a_pair"]


def test_a_study_without_a_margin_says_so() -> None:
    with pytest.raises(typer.BadParameter, match="states no margin"):
        main([PUBLISHED / "linear_decoding" / "results.jsonl"])
