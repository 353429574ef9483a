"""Detection of phrases that were replaced by others of their type, from the vectors next to them (arXiv:1912.09637)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized


class ReplacedPhrasesConfig(HeadConfig, kind="replaced_phrases"):
    """Of each phrase that may have been replaced it is predicted whether it was, from the last vectors of the symbols
    before and after it (arXiv:1912.09637, section 2.2)."""

    reads: ClassVar[Reads] = RowDescription

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ReplacedPhrases:
        """Raises ConfigError where the data replace no phrases."""
        if not RowDescription.of(data, self.kind).phrases:
            raise ConfigError("no phrases of rows are replaced; set data.noise to replace_phrases", "task.heads")
        return ReplacedPhrases(self, model.dim)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per="phrase") | maximized("accuracy", per="phrase")


class Detected(NamedTuple):
    """The predictions of phrases: the ``nats`` of each, 0 where there is none, whether it is ``correct``, and their
    ``positions`` among (b, p)."""

    nats: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    positions: PredictedPositions


class ReplacedPhrases(Head):
    """A linear map of the vectors on both sides of a phrase to the logit that it was replaced."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "phrases": int, "correct": int}

    def __init__(self, config: ReplacedPhrasesConfig, dim: int) -> None:
        super().__init__(config)
        self.map = nn.Linear(2 * dim, 1)

    @classmethod
    def column_names(cls, name: str) -> list[str]:
        return [f"{name}_nats", f"{name}s", f"correct_{name}s"]

    def detected(self, hidden: Float[Tensor, "b t d"], phrases: Int[Tensor, "b p 3"]) -> Detected:
        """Predicts of each phrase of ``RowBatch.phrases`` whether it was replaced."""
        positions = PredictedPositions.of(phrases[..., 0] != IGNORED)
        start, stop, label = positions.of_rows(phrases).unbind(dim=-1)
        sides = (hidden[positions.row, side.clamp(min=0)] for side in (start - 1, stop))
        logits = full_precision(self.map(torch.cat([*sides], dim=-1))).squeeze(-1)
        nats = F.binary_cross_entropy_with_logits(logits, label.to(logits.dtype), reduction="none")
        return Detected(nats.masked_fill(~positions.scored, 0.0), (logits > 0) == (label == 1), positions)

    def phrases(self, batch: RowBatch) -> Int[Tensor, "b p 3"]:
        """Returns the phrases of a batch; rows of minimal pairs have none."""
        return batch.targets.new_zeros(len(batch.targets), 0, 3) if batch.phrases is None else batch.phrases

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return (self.phrases(batch)[..., 0] != IGNORED).sum()

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(self.detected(reading.hidden, self.phrases(batch)).nats)

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 3"]:
        nats, correct, positions = self.detected(reading.hidden, self.phrases(batch))
        columns = torch.stack([nats.double(), torch.ones_like(nats).double(), correct.double()], dim=-1)
        return positions.sums(columns)

    def flops(self, length: int) -> float:
        """Returns 0: how many phrases a row has depends on the text, and each takes one product of two vectors."""
        return 0
