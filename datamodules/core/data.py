"""The interface of all data: batches for a Lightning trainer, a description, a fingerprint, a position to resume."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, final

import lightning as L
import torch
from lightning.pytorch.callbacks import Timer

from datamodules.core.documents import Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.loading import EvaluationLoader, Reading, TrainingLoader
from datamodules.core.tokenizers import Symbols, Tokenizer
from datamodules.core.trained import TrainedSymbols
from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, ConfigError, Plain, canonical_hash

__all__ = ["Data", "DataConfig", "KnownValues", "defined", "row_conflicts"]

DESCRIPTION = "description"
"""The key under which a checkpoint names the kind of its data's description."""
CONTENT = "content"
"""The key under which a checkpoint holds the fingerprint of its data's content."""
TASK_SYMBOLS = "trained_symbols"
"""The attribute of a task that holds the meanings of its symbols."""


class KnownValues(NamedTuple):
    """The values of a metric that are known before anything is trained, by name. The first is the value of a predictor
    that knows nothing of the data but its symbols, the last the best possible value."""

    metric: str
    values: Mapping[str, float]


class DataConfig(Config):
    """Base of every config of data; the table DATA lists the kinds.

    ``describes`` is the kind of the data's description; a task that reads data of another kind is refused. Its ``seed``
    alone decides the order of training. Its ``evaluation``, a config with defaults and a ``split``, decides the
    measurement at the end of a run. ``fills_batches`` says that each batch of training has all its tokens, however few
    texts there are.
    """

    describes: ClassVar[type[DataDescription]]
    fills_batches: ClassVar[bool] = False

    def build(self) -> Data:
        """Opens the data. Raises DataError."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the data in records."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Number of tokens of the longest training row."""
        raise NotImplementedError

    @property
    def measured_length(self) -> int | None:
        """Hook: number of tokens of the longest row that is measured; None where none is longer than in training."""
        return None

    @property
    def tokens_per_step(self) -> int:
        """Planned number of tokens of one update over all ranks, which is known before rows are read.
        ``lit_transformers.batch.tokens_read`` counts the tokens of a batch."""
        raise NotImplementedError

    @property
    def examples_per_batch(self) -> int | None:
        """Hook: the number of examples of a batch over all ranks. If it is set, training shows its speed in examples.
        By default None: speed is shown in tokens."""
        return None

    @property
    def summaries(self) -> bool:
        """Hook: whether targets are known to be summaries of their sources."""
        return False

    @property
    def target_language(self) -> str | None:
        """Hook: the language of targets, such as ``de``; None where there are none, or it is not known."""
        return None

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        """Yields a sentence, beginning with the field's name, for each batch size that ``ranks`` ranks cannot share."""
        raise NotImplementedError

    def protocol(self) -> dict[str, Plain]:
        """Returns the settings by which evaluation reads the data; they are recorded with every number."""
        raise NotImplementedError

    def measured(self) -> dict[str, Plain]:
        """Hook: returns the fields that decide which documents or examples of the content are measured, whichever
        network reads them. By default the fields of the evaluation, except the size of its batches."""
        evaluation: dict[str, Plain] = self.get("evaluation").to_dict()
        return {name: value for name, value in evaluation.items() if name != "batch_size"}

    @property
    def measured_lengths(self) -> tuple[int, ...] | None:
        """Hook: the lengths at which metrics are also measured, as ``accuracy@20``; None where it is not known which.
        Empty by default."""
        return ()

    def with_default_evaluation(self) -> DataConfig:
        """Returns the config with the default evaluation: runs that agree in it are trained only once."""
        return self.override({"evaluation": type(self.get("evaluation"))()})

    @final
    def description_from(self, metadata: Mapping[str, Plain]) -> DataDescription:
        """Returns the description from ``Data.checkpoint_metadata``, without opening the data itself.

        Raises ConfigError where the metadata are of data of another kind.
        """
        stored = metadata.get(DESCRIPTION, "no kind")
        if stored != self.describes.kind:
            raise ConfigError(
                f"the checkpoint describes its data as {stored}, not as {self.describes.kind}; "
                "set data back or train anew",
                "data",
            )
        return self.restored(metadata)

    def known_values(self) -> KnownValues | None:
        """Hook: returns the known values of a metric of networks that read these data; None if there are none."""
        return None

    def restored(self, metadata: Mapping[str, Plain]) -> DataDescription:
        """Returns the description from the metadata of such data."""
        raise NotImplementedError


def defined(noun: str, decisive: Plain) -> str:
    """Returns a definition of ``Data.definitions``. decisive: all that decides it, as plain data."""
    return f"{noun} {canonical_hash(decisive)}"


def is_kept(value: Any) -> bool:
    """Whether an attribute of a class is a property that an object computes once and keeps."""
    return isinstance(value, cached_property)


