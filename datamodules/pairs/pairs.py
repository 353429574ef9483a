"""The data of tasks that read one sequence and predict another: translation, summaries, answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from datamodules.core.data import Data, DataConfig, defined
from datamodules.core.documents import Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import TokenizerConfig
from datamodules.core.trained import TrainedSymbols
from datamodules.core.windows import Endless, Once, Windows
from datamodules.pairs.cleaning import Cleaned, Cleaning, Overlong
from datamodules.pairs.source import Longest, Pair, Pairs, PairsConfig, PairsRead, Vocabularies
from datamodules.pairs.strings import StringPairsConfig
from lit_transformers.batch import IGNORED, DataDescription, PairBatch, PairDescription
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["PairData", "PairDataConfig", "PairEvaluationConfig"]

SOME_TARGETS = 100
"""The targets that are looked at before training."""
OF_TEXTS = ("tokenizer", "source_tokenizer", "longest_source", "longest_target", "ratio", "overlong")
"""Fields that apply to pairs of texts, not to generated strings."""


class PairEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    tokens_per_batch  None: as in training
    examples          largest number of pairs, the same for all runs; of strings, shared by the lengths (None: 256 of
                      each)
    lengths           of strings: each is measured separately; empty: the longest length of training
    split             the split that validation reads; testing reads test
    """

    tokens_per_batch: Positive | None = None
    examples: Positive | None = None
    lengths: tuple[Positive, ...] = ()
    split: Literal["train", "validation", "test"] = "validation"

    def conflicts(self) -> Iterator[str]:
        if len(set(self.lengths)) < len(self.lengths):
            yield f"lengths names one twice: {list(self.lengths)}"
        if self.lengths and self.split == "train":
            yield "lengths are measured in validation and test; set split to one of them"


