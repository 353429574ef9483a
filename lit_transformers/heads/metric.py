"""The metric of a task: the sums of its heads for each document or example, and the measures that follow from them."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.config import ConfigError, Plain
from lit_transformers.heads.example_metric import ExampleMetric
from lit_transformers.heads.head import Head
from lit_transformers.host import sent


class HeadsMetric(ExampleMetric):
    """The sums of all heads of a task, each row of which has the columns of the first head, and those of the others
    under their own names. The state ``kept`` stores the outputs of ``Head.kept``, as a line of JSON for each row: the
    name of the head and its tuple. Columns that depend on them are computed after the pass.

    ``leading``: columns before the columns of the heads. With leading columns, all heads have columns under their own
    names. ``groups``: columns after the columns of the heads, more than 0 if a document belongs to the group.

    heads: by name, the first one first. absent: kinds of heads, by name, whose columns are there and stay 0, so that
    tables of tasks that differ in heads alone have the same columns.
    """

    kept: list[Tensor]
    leading: ClassVar[Mapping[str, type]] = {}

    def __init__(
        self, heads: Mapping[str, Head], absent: Mapping[str, type[Head]] | None = None, groups: Sequence[str] = ()
    ) -> None:
        """Raises ConfigError where two heads, or a head and a group, have columns of one name."""
        super().__init__()
        self.groups = tuple(groups)
        # In a tuple, so that they are no submodules: their weights are the task's.
        self._heads = ({name: head for name, head in heads.items() if head.measured},)
        present = self.heads
        order = [*dict.fromkeys([*list(present)[:1], *(absent or {}), *present])]
        kinds: dict[str, Head | type[Head]] = {name: present.get(name) or (absent or {})[name] for name in order}
        self.places: dict[str, slice] = {}
        self.kinds: list[type] = [*self.leading.values()]
        names: list[str] = [*self.leading]
        for name, head in kinds.items():
            self.places[name] = slice(len(names), len(names) + len(head.columns))
            names += head.column_names(name) if names else head.columns
            self.kinds += head.columns.values()
        names += self.groups
        self.kinds += [int] * len(self.groups)
        if repeated := sorted(name for name in {*names} if names.count(name) > 1):
            owners = "a group and a head" if repeated[0] in self.groups else "two heads"
            raise ConfigError(f"{owners} have a column {repeated[0]}; give one of them another name", "task.heads")
        self.names = tuple(names)
        self.keeping = tuple(name for name, head in self.heads.items() if head.keeps)
        if self.keeping:
            self.add_state("kept", default=[], dist_reduce_fx="cat")

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads that are measured, by name."""
        return self._heads[0]

    def row(self, document: int, sums: list[float]) -> Any:
        return row_type(self.names)(document, *(kind(value) for kind, value in zip(self.kinds, sums, strict=True)))

    def update(self, documents: Int[Tensor, "*n"], sums: Mapping[str, Float[Tensor, "*n c"]]) -> None:
        """Adds the sums of every head, by name, for rows that belong to ``documents``."""
        columns = torch.zeros(*documents.shape, len(self.names), dtype=torch.float64, device=documents.device)
        for name, values in sums.items():
            columns[..., self.places[name]] = values.double()
        self.add(documents.flatten(), columns.flatten(0, documents.dim() - 1))

    def add_groups(self, documents: Int[Tensor, " n"], groups: Int[Tensor, " n"]) -> None:
        """Adds the group of each row, by its number, to the document that it belongs to; padding has none."""
        columns = torch.zeros(len(documents), len(self.names), dtype=torch.float64, device=documents.device)
        numbers = torch.arange(len(self.groups), device=groups.device)
        columns[:, len(self.names) - len(self.groups) :] = (groups[:, None] == numbers).double()
        self.add(documents, columns)

    def keep(self, kept: Mapping[str, Sequence[Sequence[Plain]]], device: torch.device) -> None:
        """Stores the outputs of ``Head.kept`` for a batch, by the names of heads, on a device. All ranks must call it
        equally often, without rows if they have none."""
        lines = "".join(f"{json.dumps([name, row])}\n" for name, rows in kept.items() for row in rows)
        self.kept.append(sent(torch.from_numpy(np.frombuffer(lines.encode(), np.uint8).copy()), device))

    def kept_rows(self) -> dict[str, dict[int, list[Sequence[Plain]]]]:
        """Returns the stored tuples of each document, by the names of heads and the ordinals of documents; within
        ``compute``, of all ranks."""
        kept: dict[str, dict[int, list[Sequence[Plain]]]] = {name: {} for name in self.keeping}
        if self.keeping and len(self.kept):
            for name, row in map(json.loads, dim_zero_cat(self.kept).cpu().numpy().tobytes().decode().splitlines()):
                kept[name].setdefault(row[0], []).append(row)
        return kept

    def rows(self) -> Sequence[Any]:
        rows = [*super().rows()]
        for name, documents in self.kept_rows().items():
            head, columns = self.heads[name], self.names[self.places[name]]
            own = dict(zip(head.columns, columns, strict=True))
            for place, row in enumerate(rows):
                if row.document in documents:
                    values = head.resolved(documents[row.document])
                    rows[place] = row._replace(**{own[column]: value for column, value in values.items()})
        return rows

    def outputs(self) -> Sequence[dict[str, Plain]]:
        """Returns the outputs of the first head that ``keeps``, with the ordinals of documents as "id"."""
        with self.sync_context():
            documents = self.kept_rows()[self.keeping[0]] if self.keeping else {}
        return [{"id": number} | self.heads[self.keeping[0]].output(documents[number]) for number in sorted(documents)]

    def compute(self) -> dict[str, float]:
        """Returns the measures of the first head by their names, and those of the others as "head_measure"; and all of
        them for the documents of each group, as "group_measure"."""
        rows = self.rows()
        results = self.results_of(rows)
        for group in self.groups:
            of_group = self.results_of([row for row in rows if getattr(row, group)])
            results |= {f"{group}_{name}": value for name, value in of_group.items()}
        return results

    def results_of(self, rows: Sequence[Any]) -> dict[str, float]:
        """Returns the measures of rows; none where they have no token."""
        results: dict[str, float] = {}
        if not sum(row.tokens for row in rows):
            return results
        values = list(zip(*rows, strict=True))[1:]
        for number, (name, head) in enumerate(self.heads.items()):
            measures = head.results(dict(zip(head.columns, values[self.places[name]], strict=True)))
            results |= {f"{name}_{measure}": value for measure, value in measures.items()} if number else measures
        return results


@cache
def row_type(names: tuple[str, ...]) -> Any:
    """Returns the class of rows with a document and such columns; one that can be sent to another process."""
    base = namedtuple("Row", ["document", *names])  # type: ignore[misc]
    return type("Row", (base,), {"__slots__": (), "__reduce__": lambda row: (make_row, (names, tuple(row)))})


def make_row(names: tuple[str, ...], values: tuple[float, ...]) -> Any:
    """Returns a row of such columns."""
    return row_type(names)(*values)
