"""The vocabulary of rows: the symbols of a tokenizer with [CLS], [SEP] and [MASK]."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.tokenizers import Tokenizer
from lit_transformers.batch import Vocabulary

__all__ = ["RowSymbols"]


class RowSymbols(NamedTuple):
    """The symbols of rows. [CLS] is the boundary of the vocabulary.

    A tokenizer with its own special symbols lends them. With any other tokenizer, whose last symbol is the boundary,
    two are added: [SEP], then [MASK].

    separator, mask  [SEP] and [MASK]
    begins           for every symbol, whether it begins a word; None where words cannot be known from symbols
    maskable         for every symbol, whether it may be hidden: all but special ones. The symbol of unknown text may
    drawable         the symbols that may stand in the place of another: all that stand for a known text
    """

    vocabulary: Vocabulary
    separator: int
    mask: int
    begins: npt.NDArray[np.bool_] | None
    maskable: npt.NDArray[np.bool_]
    drawable: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> RowSymbols:
        """Returns the symbols of rows by a tokenizer."""
        vocabulary, specials = tokenizer.vocabulary, tokenizer.specials
        if specials is None:
            separator, mask = vocabulary.size, vocabulary.size + 1
            special = {vocabulary.boundary, separator, mask}
            lengths = vocabulary.byte_lengths
            vocabulary = replace(
                vocabulary, size=vocabulary.size + 2, byte_lengths=None if lengths is None else (*lengths, 0, 0)
            )
        else:
            separator, mask, special = specials.separator, specials.mask, {*specials.all}
        is_text = ~np.isin(np.arange(vocabulary.size), [*special])
        maskable, drawable = is_text.copy(), is_text.copy()
        if tokenizer.unknown is not None:
            maskable[tokenizer.unknown], drawable[tokenizer.unknown] = True, False
        continuing = tokenizer.continuing()
        begins = None if continuing is None else np.append(~continuing, [True] * (vocabulary.size - len(continuing)))
        return cls(vocabulary, separator, mask, begins, maskable, np.flatnonzero(drawable))
