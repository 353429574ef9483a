"""The data for pretraining encoder-decoders: damaged rows of text, and the targets that are to be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from datamodules.core.data import defined, row_conflicts
from datamodules.core.documents import SPLITS, Document, Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import DecodedText, Tokenizer, tokenizer_from_dict
from datamodules.core.windows import Endless, Once, Visit, Visits, Windows
from datamodules.denoising.corruptions import CorruptionConfig, TextInfillingConfig
from datamodules.denoising.parts import widest
from datamodules.denoising.reader import DamagedReader, DamagedRow, TextPacking
from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.rows.rows import EVALUATION, TRAINING, RowsShape
from datamodules.rows.stored_sentences import SentenceStore
from datamodules.text.text_data import TextData, TextDataConfig
from lit_transformers.batch import IGNORED, DataDescription, PairBatch, PairDescription
from lit_transformers.config import Config, NonNegative, Plain, Positive

__all__ = ["DenoisingData", "DenoisingDataConfig", "DenoisingEvaluationConfig"]


class DenoisingEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number. Rows are corrupted alike for all
    runs and seeds.

    noise       the corruption of a row; None: as in training, or as at its end. Runs that are trained with different
                noise are compared by one
    batch_size  None: as in training
    examples    largest number of rows, the same for all runs, chosen at random
    split       the split that validation reads; testing reads test
    """

    noise: CorruptionConfig | None = None
    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class DenoisingDataConfig(TextDataConfig, kind="denoising"):
    """Rows of text as pairs (PairBatch): the encoder reads a corrupted row, the decoder writes the row or a part of it.

    length      symbols of the longest row with the boundary that ends it
    batch_size  rows over all ranks together: each update reads as much text, under any noise
    packing     the content of a row: full_sentences or doc_sentences of RoBERTa (arXiv:1907.11692, section 4.2;
                ``packings.packed``), as many sentences as fit, with a separator between documents
    noise       the corruption of a row; the table CORRUPTIONS lists the kinds
    variants    dynamic noise (None) is drawn anew in every epoch; static noise (n) returns after n epochs
    sentinels   how many sentinels are added to the vocabulary, so that all runs of a study have the same; None: as many
                as ``noise`` and ``evaluation.noise`` need
    window      number of batches whose rows are sorted together by length, before the batches are shuffled; 1: rows are
                not sorted
    seed        of the order of rows, and of all that is drawn for a row in training
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = PairDescription

    length: Annotated[int, Field(ge=8)] = 128
    batch_size: Positive = 32
    packing: TextPacking = "full_sentences"
    noise: CorruptionConfig = TextInfillingConfig()
    variants: Positive | None = None
    sentinels: NonNegative | None = None
    window: Positive = 16
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: DenoisingEvaluationConfig = DenoisingEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        for place, noise in (("noise", self.noise), ("evaluation.noise", self.evaluation.noise)):
            if noise is not None and (reason := noise.refusal(self.length)) is not None:
                yield f"{place}: {reason}"
        if self.sentinels is not None and self.sentinels < self.needed_sentinels:
            yield (
                f"sentinels {self.sentinels} are fewer than rows of {self.length} need for their spans; "
                f"set sentinels to {self.needed_sentinels} or more, or leave it out"
            )

    def build(self) -> DenoisingData:
        return DenoisingData(self)

    @property
    def tokens_per_step(self) -> int:
        """Counts the symbols of text, every row as the longest one: lengths are not known before rows are read."""
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        return {
            "split": self.evaluation.split,
            "examples": self.evaluation.examples,
            "length": self.length,
            "packing": self.packing,
            "noise": self.measured_noise.to_dict(),
        }

    def measured(self) -> dict[str, Plain]:
        """Returns the split and the number of rows; with a number, also the settings that cut texts into rows."""
        evaluation: dict[str, Plain] = {"split": self.evaluation.split, "examples": self.evaluation.examples}
        return evaluation | ({"length": self.length, "packing": self.packing} if self.evaluation.examples else {})

    @property
    def measured_noise(self) -> CorruptionConfig:
        """The noise of rows in evaluation."""
        return (self.evaluation.noise or self.noise).every()[-1]

    @property
    def noises(self) -> tuple[CorruptionConfig, ...]:
        """All that is done to rows in training or in evaluation."""
        return (*self.noise.every(), self.measured_noise)

    @property
    def needed_sentinels(self) -> int:
        """The number of sentinels that noise of training and of evaluation needs."""
        return max(noise.sentinels(self.length) for noise in self.noises)

    def symbols(self, tokenizer: Tokenizer) -> DenoisingSymbols:
        """Returns the symbols of rows. Raises DataError where the tokenizer lacks symbols that the noise needs."""
        return DenoisingSymbols.of(tokenizer, self.needed_sentinels if self.sentinels is None else self.sentinels)

    def restored(self, metadata: Mapping[str, Plain]) -> PairDescription:
        return self.described(tokenizer_from_dict(metadata["tokenizer"]))

    def described(self, tokenizer: Tokenizer) -> PairDescription:
        """Returns the description of rows of the symbols of a tokenizer."""
        symbols = self.symbols(tokenizer)
        longest = widest([noise.longest(self.length) for noise in self.noises])
        return PairDescription(
            vocabulary=symbols.vocabulary,
            length=longest.target,
            source=symbols.vocabulary,
            source_length=longest.source,
            detokenize=DecodedText(tokenizer),
            usual=(*self.noise.usual(self.length), self.length),
            placed=any(noise.placed for noise in self.noises),
        )


class DenoisingData(TextData):
    """Batches of damaged rows of text, with the targets that are to be written."""

    config: DenoisingDataConfig

    @property
    def content(self) -> str:
        return self.corpus.fingerprint

    @cached_property
    def store(self) -> SentenceStore:
        return SentenceStore(self.corpus, self.tokenizer)

    @cached_property
    def description(self) -> PairDescription:
        return self.config.described(self.tokenizer)

    def definitions(self) -> dict[str, str]:
        written = [self.tokenizer_hash, self.config.packing, self.config.measured_noise.to_dict()]
        return super().definitions() | {"target symbol": defined(self.tokenizer.vocabulary.unit, written)}

    def metadata(self) -> dict[str, Plain]:
        return {"languages": None}

    def texts(self, split: Split) -> Iterator[Document]:
        return self.store.texts(split)

    def example_name(self, ordinal: int) -> str:
        return self.reader(self.measured_split, ()).name(self.corpus.documents(self.measured_split), ordinal)

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "corpus": self.content,
            "tokenizer": self.tokenizer_hash,
            "length": config.length,
            "batch_size": config.batch_size,
            "packing": config.packing,
            "noise": config.noise.to_dict(),
            "variants": config.variants,
            "sentinels": config.sentinels,
            "window": config.window,
            "seed": config.seed,
        }

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all others, and prints once how the source was read. Raises DataError
        where there is no row to train on."""
        self.print_reading()
        self.reader("train", ())

    def reader(self, split: Split, seed: tuple[int, ...], noise: CorruptionConfig | None = None) -> DamagedReader:
        """Returns the reader of the rows of a split, with the noise of training unless one is given.

        Raises DataError where there is no row, or none of two sentences and these are to be permuted.
        """
        config = self.config
        damage = noise or config.noise
        symbols, folder = config.symbols(self.tokenizer), self.store.folder_of(split)
        reader = DamagedReader(folder, config.packing, config.length, damage, symbols, config.variants, seed)
        if not reader.total:
            raise DataError(f"data.source: the split {split!r} has no sentence, so no row of packing {config.packing}")
        if damage.permutes and int((reader.packed.last - reader.packed.first).max()) < 2:
            raise DataError(
                f"data.source: no row of {config.length} symbols in the split {split!r} has two sentences to permute; "
                "make data.length larger, use other documents, or another data.noise"
            )
        return reader

    def training(self) -> Reading:
        config = self.config
        reader = self.reader("train", (TRAINING, config.seed))
        return self._reading(reader, config.batch_size, partial(Endless, reader.total, config.seed), False)

    def evaluation(self, split: Split) -> Reading:
        evaluation = self.config.evaluation
        reader = self.reader(split, (EVALUATION, SPLITS.index(split)), self.config.measured_noise)
        batch_size = evaluation.batch_size or self.config.batch_size
        return self._reading(reader, batch_size, partial(Once, reader.total, evaluation.examples), True)

    def _reading(
        self, reader: DamagedReader, batch_size: int, order: Callable[[], Endless | Once], evaluated: bool
    ) -> Reading:
        shape = RowsShape(self.rows(batch_size), self.config.window, 1)
        make_batch = partial(paired, self.description, evaluated)
        return Reading(partial(_open, reader, shape, make_batch, order), self.rank(), self.config.workers)


