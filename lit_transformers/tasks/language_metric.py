"""How well a language model predicts, as sums over real tokens that are divided once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.batch import IGNORED


class DocumentLoss(NamedTuple):
    """What one document cost: its ordinal within the pass, nats, predicted tokens, and the bytes these stand for."""

    document: int
    nats: float
    tokens: int
    bytes: int


class LanguageMetric(Metric):
    """Nats, tokens and bytes of each document, whatever batches, lanes or ranks they came in.

    ``byte_lengths`` (v,) gives the bytes of each symbol, or None where they are unknown.
    """

    full_state_update = False
    totals: list[Tensor]

    def __init__(self, byte_lengths: Int[Tensor, " v"] | None) -> None:
        super().__init__()
        self.known = byte_lengths is not None
        self.register_buffer("byte_lengths", byte_lengths, persistent=False)
        self.add_state("totals", default=[], dist_reduce_fx="cat")

    def update(self, nats: Float[Tensor, "b t"], targets: Int[Tensor, "b t"], document: Int[Tensor, "b t"]) -> None:
        """nats of every target, 0 where it is IGNORED; the document of every target."""
        scored = targets != IGNORED
        real = targets.clamp(min=0)
        size = self.byte_lengths[real] if isinstance(self.byte_lengths, Tensor) else torch.zeros_like(real)
        columns = torch.stack([nats.double(), scored.double(), (size * scored).double()], dim=-1).flatten(0, 1)
        documents, place = document.flatten().unique(return_inverse=True)
        sums = columns.new_zeros(len(documents), 3).index_add_(0, place, columns)
        self.totals.append(torch.cat([documents[:, None].double(), sums], dim=1))

    def per_document(self) -> list[DocumentLoss]:
        """The losses of all documents that any rank has seen, by ordinal. All ranks must ask."""
        with self.sync_context():
            return self._sums()

    def _sums(self) -> list[DocumentLoss]:
        if len(self.totals) == 0:  # a list of tensors, or one tensor once ranks have gathered theirs
            return []
        rows = dim_zero_cat(self.totals)
        documents, place = rows[:, 0].unique(return_inverse=True)
        sums = rows.new_zeros(len(documents), 3).index_add_(0, place, rows[:, 1:])
        return [
            DocumentLoss(int(document), nats, int(tokens), int(size))
            for document, (nats, tokens, size) in zip(documents.tolist(), sums.tolist(), strict=True)
            if tokens
        ]

    def compute(self) -> dict[str, float]:
        """nats and perplexity per token, and bits per byte (bpc in arXiv:1901.02860) where bytes are known."""
        losses = self._sums()  # torchmetrics has gathered all ranks' rows
        nats, tokens = math.fsum(d.nats for d in losses), sum(d.tokens for d in losses)
        if tokens == 0:
            return {}
        found = {"nats": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
        if self.known:
            found["bpb"] = nats / math.log(2) / sum(d.bytes for d in losses)
        return found
