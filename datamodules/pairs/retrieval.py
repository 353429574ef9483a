"""Questions and passages for retrieval: a task finds the passage that answers a question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from datamodules.core.data import DataConfig, row_conflicts
from datamodules.core.documents import Shard, Split
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import Symbols, TokenizerConfig, tokenizer_from_dict
from datamodules.core.windows import Endless, Once, Windows, cut
from datamodules.pairs.paired_texts import PairedTextData
from datamodules.pairs.source import Pairs, PairsConfig
from datamodules.pairs.strings import StringPairsConfig
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import DataDescription, RetrievalBatch, RetrievalDescription, Vocabulary
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["RetrievalData", "RetrievalDataConfig", "RetrievalEvaluationConfig", "TextRow"]

Longest = Annotated[int, Field(ge=4)]


class RetrievalEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, which is recorded with every number.

    batch_size  texts over all ranks together; None: as in training
    examples    the largest number of questions, the same for all runs; None: all. Each question is compared with all
                passages of the split
    split       the split that validation reads; testing reads test
    """

    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class RetrievalDataConfig(DataConfig, kind="retrieval"):
    """Questions and the passages that answer them as batches (RetrievalBatch). The source of a pair is the question,
    and its target the passage. A text is read as [CLS] text [SEP], with the same special symbols as data of the kind
    ``rows``; a generated string as the boundary and its symbols.

    source            the pairs; the table PAIRS lists the kinds
    tokenizer         of texts; None: BPE with its defaults, learned on both sides of the train split
    longest_question  tokens of a question, with special symbols; longer questions lose their end
    longest_passage   tokens of a passage, with special symbols; longer passages lose their end
    batch_size        questions over all ranks together, each with its passage
    window            the number of batches whose pairs are sorted together by length, before the batches are shuffled;
                      1: pairs are not sorted
    seed              of the order of pairs
    workers           worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = RetrievalDescription

    source: PairsConfig = StringPairsConfig()
    tokenizer: TokenizerConfig | None = None
    longest_question: Longest = 64
    longest_passage: Longest = 256
    batch_size: Annotated[int, Field(ge=2)] = 32
    window: Positive = 16
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: RetrievalEvaluationConfig = RetrievalEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        if self.source.strings and self.tokenizer is not None:
            yield f"tokenizer does not apply to {self.source.kind}, which are symbols, not texts; omit it"
        if self.longest_question > self.longest_passage:
            yield "longest_question exceeds longest_passage, the network's length; lower it, or raise longest_passage"

    def build(self) -> RetrievalData:
        return RetrievalData(self)

    @property
    def name(self) -> str:
        return self.source.kind

    @property
    def length(self) -> int:
        return self.longest_passage

    @property
    def tokens_per_step(self) -> int:
        """Counts the tokens of passages, each as the longest, since lengths are unknown before they are read."""
        return self.batch_size * self.longest_passage

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        longest: dict[str, Plain] = {"longest_question": self.longest_question, "longest_passage": self.longest_passage}
        return longest | {"split": self.evaluation.split, "examples": self.evaluation.examples}

    def restored(self, metadata: Mapping[str, Plain]) -> RetrievalDescription:
        vocabulary = self.symbols(metadata).vocabulary
        return RetrievalDescription(
            vocabulary=vocabulary, length=self.longest_passage, source_length=self.longest_question
        )

    def symbols(self, metadata: Mapping[str, Plain]) -> TextSymbols:
        """Returns the symbols of rows, for the tokenizer of ``Data.checkpoint_metadata``."""
        if self.source.strings:
            return TextSymbols(self.source.vocabularies(metadata).target, ())
        symbols = RowSymbols.of(tokenizer_from_dict(metadata["tokenizer"]))
        return TextSymbols(symbols.vocabulary, (symbols.separator,))


class TextSymbols(NamedTuple):
    """The symbols of rows. vocabulary: its boundary begins each row. end: the symbols that end each row."""

    vocabulary: Vocabulary
    end: tuple[int, ...]

    def row(self, symbols: Symbols, longest: int) -> npt.NDArray[np.int64]:
        """Returns a text as a row of at most ``longest`` tokens."""
        text = symbols[: longest - 1 - len(self.end)]
        return np.concatenate([[self.vocabulary.boundary], text, self.end]).astype(np.int64)


class TextRow(NamedTuple):
    """A question or a passage as a row, with the number of the passage."""

    symbols: npt.NDArray[np.int64]
    passage: int


class ReadPair(NamedTuple):
    """The parts of a pair that are read: its question, its passage, or both."""

    ordinal: int
    question: TextRow | None
    passage: TextRow | None

    @property
    def length(self) -> int:
        """The tokens of the longer text."""
        return max(len(row.symbols) for row in (self.question, self.passage) if row is not None)


class RetrievalData(PairedTextData):
    """Batches of questions and passages."""

    config: RetrievalDataConfig

    @cached_property
    def readable(self) -> Readable:
        """Reads pairs as rows."""
        config = self.config
        symbols = config.symbols(self.trained_symbols().to_dict())
        return Readable(self.pairs, symbols, config.longest_question, config.longest_passage)

    @property
    def description(self) -> RetrievalDescription:
        return self.config.restored(self.trained_symbols().to_dict())

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "source": self.content,
            "tokenizer": canonical_hash(self.pairs.tokenizers()),
            "longest_question": config.longest_question,
            "longest_passage": config.longest_passage,
            "batch_size": config.batch_size,
            "window": config.window,
            "seed": config.seed,
        }

    def reading_messages(self) -> list[str]:
        split = self.measured_split
        messages = super().reading_messages()
        if split == "train" or self.config.source.strings:
            return messages
        trained = {*self.passages("train")}
        both = sum(number in trained for number in self.passages(split))
        stand = f"{both:,} of {len(self.passages(split)):,} passages of {split} stand in train too"
        return [*messages, *([stand] if both else [])]

    @cached_property
    def _passages(self) -> dict[Split, dict[int, int]]:
        return {}

    def passages(self, split: Split) -> Mapping[int, int]:
        """Returns the distinct passages of a split: the ordinal of the first question of each, by the passage's
        number."""
        if split not in self._passages:
            first: dict[int, int] = {}
            for ordinal in range(self.pairs.count(split)):
                first.setdefault(number_of(self.pairs.pair(split, ordinal).target), ordinal)
            self._passages[split] = first
        return self._passages[split]

    def training(self) -> Reading:
        config = self.config
        order = partial(Endless, self.pairs.count("train"), config.seed)
        return self._reading("train", order, config.batch_size, config.window)

    def evaluation(self, split: Split) -> Reading:
        evaluation = self.config.evaluation
        questions = Once(self.pairs.count(split), evaluation.examples).ordinals
        order = partial(TextOrder, [*self.passages(split).values()], questions)
        return self._reading(split, order, evaluation.batch_size or self.config.batch_size, len(questions))

    def _reading(self, split: Split, order: Callable[[], Endless | TextOrder], batch_size: int, window: int) -> Reading:
        open_rows = partial(_open, self.readable, split, order, self.rows(batch_size), window)
        return Reading(open_rows, self.rank(), self.config.workers)


class TextOrder:
    """The order of the texts of an evaluation, each once. Passages come first, as the complement (~) of the ordinal of
    their first question; then questions, as their ordinals."""

    def __init__(self, passages: Sequence[int], questions: Sequence[int]) -> None:
        self.visits = [*(~ordinal for ordinal in passages), *questions]

    def slice(self, start: int, stop: int) -> list[int]:
        """Returns the texts at places ``start`` to ``stop``; fewer at the end."""
        return self.visits[start:stop]

    def arrange(self, batches: list[list[ReadPair]], start: int) -> list[list[ReadPair]]:
        """Returns the batches unchanged, since their order does not matter."""
        return batches


class Readable(NamedTuple):
    """Pairs, with the symbols and lengths of their rows."""

    pairs: Pairs
    symbols: TextSymbols
    longest_question: int
    longest_passage: int

    def both(self, split: Split, ordinal: int) -> ReadPair:
        """Returns a question with its passage."""
        pair = self.pairs.pair(split, ordinal)
        number = number_of(pair.target)
        question = TextRow(self.symbols.row(pair.source, self.longest_question), number)
        return ReadPair(ordinal, question, TextRow(self.symbols.row(pair.target, self.longest_passage), number))

    def one(self, split: Split, visit: int) -> ReadPair:
        """Returns the question or the passage at an item of ``TextOrder``."""
        if visit < 0:
            return self.both(split, ~visit)._replace(question=None)
        return self.both(split, visit)._replace(passage=None)


def number_of(symbols: Symbols) -> int:
    """Returns the number of a passage: a hash of all its symbols, which does not depend on its split."""
    content = np.asarray(symbols, np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


NOTHING = TextRow(np.zeros(0, np.int64), 0)
"""A row of padding, for a pair whose question or passage is not read."""


def padded(rows: list[TextRow]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the symbols of rows (n, t), the mask of real symbols (n, t), and the numbers of their passages (n,)."""
    longest = max([1, *(len(row.symbols) for row in rows)])
    symbols, mask = (np.zeros((len(rows), longest), kind) for kind in (np.int64, np.bool_))
    for number, row in enumerate(rows):
        symbols[number, : len(row.symbols)], mask[number, : len(row.symbols)] = row.symbols, True
    return torch.from_numpy(symbols), torch.from_numpy(mask), torch.tensor([row.passage for row in rows])


