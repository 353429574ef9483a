"""Masks together with spans in shuffled order: the word structural objective of StructBERT (arXiv:1908.04577)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from datamodules.rows.noises import HiddenRow, MaskTokensConfig, PlainRow
from lit_transformers.batch import IGNORED

__all__ = ["MaskAndShuffleConfig"]


class MaskAndShuffleConfig(MaskTokensConfig, kind="mask_and_shuffle"):
    """Symbols are hidden as by ``mask_tokens``, and some of the others stand in another order, all of which are
    predicted in their own (arXiv:1908.04577, section 2.2). Each counts as one that is hidden.

    Spans are drawn uniformly among those of one segment in which no symbol is hidden or drawn already; where there are
    too few of them, fewer are shuffled. Any order is as likely, the original one too.

    shuffled  the share of a row's symbols that stand in such spans, rounded to a number of spans, at least one
    span      symbols of a span: three in the paper
    """

    shuffled: Annotated[float, Field(gt=0, lt=1)] = 0.05
    span: Annotated[int, Field(ge=2, le=100)] = 3

    def spans(self, symbols: int) -> int:
        """Returns how many spans of a row are shuffled, given the number of symbols that may be."""
        return max(round(self.shuffled * symbols / self.span), 1)

    def predictions(self, symbols: int) -> int:
        return min(self.count(symbols) + self.span * self.spans(symbols), symbols)

    def disturb(self, row: PlainRow, hidden: HiddenRow, chance: np.random.Generator) -> HiddenRow:
        inputs, targets = hidden.inputs.copy(), hidden.targets.copy()
        free = row.allowed & (targets == IGNORED)
        count = self.spans(int(row.allowed.sum()))
        windows = np.lib.stride_tricks.sliding_window_view(np.append(free, [False] * self.span), self.span)
        for start in chance.permutation(np.flatnonzero(windows.all(axis=1))).tolist():
            if count and free[start : start + self.span].all():
                places = np.arange(start, start + self.span)
                targets[places] = row.symbols[places]
                inputs[places] = row.symbols[chance.permutation(places)]
                free[places] = False
                count -= 1
        return HiddenRow(inputs, targets)
