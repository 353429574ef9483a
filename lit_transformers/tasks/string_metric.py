"""How well answers are said: as sums over their symbols that are divided once, of all strings and of each length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, StringBatch
from lit_transformers.tasks.example_metric import ExampleMetric


class StringLoss(NamedTuple):
    """One string: its ordinal within the pass, nats, symbols of its answer, how many of these were the likeliest, and
    the length that was asked for. Bytes mean nothing here."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    length: int

    @classmethod
    def of(cls, document: int, sums: list[float]) -> StringLoss:
        """From the sums of ``columns_of``."""
        nats, tokens, correct, length = sums
        return cls(document, nats, int(tokens), 0, int(correct), int(length))


class StringMetric(ExampleMetric):
    """Accuracy of symbols and of whole answers, and nats of a symbol."""

    def row(self, document: int, sums: list[float]) -> StringLoss:
        return StringLoss.of(document, sums)

    def update(self, log_probabilities: Float[Tensor, "b t v"], batch: StringBatch) -> None:
        """What was said of every position."""
        self.add(batch.example, columns_of(log_probabilities, batch.targets, batch.asked))

    def compute(self) -> dict[str, float]:
        """accuracy of symbols, sequence_accuracy and nats; each again as name@length."""
        rows = self.rows()
        found = summary(rows)
        for length in sorted({row.length for row in rows}):
            alone = summary([row for row in rows if row.length == length])
            found |= {f"{name}@{length}": value for name, value in alone.items()}
        return found


def columns_of(
    log_probabilities: Float[Tensor, "b t v"], targets: Int[Tensor, "b t"], asked: Int[Tensor, " b"]
) -> Float[Tensor, "b 4"]:
    """The sums of every row of a StringLoss."""
    scored, real = targets != IGNORED, targets.clamp(min=0)
    nats = -log_probabilities.gather(-1, real[..., None])[..., 0].double() * scored
    correct = (log_probabilities.argmax(dim=-1) == real) & scored
    return torch.stack([nats.sum(1), scored.sum(1).double(), correct.sum(1).double(), asked.double()], dim=1)


def summary(rows: Sequence[StringLoss]) -> dict[str, float]:
    """The numbers of some strings; none where there are none."""
    tokens = sum(row.tokens for row in rows)
    if tokens == 0:
        return {}
    return {
        "accuracy": sum(row.correct for row in rows) / tokens,
        "sequence_accuracy": sum(row.correct == row.tokens for row in rows) / len(rows),
        "nats": math.fsum(row.nats for row in rows) / tokens,
    }
