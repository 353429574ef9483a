"""Detection of phrases that were replaced by others of their type, from the vectors beside them (arXiv:1912.09637)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED
from lit_transformers.precision import full_precision


class Detected(NamedTuple):
    """What is predicted of n phrases, row by row: ``nats`` (n,), whether each is ``correct``, and its ``row``."""

    nats: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    row: Int[Tensor, " n"]


class PhraseDetector(nn.Linear):
    """A linear map of the last vectors of the symbols before and after a phrase to the logit that it was replaced
    (arXiv:1912.09637, section 2.2)."""

    def __init__(self, dim: int) -> None:
        super().__init__(2 * dim, 1)

    def forward(self, beside: Float[Tensor, "n 2d"]) -> Float[Tensor, " n"]:
        """Maps the vectors on both sides, side by side, to logits in float32 or finer."""
        return full_precision(super().forward(beside)).squeeze(-1)


def detected(detector: PhraseDetector, hidden: Float[Tensor, "b t d"], phrases: Int[Tensor, "b p 3"]) -> Detected:
    """Predicts of each phrase of ``RowBatch.phrases`` whether it was replaced."""
    row, number = (phrases[..., 0] != IGNORED).nonzero(as_tuple=True)
    start, stop, label = phrases[row, number].unbind(dim=-1)
    logits = detector(torch.cat([hidden[row, start - 1], hidden[row, stop]], dim=-1))
    nats = F.binary_cross_entropy_with_logits(logits, label.to(logits.dtype), reduction="none")
    return Detected(nats, (logits > 0) == (label == 1), row)
