"""The relation of the two segments of a row (Devlin et al. 2019, arXiv:1810.04805, section 3.1, task 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized


class RelationConfig(HeadConfig, kind="relation"):
    """The relation is predicted from the first vector of a row through a map with tanh, the pooler of BERT's code.

    detach: whether its loss trains the pooler and its output alone, so that they read a network that other
    losses have trained.
    """

    reads: ClassVar[Reads] = RowDescription

    detach: bool = False

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> Relation:
        """Raises ConfigError where the data have no relations."""
        relations = RowDescription.of(data, self.kind).relations
        if not relations:
            raise ConfigError("rows have no relations to predict; set data.relation", "task.heads")
        return Relation(self, model.dim, relations)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per="relation") | maximized("accuracy", per="relation")


class Relation(Head):
    """Nats of the relation of each row that has one, and whether it was the most likely."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "relations": int, "correct": int}

    def __init__(self, config: RelationConfig, dim: int, relations: int) -> None:
        super().__init__(config)
        self.detach = config.detach
        self.map = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, relations))

    @classmethod
    def column_names(cls, name: str) -> list[str]:
        return [f"{name}_nats", f"{name}s", f"correct_{name}s"]

    def logits(self, reading: Representation) -> Float[Tensor, "b c"]:
        """Returns the logits of the relations, in float32 or finer."""
        first = reading.parts.get("content", reading.hidden)[:, 0]
        return full_precision(self.map(first.detach() if self.detach else first))

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return (batch.relation != IGNORED).sum()

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        logits = self.logits(reading)
        return HeadLoss.of(F.cross_entropy(logits, batch.relation, ignore_index=IGNORED, reduction="none"))

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 3"]:
        logits, related = self.logits(reading), batch.relation != IGNORED
        nats = F.cross_entropy(logits, batch.relation, ignore_index=IGNORED, reduction="none")
        correct = (logits.argmax(dim=-1) == batch.relation) & related
        return torch.stack([nats.double(), related.double(), correct.double()], dim=1)

    def flops(self, length: int) -> float:
        """Returns those of one vector of a row, in which a bias counts as much as a weight."""
        return 2 * sum(parameter.numel() for parameter in self.parameters())
