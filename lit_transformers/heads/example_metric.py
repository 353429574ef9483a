"""The base of every task's metric: sums for each document or example, which are divided once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.config import Plain
from lit_transformers.host import reads_at_once

ADDED_UP_AT = 1 << 20
"""How many rows a metric keeps on a device before it adds up those of each document, for which it waits."""


class ExampleMetric(Metric, ABC):
    """Sums for each document or example, over all batches, lanes and ranks.

    A row, of the NamedTuple that a subclass defines, is a line of ``documents.csv``: ``document``, the ordinal within
    the pass, then sums. Reports read ``nats``, ``tokens`` and ``bytes``, so every row has them; bytes are 0 where they
    have no meaning.
    """

    full_state_update = False
    totals: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("totals", default=[], dist_reduce_fx="cat")

    @abstractmethod
    def row(self, document: int, sums: list[float]) -> Any:
        """Returns the row of a document, given the sums of its columns."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Returns the reported numbers, from ``rows``; none if there was no token."""

    def add(self, document: Int[Tensor, " n"], columns: Float[Tensor, "n c"]) -> None:
        """Adds each row of ``columns`` to the sums of its document. A device would have to be waited for to tell the
        documents of a batch apart, so that rows on one are kept until they are many."""
        rows = torch.cat([document[:, None].double(), columns], dim=1)
        self.totals.append(added_up(rows) if reads_at_once(rows) else rows)
        if sum(map(len, self.totals[1:])) >= ADDED_UP_AT:
            self.add_up()

    def add_up(self) -> None:
        """Adds up the rows of each document that were kept on a device, which is waited for."""
        if self.totals and not reads_at_once(self.totals[0]):
            self.totals = [added_up(torch.cat(self.totals))]

    def per_document(self) -> Sequence[Any]:
        """Returns the rows of the documents of all ranks, by ordinal. All ranks must call it."""
        with self.sync_context():
            return self.rows()

    @staticmethod
    def joined(predictions: Iterable[Iterable[Any]]) -> list[Any]:
        """Returns one row for each document, by ordinal: the sums of its rows in the output of ``Trainer.predict``."""
        documents: dict[int, Any] = {}
        for row in chain.from_iterable(predictions):
            before = documents.get(row.document)
            sums = row[1:] if before is None else map(sum, zip(before[1:], row[1:], strict=True))
            documents[row.document] = type(row)(row.document, *sums)
        return [documents[document] for document in sorted(documents)]

    def outputs(self) -> Sequence[dict[str, Plain]]:
        """Hook: returns the texts decoded for the examples of all ranks, by ordinal. All ranks must call it.

        Each is {"id", "hypothesis", "references"}; there are none by default.
        """
        return []

    def rows(self) -> Sequence[Any]:
        """Returns the rows of this rank; within ``compute`` those of all ranks."""
        if len(self.totals) == 0:  # a list of tensors, or one tensor once ranks have gathered theirs
            return []
        totals = added_up(dim_zero_cat(self.totals))
        rows = (self.row(int(document), sums) for document, *sums in totals.tolist())
        return [row for row in rows if row.tokens]


def added_up(rows: Float[Tensor, "n c"]) -> Float[Tensor, "m c"]:
    """Returns a row for each document, whose ordinal is in the first column, by ordinal, with the sums of the other
    columns. A device is waited for."""
    documents, inverse = rows[:, 0].unique(return_inverse=True)
    sums = rows.new_zeros(len(documents), rows.size(1) - 1).index_add_(0, inverse, rows[:, 1:])
    return torch.cat([documents[:, None], sums], dim=1)
