"""Predictors with a cache: n-gram models of the training text, mixed with n-grams of the visible part of the text that
a network predicts (Kuhn and De Mori 1990, "A cache-based natural language model for speech recognition").

Weights are those of Jelinek and Mercer (Chen and Goodman 1996, arXiv:cmp-lg/9606011, section 2.3), one for each order,
number of times that the context was seen, and number of kinds of symbols that followed it, as in PPM. They are fitted
by expectation maximisation on texts that were left out when the n-gram models were counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "CacheCounts",
    "CacheText",
    "CacheWeights",
    "VisibleContext",
    "cache_counts",
    "fitted_weights",
    "mixed_probabilities",
]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ORDERS = {0: (0, 0), 1: (0, 1), 2: (1, 1), 3: (2, 1), 4: (2, 2), 5: (4, 1), 6: (4, 2), 8: (4, 4)} | {
    12: (8, 4), 16: (8, 8), 24: (16, 8), 32: (16, 16)
}  # fmt: skip
"""The lengths of contexts in the cache, each with two shorter ones of which it is made."""
MOST_PREDICTIONS = 1 << 19
"""The most symbols that are predicted at once, which bounds memory."""
STEPS = 20
"""The steps of expectation maximisation. Further steps change weights too little to show in a report."""
TIMES, KINDS = np.array([1, 2, 3, 5, 9, 17, 33]), np.array([1, 2, 3, 5, 9, 17])
"""Where the next weight begins: times that a context was seen, and kinds of symbols that followed it."""
CELLS = (len(TIMES) + 1) * (len(KINDS) + 1)


class VisibleContext(NamedTuple):
    """How many symbols a network sees before one that it predicts.

    memory: of those before the row that it reads; None: all that its state has read. window: of the latest ones at
    most, the one that is read last among them; None: no layer has a window.
    """

    memory: int | None = 0
    window: int | None = None

    def most(self, length: int) -> int | None:
        """Returns the largest number, in rows of ``length``; None where it has no limit."""
        in_memory = None if self.memory is None else self.memory + length
        return min((limit for limit in (in_memory, self.window) if limit is not None), default=None)


class CacheText(NamedTuple):
    """The symbols that a network reads, and the visible ones among them where it predicts a symbol.

    symbols: all that it reads, text after text; ``boundary`` where it reads a boundary, which no one predicts. last,
    first (p,): the places of the last and of the first symbol that are visible; the first is beyond the last where none
    is. targets: the symbols that are predicted there.
    """

    symbols: Integers
    boundary: int
    last: Integers
    first: Integers
    targets: Integers

    def parts(self) -> Iterator[tuple[slice, CacheText]]:
        """Yields the predictions in parts of at most ``MOST_PREDICTIONS``, each with the symbols that are seen."""
        for start in range(0, len(self.last), MOST_PREDICTIONS):
            part = slice(start, start + MOST_PREDICTIONS)
            last, first = self.last[part], self.first[part]
            begin, end = int(min(first.min(), last.min())), int(last.max()) + 1
            symbols = self.symbols[begin:end]
            yield part, CacheText(symbols, self.boundary, last - begin, first - begin, self.targets[part])


class CacheCounts(NamedTuple):
    """Counts of visible contexts of one length (p,): ``times`` how often the context before each prediction was
    followed by a symbol, by how many ``kinds`` of symbols, and how often by the ``right`` one."""

    times: Integers
    kinds: Integers
    right: Integers

    @property
    def cells(self) -> Integers:
        """The number of the weight of each prediction."""
        times, kinds = (
            np.searchsorted(edges, values, side="right") for edges, values in ((TIMES, self.times), (KINDS, self.kinds))
        )
        return times * (len(KINDS) + 1) + kinds

    @property
    def frequency(self) -> Floats:
        """The share of times by which the right symbol followed; 0 where the context was not seen."""
        return np.asarray(self.right / np.maximum(self.times, 1))


class CacheWeights(NamedTuple):
    """static (s,): the shares of the models of the training text. cache (o, CELLS): for each length of a context, the
    weight of its counts against those of all shorter ones."""

    static: Floats
    cache: Floats


def cache_counts(text: CacheText) -> Iterator[CacheCounts]:
    """Yields the counts of visible contexts of rising lengths, the lengths of ``ORDERS``. Where a context was not seen,
    no longer one was, so that longer ones are not searched for."""
    symbols, sought = text.symbols, np.arange(len(text.last))
    contexts: dict[int, Integers] = {0: np.zeros_like(symbols), 1: symbols}
    followers = np.flatnonzero(symbols != text.boundary)
    for order, (longer, shorter) in ORDERS.items():
        if order not in contexts:
            before = np.concatenate([np.zeros(shorter, np.int64), contexts[longer][:-shorter]])[: len(symbols)]
            pairs = before * (contexts[shorter].max() + 1) + contexts[shorter]
            contexts[order] = np.unique(pairs, return_inverse=True)[1]
        places = (text.last[sought], text.first[sought], text.targets[sought])
        counted = _counts(CacheText(symbols, text.boundary, *places), contexts[order], followers, order)
        counts = CacheCounts(*(np.zeros(len(text.last), np.int64) for _ in counted))
        for whole, part in zip(counts, counted, strict=True):
            whole[sought] = part
        sought = sought[counted.times > 0]
        yield counts


def _counts(text: CacheText, contexts: Integers, followers: Integers, order: int) -> CacheCounts:
    """Returns the counts of one order. contexts: the number of the context that ends at each place. followers: the
    places of symbols that follow one.

    Places are sorted by the context before them, and by the context and the symbol, so that all that is seen is a
    stretch of each. A kind of symbol is counted where it is seen first.
    """
    count = len(text.symbols) + 1
    alphabet = int(max(text.symbols.max(initial=0), text.targets.max(initial=0))) + 1
    earliest = np.minimum(text.first + order, text.last + 1)  # so that the context itself is seen too
    beyond = text.last + 1

    before = contexts[followers - 1]
    order_by_context = np.argsort(before, kind="stable")
    by_context = (before * count + followers)[order_by_context]
    known = contexts[text.last]
    low, high = (np.searchsorted(by_context, known * count + limit) for limit in (earliest, beyond))
    is_seen = text.last - order + 1 >= text.first

    pairs = before * alphabet + text.symbols[followers]
    order_by_pair = np.argsort(pairs, kind="stable")
    kinds, numbers = np.unique(pairs[order_by_pair], return_inverse=True)
    by_pair = numbers * count + followers[order_by_pair]
    wanted = known * alphabet + text.targets
    number = np.minimum(np.searchsorted(kinds, wanted), max(len(kinds) - 1, 0))
    is_known = kinds[number] == wanted if len(kinds) else np.zeros(len(wanted), bool)
    first, end = (np.searchsorted(by_pair, number * count + limit) for limit in (earliest, beyond))

    previous = np.zeros(len(followers), np.int64)  # the place of the same pair before, plus 1; 0 where there is none
    again = np.flatnonzero(numbers[1:] == numbers[:-1]) + 1
    previous[order_by_pair[again]] = followers[order_by_pair[again - 1]] + 1
    distinct = _count_below(previous[order_by_context], low, high, earliest + 1)
    return CacheCounts(
        np.where(is_seen, high - low, 0), np.where(is_seen, distinct, 0), np.where(is_seen & is_known, end - first, 0)
    )


def _count_below(values: Integers, low: Integers, high: Integers, limits: Integers) -> Integers:
    """Returns how many of values[low:high] are below a limit, for each (low, high, limit), by a wavelet matrix (Claude
    and Navarro 2012): bit by bit, values are parted into those without and those with the bit."""
    counts = np.zeros(len(low), np.int64)
    for bit in reversed(range(int(max(values.max(initial=0), limits.max(initial=0))).bit_length())):
        has_bit = (values >> bit & 1).astype(bool)
        without = np.concatenate([[0], np.cumsum(~has_bit)])
        low_without, high_without = without[low], without[high]
        is_above = (limits >> bit & 1).astype(bool)
        counts += np.where(is_above, high_without - low_without, 0)
        low = np.where(is_above, without[-1] + low - low_without, low_without)
        high = np.where(is_above, without[-1] + high - high_without, high_without)
        values = np.concatenate([values[~has_bit], values[has_bit]])
    return counts


def mixed_probabilities(static: Floats, counts: Iterable[CacheCounts], weights: CacheWeights) -> Floats:
    """Returns the probability of each target: p_s = sum of the shares of ``static`` (s, p), and then for each length of
    a context p = (1 - w) p' + w n(right) / n(times), p' where the context was not seen.

    Each step mixes distributions over all symbols, so that the probabilities of all symbols sum to one."""
    probability = np.asarray(weights.static @ static)
    for seen, of_cells in zip(counts, weights.cache, strict=True):
        weight = np.where(seen.times > 0, of_cells[seen.cells], 0.0)
        probability = (1 - weight) * probability + weight * seen.frequency
    return probability


def fitted_weights(static: Floats, counts: Sequence[CacheCounts]) -> CacheWeights:
    """Returns the weights under which predictions are likely, by expectation maximisation: first the shares of the
    models of the training text, static (s, p), then all weights of the cache together."""
    shares = np.full(len(static), 1 / len(static))
    for _ in range(STEPS):
        shares = shares * (static / (shares @ static)).mean(axis=1)
    seen, frequencies = [(one.times > 0, one.cells) for one in counts], [one.frequency for one in counts]
    weights = np.full((len(counts), CELLS), 0.3)
    for _ in range(STEPS):
        probabilities = [shares @ static]
        for (is_seen, cells), frequency, weight in zip(seen, frequencies, weights, strict=True):
            used = np.where(is_seen, weight[cells], 0.0)
            probabilities.append((1 - used) * probabilities[-1] + used * frequency)
        left = np.ones(static.shape[1])  # the share of each target that is not yet due to longer contexts
        for number in reversed(range(len(counts))):
            (is_seen, cells), weight = seen[number], weights[number]
            due = left * np.where(is_seen, weight[cells], 0.0) * frequencies[number] / probabilities[number + 1]
            total = np.bincount(cells, left * is_seen, minlength=CELLS)
            weights[number] = (np.bincount(cells, due, minlength=CELLS) + 0.1) / (total + 1)
            left = left - due
    return CacheWeights(shares, weights)
