"""Contrasts of rows with the n-grams that are hidden in them (InfoWord, arXiv:1910.08350)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import Positive, PositiveFloat
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.hidden_symbols import (
    HIDDEN,
    HiddenSymbols,
    HiddenSymbolsConfig,
    hidden_positions,
    row_network,
)
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.training.ranks import joined_over_ranks, most_over_ranks


class ContrastConfig(HeadConfig, kind="contrast"):
    """loss: info_nce, -log of the softmax over all n-grams (arXiv:1910.08350, equation 2); binary_nce, the logistic
    loss of the own n-gram as real, and of each other one as noise (arXiv:1310.4546, equation 4). An n-gram of other
    rows that is the same is none of the others.

    temperature: the scores are divided by it. longest: symbols of an n-gram that are read, the first ones. It reads the
    part "ngrams" (b, d) of a reading, the first vectors of the n-grams (``contrastive``).
    """

    reads: ClassVar[Reads] = RowDescription

    parts: ClassVar[tuple[str, ...]] = ("ngrams",)

    loss: Literal["info_nce", "binary_nce"] = "info_nce"
    temperature: PositiveFloat = 1.0
    longest: Positive = 10

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> NgramContrast:
        return NgramContrast(self, RowDescription.of(data, self.kind))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per=f"row by {self.loss}") | maximized("accuracy", per="row")


class Ngrams(NamedTuple):
    """The n-gram of each row: ``symbols`` (b, n), 0 after its last one, and the number of them, ``lengths`` (b,), 0
    where a row hides nothing."""

    symbols: Int[Tensor, "b n"]
    lengths: Int[Tensor, " b"]


def longest_spans(targets: Int[Tensor, "b t"], longest: int) -> Ngrams:
    """Returns the first of the longest runs of predicted symbols in each row, its first ``longest`` symbols."""
    position = torch.arange(targets.size(1), device=targets.device)
    is_hidden = targets != IGNORED
    before = torch.where(is_hidden, -1, position).cummax(dim=1).values
    run = torch.where(is_hidden, position - before, 0)
    lengths, stop = run.max(dim=1)
    places = (stop - lengths + 1)[:, None] + torch.arange(longest, device=targets.device)
    lengths = lengths.clamp(max=longest)
    symbols = targets.gather(1, places.clamp(max=targets.size(1) - 1))
    return Ngrams(symbols * (torch.arange(longest, device=targets.device) < lengths[:, None]), lengths)


def info_nce(
    scores: Float[Tensor, "b n"], own: Int[Tensor, " b"], left_out: Bool[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """Returns the InfoNCE loss (b,) in nats: -log of the softmax over the scores of each row at its ``own`` place.
    Scores where ``left_out`` is True are omitted from the softmax (arXiv:1807.03748, equation 4)."""
    return F.cross_entropy(scores.masked_fill(left_out, -torch.inf), own, reduction="none")


class Contrasts(NamedTuple):
    """The contrast of each row with n-grams, all (b,): its loss, ``nats``, and whether its own n-gram has the highest
    score, ``correct``, 0 and False where it has no n-gram; and which rows are ``scored``."""

    nats: Float[Tensor, " b"]
    correct: Bool[Tensor, " b"]
    scored: Bool[Tensor, " b"]


class NgramContrast(Head):
    """The loss of each row against the n-grams of the batch, over all ranks, and whether its own had the highest
    score."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int}
    whole_batch: ClassVar[bool] = True

    def __init__(self, config: ContrastConfig, rows: RowDescription) -> None:
        super().__init__(config)
        self.kind, self.temperature = config.loss, config.temperature
        self.longest = min(config.longest, rows.length - 2)
        """The symbols of the longest n-gram that is read, which no row is too short for."""

    def scored(self, batch: RowBatch, ngrams: Ngrams) -> Bool[Tensor, " b"]:
        """Returns the rows that hide an n-gram."""
        return (ngrams.lengths > 0) & batch.padding_mask.any(dim=1)

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return self.scored(batch, longest_spans(batch.targets, self.longest)).sum()

    def contrasts(self, reading: Representation, batch: RowBatch) -> Contrasts:
        """Compares rows with the n-grams of all ranks."""
        ngrams = longest_spans(batch.targets, self.longest)
        rank_parts = reading.parts["ngrams"], ngrams.symbols, ngrams.lengths
        # A rank may have a row less than others in the last batch of an evaluation; rows of zeros hide nothing.
        count = len(batch.targets)
        missing = 0 if self.training else most_over_ranks(count, batch.targets.device) - count
        (vectors, first), (symbols, _), (lengths, _) = (
            joined_over_ranks(torch.cat([part, part.new_zeros(missing, *part.shape[1:])])) for part in rank_parts
        )
        own = first + torch.arange(len(batch.targets), device=vectors.device)
        is_own = torch.arange(len(vectors), device=vectors.device) == own[:, None]
        is_same = (symbols == ngrams.symbols[:, None]).all(dim=-1) & (lengths == ngrams.lengths[:, None])
        scores = full_precision(reading.hidden[:, 0] @ vectors.T) / self.temperature
        left_out = ((lengths == 0) | is_same) & ~is_own
        scored = self.scored(batch, ngrams)
        nats = self.nats(scores, own, left_out).masked_fill(~scored, 0.0)
        best = scores.masked_fill(left_out, -torch.inf).argmax(dim=1)
        return Contrasts(nats, (best == own) & scored, scored)

    def nats(
        self, scores: Float[Tensor, "b n"], own: Int[Tensor, " b"], left_out: Bool[Tensor, "b n"]
    ) -> Float[Tensor, " b"]:
        """Returns the loss of each row, whose own n-gram is that at ``own``, without pairs that are left out."""
        if self.kind == "info_nce":
            return info_nce(scores, own, left_out)
        real = F.one_hot(own, scores.size(1)).to(scores.dtype)
        pairs = F.binary_cross_entropy_with_logits(scores, real, reduction="none")
        return pairs.masked_fill(left_out, 0.0).sum(dim=1)

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(self.contrasts(reading, batch).nats)

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 4"]:
        nats, correct, scored = self.contrasts(reading, batch)
        columns = (nats, scored, torch.zeros_like(scored), correct)
        return torch.stack([column.double() for column in columns], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns nats and accuracy of rows."""
        count = len(sums["nats"])
        return {"nats": math.fsum(sums["nats"]) / count, "accuracy": sum(sums["correct"]) / count}

    def flops(self, length: int) -> float:
        """Returns 0: the scores of pairs depend on the number of rows of a batch."""
        return 0


class MaskedSymbolsConfig(HiddenSymbolsConfig, kind="masked_symbols"):
    """Hidden symbols, with another prediction from the same pass; their nats alone are measured."""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> MaskedSymbols:
        return MaskedSymbols(self, row_network(model, network), RowDescription.of(data, self.kind))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per=HIDDEN)


class MaskedSymbols(HiddenSymbols):
    """Nats of the hidden symbols of each row, and their number."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int}

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 2"]:
        positions = hidden_positions(batch)
        nats = positions.in_rows(self.nats(reading, batch, positions).double()).sum(dim=1)
        return torch.stack([nats, (batch.targets != IGNORED).sum(dim=1).double()], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns nats of hidden symbols; nothing where there are none."""
        return Head.results(self, sums)
