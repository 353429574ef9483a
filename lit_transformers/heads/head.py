"""The base of every head: a prediction of a task from a network, with its loss, its measures and its cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import ItemsView, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, NonNegativeFloat, Plain
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, minimized

Reads = type[DataDescription] | tuple[type[DataDescription], ...]
"""A kind of data, or several of them."""


class HeadConfig(Config):
    """Base of every head's config; the table HEADS lists the kinds.

    weight: of its loss in the sum of a task's losses; 0: it is measured and not trained. name: of its loss, its
    measures and its weights in a task; "" for its kind.
    """

    reads: ClassVar[Reads] = DataDescription
    """The data whose batches have the columns that it reads."""
    parts: ClassVar[tuple[str, ...]] = ()
    """The parts of a reading that it needs, which not every task has."""

    weight: NonNegativeFloat = 1.0
    name: str = ""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> Head:
        """Builds the head for a network that was built of ``model`` for such data. Raises ConfigError where it cannot
        predict from such a network, or from such data."""
        raise NotImplementedError

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        """Hook: returns the measure of each of its metrics by name, as ``TaskConfig.measures`` does. By default its
        loss, "nats", is a mean over its targets, and less is better."""
        return minimized("nats", per="target")


class Representation(NamedTuple):
    """The outputs of a task's networks for a batch, which its heads read.

    network  that read the batch, in training or in evaluation, whose softmax a head may use
    hidden   (b, t, d) its last vectors
    layers   (b, t, d) each, the outputs of all layers but the last, where a head asks for them
    aux      losses of the network's own, by name, each a mean over the tokens of the batch
    source_aux  those that are means over the tokens of its sources
    progress the share of all updates that were made before the batch
    parts    additions of a task for its own heads, by name
    """

    network: Any
    hidden: Tensor
    layers: Sequence[Tensor] = ()
    aux: Mapping[str, Tensor] = MappingProxyType({})
    source_aux: Mapping[str, Tensor] = MappingProxyType({})
    progress: float = 0.0
    parts: Mapping[str, Any] = MappingProxyType({})


class HeadLoss(NamedTuple):
    """The loss of a batch as sums over its targets: ``total`` is differentiated, ``nats`` is plotted, without gradient
    where it differs."""

    total: Float[Tensor, ""]
    nats: Float[Tensor, ""]

    @classmethod
    def of(cls, nats: Float[Tensor, "*n"]) -> HeadLoss:
        """Returns the loss of targets whose nats are both."""
        total = nats.sum()
        return cls(total, total)


class Head(nn.Module, ABC):
    """A prediction from a network. A task sums the losses of its heads. Each is divided by the number of the head's
    targets in all batches of an update, and weighted.

    ``columns`` holds the names and types of the sums for each document or example; a head that is not the first of its
    task has them under its own name: "relation_nats".
    """

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int}
    needs_layers: ClassVar[bool] = False
    """Whether it reads the outputs of single layers."""
    whole_batch: ClassVar[bool] = False
    """Whether the loss of a row depends on the other rows of its batch, which then cannot be cut into several."""
    measured: ClassVar[bool] = True
    """Whether it is measured when the network is evaluated, or is there for training alone."""
    keeps: ClassVar[bool] = False
    """Whether some columns depend on all rows of a document. If so, the metric stores the outputs of ``kept`` until the
    pass ends, and ``resolved`` computes these columns."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.weight = config.weight

    @classmethod
    def column_names(cls, name: str) -> list[str]:
        """Hook: returns the names of ``columns`` in a task that calls it ``name`` and has another head before it."""
        return [f"{name}_{column}" for column in cls.columns]

    def learns(self, progress: float) -> bool:
        """Hook: whether its loss is trained at a share of all updates, from 0 to 1. By default it always is."""
        return True

    @abstractmethod
    def targets(self, batch: Any) -> Int[Tensor, ""]:
        """Returns the number of its targets in a batch, which follows from the batch alone."""

    def forward(self, reading: Representation, batch: Any) -> HeadLoss:
        """Calls ``loss``. Tasks train heads by this call, before which ranks that hold parts of a head gather it."""
        return self.loss(reading, batch)

    @abstractmethod
    def loss(self, reading: Representation, batch: Any) -> HeadLoss:
        """Returns the sums of its loss over the targets of a batch, in float32 or finer."""

    @abstractmethod
    def sums(self, reading: Representation, batch: Any) -> Float[Tensor, "*n c"]:
        """Returns ``columns`` for the n rows of a batch, or for the positions (b, t) of a text; 0 where there is no
        target."""

    def kept(self, reading: Representation, batch: Any) -> Sequence[Sequence[Plain]]:
        """Hook, if ``keeps``: returns a tuple of plain data for each row of a batch that is not padding. Its first item
        is the ordinal of the row's document."""
        raise NotImplementedError

    def resolved(self, rows: Sequence[Sequence[Plain]]) -> dict[str, float]:
        """Hook, if ``keeps``: returns the columns of a document that depend on all its rows, given their ``kept``
        tuples in any order. ``sums`` has 0 in these columns."""
        raise NotImplementedError

    def output(self, rows: Sequence[Sequence[Plain]]) -> dict[str, Plain]:
        """Hook, if ``keeps``: returns {"hypothesis": ..., "references": ...} of a document, given its ``kept``
        tuples."""
        raise NotImplementedError

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Hook: returns its measures, given the sums of each document by column. By default nats per target, of which
        the second column is the number, and accuracy where there is a column "correct"; nothing where there was no
        target."""
        nats, count = (math.fsum(sums[column]) for column in [*self.columns][:2])
        if not count:
            return {}
        return {"nats": nats / count} | ({"accuracy": sum(sums["correct"]) / count} if "correct" in sums else {})

    def flops(self, length: int) -> float:
        """Hook: returns the forward FLOPs of training for a row of ``length`` tokens, without those of the network. By
        default those of the head's weight matrices, each read once for every token."""
        return 2 * length * sum(parameter.numel() for parameter in self.parameters() if parameter.dim() > 1)


class HeadDict(nn.ModuleDict):
    """The heads of a task by name, the first one first."""

    def __getitem__(self, name: str) -> Head:
        return cast("Head", super().__getitem__(name))

    def items(self) -> ItemsView[str, Head]:
        return cast("ItemsView[str, Head]", super().items())

    def values(self) -> ValuesView[Head]:
        return cast("ValuesView[Head]", super().values())
