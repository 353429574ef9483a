"""The data of pretraining bidirectional encoders: rows of text in which symbols are hidden."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from datamodules.core.data import KnownValues, defined, row_conflicts
from datamodules.core.documents import SPLITS, Document, Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import (
    WordsConfig,
    tokenizer_from_dict,
)
from datamodules.core.windows import Endless, Once, Order, Visit, Visits, Windows, cut
from datamodules.rows.attention_masks import AttentionMasksConfig
from datamodules.rows.minimal_pairs import MinimalPair, ThenPairs, minimal_pairs
from datamodules.rows.noises import MaskTokensConfig, NoiseConfig
from datamodules.rows.packings import PAIRS, Packing, packed
from datamodules.rows.phrases import Phrases
from datamodules.rows.reader import RELATIONS, ReadRow, Relation, RowReader
from datamodules.rows.stored_sentences import SentenceStore
from datamodules.rows.symbols import RowSymbols
from datamodules.text.text_data import TextData, TextDataConfig
from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["RowData", "RowDataConfig", "RowEvaluationConfig"]


class RowEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number. The same symbols are hidden for
    all runs and seeds.

    noise       how symbols are hidden; None: as in training. Runs that are trained with different noise are
                compared by one
    attention_masks  who sees whom, where the data have such masks in training; None: as in training
    relation    the relation predicted of two segments; None: as in training. In any relation 0 means that the second
                segment follows the first, so that a network trained on one can be measured by another, as
                arXiv:1909.11942, table 5, does
    packing     the content of a row; None: as in training
    batch_size  None: as in training
    examples    largest number of rows, the same for all runs, chosen at random
    split       the split that validation reads; testing reads test
    pairs       minimal pairs of each rule of the source, which are measured after the rows; None for none
    """

    noise: NoiseConfig | None = None
    attention_masks: AttentionMasksConfig | None = None
    relation: Relation | None = None
    packing: Packing | None = None
    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"
    pairs: Positive | None = None


