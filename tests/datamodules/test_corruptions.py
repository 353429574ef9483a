"""Corruptions of a row before an encoder reads it: against slow definitions, with their amounts and mean lengths."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from datamodules import (
    CausalTargetConfig,
    ComposedConfig,
    CorruptionConfig,
    DeshufflingConfig,
    DocumentRotationConfig,
    MASSConfig,
    PhasesConfig,
    PrefixTargetConfig,
    SentencePermutationConfig,
    SpanCorruptionConfig,
    TextInfillingConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
)
from datamodules.denoising.corruptions import Corrupted, PlainText
from datamodules.denoising.symbols import DenoisingSymbols
from lit_transformers.batch import Vocabulary
from lit_transformers.config import ConfigError

MASK, FIRST_SENTINEL = 1000, 1001
SYMBOLS = DenoisingSymbols(
    Vocabulary(size=1200, boundary=1199, unit="word", byte_lengths=None),
    MASK,
    1198,
    np.arange(FIRST_SENTINEL, 1190),
    np.arange(1000),
)


def text(count: int, sentence: int = 8) -> PlainText:
    """A row of ``count`` different symbols, in sentences of ``sentence`` symbols."""
    return PlainText(np.random.default_rng(0).permutation(1000)[:count], np.arange(0, count, sentence))


def corrupted(noise: CorruptionConfig, row: PlainText, draws: int) -> list[Corrupted]:
    return [noise.corrupt(row, SYMBOLS, np.random.default_rng(number)) for number in range(draws)]


def within(share: float, expected: float, count: int) -> bool:
    """Whether a share of ``count`` draws lies within four standard deviations of its probability."""
    return abs(share - expected) <= 4 * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize(("replaced", "draws"), [(0.0, 200), (0.1, 200)])
def test_masked_symbols_are_a_share_that_stands_anywhere(replaced: float, draws: int) -> None:
    row = text(100)
    rows = corrupted(TokenMaskingConfig(replaced=replaced), row, draws)
    assert all((pair.target == row.symbols).all() for pair in rows)
    changed = np.array([pair.source != row.symbols for pair in rows])
    masked = np.array([pair.source == MASK for pair in rows])
    assert (changed.sum(axis=1) <= 15).all() and (masked.sum(axis=1) == 15).all() == (replaced == 0)
    assert within(masked.sum() / (15 * draws), 1 - replaced - 1e-9, 15 * draws)
    assert all(within(share, 0.15, draws) for share in changed.mean(axis=0))


def test_deleted_symbols_leave_nothing_behind() -> None:
    row = text(100)
    rows = corrupted(TokenDeletionConfig(rate=0.3), row, 200)
    is_kept = np.array([np.isin(row.symbols, pair.source) for pair in rows])
    assert all(row.symbols[mask].tolist() == pair.source.tolist() for mask, pair in zip(is_kept, rows, strict=True))
    assert {len(pair.source) for pair in rows} == {70}
    assert all(within(share, 0.7, 200) for share in is_kept.mean(axis=0))


def walk(row: PlainText, pair: Corrupted, lengths: list[int]) -> None:
    """Reads a source from left to right: a mask passes over as many symbols as its span has."""
    place, spans = 0, iter(lengths)
    for symbol in pair.source.tolist():
        if symbol == MASK:
            place += next(spans)
        else:
            assert symbol == row.symbols[place]
            place += 1
    assert place == len(row.symbols) and next(spans, None) is None


def test_infilled_spans_have_poisson_lengths_and_one_mask_each_also_of_length_0() -> None:
    noise, row = TextInfillingConfig(), text(900)
    spans = [noise.span_lengths(270, np.random.default_rng(number)) for number in range(60)]
    assert {int(lengths.sum()) for lengths in spans} == {270}
    lengths = Counter(np.concatenate(spans).tolist())
    for length in range(8):
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert abs(lengths[length] / lengths.total() - expected) < 4 * (expected / lengths.total()) ** 0.5 + 0.004
    for number, pair in enumerate(corrupted(noise, row, 20)):
        walk(row, pair, noise.span_lengths(270, np.random.default_rng(number)).tolist())
        assert pair.target.tolist() == row.symbols.tolist()


def test_masks_of_spans_stand_anywhere_in_a_source_and_an_insertion_never_lengthens_a_row() -> None:
    sources = [pair.source for pair in corrupted(TextInfillingConfig(rate=0.3), text(20), 4_000)]
    usual = [source for source in sources if len(source) == 16 and (source == MASK).sum() == 2]
    shares = np.mean([source == MASK for source in usual], axis=0)
    assert len(usual) > 500 and all(within(share, 2 / 16, len(usual)) for share in shares)
    for count in range(1, 12):
        pairs = corrupted(TextInfillingConfig(rate=0.2), text(count), 300)
        assert max(len(pair.source) for pair in pairs) <= count and all(MASK in pair.source for pair in pairs)


def test_sentences_are_permuted_whole_and_every_order_is_as_likely() -> None:
    row = text(24)
    sentences = [tuple(part.tolist()) for part in np.split(row.symbols, row.sentences[1:])]
    orders = Counter(
        tuple(tuple(part.tolist()) for part in np.split(pair.source, 3))
        for pair in corrupted(SentencePermutationConfig(), row, 1200)
    )
    assert set().union(*orders) == {*sentences} and len(orders) == 6
    assert all(within(count / 1200, 1 / 6, 1200) for count in orders.values())


def test_a_row_is_rotated_to_any_symbol_and_tokens_are_shuffled() -> None:
    row = text(10)
    rotations = [row.symbols[start:].tolist() + row.symbols[:start].tolist() for start in range(10)]
    counts = Counter(rotations.index(pair.source.tolist()) for pair in corrupted(DocumentRotationConfig(), row, 1000))
    assert all(within(counts[start] / 1000, 0.1, 1000) for start in range(10))
    for pair in corrupted(DeshufflingConfig(), row, 5):
        assert sorted(pair.source.tolist()) == sorted(row.symbols.tolist()) != pair.source.tolist()


def test_infilling_after_permutation_hides_parts_of_sentences_in_another_order() -> None:
    row = text(40)
    pair = ComposedConfig().corrupt(row, SYMBOLS, np.random.default_rng(0))
    chance = np.random.default_rng(0)
    permuted = SentencePermutationConfig().damaged(row, SYMBOLS, chance)
    assert pair.source.tolist() == TextInfillingConfig().damaged(permuted, SYMBOLS, chance).symbols.tolist()
    assert permuted.symbols.tolist() != pair.target.tolist() == row.symbols.tolist()
    assert ComposedConfig().permutes and not TextInfillingConfig().permutes


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_mass_masks_one_span_which_the_decoder_writes_where_it_stood(share: float) -> None:
    row, starts, length = text(20), Counter[int](), round(share * 20)
    for pair in corrupted(MASSConfig(share=share), row, 1000):
        stop = pair.start + length
        assert pair.source.tolist() == [
            MASK if pair.start <= place < stop else symbol for place, symbol in enumerate(row.symbols.tolist())
        ]
        assert pair.target.tolist() == row.symbols[pair.start : stop].tolist() and not pair.ends
        starts[pair.start] += 1
    assert set(starts) == {*range(21 - length)}
    assert all(abs(count / 1000 - 1 / len(starts)) <= 4 * (1 / len(starts) / 1000) ** 0.5 for count in starts.values())


def spans_of(row: PlainText, pair: Corrupted) -> list[list[int]]:
    """Puts the spans back behind their sentinels, which must give the row, and returns them."""
    spans: list[list[int]] = []
    for symbol in pair.target.tolist():
        if symbol >= FIRST_SENTINEL:
            assert symbol == FIRST_SENTINEL + len(spans)
            spans.append([])
        else:
            spans[-1].append(symbol)
    assert spans.pop() == [], "a last sentinel ends the target"
    restored: list[int] = []
    for symbol in pair.source.tolist():
        restored += spans[symbol - FIRST_SENTINEL] if symbol >= FIRST_SENTINEL else [symbol]
    assert restored == row.symbols.tolist()
    assert all(min(neighbours) < FIRST_SENTINEL for neighbours in zip(pair.source, pair.source[1:], strict=False)), (
        "spans touch"
    )
    return spans


def test_spans_behind_sentinels_are_put_back_and_have_the_mean_length() -> None:
    row, draws = text(100), 400
    rows = [spans_of(row, pair) for pair in corrupted(SpanCorruptionConfig(), row, draws)]
    assert {len(spans) for spans in rows} == {5} and {sum(map(len, spans)) for spans in rows} == {15}
    hidden = np.mean([np.isin(row.symbols, np.concatenate(spans)) for spans in rows], axis=0)
    middle = hidden[20:80].mean()  # at the edges fewer ways to place a span reach a symbol
    assert abs(middle - 0.15) < 0.02 and hidden.mean() == pytest.approx(0.15) and (hidden > 0).all()
    firsts = Counter(len(spans[0]) for spans in rows)
    for length in range(1, 6):  # of the compositions of 15 into 5 parts, each as likely, those whose first has a length
        share = math.comb(15 - length - 1, 3) / math.comb(14, 4)
        assert within(firsts[length] / draws, share, draws)


def test_single_places_are_hidden_behind_sentinels_or_dropped() -> None:
    row = text(60)
    rows = corrupted(SpanCorruptionConfig(mean=None, rate=0.3), row, 200)
    lengths = [len(span) for pair in rows for span in spans_of(row, pair)]
    ending = (1 - 18 / 60) * 60 / 59  # that the next symbol is visible, drawn without replacement
    assert abs(sum(lengths) / len(lengths) - 1 / ending) < 0.05 and max(lengths) > 3
    for pair in corrupted(SpanCorruptionConfig(mean=None, dropped=True), row, 20):
        is_kept = np.isin(row.symbols, pair.source)
        assert row.symbols[is_kept].tolist() == pair.source.tolist() and (~is_kept).sum() == 9
        assert row.symbols[~is_kept].tolist() == pair.target.tolist()


def test_a_prefix_is_of_any_length_and_a_language_model_reads_none() -> None:
    row = text(11)
    rows = corrupted(PrefixTargetConfig(), row, 1000)
    assert all([*pair.source, *pair.target] == row.symbols.tolist() for pair in rows)
    counts = Counter(len(pair.source) for pair in rows)
    assert set(counts) == {*range(1, 11)} and all(within(count / 1000, 0.1, 1000) for count in counts.values())
    assert [*PrefixTargetConfig().corrupt(text(1), SYMBOLS, np.random.default_rng(0)).source] == []
    pair = CausalTargetConfig().corrupt(row, SYMBOLS, np.random.default_rng(0))
    assert not len(pair.source) and pair.target.tolist() == row.symbols.tolist()


EVERY: list[CorruptionConfig] = [
    TokenMaskingConfig(rate=0.9), TokenDeletionConfig(rate=0.95), TextInfillingConfig(mean=1.0),
    SentencePermutationConfig(), DocumentRotationConfig(), DeshufflingConfig(), ComposedConfig(), MASSConfig(),
    SpanCorruptionConfig(), SpanCorruptionConfig(mean=None, rate=0.6), SpanCorruptionConfig(mean=1.0, rate=0.8),
    SpanCorruptionConfig(dropped=True), PrefixTargetConfig(), CausalTargetConfig(), PhasesConfig(),
]  # fmt: skip


@pytest.mark.parametrize("noise", EVERY, ids=lambda noise: noise.kind)
def test_no_row_is_longer_than_the_longest_nor_needs_more_sentinels(noise: CorruptionConfig) -> None:
    for length in (8, 13, 30):
        longest, sentinels = noise.longest(length), noise.sentinels(length)
        symbols = SYMBOLS._replace(sentinels=SYMBOLS.sentinels[:sentinels])
        sizes = set()
        for count in range(1, length):
            for seed in range(20):
                pair = noise.corrupt(text(count, 3), symbols, np.random.default_rng(seed))
                target = pair.start + len(pair.target) + pair.ends
                sizes.add((len(pair.source) + 1 <= longest.source, target <= longest.target or pair.start > 0))
                assert len(pair.target) > 0
        assert sizes == {(True, True)}
        usual = noise.usual(length)
        assert 1 <= usual.source <= longest.source and 1 <= usual.target <= longest.target


def test_phases_follow_each_other_and_the_second_is_measured() -> None:
    noise = PhasesConfig(first=MASSConfig(), epochs=2, then=SpanCorruptionConfig())
    assert [noise.at(epoch).kind for epoch in range(4)] == ["mass", "mass", "span_corruption", "span_corruption"]
    assert noise.every()[-1] == SpanCorruptionConfig() and noise.sentinels(24) == 2


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: ComposedConfig(members=(TextInfillingConfig(), SentencePermutationConfig())), "must come first"),
        (lambda: ComposedConfig(members=(TokenMaskingConfig(), MASSConfig())), "mass decides the target"),
        (lambda: ComposedConfig(members=(TokenMaskingConfig(),)), "members are two or more"),
        (lambda: PhasesConfig(first=PhasesConfig()), "cannot have phases"),
    ],
)
def test_what_cannot_be_done_together_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build()
