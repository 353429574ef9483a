"""Text whose symbols are copies of single earlier symbols at known distances, so that all losses are known exactly.

A model that looks far enough back reaches the entropy of the source, and one that looks less far cannot: the
information that a mechanism carries is read off in bits. It is our own instrument. The exact values come from tracing
symbols back to their origins: two symbols are equal if their origins coalesce, and by chance otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse
from pydantic import Field

from datamodules.core.documents import Corpus
from datamodules.core.index import index_corpus
from datamodules.text.sources import FirstLag, SourceConfig, generated_texts, nothing_left
from lit_transformers.config import Fraction, NonNegative, Positive

__all__ = ["LagsConfig", "context_losses"]

VERSION = 1
"""Part of the key: changes when the same config gives other documents."""
ALPHABET = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
MAX_LAGS = 3
MAX_REACH = 64
"""The largest lag in units of the greatest common divisor of all: exact values of more would take too long."""

Groups = frozenset[frozenset[int]]
"""A partition of places: places in one group have the same origin, or the same symbol."""


class LagsConfig(SourceConfig, kind="lags"):
    """Random documents in which each symbol repeats the one ``lag`` places before, for one of several lags.

    A document is a stretch of a stationary sequence: the symbols that its first ones repeat are not part of it.

    symbols             number of different symbols, all equally frequent
    lags, shares        the distances, rising, and the share of symbols that repeat the symbol at each; the rest is free
    length              symbols of a document
    documents           number in all splits together; validation, test: their shares, by a hash of a document's name
    seed                of the documents
    """

    generated: ClassVar[bool] = True

    symbols: Annotated[int, Field(ge=2, le=len(ALPHABET))] = 16
    lags: tuple[Positive, ...] = (4, 16, 48)
    shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.3, 0.3, 0.3)
    length: Positive = 4096
    documents: Positive = 1000
    seed: NonNegative = 0
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        if not self.lags or list(self.lags) != sorted(set(self.lags)):
            yield f"lags rise, and there is at least one; got {list(self.lags)}"
        if len(self.lags) > MAX_LAGS:
            yield f"at most {MAX_LAGS} lags, not {len(self.lags)}"
        if len(self.shares) != len(self.lags):
            yield f"{len(self.lags)} lags need as many shares, not {len(self.shares)}"
        if sum(self.shares) >= 1:
            yield f"the shares sum to {sum(self.shares):g}, which leaves no free symbols; their sum is below 1"
        if self.lags and self.lags[-1] > MAX_REACH * math.gcd(*self.lags):
            yield f"the largest lag is at most {MAX_REACH} times the greatest common divisor; got {list(self.lags)}"
        if self.lags and self.lags[-1] >= self.length:
            yield f"a lag of {self.lags[-1]} does not fit into documents of {self.length} symbols"
        if self.length > self.piece:
            yield f"{self.length} symbols are no document of at most {self.piece} bytes; set piece"
        yield from nothing_left(self.validation, self.test)

    def build(self) -> Corpus:
        texts = generated_texts("document", self.documents, self.document, self.validation, self.test)
        return index_corpus([VERSION, self.to_dict()], "lags-", self.piece, texts)

    def document(self, number: int) -> bytes:
        """Returns the symbols of one document, as letters."""
        random = np.random.default_rng([self.seed, number])
        history = self._history
        count = history + self.length
        jumps = np.array([0, *self.lags])
        choices = random.choice(len(jumps), size=count, p=[1 - sum(self.shares), *self.shares])
        fresh = random.integers(self.symbols, size=count)
        origins = np.arange(count) - jumps[choices]
        origins = np.where(origins < 0, np.arange(count), origins)
        while not np.array_equal(origins, further := origins[origins]):
            origins = further
        letters = np.frombuffer(ALPHABET, dtype=np.uint8)
        return letters[fresh[origins[history:]]].tobytes()

    @property
    def _history(self) -> int:
        """The number of symbols that come before a document, after which the sequence is as good as stationary."""
        return math.ceil(self.lags[-1] * math.log(1e-9) / math.log(sum(self.shares)))

    @property
    def context_losses(self) -> list[float]:
        """The least possible loss in bits per symbol without context, with the first lag, with the first two, ..."""
        return context_losses(self.symbols, self.lags, self.shares)

    def known_losses(self) -> dict[str, float]:
        names = ["no context", *(f"{lag} symbols back" for lag in self.lags)]
        return {name: self._mean_loss(lag_count) for lag_count, name in enumerate(names)}

    def first_lag(self) -> FirstLag | None:
        if len(self.lags) < 2:
            return None
        equal = _equal_places(self.symbols, self.lags, self.shares)
        probability = sum(chance for groups, chance in equal.items() if any({0, 1} <= group for group in groups))
        return FirstLag(self.lags[0], self.lags[1], probability, self.symbols)

    def _mean_loss(self, lag_count: int) -> float:
        """Returns the least possible mean loss of a document in bits per symbol with the first ``lag_count`` lags, less
        of which lie within the document for its first symbols."""
        places = [0, *self.lags[:lag_count], self.length]
        return float(np.dot(np.diff(places), self.context_losses[: lag_count + 1]) / self.length)


def context_losses(symbols: int, lags: Sequence[int], shares: Sequence[float]) -> list[float]:
    """Returns H(x_t), H(x_t | x_{t-l1}), H(x_t | x_{t-l1}, x_{t-l2}), ... in bits, where the lags l1 < l2 < ... rise.

    The last value is the entropy of the source. The values between use symbols at the lags themselves and leave out the
    information that other symbols of the same context hold about those beyond it.
    """
    equal = _equal_places(symbols, lags, shares)
    return [_conditional_entropy(equal, count, symbols) for count in range(len(lags) + 1)]


def _equal_places(symbols: int, lags: Sequence[int], shares: Sequence[float]) -> dict[Groups, float]:
    """Returns the probability of every partition of the places t (0), t - l1 (1), ... into those of equal symbols."""
    equal: dict[Groups, float] = {}
    for groups, probability in _shared_origins(tuple(lags), tuple(shares)).items():
        for merged, chance in _coincidences(groups, symbols):
            equal[merged] = equal.get(merged, 0.0) + probability * chance
    return equal


@cache
def _shared_origins(lags: tuple[int, ...], shares: tuple[float, ...]) -> dict[Groups, float]:
    """Returns the probability of every partition of the places t (0), t - l1 (1), t - l2 (2), ... by their origins.

    The latest place that is still traced goes back by a lag, or is an origin itself. That is a Markov chain over the
    distances between places, and the number of visits to each of its states is summed until no mass is left.
    """
    start = _State(tuple((-lag, frozenset([place])) for place, lag in enumerate((0, *lags))), frozenset())
    numbers, pending = {start: 0}, [start]
    moves: list[tuple[int, int, float]] = []
    while pending:
        state = pending.pop()
        if len(state.traced) == 1:
            continue
        for target, probability in state.steps(lags, shares):
            if target not in numbers:
                numbers[target] = len(numbers)
                pending.append(target)
            moves.append((numbers[target], numbers[state], probability))
    targets, sources, probabilities = zip(*moves, strict=True)
    steps = scipy.sparse.csr_matrix((probabilities, (targets, sources)), shape=(len(numbers), len(numbers)))
    arrivals: npt.NDArray[np.float64] = np.zeros(len(numbers))
    arrivals[0] = 1.0
    visits = arrivals
    while arrivals.max() > 1e-15:
        arrivals = np.asarray(steps @ arrivals)
        visits = visits + arrivals
    origins: dict[Groups, float] = {}
    for state, number in numbers.items():
        if len(state.traced) == 1:
            groups = state.ended | {state.traced[0][1]}
            origins[groups] = origins.get(groups, 0.0) + float(visits[number])
    return origins


class _State(NamedTuple):
    """The places that are still traced, the latest first, at their distances from it, and those whose origin is known.

    Places that have met are traced together. The last one left needs no tracing: it has its own origin.
    """

    traced: tuple[tuple[int, frozenset[int]], ...]
    ended: Groups

    def steps(self, lags: Sequence[int], shares: Sequence[float]) -> Iterator[tuple[_State, float]]:
        """Yields the states after one step of the latest place, with their probabilities."""
        (_, places), *others = self.traced
        yield _State(_from_latest(dict(others)), self.ended | {places}), 1 - sum(shares)
        for lag, share in zip(lags, shares, strict=True):
            merged = dict(others)
            merged[-lag] = merged.get(-lag, frozenset()) | places
            yield _State(_from_latest(merged), self.ended), share


def _from_latest(traced: dict[int, frozenset[int]]) -> tuple[tuple[int, frozenset[int]], ...]:
    latest = max(traced)
    return tuple((position - latest, traced[position]) for position in sorted(traced, reverse=True))


def _coincidences(groups: Groups, symbols: int) -> Iterator[tuple[Groups, float]]:
    """Yields the partitions into places of equal symbols, and their probabilities, where each group draws its own."""
    first, *others = sorted(groups, key=sorted)
    partial: list[tuple[tuple[frozenset[int], ...], float]] = [((first,), 1.0)]
    for group in others:
        partial = [
            extended
            for blocks, probability in partial
            for extended in (
                *(
                    ((*blocks[:at], blocks[at] | group, *blocks[at + 1 :]), probability / symbols)
                    for at in range(len(blocks))
                ),
                ((*blocks, group), probability * (symbols - len(blocks)) / symbols),
            )
        ]
    for blocks, probability in partial:
        if probability > 0:
            yield frozenset(blocks), probability


def _conditional_entropy(equal: Mapping[Groups, float], lag_count: int, symbols: int) -> float:
    """Returns H(x_t | the symbols at the first ``lag_count`` lags) in bits.

    equal: the probability of every partition of the places into those of equal symbols.
    """
    joint: dict[tuple[Groups, frozenset[int]], float] = {}
    for groups, probability in equal.items():
        visible = frozenset(block for group in groups if (block := group & {*range(1, lag_count + 1)}))
        same = next(group for group in groups if 0 in group) & {*range(1, lag_count + 1)}
        joint[visible, same] = joint.get((visible, same), 0.0) + probability
    context: dict[Groups, float] = {}
    for (visible, _), probability in joint.items():
        context[visible] = context.get(visible, 0.0) + probability
    entropy = 0.0
    for (visible, same), probability in joint.items():
        candidates = 1 if same else symbols - len(visible)
        entropy -= probability * math.log2(probability / context[visible] / candidates)
    return entropy