class PairDataConfig(DataConfig, kind="pairs"):
    """Pairs of a source and a target as batches (PairBatch).

    source            the pairs; the table PAIRS lists the kinds
    tokenizer         of texts, learned on both sides of the train split, which share it. None: BPE with its defaults
    source_tokenizer  a separate tokenizer for the sources; the other is then learned on the targets alone
    tokens_per_batch  over all ranks together, at most: rows x longest target, and rows x longest source, with padding
    window            number of pairs that are sorted together by length and cut into batches, which are then shuffled
    longest_source    symbols with the boundary that ends them; None: the default of the source
    longest_target
    ratio             training omits pairs of which one side has more than this many times the symbols of the other
    overlong          longer pairs in training: cut loses their end, drop omits them, refuse is an error. An
                      evaluation omits nothing: it cuts, and its references are whole
    seed              of the order of pairs
    workers           worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = PairDescription

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
                    yield f"{name} does not apply to {self.source.kind}, which are symbols and not texts; omit it"
        for length in self.evaluation.lengths:
            if (reason := self.source.refusal(length)) is not None:
                yield f"evaluation.lengths {length}: {reason}"
                return
        yield from self.rank_conflicts(1)

    @property
    def longest(self) -> Longest:
        """Numbers of symbols of the longest source and target of training, with their boundaries."""
        defaults = self.source.longest
        return Longest(self.longest_source or defaults.source, self.longest_target or defaults.target)

    @property
    def evaluated(self) -> list[Longest]:
        """The longest source and target of an evaluation, one for each of its lengths."""
        return [self.source.reach(length) for length in self.evaluation.lengths] or [self.longest]

    @property
    def evaluation_tokens(self) -> int:
        """Maximum number of tokens of an evaluation batch."""
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
        """Counts target tokens, every pair as the longest one: lengths are not known before pairs are read."""
        return self.tokens_per_batch // max(self.longest) * self.longest.target

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        yield from _too_small("tokens_per_batch", self.tokens_per_batch, max(self.longest), ranks)
        longest_side = max(max(longest) for longest in self.evaluated)
        place = "tokens_per_batch" if self.evaluation.tokens_per_batch is None else "evaluation.tokens_per_batch"
        yield from _too_small(place, self.evaluation_tokens, longest_side, ranks)

    @property
    def summaries(self) -> bool:
        return self.source.summaries

    @property
    def target_language(self) -> str | None:
        languages = self.source.languages
        return languages[1] if languages else None

    def protocol(self) -> dict[str, Plain]:
        evaluation, longest = self.evaluation, self.longest
        lengths: dict[str, Plain] = {"lengths": list(evaluation.lengths)} if self.source.strings else {}
        languages = self.source.languages
        return lengths | {
            "split": evaluation.split,
            "examples": evaluation.examples,
            "languages": list(languages) if languages else None,
            "longest_source": longest.source,
            "longest_target": longest.target,
        }

    @property
    def measured_lengths(self) -> tuple[int, ...] | None:
        return self.evaluation.lengths or (None if self.source.strings else ())

    def measured(self) -> dict[str, Plain]:
        evaluation = self.evaluation
        lengths: dict[str, Plain] = {"lengths": list(evaluation.lengths)} if self.source.strings else {}
        return {"split": evaluation.split, "examples": evaluation.examples} | lengths

    def restored(self, metadata: Mapping[str, Plain]) -> PairDescription:
        longest = Longest(source=int(metadata["max_source_length"]), target=int(metadata["max_length"]))
        return description_of(self.source.vocabularies(metadata), longest)


def description_of(vocabularies: Vocabularies, longest: Longest) -> PairDescription:
    """Returns the description of pairs with these vocabularies and these longest rows of training."""
    return PairDescription(
        vocabulary=vocabularies.target,
        length=longest.target,
        source=vocabularies.source,
        source_length=longest.source,
        detokenize=vocabularies.detokenize,
    )


def _too_small(place: str, tokens: int, longest: int, ranks: int) -> Iterator[str]:
    """Yields a sentence where the tokens of a batch leave a rank without room for the longest pair."""
    if tokens // ranks < longest:
        problem = "does not hold one pair" if ranks == 1 else f"over {ranks} ranks does not hold one pair each"
        yield f"{place} {tokens} {problem}, of up to {longest} tokens a side; make it {longest * ranks} or more"


class PairData(Data):
    """Batches of pairs."""

    config: PairDataConfig

    @cached_property
    def pairs(self) -> Pairs:
        config, evaluation = self.config, self.config.evaluation
        tokenizers = config.tokenizer, config.source_tokenizer
        return config.source.open(PairsRead(*tokenizers, evaluation.lengths, evaluation.examples, self.trained))

    @property
    def content(self) -> str:
        return self.pairs.fingerprint

    @property
    def description(self) -> PairDescription:
        return description_of(self.pairs.vocabularies, self.config.longest)

    def metadata(self) -> dict[str, Plain]:
        languages, longest = self.config.source.languages, self.config.longest
        return {
            "max_length": longest.target,
            "max_source_length": longest.source,
            "languages": list(languages) if languages else None,
            "counts": self.cleaned("train", True).counts,
        }

    def trained_symbols(self) -> TrainedSymbols:
        return self.pairs.trained_symbols()

    def example_name(self, ordinal: int) -> str:
        return self.pairs.name(self.measured_split, ordinal)

    @cached_property
    def _tokenizer_hash(self) -> str:
        return canonical_hash(self.pairs.tokenizers())

    def definitions(self) -> dict[str, str]:
        """A target is cut at the longest of training, which decides the symbols that are predicted of it."""
        of_targets = {name: value for name, value in self.pairs.tokenizers().items() if name != "source_tokenizer"}
        symbol = defined(self.description.vocabulary.unit, of_targets)
        longest = None if self.config.source.strings else self.config.longest.target
        return {"symbol": symbol, "target symbol": defined(self.description.vocabulary.unit, [of_targets, longest])}

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
        }

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all others, and prints once how many pairs were read, left out or cut."""
        is_fitting = self.trainer is None or self.trainer.state.fn == "fit"
        messages = (
            [f"train: {self.cleaned('train', True)}", *self.pairs.reading_messages("train")] if is_fitting else []
        )
        is_testing = self.trainer is not None and self.trainer.state.fn == "test"
        split: Split = "test" if is_testing else self.validated_split if is_fitting else self.measured_split
        messages += [f"{split}: {self.cleaned(split, False)}", *self.pairs.reading_messages(split)]
        print(f"pairs of {self.config.name}: {'; '.join(dict.fromkeys(messages))}", file=sys.stderr, flush=True)

    def cleaned(self, split: Split, training: bool) -> Cleaned:
        """Returns the pairs of a split that are read, with counts of the others. Raises DataError."""
        cleaning = Cleaning(self.config.longest, self.config.ratio, self.config.overlong)
        return cleaning.clean(self.pairs, split, training)

    def mean_lengths(self) -> tuple[float, float] | None:
        lengths = self.pairs.lengths("train")
        return None if lengths is None else (float(lengths.source.mean()), float(lengths.target.mean()))

    def some_targets(self) -> Sequence[str]:
        if self.config.source.strings:
            return ()
        split = self.measured_split
        count = min(SOME_TARGETS, self.pairs.count(split))
        return [text for ordinal in range(count) for text in self.pairs.references(split, ordinal)[:1]]

    def shares_cut(self) -> dict[str, Plain]:
        cut = {"train": self.cleaned("train", True).cut}
        cut |= {self.measured_split: self.cleaned(self.measured_split, False).cut}
        return {split: {side: shares._asdict() for side, shares in sides.items()} for split, sides in cut.items()}

    def training(self) -> Reading:
        config = self.config
        ordinals = self.cleaned("train", True).ordinals
        count = self.pairs.count("train") if ordinals is None else len(ordinals)
        readable = _Readable(self.pairs, "train", ordinals, False)
        return self._reading(readable, config.tokens_per_batch, [config.longest], partial(Endless, count, config.seed))

    def evaluation(self, split: Split) -> Reading:
        config = self.config
        order = partial(Once, self.pairs.count(split), config.evaluation.examples)
        readable = _Readable(self.pairs, split, None, True)
        return self._reading(readable, config.evaluation_tokens, config.evaluated, order)

    def _reading(
        self, readable: _Readable, tokens: int, longest: list[Longest], order: Callable[[], Endless | Once]
    ) -> Reading:
        rank, vocabularies = self.rank(), self.pairs.vocabularies
        longest_side = max(max(lengths) for lengths in longest)
        for conflict in _too_small("data.tokens_per_batch", tokens, longest_side, rank.total):
            raise DataError(conflict)
        limits = Longest(max(lengths.source for lengths in longest), max(lengths.target for lengths in longest))
        shape = PairShape(tokens, vocabularies.source.boundary, vocabularies.target.boundary, limits)
        return Reading(partial(_open, readable, shape, self.config.window, order), rank, self.config.workers)


