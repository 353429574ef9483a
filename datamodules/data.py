"""What a run asks of any data: batches for a Lightning trainer, a description, a fingerprint, a position to resume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import lightning as L
import torch

from datamodules.documents import Shard, Split
from datamodules.errors import DataError
from datamodules.loading import EvaluationLoader, Position, Reading, TrainingLoader, gathered
from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, Plain, canonical_hash

__all__ = ["Data", "DataConfig", "row_conflicts"]


class DataConfig(Config):
    """Base of every config of data; the table DATA lists the kinds.

    A kind says in ``batches`` of which type its batches are: a task that reads others is refused. Its ``seed`` alone
    decides the order of training; its ``evaluation``, with defaults and a ``split``, what is measured and how.
    """

    batches: ClassVar[type]

    def build(self) -> Data:
        """Opens the data. Raises DataError."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What a record calls the data."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Tokens of the longest row of training."""
        raise NotImplementedError

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update, over all ranks; rows may hold padding."""
        raise NotImplementedError

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        """A sentence, beginning with the field's name, for each batch that so many ranks cannot share."""
        raise NotImplementedError

    def protocol(self) -> dict[str, Plain]:
        """How evaluation reads the data: recorded with every number."""
        raise NotImplementedError

    def trained_alike(self) -> DataConfig:
        """The same data for training, whatever is evaluated: runs that agree in it are trained once."""
        return self.override({"evaluation": type(self.get("evaluation"))()})

    def describe(self, kept: Mapping[str, Plain]) -> DataDescription:
        """The description, from what a checkpoint kept (``Data.kept``): without the data itself."""
        raise NotImplementedError


def row_conflicts(ranks: int, **rows: int | None) -> Iterator[str]:
    """A sentence for each number of rows, by the name of its field, that ranks cannot share in equal parts."""
    for name, count in rows.items():
        if count is not None and count % ranks:
            yield f"{name}: {count} rows cannot be shared by {ranks} ranks; make it a multiple of them"


class Data(L.LightningDataModule, ABC):
    """Batches of one kind. A checkpoint holds the position of training, so resuming gives the next batch."""

    config: DataConfig

    def __init__(self, config: DataConfig) -> None:
        super().__init__()
        self.config = config
        self._position: Position | None = None
        self._loaded: Mapping[str, Plain] | None = None

    @property
    @abstractmethod
    def content(self) -> str:
        """A fingerprint of what is read, whatever is taken out of it."""

    @property
    @abstractmethod
    def description(self) -> DataDescription:
        """What a task must know."""

    @abstractmethod
    def kept(self) -> dict[str, Plain]:
        """Plain data for a checkpoint, from which ``DataConfig.describe`` makes the same description."""

    @abstractmethod
    def example_name(self, ordinal: int) -> str:
        """What the document or example of that ordinal is called in the split that validation reads."""

    @abstractmethod
    def identity(self) -> dict[str, Plain]:
        """Every value that decides a batch of training, by the name of its field."""

    def measures(self) -> Plain:
        """Every value that decides a batch of evaluation."""
        return self.config.get("evaluation").to_dict()

    @abstractmethod
    def training(self) -> Reading:
        """The endless batches of this rank."""

    @abstractmethod
    def evaluation(self, split: Split) -> Reading:
        """One pass of this rank over its share of a split."""

    @property
    def validation_split(self) -> Split:
        """The split that validation reads; testing reads test."""
        split: Split = self.config.get("evaluation.split")
        return split

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content and of every field that decides a batch; not of where files lie."""
        return canonical_hash(self.identity() | {"evaluation": self.measures()}, 32)

    def setup(self, stage: str | None = None) -> None:
        """A new fit starts at the beginning; a checkpoint, loaded after this, sets the position."""
        if stage == "fit":
            self._position = self._loaded = None

    def train_dataloader(self) -> TrainingLoader:
        return TrainingLoader(self.training, self._where)

    def val_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader(self.validation_split)

    def test_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader("test")

    def evaluation_dataloader(self, split: Split) -> EvaluationLoader:
        """One pass over a split; ordinals in the batches are those in that split."""
        return EvaluationLoader(lambda: self.evaluation(split), self._device())

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Notes the position of each batch that training takes; one that was only fetched ahead is not taken."""
        if self.trainer is not None and self.trainer.training:
            self._position = (self._position or self.training().start()).after(batch)
        return batch

    def state_dict(self) -> dict[str, Plain]:
        """Plain data: the position of every rank, and what it is a position in."""
        if self._position is None:
            return dict(self._loaded or {})
        ranks = [[list(position.cursors), position.turn] for position in gathered(self._position, self.rank())]
        return {"of": self.identity(), "ranks": ranks}

    def load_state_dict(self, state_dict: Mapping[str, Plain]) -> None:
        """Takes over a position. It is checked when training asks for batches: evaluation needs none."""
        self._position, self._loaded = None, dict(state_dict)

    def rank(self) -> Shard:
        """This process among those that train together."""
        if self.trainer is not None:
            return Shard(self.trainer.global_rank, self.trainer.world_size)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Shard()

    def rows(self, batch_size: int) -> int:
        """This rank's rows of a batch. Raises DataError where ranks cannot share it."""
        total = self.rank().total
        for conflict in row_conflicts(total, batch_size=batch_size):
            raise DataError(f"data.{conflict}")
        return batch_size // total

    def _where(self, reading: Reading) -> Position:
        if self._position is None and self._loaded:
            self._check(self._loaded["of"])
            ranks = self._loaded["ranks"]
            if len(ranks) != reading.rank.total:
                raise DataError(
                    f"training.devices: the checkpoint was made by {len(ranks)} ranks, each with a share of the data, "
                    f"not by {reading.rank.total}; use as many or start anew"
                )
            cursors, turn = ranks[reading.rank.number]
            self._position = Position(tuple(cursors), int(turn))
        return self._position or reading.start()

    def _check(self, made: Mapping[str, Plain]) -> None:
        for name, value in self.identity().items():
            if made.get(name) != value:
                raise DataError(
                    f"data.{name}: the checkpoint's position in the data was made with {made.get(name)!r}, "
                    f"not {value!r}; set it back or start anew"
                )

    def _device(self) -> torch.device:
        """Where ranks exchange whether they are through."""
        if self.trainer is not None:
            return self.trainer.strategy.root_device
        nccl = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.device("cuda" if nccl and torch.distributed.get_backend() == "nccl" else "cpu")