def paired(description: PairDescription, evaluated: bool, rows: list[DamagedRow], cursor: str) -> PairBatch:
    """Makes a batch of rows. Without rows it is one row with an empty source and no target, for a rank without a share
    of it.

    evaluated: whether the targets are needed as texts, to compare outputs with them.
    """
    boundary, parts = description.vocabulary.boundary, [row.parts for row in rows]
    source_lengths = torch.tensor([len(part.source) + 1 for part in parts] or [1])
    lengths = torch.tensor([len(part.target) + part.ends for part in parts] or [0])
    source = np.zeros((len(source_lengths), int(source_lengths.max())), np.int64)
    inputs = np.zeros((len(lengths), max(int(lengths.max()), 1)), np.int64)
    targets = np.full(inputs.shape, IGNORED, np.int64)
    source[np.arange(len(source)), source_lengths.numpy() - 1] = boundary
    inputs[:, 0] = boundary
    for row, (part, length) in enumerate(zip(parts, lengths.tolist(), strict=False)):
        source[row, : len(part.source)] = part.source
        inputs[row, 1:length] = part.target[: length - 1]
        targets[row, : len(part.target)] = part.target
        targets[row, len(part.target) : length] = boundary
    references = [(description.detokenize(part.target.tolist()),) if evaluated else () for part in parts]
    return PairBatch(
        torch.from_numpy(source),
        torch.arange(source.shape[1]) < source_lengths[:, None],
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.arange(inputs.shape[1]) < lengths[:, None],
        torch.tensor([row.ordinal for row in rows] or [0]),
        torch.zeros(len(lengths), dtype=torch.long),
        tuple(references or [()]) if evaluated else (),
        cursor,
        torch.tensor([part.start for part in parts] or [0]) if description.placed else None,
        torch.tensor([row.text for row in rows] or [0]),
        padded=int(lengths.min()) < inputs.shape[1],
        source_padded=int(source_lengths.min()) < source.shape[1],
    )


def grouped(reader: DamagedReader, shape: RowsShape, share: Shard, visits: list[Visit]) -> list[list[DamagedRow]]:
    """Reads a window of rows as a rank's share of batches of about equal lengths."""
    return shape.cut(visits, reader.row, lambda row: row.length, share)


def _open(
    reader: DamagedReader,
    shape: RowsShape,
    make_batch: partial[PairBatch],
    order: Callable[[], Endless | Once],
    share: Shard,
) -> Windows[Visit, list[DamagedRow], PairBatch]:
    group = partial(grouped, reader, shape, share)
    return Windows(Visits(order()), shape.rows * shape.window, group, make_batch)
