"""Sums for each document or example, that are divided once: the base of every task's metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.config import Plain


class ExampleMetric(Metric, ABC):
    """Sums of each document or example, whatever batches, lanes or ranks they came in.

    A row, of the NamedTuple that a kind defines, is a line of ``documents.csv``: ``document``, the ordinal within the
    pass, then sums. Reports read ``nats``, ``tokens`` and ``bytes``, so every kind has them; bytes are 0 where they
    mean nothing.
    """

    full_state_update = False
    totals: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("totals", default=[], dist_reduce_fx="cat")

    @abstractmethod
    def row(self, document: int, sums: list[float]) -> Any:
        """The row of a document, of the sums of its columns."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The reported numbers, from ``rows``; none where no token was seen."""

    def add(self, document: Int[Tensor, " n"], columns: Float[Tensor, "n c"]) -> None:
        """Adds each line of columns to the sums of its document."""
        documents, place = document.unique(return_inverse=True)
        sums = columns.new_zeros(len(documents), columns.size(1)).index_add_(0, place, columns)
        self.totals.append(torch.cat([documents[:, None].double(), sums], dim=1))

    def per_document(self) -> Sequence[Any]:
        """The rows of all documents that any rank has seen, by ordinal. All ranks must ask."""
        with self.sync_context():
            return self.rows()

    def outputs(self) -> Sequence[dict[str, Plain]]:
        """Hook: what was written for each example that any rank has seen, by ordinal. All ranks must ask.

        {"id", "hypothesis", "references"}; nothing by default.
        """
        return []

    def rows(self) -> Sequence[Any]:
        """The rows that this rank knows of; within ``compute`` those of all ranks."""
        if len(self.totals) == 0:  # a list of tensors, or one tensor once ranks have gathered theirs
            return []
        lines = dim_zero_cat(self.totals)
        documents, place = lines[:, 0].unique(return_inverse=True)
        sums = lines.new_zeros(len(documents), lines.size(1) - 1).index_add_(0, place, lines[:, 1:])
        found = (
            self.row(int(document), line) for document, line in zip(documents.tolist(), sums.tolist(), strict=True)
        )
        return [row for row in found if row.tokens]
