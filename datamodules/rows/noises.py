"""The hidden symbols of a row, and their replacements: masks of tokens (BERT) and of spans (SpanBERT)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.rows.phrases import Phrases, PhrasesConfig
from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, Positive

__all__ = [
    "Chosen",
    "HiddenRow",
    "MaskSpansConfig",
    "MaskTokensConfig",
    "NoiseConfig",
    "PlainRow",
    "fitting",
    "placed_spans",
    "words_of",
]

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


class PlainRow(NamedTuple):
    """A row before anything in it is hidden.

    symbols    (t,) the symbols with the special ones among them
    allowed    (t,) True at symbols that may be hidden, False at special ones
    begins     (t,) True at symbols that begin a word; None where words cannot be known from symbols
    mask       the symbol [MASK]
    drawable   the symbols that may stand in the place of another: all but the special ones
    phrases    the phrases that a noise asks for (``NoiseConfig.given``); None for those that ask for none
    """

    symbols: Integers
    allowed: Booleans
    begins: Booleans | None
    mask: int
    drawable: Integers
    phrases: Phrases | None = None


class HiddenRow(NamedTuple):
    """A row in which symbols are hidden: ``inputs`` and ``targets`` (t,) of RowBatch."""

    inputs: Integers
    targets: Integers


class Chosen(NamedTuple):
    """The symbols of a row that are predicted.

    places  (n,) where they stand
    group   (n,) the number, from 0, of the group that each belongs to: the symbols of a group are treated alike
    """

    places: Integers
    group: Integers


class NoiseConfig(Config):
    """Base of every config of noise; the table NOISES lists the kinds.

    rate       the share of a row's symbols that are predicted, rounded to a number, which is at least 1
    unchanged  the share of the predicted symbols that stay as they are
    replaced   the share that become another symbol, drawn uniformly, or by chance the same; the rest becomes [MASK]
    variants   dynamic noise (None) is drawn anew in every epoch; static noise returns after this number of epochs, as
               ten variants did over the forty epochs of BERT (arXiv:1907.11692, section 4.1), and so do
               the segments of a pair and their relation
    """

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    unchanged: Annotated[float, Field(ge=0, le=1)] = 0.1
    replaced: Annotated[float, Field(ge=0, le=1)] = 0.1
    variants: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        if self.unchanged + self.replaced > 1:
            yield (
                f"unchanged {self.unchanged:g} and replaced {self.replaced:g} share the same symbols; "
                "their sum is at most 1"
            )

    @property
    def needs_words(self) -> bool:
        """Whether it must be known from symbols where words begin."""
        raise NotImplementedError

    @property
    def most_words(self) -> int:
        """Hook: the most words that are hidden together. By default it is one."""
        return 1

    @property
    def given(self) -> PhrasesConfig | None:
        """Hook: the phrases that have to be known. By default there are none."""
        return None

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        """Chooses the symbols of a row that are predicted, by random numbers of ``chance`` alone."""
        raise NotImplementedError

    @property
    def replaces_phrases(self) -> bool:
        """Hook: whether phrases are replaced, so that a task can predict it of each. By default they are not."""
        return False

    def replace(self, row: PlainRow, chance: np.random.Generator) -> tuple[PlainRow, Integers | None]:
        """Hook: returns a row with other phrases, in which symbols are hidden afterwards, and for each phrase (p, 3)
        the place of its first symbol, the place after its last, and whether it was replaced. By default the same row,
        and None."""
        return row, None

    def variant(self, epoch: int) -> int:
        """Returns the number of the noise of an epoch: equal numbers, equal noise."""
        return epoch if self.variants is None else epoch % self.variants

    def count(self, symbols: int) -> int:
        """Returns how many symbols of a row are hidden, given the number of those that may be."""
        return max(round(self.rate * symbols), 1)

    def predictions(self, symbols: int) -> int:
        """Hook: returns the most symbols of a row that are predicted, given the number of those that may be. By default
        those that are hidden."""
        return self.count(symbols)

    def hide(self, row: PlainRow, chance: np.random.Generator) -> HiddenRow:
        """Hides symbols of a row, none where all are special, by random numbers of ``chance`` alone."""
        inputs, targets = row.symbols.copy(), np.full_like(row.symbols, IGNORED)
        if not row.allowed.any():
            return HiddenRow(inputs, targets)
        places, group = self.choose(row, chance)
        fate = chance.random(int(group.max(initial=-1)) + 1)[group]
        is_replaced, is_masked = fate < self.replaced, fate >= self.replaced + self.unchanged
        targets[places] = row.symbols[places]
        inputs[places[is_masked]] = row.mask
        inputs[places[is_replaced]] = chance.choice(row.drawable, int(is_replaced.sum()))
        return self.disturb(row, HiddenRow(inputs, targets), chance)

    def disturb(self, row: PlainRow, hidden: HiddenRow, chance: np.random.Generator) -> HiddenRow:
        """Hook: changes a row further in which symbols were hidden. By default it returns the row."""
        return hidden


class MaskTokensConfig(NoiseConfig, kind="mask_tokens"):
    """Single symbols are hidden, as in BERT (arXiv:1810.04805, section 3.1).

    whole_words  words are hidden as a whole, in random order, each that still fits into the number of predictions, so
                 that there may be fewer; where the shortest word of a row does not fit, one word is hidden all the
                 same. Each of its symbols is masked, replaced or kept separately. This is the whole word masking of the
                 code of BERT of May 2019
    """

    whole_words: bool = False

    @property
    def needs_words(self) -> bool:
        return self.whole_words

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        budget = self.count(int(row.allowed.sum()))
        if self.whole_words:
            places = fitting(words_of(row), budget, chance)
        else:
            places = chance.choice(np.flatnonzero(row.allowed), budget, replace=False)
        return Chosen(places, np.arange(len(places)))


class MaskSpansConfig(NoiseConfig, kind="mask_spans"):
    """Spans of whole words are hidden, and all symbols of a span are treated alike, as in SpanBERT (arXiv:1907.10529,
    section 3.1). Where words cannot be known from symbols, each symbol counts as a word.

    The number of words of a span has a geometric distribution. It lies anywhere where that number of words of one
    segment, none of them hidden, follow one another; a span that fits nowhere is shortened. The last one ends
    with the number of predictions of the rate.

    p        the parameter of the geometric distribution: the share of spans of one word, but for those too long
    longest  the most words of a span: longer ones are drawn again, so that with p 0.2 and 10 the mean is 3.8
    """

    p: Annotated[float, Field(gt=0, lt=1)] = 0.2
    longest: Positive = 10

    @property
    def needs_words(self) -> bool:
        return False

    @property
    def most_words(self) -> int:
        return self.longest

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        spans = [np.arange(start, stop) for start, stop in self.spans(row, chance)]
        return Chosen(np.concatenate(spans), np.repeat(np.arange(len(spans)), [len(span) for span in spans]))

    def spans(self, row: PlainRow, chance: np.random.Generator) -> list[tuple[int, int]]:
        """Returns where each span begins, and the place after it, in the order in which they are drawn."""
        shares = np.cumsum((1 - self.p) ** np.arange(self.longest))
        return placed_spans(row, self.count(int(row.allowed.sum())), shares, chance)


def placed_spans(
    row: PlainRow, symbols: int, shares: npt.NDArray[np.float64], chance: np.random.Generator
) -> list[tuple[int, int]]:
    """Returns where each span begins, and the place after it, of spans of ``symbols`` symbols together, in the order in
    which they are drawn.

    shares (n,): the probability, up to a factor, that a span has at most 1, 2, ... n words. Each span lies anywhere
    where its number of words of one segment, none of them in another span, follow one another; one that fits nowhere is
    shortened.
    """
    words, left, longest, spans = words_of(row), symbols, len(shares), []
    numbers, ends = np.arange(len(words)), np.append(np.flatnonzero(words[1:, 0] != words[:-1, 1]) + 1, len(words))
    # How many words that are not hidden stand from each one on; of a number above ``longest`` only that it is one.
    room = ends[np.searchsorted(ends, numbers, side="right")] - numbers
    while left > 0:
        count = min(1 + int(np.searchsorted(shares, chance.random() * shares[-1])), int(room.max()))
        firsts = np.flatnonzero(room >= count)
        first = int(firsts[chance.integers(len(firsts))])
        start, stop = int(words[first, 0]), min(int(words[first + count - 1, 1]), int(words[first, 0]) + left)
        room[first : first + count] = 0
        before = numbers[max(first - longest, 0) : first]
        room[before] = np.minimum(room[before], first - before)
        left -= stop - start
        spans.append((start, stop))
    return spans


def words_of(row: PlainRow) -> Integers:
    """Returns where each word begins, and the place after it (w, 2). A word begins after a special symbol as well."""
    before = np.concatenate([[False], row.allowed[:-1]])
    begins = row.allowed if row.begins is None else row.allowed & (row.begins | ~before)
    starts = np.flatnonzero(begins)
    ends = np.flatnonzero(~row.allowed | begins)
    stops = np.append(ends, len(row.symbols))[np.searchsorted(ends, starts, side="right")]
    return np.stack([starts, stops], axis=1)


def fitting(units: Integers, budget: int, chance: np.random.Generator) -> Integers:
    """Returns the places of units (u, 2), each from its first place to before its second, in random order, each that
    fits into ``budget`` symbols; of one unit at least, where there is any."""
    units = chance.permutation(units)
    short = units[units[:, 1] - units[:, 0] <= budget]
    places: list[int] = []
    for start, stop in (short if len(short) else units[:1]).tolist():
        if not places or len(places) + stop - start <= budget:
            places += range(start, stop)
    return np.array(places, np.int64)
