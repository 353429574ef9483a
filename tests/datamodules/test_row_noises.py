"""The hidden symbols of a row: their number, the symbols that hide them, and their spans and words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from datamodules import MaskSpansConfig, MaskTokensConfig, NoiseConfig
from datamodules.rows.noises import HiddenRow, PlainRow
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError

MASK, SPECIAL = 1000, 1001


def plain(length: int, begins: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None, seed: int = 0) -> PlainRow:
    """A row of random symbols below 1000, with a special one at both ends and in the middle."""
    symbols = np.random.default_rng(seed).integers(1000, size=length)
    symbols[[0, length // 2, -1]] = SPECIAL
    return PlainRow(symbols, symbols != SPECIAL, begins, MASK, np.arange(1000))


def hidden_rows(noise: NoiseConfig, row: PlainRow, count: int) -> list[HiddenRow]:
    return [noise.hide(row, np.random.default_rng(number)) for number in range(count)]


def within(share: float, expected: float, count: int) -> bool:
    """Whether a share of ``count`` draws lies within four standard deviations of its probability."""
    return abs(share - expected) <= 4 * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize("noise", [MaskTokensConfig(), MaskSpansConfig()], ids=lambda noise: noise.kind)
def test_of_what_is_predicted_a_tenth_stays_and_a_tenth_is_another_symbol(noise: NoiseConfig) -> None:
    row = plain(1003)
    unchanged = replaced = masked = 0
    for inputs, targets in hidden_rows(noise, row, 100):
        chosen = targets != IGNORED
        assert chosen.sum() == 150, "0.15 of 1000 symbols that are not special"
        assert (targets == row.symbols)[chosen].all() and (inputs == row.symbols)[~chosen].all()
        assert not (chosen & ~row.allowed).any() and inputs[chosen].max() <= MASK
        masked += int((inputs == MASK).sum())
        unchanged += int((inputs == row.symbols)[chosen].sum())
        replaced += int(((inputs != row.symbols) & (inputs != MASK)).sum())
    # One draw decides for all symbols of a span, so that there are fewer draws than symbols.
    draws = 15_000 if noise.kind == "mask_tokens" else 15_000 / 6
    assert within(masked / 15_000, 0.8, int(draws))
    assert within(unchanged / 15_000, 0.1001, int(draws)) and within(replaced / 15_000, 0.0999, int(draws))


def test_every_symbol_is_chosen_as_often_and_every_other_symbol_replaces_one_as_often() -> None:
    row = PlainRow(np.arange(22), np.arange(22) < 20, None, MASK, np.arange(5))
    noise = MaskTokensConfig(rate=0.25, unchanged=0.0, replaced=1.0)
    rows = hidden_rows(noise, row, 2_000)
    places = np.mean([targets != IGNORED for _, targets in rows], axis=0)
    assert all(within(share, 0.25, 2_000) for share in places[:20]) and not places[20:].any()
    drawn = Counter(symbol for inputs, targets in rows for symbol in inputs[targets != IGNORED].tolist())
    assert set(drawn) == set(range(5)) and all(within(count / 10_000, 0.2, 10_000) for count in drawn.values())


@pytest.mark.parametrize(("length", "count"), [(4, 1), (13, 2), (23, 3)])
def test_the_number_of_predictions_is_that_of_the_rate_and_one_at_least(length: int, count: int) -> None:
    for noise in (MaskTokensConfig(), MaskSpansConfig()):
        assert {int((targets != IGNORED).sum()) for _, targets in hidden_rows(noise, plain(length), 30)} == {count}


def test_spans_have_the_lengths_of_the_geometric_distribution_up_to_the_longest() -> None:
    noise, row = MaskSpansConfig(), plain(8_003)
    lengths = Counter(
        stop - start
        for number in range(40)
        for start, stop in noise.spans(row, np.random.default_rng(number))[:-1]  # the last one is cut
    )
    shares = [0.2 * 0.8 ** (length - 1) for length in range(1, 11)]
    assert set(lengths) == set(range(1, 11)) and lengths.total() > 10_000
    for length, share in enumerate(shares, start=1):
        assert within(lengths[length] / lengths.total(), share / sum(shares), lengths.total()), length
    mean = sum(length * count for length, count in lengths.items()) / lengths.total()
    assert mean == pytest.approx(3.8, abs=0.08), "as the paper says"


def test_a_span_is_treated_alike_lies_in_one_segment_and_meets_no_other() -> None:
    noise, row = MaskSpansConfig(rate=0.5), plain(103)
    fates = set()
    for number in range(60):
        spans = noise.spans(row, np.random.default_rng(number))
        inputs, targets = noise.hide(row, np.random.default_rng(number))
        places = [place for start, stop in spans for place in range(start, stop)]
        assert len(places) == len(set(places)) == 50 and set(places) == set(np.flatnonzero(targets != IGNORED).tolist())
        for start, stop in spans:
            assert row.allowed[start:stop].all()
            masked, same = inputs[start:stop] == MASK, inputs[start:stop] == row.symbols[start:stop]
            fate = "masked" if masked.all() else "unchanged" if same.all() else "replaced"
            assert fate != "replaced" or (not masked.any() and same.sum() <= 1)
            fates.add(fate)
    assert fates == {"masked", "unchanged", "replaced"}


WORDS = np.array([True, False, True, False, False, True, True, False] * 25)
"""Words of two, three, one and two symbols, again and again."""


def test_spans_and_whole_words_begin_and_end_with_words() -> None:
    row = plain(200, WORDS)
    begins = WORDS | ~row.allowed | np.concatenate([[False], ~row.allowed[:-1]])
    word = np.cumsum(begins)
    for number in range(40):
        for start, stop in MaskSpansConfig().spans(row, np.random.default_rng(number))[:-1]:
            assert begins[start] and begins[stop] and word[stop - 1] - word[start] < 10
        _, targets = MaskTokensConfig(whole_words=True).hide(row, np.random.default_rng(number))
        chosen = targets != IGNORED
        assert 28 <= chosen.sum() <= 30 == MaskTokensConfig().count(int(row.allowed.sum()))
        assert {*word[chosen].tolist()}.isdisjoint(word[~chosen].tolist()), "a part of a word"


def test_a_word_longer_than_all_predictions_is_hidden_where_there_is_no_shorter_one() -> None:
    row = PlainRow(
        np.arange(8),
        np.arange(8) % 7 > 0,
        np.array([True, True, False, False, True, False, False, True]),
        MASK,
        np.arange(8),
    )
    noise = MaskTokensConfig(whole_words=True)
    hidden = {tuple(np.flatnonzero(targets != IGNORED).tolist()) for _, targets in hidden_rows(noise, row, 20)}
    assert hidden == {(1, 2, 3), (4, 5, 6)}


def test_nothing_is_hidden_of_special_symbols() -> None:
    row = PlainRow(np.arange(3), np.zeros(3, np.bool_), None, MASK, np.arange(8))
    for noise in (MaskTokensConfig(), MaskSpansConfig()):
        inputs, targets = noise.hide(row, np.random.default_rng(0))
        assert inputs.tolist() == [0, 1, 2] and targets.tolist() == [IGNORED] * 3


def test_shares_of_more_than_all_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"unchanged 0.6 and replaced 0.5 share the same symbols; their sum is at most 1"
    ):
        MaskTokensConfig(unchanged=0.6, replaced=0.5)