def batched(pairs: list[ReadPair], cursor: str) -> RetrievalBatch:
    """Makes a batch of pairs. A question or passage that is not read is a row of padding. Without pairs, for a rank
    without a share, the batch is one row of padding."""
    pairs = pairs or [ReadPair(0, None, None)]
    source, source_mask, answers = padded([pair.question or NOTHING for pair in pairs])
    inputs, mask, numbers = padded([pair.passage or NOTHING for pair in pairs])
    ordinals = torch.tensor([pair.ordinal for pair in pairs])
    flags = {"padded": not bool(mask.all()), "source_padded": not bool(source_mask.all())}
    return RetrievalBatch(source, source_mask, answers, inputs, mask, numbers, ordinals, cursor, **flags)


def _open(
    readable: Readable,
    split: Split,
    order: Callable[[], Endless | TextOrder],
    rows: int,
    window: int,
    share: Shard,
) -> Windows[int, list[ReadPair], RetrievalBatch]:
    opened = order()
    read = partial(readable.one if isinstance(opened, TextOrder) else readable.both, split)
    length = (lambda item: item.length) if window > 1 else None

    def group(visits: list[int]) -> list[list[ReadPair]]:
        return cut(visits, read, rows, share, length)

    return Windows(opened, rows * window, group, batched)