class RowDataConfig(TextDataConfig, kind="rows"):
    """Rows of text in which symbols are hidden, as batches (RowBatch): [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    length      tokens of the longest row, special symbols included
    batch_size  rows over all ranks together; it is not raised where a packing leaves rows short, as RoBERTa does
    packing     the content of a row: segment_pair, sentence_pair, full_sentences or doc_sentences of RoBERTa
                (arXiv:1907.11692, section 4.2; ``packings.packed``); translations, a text and its translation, of a
                source of kind translations, each cut to half of a row: with model.segments at 2, the embeddings of the
                two languages, this is the translation language modelling of XLM (arXiv:1901.07291, section 3.3)
    restart     whether positions begin again with the second segment, as in XLM
    relation    the relation predicted of the two segments of a pair. next_sentence (arXiv:1810.04805, section 3.1): 0
                where B follows A, 1 where it is from another document, in half of the rows each. sentence_order
                (arXiv:1909.11942, section 3.1): 0 where A and B stand in their order, 1 where they are swapped.
                sentence_structure (arXiv:1908.04577, section 2.3): 0 where B follows A, 1 where it stands before A, 2
                where it is from another document, in a third of the rows each
    noise       how symbols are hidden; the table NOISES lists the kinds
    attention_masks  who sees whom, drawn for each row (arXiv:1905.03197); None: every symbol sees every other. Where
                they are given, a relation is predicted in rows under the bidirectional mask alone
    window      number of batches whose rows are sorted together by length, before the batches are shuffled, so that
                rows of a batch have about the same length; 1: rows are not sorted
    padding     longest: to the longest row of the batch. fixed: to ``length``
    seed        of the order of rows, and of all that is drawn for a row in training
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = RowDescription

    length: Annotated[int, Field(ge=8)] = 128
    batch_size: Positive = 32
    packing: Packing = "full_sentences"
    restart: bool = False
    relation: Relation = "none"
    noise: NoiseConfig = MaskTokensConfig()
    attention_masks: AttentionMasksConfig | None = None
    window: Positive = 16
    padding: Literal["longest", "fixed"] = "longest"
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: RowEvaluationConfig = RowEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        for place, relation, packing in (
            ("", self.relation, self.packing),
            ("evaluation.", self.measured_relation, self.measured_packing),
        ):
            if relation != "none" and packing not in PAIRS:
                yield (
                    f"{place}relation {relation} is one of two segments, and packing {packing} has one; "
                    f"set {place}packing to {' or '.join(PAIRS)}"
                )
                break
        if self.relation == "none" and self.measured_relation != "none":
            yield (
                f"evaluation.relation {self.measured_relation} is predicted by a head that relation none does not "
                "train; set relation too, and task.detach_relation where its loss is not to reach the network"
            )
        elif len(RELATIONS[self.measured_relation]) not in (0, len(RELATIONS[self.relation])):
            yield (
                f"evaluation.relation {self.measured_relation} has {len(RELATIONS[self.measured_relation])} relations "
                f"to tell apart, and {self.relation}, which is trained, {len(RELATIONS[self.relation])}"
            )
        for place, noise in (("noise", self.noise), ("evaluation.noise", self.measured_noise)):
            if noise.most_words > self.length - 2:
                yield (
                    f"{place}.longest {noise.most_words} is more than the {self.length - 2} symbols that a row of "
                    f"length {self.length} has between its special ones; set it lower, or length higher"
                )
                break
        if self.evaluation.pairs and not self.rules:
            yield (
                f"evaluation.pairs are made by rules, and source {self.source.kind} has none; "
                "set source to topics, books or wikitext, or evaluation.pairs to null"
            )

        if (self.packing == "translations") != self.source.parallel:
            yield (
                f"a source of kind {self.source.kind} is not for packing {self.packing}; packing translations and a "
                "source of kind translations go together"
            )
        if self.packing == "translations" and self.relation != "none":
            yield "of two translations no relation is predicted; drop relation"
        if self.restart and self.packing not in PAIRS:
            yield f"positions restart with a second segment, and packing {self.packing} has one; drop restart"
        masks, measured = self.attention_masks, self.evaluation.attention_masks
        for name, each in (("", masks), ("evaluation.", measured)):
            if each is not None and each.seq2seq and self.packing not in PAIRS:
                yield (
                    f"{name}attention_masks.seq2seq reads two segments, and packing {self.packing} has one; set its "
                    f"share to 0, or packing to {' or '.join(PAIRS)}"
                )
        if measured is not None and masks is None:
            yield "evaluation.attention_masks are of networks that are trained with some; set attention_masks"

    def build(self) -> RowData:
        return RowData(self)

    @property
    def tokens_per_step(self) -> int:
        """Counts every row as the longest one: lengths are not known before rows are read."""
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        return (
            {
                "split": self.evaluation.split,
                "examples": self.evaluation.examples,
                "length": self.length,
                "packing": self.measured_packing,
                "relation": self.measured_relation,
                "noise": self.measured_noise.to_dict(),
            }
            | self.masks_in(self.measured_masks)
            | ({"restart": True} if self.restart else {})
            | ({"pairs": self.evaluation.pairs} if self.evaluation.pairs else {})
        )

    def measured(self) -> dict[str, Plain]:
        """Returns the split and the number of rows; with a number, also the settings that cut texts into rows."""
        evaluation: dict[str, Plain] = {"split": self.evaluation.split, "examples": self.evaluation.examples}
        rows: dict[str, Plain] = {"length": self.length, "packing": self.measured_packing}
        return evaluation | (rows if self.evaluation.examples else {})

    @property
    def measured_masks(self) -> AttentionMasksConfig | None:
        """Who sees whom in evaluation."""
        return self.evaluation.attention_masks or self.attention_masks

    @staticmethod
    def masks_in(masks: AttentionMasksConfig | None) -> dict[str, Plain]:
        """Returns attention masks as plain data by their name, and no entry where there are none."""
        return {} if masks is None else {"attention_masks": masks.to_dict()}

    @property
    def measured_noise(self) -> NoiseConfig:
        """The noise that hides symbols in evaluation."""
        return self.evaluation.noise or self.noise

    @property
    def measured_relation(self) -> Relation:
        """The relation of two segments that is predicted in evaluation."""
        return self.evaluation.relation or self.relation

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of the minimal pairs that are measured, none where there are no pairs."""
        return tuple(self.source.minimal_pairs(0)) if self.evaluation.pairs else ()

    @property
    def measured_packing(self) -> Packing:
        """The packing of rows in evaluation."""
        return self.evaluation.packing or self.packing

    def known_values(self) -> KnownValues | None:
        """Returns the least losses in nats where they are known: of words, one symbol each, that are all behind [MASK].
        Where some stay in place, or are replaced by others, less or more than that is possible."""
        noise, losses = self.measured_noise, self.source.known_masked_losses()
        if not losses or self.tokenizer != WordsConfig() or noise.unchanged or noise.replaced:
            return None
        return KnownValues("nats", {name: bits * math.log(2) for name, bits in losses.items()})

    def restored(self, metadata: Mapping[str, Plain]) -> RowDescription:
        return self.described(RowSymbols.of(tokenizer_from_dict(metadata["tokenizer"])))

    def described(self, symbols: RowSymbols) -> RowDescription:
        """Returns the description of rows of these symbols."""
        segments = 2 if self.packing in PAIRS else 1
        return RowDescription(
            vocabulary=symbols.vocabulary,
            length=self.length,
            mask=symbols.mask,
            separator=symbols.separator,
            segments=segments,
            predictions=self.noise.predictions(self.length - 1 - segments),
            relations=len(RELATIONS[self.relation]),
            phrases=self.noise.replaces_phrases,
            ordered=self.attention_masks is not None,
            restarts=self.restart,
            rules=self.rules,
        )


