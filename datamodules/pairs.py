"""The data of objectives that read one sequence and say another: translation, summaries, answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from datamodules.data import Data, DataConfig
from datamodules.documents import Shard, Split
from datamodules.errors import DataError
from datamodules.loading import Reading
from datamodules.pairs_cleaning import Cleaned, Cleaning, Overlong
from datamodules.pairs_source import Longest, Pair, Pairs, PairsConfig, PairsRead
from datamodules.pairs_strings import StringPairsConfig
from datamodules.tokenizers import TokenizerConfig
from datamodules.windows import Endless, Once, Windows
from lit_transformers.batch import IGNORED, DataDescription, PairBatch
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["PairData", "PairDataConfig", "PairEvaluationConfig"]

OF_TEXTS = ("tokenizer", "source_tokenizer", "longest_source", "longest_target", "ratio", "overlong")
"""Fields that say nothing of strings."""


class PairEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    tokens_per_batch  None: as in training
    examples          at most so many, chosen once for all runs; of strings, shared by the lengths (None: 256 of each)
    lengths           of strings: each is measured apart; none for the longest of training
    split             what validation reads; testing reads test
    """

    tokens_per_batch: Positive | None = None
    examples: Positive | None = None
    lengths: tuple[Positive, ...] = ()
    split: Literal["train", "validation", "test"] = "validation"

    def conflicts(self) -> Iterator[str]:
        if len(set(self.lengths)) < len(self.lengths):
            yield f"lengths names one twice: {list(self.lengths)}"
        if self.lengths and self.split == "train":
            yield "lengths are asked for in validation and test; set split to one of them"


class PairDataConfig(DataConfig, kind="pairs"):
    """Pairs of a source and a target as batches (PairBatch).

    source            what is read; the table PAIRS lists the kinds
    tokenizer         of texts, learned on the train split: on both sides, for one vocabulary. None: BPE as it comes
    source_tokenizer  one of its own for the sources; the other is then learned on the targets alone
    tokens_per_batch  over all ranks together, at most: rows x longest target, and rows x longest source, with padding
    window            so many pairs are taken together, sorted by length, cut into batches, and these shuffled again
    longest_source    symbols with the boundary that ends them; None: what the source says of itself
    longest_target
    ratio             training leaves out pairs of which one side has more than so many times the symbols of the other
    overlong          what training does with longer pairs: they lose their end, are left out, or are an error. An
                      evaluation leaves out nothing: it cuts, and its references are whole
    seed              of the order of pairs
    workers           processes that make batches; 0: none but the one that trains
    """

    batches: ClassVar[type] = PairBatch

    source: PairsConfig = StringPairsConfig()
    tokenizer: TokenizerConfig | None = None
    source_tokenizer: TokenizerConfig | None = None
    tokens_per_batch: Positive = 4096
    window: Positive = 4096
    longest_source: Annotated[int, Field(ge=2)] | None = None
    longest_target: Annotated[int, Field(ge=2)] | None = None
    ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    overlong: Overlong = "cut"
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: PairEvaluationConfig = PairEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        if self.source.strings:
            for name in OF_TEXTS:
                if getattr(self, name) != getattr(type(self), name):
                    yield f"{name} says nothing of {self.source.kind}, which are symbols of their own; leave it out"
        for length in self.evaluation.lengths:
            if (reason := self.source.refusal(length)) is not None:
                yield f"evaluation.lengths {length}: {reason}"
                return
        yield from self.rank_conflicts(1)

    @property
    def longest(self) -> Longest:
        """Symbols of the longest source and target of training, with their boundaries."""
        usual = self.source.longest
        return Longest(self.longest_source or usual.source, self.longest_target or usual.target)

    @property
    def evaluated(self) -> list[Longest]:
        """The longest of what an evaluation may read."""
        return [self.source.reach(length) for length in self.evaluation.lengths] or [self.longest]

    @property
    def evaluation_tokens(self) -> int:
        """Tokens of a batch of evaluation, at most."""
        return self.evaluation.tokens_per_batch or self.tokens_per_batch

    def build(self) -> PairData:
        return PairData(self)

    @property
    def name(self) -> str:
        return self.source.kind

    @property
    def length(self) -> int:
        return self.longest.target

    @property
    def tokens_per_step(self) -> int:
        """Of targets, as if every pair were the longest: how long they are is known when they are read."""
        return self.tokens_per_batch // max(self.longest) * self.longest.target

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        yield from _too_small("tokens_per_batch", self.tokens_per_batch, max(self.longest), ranks)
        reached = max(max(longest) for longest in self.evaluated)
        place = "tokens_per_batch" if self.evaluation.tokens_per_batch is None else "evaluation.tokens_per_batch"
        yield from _too_small(place, self.evaluation_tokens, reached, ranks)

    def protocol(self) -> dict[str, Plain]:
        evaluation, longest = self.evaluation, self.longest
        asked: dict[str, Plain] = {"lengths": list(evaluation.lengths)} if self.source.strings else {}
        languages = self.source.languages
        return asked | {
            "split": evaluation.split,
            "examples": evaluation.examples,
            "languages": list(languages) if languages else None,
            "longest_source": longest.source,
            "longest_target": longest.target,
        }

    def describe(self, kept: Mapping[str, Plain]) -> DataDescription:
        known = self.source.vocabularies(kept)
        length, source_length = int(kept["max_length"]), int(kept["max_source_length"])
        return DataDescription(known.target, length, 0, known.source, source_length, known.written)


