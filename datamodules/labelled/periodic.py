"""Images that repeat themselves: data on which strided attention should win, while it loses on text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from datamodules.core.documents import Corpus
from datamodules.core.index import index_corpus
from datamodules.text.sources import SourceConfig, generated_texts, nothing_left
from lit_transformers.config import Fraction, NonNegative, Positive

__all__ = ["PeriodicConfig"]

VERSION = 1
"""Part of the key: changes when the same config gives other images."""
MOST_COPIES = 12


class PeriodicConfig(SourceConfig, kind="periodic"):
    """Small gray images, row by row, one byte per pixel; each is a document.

    The first ``period`` rows of an image are random, and the rest repeats them, so that a pixel equals the one period x
    width bytes before it. It is our own data, after the argument of arXiv:1904.10509, section 4.2, that strided
    attention fits data with a period, such as images, and not text.

    width, height       of an image, in pixels
    period              number of rows after which it repeats
    levels              number of shades of gray, all equally frequent
    noise               the share of pixels that are random instead
    images              number in all splits together; validation, test: their shares, by a hash of an image's name
    seed                of the images
    """

    generated: ClassVar[bool] = True

    width: Positive = 16
    height: Positive = 16
    period: Positive = 1
    levels: Annotated[int, Field(ge=2, le=256)] = 16
    noise: Fraction = 0.1
    images: Positive = 4000
    seed: NonNegative = 0
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        if self.period >= self.height:
            yield f"an image of {self.height} rows does not repeat after {self.period}"
        if self.width * self.height > self.piece:
            yield f"an image of {self.width} x {self.height} bytes is no document of at most {self.piece}; set piece"
        yield from nothing_left(self.validation, self.test)

    def known_losses(self) -> dict[str, float]:
        """Returns the least mean losses of who knows the shades alone, and of who compares a pixel with all those that
        it repeats. Noise is drawn anew for each, so that every repetition tells more of the pixel without noise."""
        repetitions = [row // self.period for row in range(self.height)]
        losses = [loss_after(self.levels, self.noise, count) for count in repetitions]
        return {"no context": math.log2(self.levels), "every repetition": sum(losses) / self.height}

    def build(self) -> Corpus:
        texts = generated_texts("image", self.images, self.image, self.validation, self.test)
        return index_corpus([VERSION, self.to_dict()], "periodic-", self.piece, texts)

    def image(self, number: int) -> bytes:
        """Returns the pixels of one image."""
        random = np.random.default_rng([self.seed, number])
        shades = np.linspace(0, 255, self.levels).round().astype(np.uint8)
        tile = random.integers(self.levels, size=(self.period, self.width))
        repeated = np.resize(tile, (self.height, self.width))
        noisy = random.random(repeated.shape) < self.noise
        return shades[np.where(noisy, random.integers(self.levels, size=repeated.shape), repeated)].tobytes()


@cache
def loss_after(levels: int, noise: float, count: int) -> float:
    """Returns the least mean loss of a pixel in bits, given ``count`` noisy copies of the pixel that it repeats; for
    more than MOST_COPIES, the loss of MOST_COPIES, which say nearly all.

    Of the counts of the shades among the copies, those of other shades than the right one are a partition of a number,
    and all that have the same partition are equally likely.
    """
    count = min(count, MOST_COPIES)
    right, wrong = 1 - noise + noise / levels, noise / levels
    if not count:
        return math.log2(levels)
    if not noise:
        return 0.0
    total = 0.0
    for hits in range(count + 1):
        chance = math.comb(count, hits) * right**hits * wrong ** (count - hits)
        for parts in partitions(count - hits, levels - 1):
            alike = Counter(parts) + Counter({0: levels - 1 - len(parts)})  # wrong shades by their number of copies
            ways = math.factorial(count - hits) * math.perm(levels - 1, len(parts))
            for part, shades in Counter(parts).items():
                ways //= math.factorial(part) ** shades * math.factorial(shades)
            most = max(hits, *alike)
            weights = {number: (right / wrong) ** (number - most) for number in {hits, *alike}}
            scale = (right - wrong) / (weights[hits] + sum(alike[number] * weights[number] for number in alike))
            loss = -right * math.log2(wrong + scale * weights[hits])
            loss -= wrong * sum(alike[number] * math.log2(wrong + scale * weights[number]) for number in alike)
            total += chance * ways * loss
    return total


def partitions(total: int, parts: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yields each way to write a number as a sum of at most ``parts`` numbers above zero, the largest first."""
    if not total:
        yield ()
    elif parts:
        for first in range(min(total, largest or total), 0, -1):
            yield from ((first, *rest) for rest in partitions(total - first, parts - 1, first))
