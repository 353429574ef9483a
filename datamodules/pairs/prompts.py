"""Prompts with answers, for the fine-tuning of decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from datamodules.core.data import DataConfig, row_conflicts
from datamodules.core.documents import Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import Symbols, TokenizerConfig, tokenizer_from_dict
from datamodules.core.windows import Endless, Once, Windows, cut
from datamodules.pairs.paired_texts import PairedTextData
from datamodules.pairs.source import Pairs, PairsConfig
from datamodules.pairs.strings import StringPairsConfig
from lit_transformers.batch import IGNORED, DataDescription, StringBatch, StringDescription
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["PromptData", "PromptDataConfig", "PromptEvaluationConfig"]


class PromptEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, which is recorded with every number.

    batch_size  rows over all ranks together; None: as in training
    examples    the largest number of answers, the same for all runs; None: all
    split       the split that validation reads; testing reads test
    """

    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class PromptDataConfig(DataConfig, kind="prompts"):
    """Prompts with their answers as batches (StringBatch). Only the answers are predicted. The source of a pair is the
    prompt, and its target the answer. A row is the boundary, the prompt, the separator, the answer, and the boundary
    again as the end of the answer.

    source      the pairs; the table PAIRS lists the kinds
    tokenizer   of texts; None: BPE with its defaults, learned on both sides of the train split
    separator   the text between prompt and answer
    length      tokens of the longest row. If a row is longer, the prompt loses its beginning until it fills a quarter
                of the row; then the answer loses its end
    batch_size  rows over all ranks together
    window      the number of batches whose rows are sorted together by length, before the batches are shuffled; 1: rows
                are not sorted
    seed        of the order of rows
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = StringDescription

    source: PairsConfig = StringPairsConfig()
    tokenizer: TokenizerConfig | None = None
    separator: str = "\n"
    length: Annotated[int, Field(ge=8)] = 256
    batch_size: Positive = 32
    window: Positive = 16
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: PromptEvaluationConfig = PromptEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        if self.source.strings and self.tokenizer is not None:
            yield f"tokenizer does not apply to {self.source.kind}, which are symbols, not texts; omit it"

    def build(self) -> PromptData:
        return PromptData(self)

    @property
    def name(self) -> str:
        return self.source.kind

    @property
    def tokens_per_step(self) -> int:
        """Counts every row as the longest, since lengths are unknown before rows are read."""
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        evaluation = self.evaluation
        row: dict[str, Plain] = {"length": self.length, "separator": self.separator}
        return row | {"split": evaluation.split, "examples": evaluation.examples}

    def restored(self, metadata: Mapping[str, Plain]) -> StringDescription:
        vocabulary = self.source.vocabularies(metadata).target
        return StringDescription(vocabulary=vocabulary, length=self.length)


class PromptRow(NamedTuple):
    """A row: its ordinal, its symbols, and the number of symbols before the answer."""

    ordinal: int
    symbols: Symbols
    prompt: int


class PromptShape(NamedTuple):
    """The shape of rows. boundary: the first symbol of a row, and the end of its answer. separator: the symbols between
    prompt and answer. longest: the tokens of the longest row."""

    boundary: int
    separator: Symbols
    longest: int

    def prompt(self, prompt: Symbols, answer: int) -> Symbols:
        """Returns the symbols before an answer of ``answer`` symbols: the boundary, the end of the prompt, and the
        separator."""
        room = self.longest - 1 - len(self.separator)
        kept = max(room - answer, min(len(prompt), self.longest // 4))
        return np.concatenate([[self.boundary], prompt[max(len(prompt) - kept, 0) :], self.separator]).astype(np.int64)

    def row(self, ordinal: int, prompt: Symbols, answer: Symbols) -> PromptRow:
        """Returns the row of a prompt, its answer, and the boundary at its end; a row that is too long loses its
        end."""
        before = self.prompt(prompt, len(answer))
        symbols = np.concatenate([before, answer, [self.boundary]]).astype(np.int64)
        return PromptRow(ordinal, symbols[: self.longest + 1], len(before))


class PromptData(PairedTextData):
    """Batches of prompts with their answers."""

    config: PromptDataConfig

    @property
    def description(self) -> StringDescription:
        return self.config.restored(self.trained_symbols().to_dict())

    @property
    def shape(self) -> PromptShape:
        """The shape of rows."""
        return prompt_shape(self.config, self.trained_symbols().to_dict())

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "source": self.content,
            "tokenizer": canonical_hash(self.pairs.tokenizers()),
            "separator": config.separator,
            "length": config.length,
            "batch_size": config.batch_size,
            "window": config.window,
            "seed": config.seed,
        }

    def training(self) -> Reading:
        config = self.config
        order = partial(Endless, self.pairs.count("train"), config.seed)
        return self._reading("train", order, config.batch_size)

    def evaluation(self, split: Split) -> Reading:
        evaluation = self.config.evaluation
        order = partial(Once, self.pairs.count(split), evaluation.examples)
        return self._reading(split, order, evaluation.batch_size or self.config.batch_size)

    def _reading(self, split: Split, order: Callable[[], Endless | Once], batch_size: int) -> Reading:
        rows, window = self.rows(batch_size), self.config.window
        return Reading(
            partial(_open, self.pairs, self.shape, split, order, rows, window), self.rank(), self.config.workers
        )


def prompt_shape(config: PromptDataConfig, metadata: Mapping[str, Plain]) -> PromptShape:
    """Returns the shape of rows, for the tokenizer of ``Data.checkpoint_metadata``. Raises DataError if the separator
    leaves no room."""
    boundary = config.source.vocabularies(metadata).target.boundary
    separator: Symbols = np.array([boundary] if config.source.strings else [], np.int32)
    if not config.source.strings and config.separator:
        separator = tokenizer_from_dict(metadata["tokenizer"]).encode(config.separator.encode())
    if len(separator) > config.length // 2:
        reason = f"{len(separator)} symbols leave no room in rows of {config.length}"
        raise DataError(f"data.separator: {reason}; shorten it, or raise data.length")
    return PromptShape(boundary, separator, config.length)


def batched(rows: list[PromptRow], cursor: str) -> StringBatch:
    """Makes a batch of rows, padded to the longest. Without rows, for a rank without a share, it is one row of
    padding."""
    count, longest = max(len(rows), 1), max([1, *(len(row.symbols) - 1 for row in rows)])
    inputs, targets = np.zeros((count, longest), np.int64), np.full((count, longest), IGNORED, np.int64)
    lengths = torch.tensor([len(row.symbols) - 1 for row in rows] or [0])
    for number, row in enumerate(rows):
        inputs[number, : len(row.symbols) - 1] = row.symbols[:-1]
        targets[number, row.prompt - 1 : len(row.symbols) - 1] = row.symbols[row.prompt :]
    return StringBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.arange(longest) < lengths[:, None],
        torch.tensor([row.ordinal for row in rows] or [0]),
        torch.zeros(count, dtype=torch.long),
        cursor,
        padded=int(lengths.min()) < longest,
    )


def _open(
    pairs: Pairs,
    shape: PromptShape,
    split: Split,
    order: Callable[[], Endless | Once],
    rows: int,
    window: int,
    share: Shard,
) -> Windows[int, list[PromptRow], StringBatch]:
    def read(ordinal: int) -> PromptRow:
        pair = pairs.pair(split, ordinal)
        return shape.row(ordinal, pair.source, pair.target)

    def group(ordinals: list[int]) -> list[list[PromptRow]]:
        return cut(ordinals, read, rows, share, (lambda row: len(row.symbols)) if window > 1 else None)

    return Windows(order(), rows * window, group, batched)
