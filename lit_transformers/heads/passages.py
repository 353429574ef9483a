"""Retrieves passages by the vectors of questions: a loss within the batch, and ranks among all passages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import DataDescription, RetrievalBatch, RetrievalDescription
from lit_transformers.config import PositiveFloat
from lit_transformers.heads.contrast import info_nce
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.pooling import FixedPooling, pooled
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.training.ranks import joined_over_ranks

CHUNK = 1024
"""The number of questions that are scored with all passages at once, to bound memory."""


class PassagesConfig(HeadConfig, kind="passages"):
    """The cross entropy of a softmax over the passages of the batch on all ranks; the target is the passage that
    answers the question (DPR, arXiv:2004.04906, equation 2). Further copies of that passage are omitted from the
    softmax. The head reads the part "passages" (b, t, d) of a representation, which the task ``retrieval`` provides.

    pooling: the vector of a text, as in ``class_label``. similarity: dot is the product of two vectors, cosine the
    cosine of their angle. temperature: divides the similarities.
    """

    reads: ClassVar[Reads] = RetrievalDescription
    parts: ClassVar[tuple[str, ...]] = ("passages",)

    pooling: FixedPooling = "first"
    similarity: Literal["cosine", "dot"] = "cosine"
    temperature: PositiveFloat = 0.05

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> Passages:
        return Passages(self)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return maximized("mrr", "hit_1", "hit_5", per="question") | minimized("nats", per="question")


class Passages(Head):
    """Ranks the passage that answers each question among all passages of a split, and measures its nats by a softmax
    over all of them. Among passages with the same score, the answer has the last rank.

    Measures are the mean reciprocal rank (mrr), the shares of questions whose answer has a rank up to 1 and up to 5
    (hit_1, hit_5), and nats per question.
    """

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int, "rank": int}
    whole_batch: ClassVar[bool] = True

    def __init__(self, config: PassagesConfig) -> None:
        super().__init__(config)
        self.pooling, self.similarity, self.temperature = config.pooling, config.similarity, config.temperature

    def targets(self, batch: RetrievalBatch) -> Int[Tensor, ""]:
        return batch.source_padding_mask.any(dim=1).sum()

    def vectors(self, hidden: Float[Tensor, "n t d"], padding_mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Returns the vector of each text, scaled to length 1 if the similarity is cosine."""
        vectors = full_precision(pooled(hidden, padding_mask, self.pooling))
        return F.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors

    def vectors_of(
        self, reading: Representation, batch: RetrievalBatch
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """Returns the vectors of the questions and of the passages of a batch."""
        questions = self.vectors(reading.hidden, batch.source_padding_mask)
        return questions, self.vectors(reading.parts["passages"], batch.padding_mask)

    def loss(self, reading: Representation, batch: RetrievalBatch) -> HeadLoss:
        questions, passages = self.vectors_of(reading, batch)
        (passages, first), (numbers, _) = map(joined_over_ranks, (passages, batch.passage))
        own = first + torch.arange(len(questions), device=passages.device)
        is_own = torch.arange(len(passages), device=passages.device) == own[:, None]
        left_out = (numbers == batch.answer[:, None]) & ~is_own
        return HeadLoss.of(info_nce(questions @ passages.T / self.temperature, own, left_out))

    def ranked(
        self,
        questions: Float[Tensor, "n d"],
        answers: Int[Tensor, " n"],
        passages: Float[Tensor, "m d"],
        numbers: Int[Tensor, " m"],
    ) -> Float[Tensor, "n 5"]:
        """Returns ``columns`` for questions. ``passages`` are the vectors of different passages, ``numbers`` their
        numbers, and ``answers`` the number of the passage that answers each question. A NaN counts as the highest
        score."""
        parts = []
        for vectors, answer in zip(questions.split(CHUNK), answers.split(CHUNK), strict=True):
            # Products in float64 are rounded, so that equal vectors have equal scores in every row.
            scores = (vectors.double() @ passages.double().T).float()
            is_own = numbers == answer[:, None]
            own = scores.gather(1, is_own.long().argmax(dim=1, keepdim=True))
            rank = 1 + (~(scores < own) & ~is_own).sum(dim=1)
            nats = ((scores / self.temperature).logsumexp(dim=1) - own[:, 0] / self.temperature).double()
            parts.append(torch.stack([nats, torch.ones_like(nats), torch.zeros_like(nats), rank == 1, rank], dim=1))
        return torch.cat(parts)

    def sums(self, reading: Representation, batch: RetrievalBatch) -> Float[Tensor, "b 5"]:
        """Returns ``columns`` for the questions of a batch, ranked among the passages of the same batch."""
        questions, passages = self.vectors_of(reading, batch)
        return self.ranked(questions, batch.answer, passages, batch.passage)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns mrr, hit_1, hit_5 and nats per question."""
        ranks = sums["rank"]
        hits = {f"hit_{most}": sum(rank <= most for rank in ranks) / len(ranks) for most in (1, 5)}
        reciprocal = math.fsum(1 / rank for rank in ranks) / len(ranks)
        return {"mrr": reciprocal, **hits, "nats": math.fsum(sums["nats"]) / len(ranks)}

    def flops(self, length: int) -> float:
        """Returns 0: the scores of pairs depend on the number of rows of a batch."""
        return 0
