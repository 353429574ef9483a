"""The data of language modelling, as a Lightning data module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Literal

from datamodules.core.data import KnownValues, row_conflicts
from datamodules.core.documents import Document, Documents, DocumentStream, Limit, Shard, Split, cache_folder
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedDocuments
from datamodules.core.loading import Reading
from datamodules.core.shared_symbols import SharedSymbols
from datamodules.core.tokenizers import (
    Tokenizer,
    encode_document,
    tokenizer_from_dict,
)
from datamodules.text.lanes import Lanes, LaneShape
from datamodules.text.text_data import TextData, TextDataConfig
from lit_transformers.batch import DataDescription, LanguageDescription, Vocabulary
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["EvaluationConfig", "LanguageData", "LanguageDataConfig"]

VERSION = 1
"""Part of every cache key: changes when the same documents and tokenizer give other symbols."""
WHOLE = Limit()


class EvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    segment_length, batch_size  None: as in training
    stride      symbols from the start of a row to the next one; below segment_length, each symbol is scored once, with
                more context, and every row starts from an empty state. None: segment_length
    documents   only the first documents, at most this number
    bytes       only the first documents that together reach this number of bytes
    last        the last of these: whole, so that a long one goes far beyond, which is printed; cut, where the bytes end
    split       the split of validation; testing reads test
    """

    segment_length: Positive | None = None
    stride: Positive | None = None
    batch_size: Positive | None = None
    documents: Positive | None = None
    bytes: Positive | None = None
    last: Literal["whole", "cut"] = "whole"
    split: Literal["train", "validation", "test"] = "validation"

    @property
    def limit(self) -> Limit:
        """The documents that are measured."""
        return Limit(self.documents, self.bytes, self.last == "cut")


