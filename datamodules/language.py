"""The data of language modelling, for a Lightning trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import lightning as L
import torch

from datamodules.documents import Corpus, Documents, Limit, Shard, Split
from datamodules.errors import DataError
from datamodules.lanes import LaneShape
from datamodules.loading import EvaluationLoader, Position, Reading, TrainingLoader, gathered
from datamodules.sources import SourceConfig, StdlibConfig
from datamodules.tokenizers import BytesConfig, Tokenizer, TokenizerConfig, cached_tokenizer, encode_document
from lit_transformers.batch import TextBatch, Vocabulary
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["EvaluationConfig", "LanguageData", "LanguageDataConfig"]


class EvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    segment_length, batch_size  None: as in training
    stride      the next row starts so many symbols later; less than segment_length scores each symbol once, with more
                context, from an empty state every time. None: segment_length
    documents   at most so many documents, the first ones
    bytes       the first documents that together reach so many bytes
    split       what validation reads; testing reads test
    """

    segment_length: Positive | None = None
    stride: Positive | None = None
    batch_size: Positive | None = None
    documents: Positive | None = None
    bytes: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class LanguageDataConfig(Config):
    """Text as batches.

    segment_length  positions of a row
    batch_size      rows over all ranks together; each worker fills whole batches from lanes of its own
    documents       reset: a document starts a row, and its last row is padded. stream: documents follow one another
                    without padding or reset, a boundary before each
    seed            of the order of documents; nothing else decides it
    workers         processes that make batches; 0: none but the one that trains
    """

    source: SourceConfig = StdlibConfig()
    tokenizer: TokenizerConfig = BytesConfig()
    segment_length: Positive = 128
    batch_size: Positive = 16
    documents: Literal["reset", "stream"] = "reset"
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: EvaluationConfig = EvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        stride, length = self.evaluation.stride, self.evaluation.segment_length or self.segment_length
        if stride is not None and stride > length:
            yield f"evaluation.stride {stride} leaves out symbols: at most the segment length, {length}"

    def build(self) -> LanguageData:
        return LanguageData(self)


class LanguageData(L.LightningDataModule):
    """Batches of text (TextBatch). A checkpoint holds the position of training, so resuming gives the next batch."""

    def __init__(self, config: LanguageDataConfig) -> None:
        super().__init__()
        self.config = config
        self._position: Position | None = None
        self._loaded: Mapping[str, Plain] | None = None

    @cached_property
    def corpus(self) -> Corpus:
        return self.config.source.build()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return cached_tokenizer(self.config.tokenizer, self.corpus.documents("train"), self.corpus.fingerprint)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the corpus, the tokenizer and every field that decides a batch; not of where the files lie."""
        return canonical_hash(self._identity() | {"evaluation": self.config.evaluation.to_dict()}, 32)

    @cached_property
    def _tokenizer_hash(self) -> str:
        return canonical_hash(self.tokenizer.to_dict())

    def documents(self, split: Split) -> Documents:
        """The documents of a split; ``documents(split).name(ordinal)`` is the name of one. Raises DataError."""
        return self.corpus.documents(split)

    def prepare_data(self) -> None:
        """Fills the cache on one process, so that others find it. Raises DataError: less text than one segment."""
        total, length = 0, self.config.segment_length
        for document in self.documents("train"):
            total += len(encode_document(self.tokenizer, document))
            if total >= length:
                return
        raise DataError(
            f"source: the train split has {total} symbols, less than one segment of {length}; "
            "use more text or a smaller segment_length"
        )

    def setup(self, stage: str | None = None) -> None:
        """A new fit starts at the beginning; a checkpoint, loaded after this, sets the position."""
        if stage == "fit":
            self._position = self._loaded = None

    def train_dataloader(self) -> TrainingLoader:
        return TrainingLoader(self._training, self._where)

    def val_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader(self.config.evaluation.split)

    def test_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader("test")

    def evaluation_dataloader(self, split: Split) -> EvaluationLoader:
        """One pass over a split; ``document`` in the batches is the ordinal in that split."""
        return EvaluationLoader(lambda: self._evaluation(split), self._device())

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Notes the position of each batch that training takes; one that was only fetched ahead is not taken."""
        if self.trainer is not None and self.trainer.training and isinstance(batch, TextBatch):
            self._position = (self._position or self._training().start()).after(batch)
        return batch

    def state_dict(self) -> dict[str, Plain]:
        """Plain data: the position of every rank, and what it is a position in."""
        if self._position is None:
            return dict(self._loaded or {})
        ranks = [[list(position.cursors), position.turn] for position in gathered(self._position, self._rank())]
        return {"of": self._identity(), "ranks": ranks}

    def load_state_dict(self, state_dict: Mapping[str, Plain]) -> None:
        """Takes over a position. It is checked when training asks for batches: evaluation needs none."""
        self._position, self._loaded = None, dict(state_dict)

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
        for name, value in self._identity().items():
            if made.get(name) != value:
                raise DataError(
                    f"data.{name}: the checkpoint's position in the data was made with {made.get(name)!r}, "
                    f"not {value!r}; set it back or start anew"
                )

    def _identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "corpus": self.corpus.fingerprint,
            "tokenizer": self._tokenizer_hash,
            "segment_length": config.segment_length,
            "batch_size": config.batch_size,
            "documents": config.documents,
            "seed": config.seed,
            "workers": config.workers,
        }

    def _training(self) -> Reading:
        config, rank = self.config, self._rank()
        shape = self._shape(config.batch_size, config.segment_length, config.segment_length, rank)
        documents = self.documents("train")
        return Reading.training(documents, self.tokenizer, shape, rank, config.workers, config.seed)

    def _evaluation(self, split: Split) -> Reading:
        config, evaluation, rank = self.config, self.config.evaluation, self._rank()
        length = evaluation.segment_length or config.segment_length
        shape = self._shape(evaluation.batch_size or config.batch_size, length, evaluation.stride or length, rank)
        limit = Limit(evaluation.documents, evaluation.bytes)
        return Reading.evaluation(self.documents(split), self.tokenizer, shape, rank, config.workers, limit)

    def _shape(self, batch_size: int, length: int, stride: int, rank: Shard) -> LaneShape:
        if batch_size % rank.total:
            raise DataError(
                f"data.batch_size: {batch_size} rows cannot be shared by {rank.total} ranks; make it a multiple of them"
            )
        return LaneShape(batch_size // rank.total, length, stride, self.config.documents == "stream")

    def _rank(self) -> Shard:
        if self.trainer is not None:
            return Shard(self.trainer.global_rank, self.trainer.world_size)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Shard()

    def _device(self) -> torch.device:
        """Where ranks exchange whether they are through."""
        if self.trainer is not None:
            return self.trainer.strategy.root_device
        nccl = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.device("cuda" if nccl and torch.distributed.get_backend() == "nccl" else "cpu")
