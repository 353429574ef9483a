"""The loss of a language model, as sums over real tokens that are divided once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED
from lit_transformers.tasks.example_metric import ExampleMetric


class DocumentLoss(NamedTuple):
    """The loss of one document: its ordinal within the pass, nats, predicted tokens, and the bytes of these tokens."""

    document: int
    nats: float
    tokens: int
    bytes: int


class LanguageMetric(ExampleMetric):
    """Nats, tokens and bytes of each document.

    ``byte_lengths`` (v,) gives the bytes of each symbol, or None where they are unknown.
    """

    def __init__(self, byte_lengths: Int[Tensor, " v"] | None) -> None:
        super().__init__()
        self.known = byte_lengths is not None
        self.register_buffer("byte_lengths", byte_lengths, persistent=False)

    def row(self, document: int, sums: list[float]) -> DocumentLoss:
        nats, tokens, byte_count = sums
        return DocumentLoss(document, nats, int(tokens), int(byte_count))

    def update(self, nats: Float[Tensor, "b t"], targets: Int[Tensor, "b t"], document: Int[Tensor, "b t"]) -> None:
        """Adds nats (b, t) of every target, which are 0 where it is IGNORED, to the sums of its document."""
        is_scored = targets != IGNORED
        real = targets.clamp(min=0)
        byte_counts = self.byte_lengths[real] if isinstance(self.byte_lengths, Tensor) else torch.zeros_like(real)
        columns = torch.stack([nats.double(), is_scored.double(), (byte_counts * is_scored).double()], dim=-1).flatten(
            0, 1
        )
        self.add(document.flatten(), columns)

    def compute(self) -> dict[str, float]:
        """Returns nats and perplexity per token, and bits per byte (bpc in arXiv:1901.02860) where bytes are known."""
        losses = self.rows()  # torchmetrics has gathered all ranks' rows
        nats, tokens = math.fsum(loss.nats for loss in losses), sum(loss.tokens for loss in losses)
        if tokens == 0:
            return {}
        results = {"nats": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
        if self.known:
            results["bpb"] = nats / math.log(2) / sum(loss.bytes for loss in losses)
        return results