class LanguageDataConfig(TextDataConfig, kind="language"):
    """Text as batches (TextBatch).

    segment_length  number of positions of a row
    batch_size      rows over all ranks together
    documents       reset: each document starts a row, and its last row is padded. stream: documents follow one another
                    without padding or reset, with a boundary before each
    seed            of the order of documents, which nothing else decides
    workers         worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = LanguageDescription
    fills_batches: ClassVar[bool] = True

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

    @property
    def length(self) -> int:
        return self.segment_length

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.segment_length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        length = self.evaluation.segment_length or self.segment_length
        return {
            "segment_length": length,
            "stride": self.evaluation.stride or length,
            "documents": self.documents,
        }

    def measured(self) -> dict[str, Plain]:
        evaluation = self.evaluation
        limits = {"documents": evaluation.documents, "bytes": evaluation.bytes, "last": evaluation.last}
        return {"split": evaluation.split} | (limits if limits["documents"] or limits["bytes"] else {})

    def known_values(self) -> KnownValues | None:
        losses = self.source.known_losses()
        return KnownValues("bpb", losses) if losses else None

    def restored(self, metadata: Mapping[str, Plain]) -> LanguageDescription:
        vocabulary = tokenizer_from_dict(metadata["tokenizer"]).vocabulary
        return LanguageDescription(vocabulary=vocabulary, length=int(metadata["max_length"]))


class LanguageData(TextData):
    """Batches of text (TextBatch)."""

    config: LanguageDataConfig

    @property
    def content(self) -> str:
        return self.corpus.fingerprint

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary

    @property
    def description(self) -> LanguageDescription:
        return LanguageDescription(vocabulary=self.vocabulary, length=self.config.segment_length)

    def metadata(self) -> dict[str, Plain]:
        return {"max_length": self.config.segment_length}

    def documents(self, split: Split) -> Documents:
        """Returns the documents of a split; their ``name(ordinal)`` is the name of one. Raises DataError."""
        return self.corpus.documents(split)

    def texts(self, split: Split) -> Iterator[Document]:
        limit = WHOLE if split == "train" else self.config.evaluation.limit
        stream = self.documents(split).evaluation(limit)
        while (item := stream.take()) is not None:
            yield item[1]

    def example_name(self, ordinal: int) -> str:
        return self.documents(self.measured_split).name(ordinal)

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all others, and prints once how the source was read, and where more is
        measured than the config names. Raises DataError: less text than one segment."""
        self.print_reading()
        self._print_what_is_measured()
        total, length = 0, self.config.segment_length
        for document in self.documents("train"):
            total += len(encode_document(self.tokenizer, document))
            if total >= length:
                return
        raise DataError(
            f"data.source: the train split has {total} symbols, less than one segment of {length}; "
            "use more text or a smaller data.segment_length"
        )

    def _print_what_is_measured(self) -> None:
        """Prints how many bytes are measured, where a whole last document makes them more than the config names."""
        evaluation = self.config.evaluation
        if evaluation.bytes is None or evaluation.last == "cut":
            return
        documents = self.documents(self.measured_split)
        size = documents.bytes_within(evaluation.limit) if isinstance(documents, IndexedDocuments) else 0
        if size > evaluation.bytes:
            remedy = "the last document is whole, unless data.evaluation.last=cut"
            line = f"evaluation: {size:,} bytes are measured and not {evaluation.bytes:,}: {remedy}"
            print(line, file=sys.stderr, flush=True)

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "corpus": self.corpus.fingerprint,
            "tokenizer": self.tokenizer_hash,
            "segment_length": config.segment_length,
            "batch_size": config.batch_size,
            "documents": config.documents,
            "seed": config.seed,
        }

    def training(self) -> Reading:
        config = self.config
        shape = self._shape(config.batch_size, config.segment_length, config.segment_length)
        return self._reading("train", partial(self.documents("train").training, config.seed), shape)

    @property
    def evaluation_shape(self) -> LaneShape:
        """The lanes of an evaluation, on one rank."""
        config, evaluation = self.config, self.config.evaluation
        length = evaluation.segment_length or config.segment_length
        return self._shape(evaluation.batch_size or config.batch_size, length, evaluation.stride or length)

    def evaluation(self, split: Split) -> Reading:
        limit = self.config.evaluation.limit
        shape = self.evaluation_shape
        return self._reading(split, partial(self.documents(split).evaluation, limit), shape, limit)

    def _shape(self, batch_size: int, length: int, stride: int) -> LaneShape:
        return LaneShape(self.rows(batch_size), length, stride, self.config.documents == "stream")

    def _reading(
        self, split: Split, documents: Callable[[], DocumentStream], shape: LaneShape, limit: Limit = WHOLE
    ) -> Reading:
        rank, workers = self.rank(), self.config.workers
        store = self._store(split, limit, shared=rank.total * max(workers, 1) > 1)
        return Reading(partial(_open, documents, self.tokenizer, shape, store), rank, workers)

    def _store(self, split: Split, limit: Limit, shared: bool) -> Callable[[], SharedSymbols] | None:
        """Returns the function that opens the symbols of a split's documents in the cache; None where none are stored.

        Of a corpus that is not on this disk lengths alone are kept, and only where several processes need them.
        limit: by which the last document may be cut, and then has other symbols than elsewhere.
        """
        is_local = isinstance(self.documents(split), IndexedDocuments)
        if not self.tokenizer.keeps_symbols or not (is_local or shared):
            return None
        cut = [limit.documents, limit.bytes] if limit.cut else []
        decisive = [VERSION, self.corpus.fingerprint, self.config.source.to_dict(), split, self.tokenizer_hash, *cut]
        folder = cache_folder() / "symbols" / canonical_hash(decisive, 32)
        return partial(SharedSymbols, folder, self.vocabulary, is_local)


def _open(
    documents: Callable[[], DocumentStream],
    tokenizer: Tokenizer,
    shape: LaneShape,
    store: Callable[[], SharedSymbols] | None,
    share: Shard,
) -> Lanes:
    return Lanes(documents(), tokenizer, shape, share, store and store())