class PairShape(NamedTuple):
    """tokens: the maximum of a batch over all ranks. source_boundary: the symbol that ends a source. boundary: the
    symbol that begins and ends a target. longest: the lengths at which both are cut."""

    tokens: int
    source_boundary: int
    boundary: int
    longest: Longest


class _Readable(NamedTuple):
    """The pairs of a split that are read: those in ``chosen``, None for all. evaluated: whether references are read."""

    pairs: Pairs
    split: Split
    chosen: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None
    evaluated: bool


class _Example(NamedTuple):
    """A pair with its ordinal and the number of tokens of its source row and its target row."""

    ordinal: int
    pair: Pair
    source: int
    target: int


def grouped(readable: _Readable, shape: PairShape, share: Shard, places: list[int]) -> list[list[_Example]]:
    """Reads a window of pairs and cuts it into batches of about equal lengths within the budget of tokens, of which it
    returns the share of a rank."""
    ordinals = places if readable.chosen is None else readable.chosen[places].tolist()
    examples = [_example(readable, shape, ordinal) for ordinal in ordinals]
    examples.sort(key=lambda example: (max(example.source, example.target), example.target, example.source))
    batches: list[list[_Example]] = []
    source = target = 0
    for example in examples:
        source, target = max(source, example.source), max(target, example.target)
        if not batches or (len(batches[-1]) + 1) * max(source, target) > shape.tokens:
            batches.append([])
            source, target = example.source, example.target
        batches[-1].append(example)
    return [share.of(batch) for batch in batches]


def _example(readable: _Readable, shape: PairShape, ordinal: int) -> _Example:
    pair, longest = readable.pairs.pair(readable.split, ordinal), shape.longest
    return _Example(ordinal, pair, min(len(pair.source) + 1, longest.source), min(len(pair.target) + 1, longest.target))


def batched(readable: _Readable, shape: PairShape, examples: list[_Example], cursor: str) -> PairBatch:
    """Makes a batch of pairs; of none, a row with an empty source and no target, for a rank without a share of it.

    A source that is cut still ends with the boundary; a target that is cut does not, because it does not end there.
    """
    rows = max(len(examples), 1)
    source_lengths = torch.tensor([example.source for example in examples] or [1])
    target_lengths = torch.tensor([example.target for example in examples] or [0])
    source = np.zeros((rows, int(source_lengths.max())), np.int64)
    inputs = np.zeros((rows, max(int(target_lengths.max()), 1)), np.int64)
    targets = np.full(inputs.shape, IGNORED, np.int64)
    source[np.arange(rows), source_lengths.numpy() - 1] = shape.source_boundary
    inputs[:, 0] = shape.boundary
    for row, example in enumerate(examples):
        target = example.pair.target[: example.target]
        source[row, : example.source - 1] = example.pair.source[: example.source - 1]
        inputs[row, 1 : example.target] = target[: example.target - 1]
        targets[row, : len(target)] = target
        targets[row, len(target) : example.target] = shape.boundary
    references = [
        readable.pairs.references(readable.split, example.ordinal) if readable.evaluated else () for example in examples
    ]
    return PairBatch(
        torch.from_numpy(source),
        torch.arange(source.shape[1]) < source_lengths[:, None],
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.arange(inputs.shape[1]) < target_lengths[:, None],
        torch.tensor([example.ordinal for example in examples] or [0]),
        torch.tensor([example.pair.requested_length for example in examples] or [0]),
        tuple(references or [()]) if readable.evaluated else (),
        cursor,
        padded=int(target_lengths.min()) < inputs.shape[1],
        source_padded=int(source_lengths.min()) < source.shape[1],
    )


def _open(
    readable: _Readable,
    shape: PairShape,
    window: int,
    order: Callable[[], Endless | Once],
    share: Shard,
) -> Windows[int, list[_Example], PairBatch]:
    group, batch = partial(grouped, readable, shape, share), partial(batched, readable, shape)
    return Windows(order(), window, group, batch)
