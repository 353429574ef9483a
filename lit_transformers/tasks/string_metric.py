"""Accuracy and loss of answers, as sums over their symbols that are divided once, for all strings and each length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, StringBatch
from lit_transformers.tasks.example_metric import ExampleMetric

UNITS = {"accuracy": "symbol", "sequence_accuracy": "example", "nats": "symbol"}
"""What each number of ``summary`` is a mean over."""


class StringLoss(NamedTuple):
    """One string: its ordinal within the pass, nats, symbols of its answer, how many of these were the most likely, and
    the requested length. Bytes have no meaning here and are 0."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    length: int

    @classmethod
    def of(cls, document: int, sums: list[float]) -> StringLoss:
        """Builds the row from the sums of ``columns_of``."""
        nats, tokens, correct, length = sums
        return cls(document, nats, int(tokens), 0, int(correct), int(length))


class StringMetric(ExampleMetric):
    """Accuracy of symbols and of whole answers, and nats per symbol."""

    def row(self, document: int, sums: list[float]) -> StringLoss:
        return StringLoss.of(document, sums)

    def update(self, log_probabilities: Float[Tensor, "b t v"], batch: StringBatch) -> None:
        """Adds the log probabilities (b, t, v) of every position of a batch."""
        self.add(batch.example, columns_of(log_probabilities, batch.targets, batch.requested_length))

    def compute(self) -> dict[str, float]:
        """Returns accuracy of symbols, sequence_accuracy and nats, and each of them per length as name@length."""
        rows = self.rows()
        results = summary(rows)
        for length in sorted({row.length for row in rows}):
            of_length = summary([row for row in rows if row.length == length])
            results |= {f"{name}@{length}": value for name, value in of_length.items()}
        return results


def columns_of(
    log_probabilities: Float[Tensor, "b t v"], targets: Int[Tensor, "b t"], requested_length: Int[Tensor, " b"]
) -> Float[Tensor, "b 4"]:
    """Returns the columns (b, 4) of a StringLoss for every row: nats, tokens, correct and length."""
    is_scored, symbols = targets != IGNORED, targets.clamp(min=0)
    nats = -log_probabilities.gather(-1, symbols[..., None])[..., 0].double() * is_scored
    correct = (log_probabilities.argmax(dim=-1) == symbols) & is_scored
    return torch.stack(
        [nats.sum(1), is_scored.sum(1).double(), correct.sum(1).double(), requested_length.double()], dim=1
    )


def summary(rows: Sequence[StringLoss]) -> dict[str, float]:
    """Returns accuracy, sequence_accuracy and nats of the given strings; nothing if they have no symbols."""
    tokens = sum(row.tokens for row in rows)
    if tokens == 0:
        return {}
    return {
        "accuracy": sum(row.correct for row in rows) / tokens,
        "sequence_accuracy": sum(row.correct == row.tokens for row in rows) / len(rows),
        "nats": math.fsum(row.nats for row in rows) / tokens,
    }
