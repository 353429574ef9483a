"""How a study's time is divided between its runs and the work around them."""

from __future__ import annotations

import pytest

from benchmarks.orchestration import Span, split


def test_time_is_shared_out_between_runs_their_workers_gaps_and_the_command() -> None:
    spans = [Span(102, 110), Span(103, 112), Span(111, 120), Span(112.5, 118)]
    cost = split(spans, begun=100, ended=121, workers=2)
    assert (cost.wall, cost.work, cost.start, cost.end) == (21, 8 + 9 + 9 + 5.5, 2 + 3, 1)
    assert list(cost.gaps) == [1, 0.5]
    assert cost.orchestration == 5 + 1.5 + 1
    assert cost.longer(workers=2) == 21 - 31.5 / 2


def test_a_worker_that_is_late_is_not_taken_for_the_one_that_was_free_first() -> None:
    cost = split([Span(101, 104), Span(101, 105), Span(105.25, 106)], begun=100, ended=107, workers=2)
    assert cost.gaps == pytest.approx([0.25])
