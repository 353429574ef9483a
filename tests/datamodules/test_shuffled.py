"""Spans in shuffled order, in addition to masks: how many, where, and in which orders."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from datamodules import MaskAndShuffleConfig, MaskTokensConfig
from datamodules.rows.noises import PlainRow
from lit_transformers.batch import IGNORED

MASK, SPECIAL = 1000, 1001


def plain(length: int) -> PlainRow:
    """A row in which no symbol is twice, with a special one at both ends and in the middle."""
    symbols = np.arange(length)
    symbols[[0, length // 2, -1]] = SPECIAL
    return PlainRow(symbols, symbols != SPECIAL, None, MASK, np.arange(1000))


def test_masks_are_those_without_shuffling_and_spans_of_three_lie_beside_them_in_any_order() -> None:
    row, noise = plain(603), MaskAndShuffleConfig()
    orders = Counter[tuple[int, ...]]()
    for seed in range(200):
        inputs, targets = noise.hide(row, np.random.default_rng(seed))
        masked_inputs, masked = MaskTokensConfig().hide(row, np.random.default_rng(seed))
        shuffled = np.flatnonzero((targets != IGNORED) & (masked == IGNORED))
        assert len(shuffled) == 30 == 3 * noise.spans(600), "5 % of 600"
        assert (targets[shuffled] == row.symbols[shuffled]).all() and not (~row.allowed)[shuffled].any()
        rest = np.setdiff1d(np.arange(603), shuffled)
        assert (inputs[rest] == masked_inputs[rest]).all() and (targets[rest] == masked[rest]).all()
        for start in spans_of(shuffled):
            assert {*inputs[start : start + 3]} == {*row.symbols[start : start + 3]}, "the symbols of the span"
            orders[tuple((inputs[start : start + 3] - start).tolist())] += 1
    assert len(orders) == 6 and orders.total() > 1500
    for count in orders.values():
        assert abs(count / orders.total() - 1 / 6) < 4 * (5 / 36 / orders.total()) ** 0.5


def spans_of(places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Where spans of three begin that touch no other."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return [int(run[0]) for run in runs if len(run) == 3]


def test_every_span_is_drawn_as_often_and_none_where_there_is_no_room() -> None:
    noise, row = MaskAndShuffleConfig(rate=0.001, shuffled=0.01), plain(33)
    firsts = Counter[int]()
    for seed in range(2_000):
        _, targets = noise.hide(row, np.random.default_rng(seed))
        _, masked = MaskTokensConfig(rate=0.001).hide(row, np.random.default_rng(seed))
        firsts[int(np.flatnonzero((targets != IGNORED) & (masked == IGNORED))[0])] += 1
    assert set(firsts) == {*range(1, 14), *range(17, 30)}
    assert max(firsts.values()) < 1.6 * min(firsts.values()) + 30, "except for spans next to a masked symbol"
    crowded = MaskAndShuffleConfig(rate=0.9, shuffled=0.9)
    inputs, targets = crowded.hide(row, np.random.default_rng(0))
    assert (targets != IGNORED).sum() < crowded.predictions(30) == 30
    assert (inputs[~row.allowed] == SPECIAL).all()


@pytest.mark.parametrize("symbols", [3, 20, 125, 509])
def test_as_many_are_predicted_at_most_as_a_description_says(symbols: int) -> None:
    noise, row = MaskAndShuffleConfig(rate=0.3, shuffled=0.2, span=4), plain(symbols + 3)
    counts = {int((noise.hide(row, np.random.default_rng(seed)).targets != IGNORED).sum()) for seed in range(30)}
    assert max(counts) <= noise.predictions(symbols)
    assert symbols < 20 or max(counts) > noise.count(symbols)
