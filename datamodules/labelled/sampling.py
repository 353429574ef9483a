"""Draws the source of each training batch, and orders the examples of several sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import Shard, Split
from datamodules.core.examples import Example, Examples
from datamodules.core.windows import Endless, Once
from datamodules.labelled.labelled import RowShape, grouped
from lit_transformers.config import Config, Fraction, Positive

__all__ = [
    "AnnealedConfig",
    "MixedOrder",
    "MixedPass",
    "ProportionalConfig",
    "SourceExample",
    "SourceSamplingConfig",
    "SourceShare",
    "TemperatureConfig",
    "UniformConfig",
    "drawn_sources",
    "grouped_by_source",
]

BLOCK = 1024
"""The number of batches whose sources are drawn together."""


class SourceSamplingConfig(Config):
    """Base of the rules that divide batches among sources; the table SAMPLINGS lists the kinds.

    The probability of a source with N training examples is proportional to N ** exponent.
    """

    def exponent(self, batch: int) -> float:
        """Returns the exponent for a training batch, given its number from 0."""
        raise NotImplementedError


class ProportionalConfig(SourceSamplingConfig, kind="proportional"):
    """Draw sources in proportion to their numbers of examples, as if all sources were one (arXiv:1901.11504, section
    3.2)."""

    def exponent(self, batch: int) -> float:
        return 1.0


class UniformConfig(SourceSamplingConfig, kind="uniform"):
    """Draw each source equally often, regardless of its number of examples."""

    def exponent(self, batch: int) -> float:
        return 0.0


class TemperatureConfig(SourceSamplingConfig, kind="temperature"):
    """Draw sources in proportion to N ** (1 / temperature), where N is the number of examples (arXiv:1910.10683,
    section 3.5.2).

    temperature: 1 is proportional; higher values approach uniform.
    """

    temperature: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0

    def exponent(self, batch: int) -> float:
        return 1 / self.temperature


class AnnealedConfig(SourceSamplingConfig, kind="annealed"):
    """Anneal from proportional to nearly uniform over training (arXiv:1902.02671, section 3.3): in epoch e of E, draw
    sources in proportion to N ** (1 - (1 - last) (e - 1) / (E - 1)), where N is the number of examples.

    batches: the number of batches that the E epochs divide; later batches are drawn as in the last epoch.
    epochs: the number E.
    last: the exponent of the last epoch.
    """

    batches: Positive = 60_000
    epochs: Annotated[int, Field(ge=2)] = 25
    last: Fraction = 0.2

    def exponent(self, batch: int) -> float:
        epoch = min(batch * self.epochs // self.batches, self.epochs - 1)
        return 1 - (1 - self.last) * epoch / (self.epochs - 1)


class SourceExample(NamedTuple):
    """An example: the number of its source, and its ordinal in the source."""

    source: int
    ordinal: int


class SourceShare(NamedTuple):
    """One rank's share of a batch: the number of its source, and its examples with their ordinals."""

    source: int
    examples: list[tuple[int, Example]]


class MixedOrder:
    """The order of training on several sources: batches of ``rows`` examples, each from one source. Each source has its
    own order, and its next batch continues that order. The seed and the number of a batch decide both.

    counts: the number of examples of each source.
    """

    def __init__(self, counts: Sequence[int], sampling: SourceSamplingConfig, rows: int, seed: int) -> None:
        """Raises DataError for a source without examples."""
        self.orders = [Endless(count, seed) for count in counts]
        self.counts, self.sampling, self.rows, self.seed = tuple(counts), sampling, rows, seed
        # The number of batches of each source before each block.
        self._before = [np.zeros(len(counts), np.int64)]

    def drawn(self, batch: int) -> SourceExample:
        """Returns the source of a batch; its ordinal is the number of earlier batches of that source."""
        block, place = divmod(batch, BLOCK)
        source = int(self._block(block)[place])
        return SourceExample(source, int(self.before(batch)[source]))

    def before(self, batch: int) -> npt.NDArray[np.int64]:
        """Returns the number of batches of each source before a batch."""
        block, place = divmod(batch, BLOCK)
        while len(self._before) <= block:
            sources = self._block(len(self._before) - 1)
            self._before.append(self._before[-1] + np.bincount(sources, minlength=len(self.counts)))
        return self._before[block] + np.bincount(self._block(block)[:place], minlength=len(self.counts))

    def slice(self, start: int, stop: int) -> list[SourceExample]:
        """Returns the examples at places ``start`` to ``stop``; places count over all batches."""
        examples: list[SourceExample] = []
        for batch in range(start // self.rows, -(-stop // self.rows)):
            source, earlier = self.drawn(batch)
            places = range(batch * self.rows, (batch + 1) * self.rows)
            ordinals = self.orders[source].slice(earlier * self.rows, (earlier + 1) * self.rows)
            visited = zip(places, ordinals, strict=True)
            examples += [SourceExample(source, ordinal) for place, ordinal in visited if start <= place < stop]
        return examples

    def arrange(self, batches: list[SourceShare], start: int) -> list[SourceShare]:
        """Orders the batches of a window so that each place has a batch of the source that was drawn for it. Batches of
        one source, whose lengths differ, are shuffled."""
        queues: list[list[SourceShare]] = []
        for source in range(len(self.counts)):
            chance = Random(f"{self.seed} {start} {source}")
            queues.append(sorted((batch for batch in batches if batch.source == source), key=lambda _: chance.random()))
        first = start // self.rows
        return [queues[self.drawn(first + place).source].pop() for place in range(len(batches))]

    def _block(self, block: int) -> npt.NDArray[np.int64]:
        return drawn_sources(self.counts, self.sampling, self.seed, block)


@lru_cache(maxsize=4)
def drawn_sources(
    counts: tuple[int, ...], sampling: SourceSamplingConfig, seed: int, block: int
) -> npt.NDArray[np.int64]:
    """Returns the numbers of the sources of a block of batches."""
    exponents = np.array([sampling.exponent(block * BLOCK + place) for place in range(BLOCK)])
    weights = np.array(counts, np.float64) ** exponents[:, None]
    ends = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    chance = np.random.default_rng([seed, block, 1]).random(BLOCK)  # epochs of a source draw from [seed, epoch]
    return (chance[:, None] >= ends[:, :-1]).sum(axis=1)


class MixedPass:
    """The order of an evaluation: one pass over each source, one after another.

    limit: the largest number of examples of each source, as in ``Once``.
    """

    def __init__(self, counts: Sequence[int], limit: int | None) -> None:
        orders = [Once(count, limit) for count in counts]
        self.examples = [
            SourceExample(source, ordinal) for source, order in enumerate(orders) for ordinal in order.ordinals
        ]

    def slice(self, start: int, stop: int) -> list[SourceExample]:
        """Returns the examples at places ``start`` to ``stop``; fewer at the end."""
        return self.examples[start:stop]

    def arrange(self, batches: list[SourceShare], start: int) -> list[SourceShare]:
        """Returns the batches unchanged, since their order does not matter."""
        return batches


def grouped_by_source(
    sources: Sequence[Examples], split: Split, shapes: Sequence[RowShape], share: Shard, visits: Sequence[SourceExample]
) -> list[SourceShare]:
    """Reads a window of examples as batches, each from one source and with rows of similar length."""

    def batches() -> Iterator[SourceShare]:
        for source, (examples, shape) in enumerate(zip(sources, shapes, strict=True)):
            ordinals = [visit.ordinal for visit in visits if visit.source == source]
            for items in grouped(examples, split, shape, share, ordinals):
                yield SourceShare(source, items)

    return [*batches()]
