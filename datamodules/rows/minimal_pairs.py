"""Minimal pairs: rows that obey a rule of their source, each with one that breaks it and differs in nothing else.

The row of a pair that a network considers likelier shows whether the network knows the rule, as in BLiMP (Warstadt et
al. 2020, arXiv:1912.00582, section 3), regardless of its training objective.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from datamodules.core.documents import Document
from datamodules.core.errors import DataError
from datamodules.core.tokenizers import Tokenizer, encode_document
from datamodules.core.windows import Visit, Visits
from datamodules.rows.reader import ReadRow
from datamodules.rows.stored_sentences import sentences_of
from datamodules.rows.symbols import RowSymbols
from datamodules.text.sources import SourceConfig
from lit_transformers.batch import IGNORED

__all__ = ["MinimalPair", "ThenPairs", "minimal_pairs"]

Item = TypeVar("Item")


class MinimalPair(NamedTuple):
    """Two rows: one that obeys a rule, and one that breaks it."""

    obeys: ReadRow
    breaks: ReadRow


def minimal_pairs(
    source: SourceConfig, tokenizer: Tokenizer, symbols: RowSymbols, length: int, count: int
) -> list[MinimalPair]:
    """Returns ``count`` pairs for each rule of a source, each row of one segment: [CLS] A [SEP].

    length: the tokens of the longest row. Raises DataError where a pair is longer.
    """

    def row(text: bytes, number: int, rule: int) -> ReadRow:
        parts = [encode_document(tokenizer, sentence) for sentence in sentences_of(Document("pair", text))]
        inputs = np.concatenate([[symbols.vocabulary.boundary], *parts, [symbols.separator]]).astype(np.int64)
        if len(inputs) > length:
            raise DataError(
                f"data.evaluation.pairs: a pair has rows of {len(inputs)} tokens, and data.length is {length}"
            )
        targets = np.where(symbols.maskable[inputs], inputs, IGNORED)
        return ReadRow(number, inputs, targets, np.zeros_like(inputs), IGNORED, rule=rule)

    return [
        MinimalPair(*(row(text, number, rule) for text in texts))
        for number in range(count)
        for rule, texts in enumerate(source.minimal_pairs(number).values())
    ]


class ThenPairs:
    """The order of an evaluation: rows by their ordinals, then minimal pairs."""

    def __init__(self, visits: Visits, rows: int, pairs: list[MinimalPair]) -> None:
        self.visits, self.rows, self.pairs = visits, rows, pairs

    def slice(self, start: int, stop: int) -> list[Visit | MinimalPair]:
        """Returns the items from place ``start`` to ``stop``, fewer at the end."""
        return [
            *self.visits.slice(min(start, self.rows), min(stop, self.rows)),
            *self.pairs[max(start - self.rows, 0) : max(stop - self.rows, 0)],
        ]

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches as they are."""
        return batches
