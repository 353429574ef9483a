"""Who sees whom in a row, by shares of rows: the masks of UniLM (arXiv:1905.03197)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from lit_transformers.config import Config, NonNegativeFloat

__all__ = ["AttentionMask", "AttentionMasksConfig", "order_of"]

AttentionMask = Literal["bidirectional", "left_to_right", "right_to_left", "seq2seq"]
Integers = npt.NDArray[np.int64]


class AttentionMasksConfig(Config):
    """The share of rows that are read under each mask, up to a factor (arXiv:1905.03197, sections 2.3 and 2.4). The
    mask of a row is drawn like its noise, from seed, epoch and ordinal, and hidden symbols do not depend on it.

    bidirectional   every symbol sees every other
    left_to_right   each sees those before it, and itself
    right_to_left   each sees those after it, and itself
    seq2seq         symbols of the first segment see that segment; those of the second one, the first, those before
                    them, and themselves
    """

    bidirectional: NonNegativeFloat = 2.0
    left_to_right: NonNegativeFloat = 1.0
    right_to_left: NonNegativeFloat = 1.0
    seq2seq: NonNegativeFloat = 2.0

    def conflicts(self) -> Iterator[str]:
        if not any(self.shares):
            yield "no row is read under any mask; give one of them a share above 0"

    @property
    def shares(self) -> tuple[float, ...]:
        return self.bidirectional, self.left_to_right, self.right_to_left, self.seq2seq

    def draw(self, chance: np.random.Generator) -> AttentionMask:
        """Draws the mask of a row."""
        shares = np.cumsum(self.shares)
        masks: tuple[AttentionMask, ...] = get_args(AttentionMask)
        return masks[int(np.searchsorted(shares, chance.random() * shares[-1], side="right"))]


def order_of(mask: AttentionMask, segments: Integers) -> Integers:
    """Returns the place of each symbol (t,) in the order of its row: it sees those whose place is not after its own."""
    forward = np.arange(len(segments))
    match mask:
        case "left_to_right":
            return forward
        case "right_to_left":
            return forward[::-1].copy()
        case "seq2seq":
            return np.where(segments == 0, 0, forward)
    return np.zeros_like(forward)
