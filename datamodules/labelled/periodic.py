"""Images that repeat themselves: data on which strided attention should win, while it loses on text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from datamodules.core.documents import Corpus
from datamodules.core.index import index_corpus
from datamodules.text.sources import SourceConfig, generated_texts, nothing_left
from lit_transformers.config import Fraction, NonNegative, Positive

__all__ = ["PeriodicConfig"]

VERSION = 1
"""Part of the key: changes when the same config gives other images."""


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