class RowData(TextData):
    """Batches of rows in which symbols are hidden."""

    config: RowDataConfig

    @property
    def content(self) -> str:
        given = [self.phrases_of(noise) for noise in (self.config.noise, self.config.measured_noise)]
        phrases = [None if each is None else each.fingerprint for each in given]
        return canonical_hash([self.corpus.fingerprint, *phrases], 32) if any(phrases) else self.corpus.fingerprint

    def phrases_of(self, noise: NoiseConfig) -> Phrases | None:
        """Returns the phrases that a noise asks for, or None. Raises DataError where there are none."""
        return None if noise.given is None else noise.given.build(self.tokenizer, self.config.source.phrases())

    @cached_property
    def symbols(self) -> RowSymbols:
        """The symbols of rows. Raises DataError where the noise hides words that they do not tell."""
        symbols = RowSymbols.of(self.tokenizer)
        noises = (self.config.noise, self.config.measured_noise)
        if symbols.begins is None and any(noise.needs_words for noise in noises):
            raise DataError(
                f"data.noise: the symbols of tokenizer {self.config.tokenizer.kind} do not tell where words begin; "
                "set data.tokenizer to words, wordpiece or bpe, or data.noise.whole_words to false"
            )
        return symbols

    @cached_property
    def store(self) -> SentenceStore:
        return SentenceStore(self.corpus, self.tokenizer, self.config.source.parallel)

    @property
    def description(self) -> RowDescription:
        return self.config.described(self.symbols)

    def definitions(self) -> dict[str, str]:
        config, symbol = self.config, self.tokenizer.vocabulary.unit
        packing, noise = config.measured_packing, config.measured_noise.to_dict()
        hidden = [self.tokenizer_hash, packing, noise, config.masks_in(config.measured_masks)]
        return super().definitions() | {
            "hidden symbol": defined(symbol, hidden),
            "phrase": defined("phrase", hidden),
            "relation": defined(config.measured_relation, [config.measured_relation, packing]),
            "minimal pair": defined("pair", [list(config.rules), config.evaluation.pairs]),
        }

    def metadata(self) -> dict[str, Plain]:
        return {}

    def texts(self, split: Split) -> Iterator[Document]:
        return self.store.texts(split)

    def example_name(self, ordinal: int) -> str:
        return self.reader(self.measured_split, (), evaluated=True).name(
            self.corpus.documents(self.measured_split), ordinal
        )

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "corpus": self.content,
            "tokenizer": self.tokenizer_hash,
            "length": config.length,
            "batch_size": config.batch_size,
            "packing": config.packing,
            "relation": config.relation,
            "noise": config.noise.to_dict(),
            "window": config.window,
            "padding": config.padding,
            "seed": config.seed,
        } | config.masks_in(config.attention_masks)

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all others, and prints once how the source was read. Raises DataError
        where there is no row to train on."""
        self.print_reading()
        self.reader("train", ())

    def reader(self, split: Split, seed: tuple[int, ...], evaluated: bool = False) -> RowReader:
        """Returns the reader of the rows of a split as training reads them, or as evaluation does.

        Raises DataError where there is no row, or a relation needs more.
        """
        config = self.config
        relation, packing, noise = config.relation, config.packing, config.noise
        if evaluated:
            relation, packing, noise = config.measured_relation, config.measured_packing, config.measured_noise
        rows = packed(self.store.folder_of(split), packing, config.length)
        if not len(rows.first):
            least = "no document of two sentences" if packing in PAIRS else "no sentence"
            raise DataError(f"data.source: the split {split!r} has {least}, so no row of packing {packing}")
        if relation in ("next_sentence", "sentence_structure") and len(rows.documents) < 3:
            raise DataError(
                f"data.source: the split {split!r} has one document, and no other one for a sentence that is not next; "
                "use more documents, a smaller data.source.piece, or another relation"
            )
        return RowReader(
            self.store.folder_of(split),
            packing,
            config.length,
            relation,
            noise,
            self.symbols,
            seed,
            self.phrases_of(noise),
            config.measured_masks if evaluated else config.attention_masks,
        )

    def training(self) -> Reading:
        config = self.config
        reader = self.reader("train", (TRAINING, config.seed))
        return self._reading(reader, config.batch_size, partial(Endless, reader.total, config.seed))

    def evaluation(self, split: Split) -> Reading:
        evaluation = self.config.evaluation
        reader = self.reader(split, (EVALUATION, SPLITS.index(split)), evaluated=True)
        batch_size = evaluation.batch_size or self.config.batch_size
        pairs = minimal_pairs(
            self.config.source, self.tokenizer, self.symbols, self.config.length, evaluation.pairs or 0
        )
        return self._reading(reader, batch_size, partial(Once, reader.total, evaluation.examples), pairs)

    def _reading(
        self,
        reader: RowReader,
        batch_size: int,
        order: Callable[[], Endless | Once],
        pairs: Sequence[MinimalPair] = (),
    ) -> Reading:
        least = self.config.length if self.config.padding == "fixed" else 1
        shape = RowsShape(self.rows(batch_size), self.config.window, least)
        return Reading(partial(_open, reader, shape, order, pairs), self.rank(), self.config.workers)


Item = TypeVar("Item")
Read = TypeVar("Read")
TRAINING, EVALUATION = 1, 2
"""The first of the numbers that decide the random choices of a row: an evaluation shares none with a training."""


class RowsShape(NamedTuple):
    """The sizes of batches: ``rows`` of a batch over all ranks, ``window`` batches that are sorted together, and
    ``least``, the minimum length of a row."""

    rows: int
    window: int
    least: int

    def cut(
        self, visits: list[Read], read: Callable[[Read], Item], length: Callable[[Item], int], share: Shard
    ) -> list[list[Item]]:
        """Reads a window of rows as a rank's share of batches, which have about equal lengths where the window is of
        several."""
        return cut(visits, read, self.rows, share, length if self.window > 1 else None)


def batched(shape: RowsShape, rows: list[ReadRow], cursor: str) -> RowBatch:
    """Makes a batch of rows. Without rows it is one row of padding, for a rank without a share of it."""
    count = max(len(rows), 1)
    longest = max([shape.least, *(len(row.inputs) for row in rows)])
    inputs, segments = np.zeros((2, count, longest), np.int64)
    targets = np.full((count, longest), IGNORED, np.int64)
    for number, row in enumerate(rows):
        length = len(row.inputs)
        inputs[number, :length], segments[number, :length], targets[number, :length] = (
            row.inputs,
            row.segments,
            row.targets,
        )
    lengths = torch.tensor([len(row.inputs) for row in rows] or [0])
    rules = [row.rule for row in rows if row.rule is not None]
    return RowBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.arange(longest) < lengths[:, None],
        torch.from_numpy(segments),
        torch.tensor([row.relation for row in rows] or [IGNORED]),
        torch.tensor([row.ordinal for row in rows] or [0]),
        cursor,
        _padded([row.phrases for row in rows if row.phrases is not None]),
        _orders([row.order for row in rows if row.order is not None], longest),
        torch.tensor(rules) if rules else None,
        int((targets != IGNORED).sum(axis=1).max()),
        padded=int(lengths.min()) < longest,
    )


def _orders(orders: list[npt.NDArray[np.int64]], longest: int) -> Tensor | None:
    """Returns the orders of rows (b, t), 0 at padding; None where rows have no order."""
    if not orders:
        return None
    return torch.from_numpy(np.stack([np.pad(order, (0, longest - len(order))) for order in orders]))


def _padded(phrases: list[npt.NDArray[np.int64]]) -> Tensor | None:
    """Returns the phrases of rows (b, p, 3), with IGNORED after the last one of each; None where none are predicted."""
    if not phrases:
        return None
    padded = np.full((len(phrases), max(map(len, phrases)), 3), IGNORED, np.int64)
    for number, of_row in enumerate(phrases):
        padded[number, : len(of_row)] = of_row
    return torch.from_numpy(padded)


def grouped(
    reader: RowReader, shape: RowsShape, share: Shard, visits: list[Visit | MinimalPair]
) -> list[list[ReadRow]]:
    """Reads a window of rows as a rank's share of batches of about equal lengths. Batches of minimal pairs hold
    nothing else, and no pair is divided."""
    rows = [visit for visit in visits if isinstance(visit, Visit)]
    pairs = [visit for visit in visits if isinstance(visit, MinimalPair)]
    of_pairs = cut(pairs, lambda pair: pair, max(shape.rows // 2, 1), share)
    return [
        *shape.cut(rows, reader.row, lambda row: len(row.inputs), share),
        *([row for pair in batch for row in pair] for batch in of_pairs),
    ]


def _open(
    reader: RowReader,
    shape: RowsShape,
    order: Callable[[], Endless | Once],
    pairs: Sequence[MinimalPair],
    share: Shard,
) -> Windows[Visit | MinimalPair, list[ReadRow], RowBatch]:
    ordinals = order()
    visits: Order[Visit | MinimalPair, list[ReadRow]] = Visits(ordinals)
    if isinstance(ordinals, Once):
        visits = ThenPairs(Visits(ordinals), len(ordinals.ordinals), [*pairs])
    group = partial(grouped, reader, shape, share)
    return Windows(visits, shape.rows * shape.window, group, partial(batched, shape))
