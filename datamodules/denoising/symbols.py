"""The vocabulary of denoising: that of rows, and the sentinels that stand in the place of spans."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.core.tokenizers import PieceTokenizer, Tokenizer
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import Vocabulary

__all__ = ["DenoisingSymbols"]


class DenoisingSymbols(NamedTuple):
    """The symbols of denoising. The boundary of the vocabulary ends a source, begins a target and ends it.

    mask       [MASK]
    separator  [SEP], which stands between the documents of a row and is damaged and predicted as any other symbol
    sentinels  (n,) the symbols that stand for spans, the first span's first
    drawable   the symbols that may stand in the place of another: all that stand for a known text
    """

    vocabulary: Vocabulary
    mask: int
    separator: int
    sentinels: npt.NDArray[np.int64]
    drawable: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer, sentinels: int) -> DenoisingSymbols:
        """Returns the symbols of denoising by a tokenizer, with ``sentinels`` sentinels.

        A tokenizer with its own special symbols lends <extra_id_0>, <extra_id_1>, ..., the sentinels of T5. With any
        other tokenizer, sentinels are added after [SEP] and [MASK]. Raises DataError where a tokenizer lacks sentinels.
        """
        rows = RowSymbols.of(tokenizer)
        vocabulary, first = rows.vocabulary, rows.vocabulary.size
        numbers = [*range(first, first + sentinels)]
        drawable = rows.drawable
        if tokenizer.specials is not None:
            numbers = _own_sentinels(tokenizer, sentinels)
            drawable = drawable[~np.isin(drawable, numbers)]
        else:
            lengths = vocabulary.byte_lengths
            vocabulary = replace(
                vocabulary,
                size=first + sentinels,
                byte_lengths=None if lengths is None else (*lengths, *(0 for _ in numbers)),
            )
        return cls(vocabulary, rows.mask, rows.separator, np.array(numbers, np.int64), drawable)


def _own_sentinels(tokenizer: Tokenizer, count: int) -> list[int]:
    """Returns the sentinels that a pretrained tokenizer has. Raises DataError where it has fewer than ``count``."""
    names = [f"<extra_id_{number}>" for number in range(count)]
    symbols = [tokenizer.symbol(name) for name in names] if isinstance(tokenizer, PieceTokenizer) else []
    own = [symbol for symbol in symbols if symbol is not None]
    if len(own) < count:
        raise DataError(
            f"data.tokenizer: has {len(own)} of the {count} sentinels <extra_id_0>, <extra_id_1>, ... that data.noise "
            "puts in the place of spans; use another noise, or a tokenizer that is learned, to which they are added"
        )
    return own