def _too_small(place: str, tokens: int, longest: int, ranks: int) -> Iterator[str]:
    """A sentence where the tokens of a batch leave one of the ranks without room for the longest pair."""
    if tokens // ranks < longest:
        held = "does not hold one pair" if ranks == 1 else f"over {ranks} ranks does not hold one pair each"
        yield f"{place} {tokens} {held}, of up to {longest} tokens a side; make it {longest * ranks} or more"


class PairData(Data):
    """Batches of pairs."""

    config: PairDataConfig

    @cached_property
    def pairs(self) -> Pairs:
        config, evaluation = self.config, self.config.evaluation
        how = PairsRead(config.tokenizer, config.source_tokenizer, evaluation.lengths, evaluation.examples)
        return config.source.open(how)

    @property
    def content(self) -> str:
        return self.pairs.fingerprint

    @property
    def description(self) -> DataDescription:
        known, longest = self.pairs.vocabularies, self.config.longest
        return DataDescription(known.target, longest.target, 0, known.source, longest.source, known.written)

    def kept(self) -> dict[str, Plain]:
        languages, longest = self.config.source.languages, self.config.longest
        return self.pairs.tokenizers() | {
            "max_length": longest.target,
            "max_source_length": longest.source,
            "languages": list(languages) if languages else None,
            "counts": self.cleaned("train", True).counts,
        }

    def example_name(self, ordinal: int) -> str:
        return self.pairs.name(self.validation_split, ordinal)

    @cached_property
    def _tokenizer_hash(self) -> str:
        return canonical_hash(self.pairs.tokenizers())

    def identity(self) -> dict[str, Plain]:
        config, longest = self.config, self.config.longest
        return {
            "source": self.content,
            "tokenizer": self._tokenizer_hash,
            "tokens_per_batch": config.tokens_per_batch,
            "window": config.window,
            "longest_source": longest.source,
            "longest_target": longest.target,
            "ratio": config.ratio,
            "overlong": config.overlong,
            "seed": config.seed,
            "workers": config.workers,
        }

    def prepare_data(self) -> None:
        """Fills the cache on one process, so that others find it, and tells once what was left out or cut."""
        fitting = self.trainer is None or self.trainer.state.fn == "fit"
        told = [f"train: {self.cleaned('train', True)}", *self.pairs.told("train")] if fitting else []
        testing = self.trainer is not None and self.trainer.state.fn == "test"
        split: Split = "test" if testing else self.validation_split
        told += [f"{split}: {self.cleaned(split, False)}", *self.pairs.told(split)]
        print(f"pairs of {self.config.name}: {'; '.join(dict.fromkeys(told))}", file=sys.stderr, flush=True)

    def cleaned(self, split: Split, training: bool) -> Cleaned:
        """The pairs of a split that are read, and counts of what became of the others. Raises DataError."""
        cleaning = Cleaning(self.config.longest, self.config.ratio, self.config.overlong)
        return cleaning.clean(self.pairs, split, training)

    def training(self) -> Reading:
        config = self.config
        chosen = self.cleaned("train", True).ordinals
        count = self.pairs.count("train") if chosen is None else len(chosen)
        readable = _Readable(self.pairs, "train", chosen, False)
        return self._reading(readable, config.tokens_per_batch, [config.longest], partial(Endless, count, config.seed))

    def evaluation(self, split: Split) -> Reading:
        config = self.config
        order = partial(Once, self.pairs.count(split), config.evaluation.examples)
        readable = _Readable(self.pairs, split, None, True)
        return self._reading(readable, config.evaluation_tokens, config.evaluated, order)

    def _reading(
        self, readable: _Readable, tokens: int, longest: list[Longest], order: partial[Endless] | partial[Once]
    ) -> Reading:
        rank, known = self.rank(), self.pairs.vocabularies
        needed = max(max(lengths) for lengths in longest)
        for conflict in _too_small("data.tokens_per_batch", tokens, needed, rank.total):
            raise DataError(conflict)
        limits = Longest(max(lengths.source for lengths in longest), max(lengths.target for lengths in longest))
        shape = PairShape(tokens // rank.total, known.source.boundary, known.target.boundary, limits)
        opened = partial(_open, readable, shape, self.config.window, order)
        return Reading(opened, partial(batched, readable, shape, [], 0, ""), rank, self.config.workers)


class PairShape(NamedTuple):
    """tokens of a batch, at most; what ends a source; what begins and ends a target; where both are cut."""

    tokens: int
    source_boundary: int
    boundary: int
    longest: Longest


class _Readable(NamedTuple):
    """The pairs of a split that are read: those of ``chosen``, None for all. evaluated: with references."""

    pairs: Pairs
    split: Split
    chosen: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None
    evaluated: bool


class _Drawn(NamedTuple):
    """A pair with its ordinal and the tokens of its rows."""

    ordinal: int
    pair: Pair
    source: int
    target: int


def grouped(readable: _Readable, shape: PairShape, places: list[int]) -> list[list[_Drawn]]:
    """A window of pairs, cut into batches of about equal lengths within the budget of tokens."""
    ordinals = places if readable.chosen is None else readable.chosen[places].tolist()
    drawn = [_drawn(readable, shape, ordinal) for ordinal in ordinals]
    drawn.sort(key=lambda one: (max(one.source, one.target), one.target, one.source))
    batches: list[list[_Drawn]] = []
    source = target = 0
    for one in drawn:
        source, target = max(source, one.source), max(target, one.target)
        if not batches or (len(batches[-1]) + 1) * max(source, target) > shape.tokens:
            batches.append([])
            source, target = one.source, one.target
        batches[-1].append(one)
    return batches


def _drawn(readable: _Readable, shape: PairShape, ordinal: int) -> _Drawn:
    pair, longest = readable.pairs.pair(readable.split, ordinal), shape.longest
    return _Drawn(ordinal, pair, min(len(pair.source) + 1, longest.source), min(len(pair.target) + 1, longest.target))


def batched(readable: _Readable, shape: PairShape, chosen: list[_Drawn], stream: int, cursor: str) -> PairBatch:
    """A batch of pairs. Of none, one row without a target and with an empty source, for a rank that has nothing left.

    A source that is cut ends with the boundary all the same; a target that is cut does not, for it does not end there.
    """
    rows = max(len(chosen), 1)
    sources = torch.tensor([one.source for one in chosen] or [1])
    targets = torch.tensor([one.target for one in chosen] or [0])
    source = np.zeros((rows, int(sources.max())), np.int64)
    inputs = np.zeros((rows, max(int(targets.max()), 1)), np.int64)
    aims = np.full(inputs.shape, IGNORED, np.int64)
    source[np.arange(rows), sources.numpy() - 1] = shape.source_boundary
    inputs[:, 0] = shape.boundary
    for row, one in enumerate(chosen):
        said = one.pair.target[: one.target]
        source[row, : one.source - 1] = one.pair.source[: one.source - 1]
        inputs[row, 1 : one.target] = said[: one.target - 1]
        aims[row, : len(said)] = said
        aims[row, len(said) : one.target] = shape.boundary
    references = [
        readable.pairs.references(readable.split, one.ordinal) if readable.evaluated else () for one in chosen
    ]
    return PairBatch(
        torch.from_numpy(source),
        torch.arange(source.shape[1]) < sources[:, None],
        torch.from_numpy(inputs),
        torch.from_numpy(aims),
        torch.arange(inputs.shape[1]) < targets[:, None],
        torch.tensor([one.ordinal for one in chosen] or [0]),
        torch.tensor([one.pair.asked for one in chosen] or [0]),
        tuple(references or [()]) if readable.evaluated else (),
        stream,
        cursor,
    )


def _open(
    readable: _Readable,
    shape: PairShape,
    window: int,
    order: partial[Endless] | partial[Once],
    shard: Shard,
    stream: int,
) -> Windows[_Drawn, PairBatch]:
    group, batch = partial(grouped, readable, shape), partial(batched, readable, shape)
    return Windows(order(shard), window, group, batch, stream)
