"""Predicts the hidden symbols of each line with a masked language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from datamodules import Tokenizer
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import IGNORED, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineRows, LineTexts, Predictor
from lit_transformers.tasks.masked_lm import MaskedLM, read_rows

__all__ = ["HIDDEN", "SymbolPredictor", "row_batch"]

HIDDEN = "[MASK]"
"""The text that stands for a hidden symbol in a line."""
TOP = 5
"""The number of symbols written for each hidden one."""


class SymbolPredictor(Predictor):
    """Predicts the symbols that stand behind each [MASK] of a line, the likeliest first."""

    ability = "fill"

    def __init__(self, task: MaskedLM, tokenizer: Tokenizer, options: LineOptions, form: LineFormat) -> None:
        self.symbols = RowSymbols.of(tokenizer)
        rows = TextRows(tokenizer, task.data.length - 2, (self.symbols.separator,))
        super().__init__(task, LineTexts(("text",), form), rows, options, ("hidden",))
        self.task = task

    def texts(self, line: str) -> tuple[str, ...]:
        texts = super().texts(line)
        if HIDDEN not in texts[0]:
            raise ConfigError(f"hides no symbol; write {HIDDEN} in place of each symbol to predict")
        return texts

    def encode(self, text: str) -> Symbols:
        """Returns the symbols of the parts of a text, with the symbol of [MASK] between them."""
        parts = [self.tokenizer.encode(part.encode()) for part in text.split(HIDDEN)]
        hidden = np.array([self.symbols.mask], parts[0].dtype)
        return np.concatenate([parts[0], *(piece for part in parts[1:] for piece in (hidden, part))])

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        evaluator, batch = self.task.evaluator(), row_batch(self.task, read)
        rows, places = (read.rows == self.symbols.mask).nonzero(as_tuple=True)
        hidden = evaluator.predict(read_rows(evaluator, batch).hidden[rows, places])
        likeliest = evaluator.tokens.log_probabilities(hidden).exp().topk(TOP)
        hidden_of: list[list[Any]] = [[] for _ in read.rows]
        for row, *columns in zip(rows.tolist(), *(part.tolist() for part in likeliest), strict=True):
            hidden_of[row].append([self.candidate(*pair) for pair in zip(*reversed(columns), strict=True)])
        return ({"hidden": own} for own in hidden_of)

    def candidate(self, symbol: int, probability: float) -> Mapping[str, Any]:
        return {"text": self.tokenizer.decode([symbol]), "probability": round(probability, DIGITS)}


def row_batch(task: MaskedLM, read: LineRows) -> RowBatch:
    """Returns rows as a batch without targets."""
    rows, segments, padding_mask, padded, _ = read
    nothing = torch.full_like(rows, IGNORED)
    order = torch.zeros_like(rows) if RowDescription.of(task.data, "predict").ordered else None
    tensors = (rows, nothing, padding_mask, segments, nothing[:, 0], torch.arange(len(rows)))
    return RowBatch(*tensors, cursor=None, order=order, padded=padded)