def row_conflicts(ranks: int, batch_size: int, evaluation_batch_size: int | None = None) -> Iterator[str]:
    """Yields a sentence for each number of rows, in training and in evaluation, that ranks cannot share equally."""
    for name, count in (("batch_size", batch_size), ("evaluation.batch_size", evaluation_batch_size)):
        if count is not None and count % ranks:
            yield f"{name}: {count} rows cannot be shared by {ranks} ranks; make it a multiple of them"


def is_endless(trainer: Any) -> bool:
    """Whether nothing that a trainer was given ends a fit to batches that do not end; validations, after which a
    callback may end it, are something."""
    is_timed = any(isinstance(callback, Timer) for callback in trainer.callbacks)
    is_limited = isinstance(trainer.limit_train_batches, int) or not isinstance(trainer.val_check_interval, float)
    return trainer.max_steps == -1 and trainer.max_epochs != -1 and not is_timed and not is_limited


class Data(L.LightningDataModule, ABC):
    """Batches of one kind. A checkpoint holds the position of training, so that resuming gives the next batch."""

    config: DataConfig

    def __init__(self, config: DataConfig) -> None:
        super().__init__()
        self.config = config
        self.selection_split: Split | None = None
        """The split that validations of training read, whichever one is measured; None: see ``validated_split``."""
        self.trained: TrainedSymbols | None = None
        """The symbols and labels of a trained network, in place of those of the data; None for their own."""
        self._cursor = ""
        self._loaded: Mapping[str, Plain] | None = None

    @property
    @abstractmethod
    def content(self) -> str:
        """A fingerprint of the source's content, independent of the part that is used."""

    @property
    def licences(self) -> Mapping[str, str]:
        """Hook: the licences of its texts, by the names of their corpora. By default empty."""
        return {}

    @property
    @abstractmethod
    def description(self) -> DataDescription:
        """The properties of the data that a task needs."""

    @final
    def checkpoint_metadata(self) -> dict[str, Plain]:
        """Returns plain data for a checkpoint; ``DataConfig.description_from`` makes the description from it, and
        ``TrainedSymbols.of`` the meanings of its symbols."""
        described = {DESCRIPTION: self.description.kind, CONTENT: self.content}
        return described | self.trained_symbols().to_dict() | self.metadata()

    def trained_symbols(self) -> TrainedSymbols:
        """Hook: returns the meanings of symbols and labels. By default those in ``metadata``."""
        return TrainedSymbols.of(self.metadata())

    @final
    def read_as(self, trained: TrainedSymbols) -> None:
        """Reads with the symbols and labels of a trained network instead of the data's own. Raises DataError where
        these differ and cannot be replaced."""
        self.trained = trained
        for kept in [name for part in type(self).__mro__ for name, value in vars(part).items() if is_kept(value)]:
            vars(self).pop(kept, None)
        if not self.trained_symbols().stand_for_those_of(trained):
            raise DataError(
                f"data: the symbols of {self.config.name} stand for something else than those that the network was "
                "trained on; restore the settings that decide them, or train anew"
            )
        if (reason := self.conflict()) is not None:
            raise DataError(reason)

    def conflict(self) -> str | None:
        """Hook: returns why data that read with the symbols of a trained network cannot be read so; None by default."""
        return None

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        """Hook: yields the symbols of the texts that are read of a split, with their tokenizer. None by default."""
        return iter(())

    @abstractmethod
    def metadata(self) -> dict[str, Plain]:
        """Returns the plain data that ``DataConfig.restored`` needs in addition to the config."""

    @final
    def documents_measured(self) -> str:
        """Returns a fingerprint of the documents or examples that are measured, which is the same for all runs that are
        measured on the same ones."""
        return canonical_hash([self.content, self.config.measured()], 32)

    def definitions(self) -> dict[str, str]:
        """Hook: returns the definitions of units by their names, each a noun and a fingerprint, for the units whose
        meaning depends on more than the content: runs whose symbols differ have no loss per symbol in common. By
        default a symbol is defined by its vocabulary."""
        return {"symbol": defined(self.description.vocabulary.unit, asdict(self.description.vocabulary))}

    def mean_lengths(self) -> tuple[float, float] | None:
        """Hook: returns the mean numbers of symbols of a source and of a target of training; None where there are no
        such texts."""
        return None

    def some_targets(self) -> Sequence[str]:
        """Hook: returns some of the texts that outputs are compared with; nothing where there are no such texts."""
        return ()

    def shares_cut(self) -> dict[str, Plain]:
        """Hook: returns which share of texts, and of their symbols, length limits cut, by split and side; empty where
        nothing is cut."""
        return {}

    def reading_messages(self) -> list[str]:
        """Hook: returns sentences on how the source was read: the facts that its config does not state, the parts that
        were left out, and the number of texts that stand in two splits."""
        return []

    def print_reading(self) -> None:
        """Prints these sentences, where there are any, for ``prepare_data``."""
        if messages := self.reading_messages():
            print(f"{self.config.name}: {'; '.join(messages)}", file=sys.stderr, flush=True)

    @abstractmethod
    def example_name(self, ordinal: int) -> str:
        """Returns the name of the document or example with that ordinal in the split that is measured."""

    @abstractmethod
    def identity(self) -> dict[str, Plain]:
        """Returns every value that decides a training batch, by the name of its field."""

    def measures(self) -> Plain:
        """Returns every value that decides an evaluation batch."""
        return self.config.get("evaluation").to_dict()

    @abstractmethod
    def training(self) -> Reading:
        """Returns the reading of this rank's training batches, which do not end."""

    @abstractmethod
    def evaluation(self, split: Split) -> Reading:
        """Returns the reading of one pass of this rank over its share of a split."""

    @property
    def measured_split(self) -> Split:
        """The split that a run measures at its end: that of its config, or another one where the data have no test."""
        return self.split_read(self.config.get("evaluation.split"))

    def split_read(self, split: Split) -> Split:
        """Hook: returns the split that is read in place of another one: validation where there is no test. By default
        the same."""
        return split

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content and of every field that decides a batch; not of where files lie."""
        return canonical_hash(self.identity() | {"evaluation": self.measures()}, 32)

    def setup(self, stage: str | None = None) -> None:
        """Starts a new fit at the beginning; a checkpoint, which is loaded after this, sets the position. The data that
        a task was trained on decide the meanings of its symbols; if there are none, these data do.

        Raises DataError where nothing would end the fit: batches of training do not end, and so no epoch does.
        """
        task = {} if self.trainer is None else vars(self.trainer.lightning_module)
        if TASK_SYMBOLS in task:
            if task[TASK_SYMBOLS] is None:
                task[TASK_SYMBOLS] = self.trained_symbols().to_dict()
            elif (trained := TrainedSymbols.of(task[TASK_SYMBOLS])) != self.trained_symbols():
                self.read_as(trained)
        if stage == "fit":
            self._cursor, self._loaded = "", None
            if self.trainer is not None and is_endless(self.trainer):
                raise DataError(
                    f"batches of training do not end, so {self.trainer.max_epochs} epochs never do; give the Trainer "
                    "max_steps, max_time or a whole number as limit_train_batches, or max_epochs=-1 to train for ever"
                )

    def train_dataloader(self) -> TrainingLoader:
        return TrainingLoader(self.training, self._resume_cursor, self.pins)

    @property
    def pins(self) -> bool:
        """Whether batches are put into pinned memory: where a trainer has a GPU."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    @property
    def validated_split(self) -> Split:
        """The split that ``val_dataloader`` reads: the measured one, but never test."""
        return self.selection_split or ("validation" if self.measured_split == "test" else self.measured_split)

    def val_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader(self.validated_split)

    def test_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader("test")

    def predict_dataloader(self) -> EvaluationLoader:
        return self.measured_dataloader()

    def measured_dataloader(self) -> EvaluationLoader:
        """Returns a loader of one pass over the split that a run measures at its end."""
        return self.evaluation_dataloader(self.measured_split)

    def evaluation_dataloader(self, split: Split) -> EvaluationLoader:
        """Returns a loader of one pass over a split; ordinals in the batches are those in that split."""
        return EvaluationLoader(lambda: self.evaluation(split), self.pins)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Keeps the position after each batch that training uses; one that was only fetched ahead does not count."""
        if self.trainer is not None and self.trainer.training:
            self._cursor = batch.cursor
        return batch

    def state_dict(self) -> dict[str, Plain]:
        """Returns the position, which is that of all ranks, and the identity of the data it belongs to, as plain
        data."""
        if not self._cursor:
            return dict(self._loaded or {})
        return {"of": self.identity(), "cursor": self._cursor}

    def load_state_dict(self, state_dict: Mapping[str, Plain]) -> None:
        """Takes over a position. It is checked when training reads batches, for evaluation needs none."""
        self._cursor, self._loaded = "", dict(state_dict)

    def rank(self) -> Shard:
        """Returns the number of this process and the number of processes that train together."""
        if self.trainer is not None:
            return Shard(self.trainer.global_rank, self.trainer.world_size)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Shard()

    def rows(self, batch_size: int) -> int:
        """Returns the number of rows of a batch over all ranks. Raises DataError where ranks cannot share the batch."""
        for conflict in row_conflicts(self.rank().total, batch_size=batch_size):
            raise DataError(f"data.{conflict}")
        return batch_size

    def _resume_cursor(self) -> str:
        """Returns the position to resume from. Raises DataError where the checkpoint has other data."""
        trainer: Any = self.trainer
        if trainer is not None and trainer.overfit_batches:
            return ""
        if not self._cursor and self._loaded:
            self._check(self._loaded["of"])
            self._cursor = str(self._loaded["cursor"])
        return self._cursor

    def _check(self, saved: Mapping[str, Plain]) -> None:
        """Raises DataError where the identity of the data that a checkpoint has saved differs from this one."""
        for name, value in self.identity().items():
            if saved.get(name) != value:
                raise DataError(
                    f"data.{name}: the checkpoint's position in the data was made with {saved.get(name)!r}, "
                    f"not {value!r}; set it back or start anew"
                )
