"""The data of generated strings: nothing is on disk, and every string is a function of its seed, split and ordinal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from datamodules.core.data import Data, DataConfig, KnownValues, row_conflicts
from datamodules.core.documents import Shard, Split
from datamodules.core.loading import CHUNK, Batches, Reading
from datamodules.core.trained import TrainedSymbols
from datamodules.strings.generators.generator import GeneratorConfig, String, random_of
from datamodules.strings.generators.words import CopyConfig
from lit_transformers.batch import IGNORED, DataDescription, StringBatch, StringDescription, Vocabulary
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["GeneratedData", "GeneratedDataConfig", "StringEvaluationConfig"]

VERSION = 1
"""Part of the fingerprint: changes when the same config gives other strings."""


class StringEvaluationConfig(Config):
    """How strings are evaluated: part of the protocol, so recorded with every number.

    lengths     each is measured separately; empty: the longest length of training
    examples    number of strings of each length
    batch_size  None: as in training
    seed        of the strings, which are the same for every seed of training
    split       the split that validation reads; testing reads test
    """

    lengths: tuple[Positive, ...] = ()
    examples: Positive = 256
    batch_size: Positive | None = None
    seed: NonNegative = 0
    split: Literal["train", "validation", "test"] = "validation"

    def conflicts(self) -> Iterator[str]:
        if len(set(self.lengths)) < len(self.lengths):
            yield f"lengths names one twice: {list(self.lengths)}"


class GeneratedDataConfig(DataConfig, kind="generated"):
    """Strings as batches (StringBatch); the loss is computed on their answers alone.

    generator   the task; the table GENERATORS lists the kinds
    max_length  the longest length in training; each kind defines which part it measures
    lengths     fixed: every training string has that length. uniform: any length up to it, all equally often
    batch_size  strings over all ranks together
    seed        of the training strings, whose number is unlimited: none is repeated
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = StringDescription
    fills_batches: ClassVar[bool] = True

    generator: GeneratorConfig = CopyConfig()
    max_length: Positive = 40
    lengths: Literal["fixed", "uniform"] = "fixed"
    batch_size: Positive = 64
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: StringEvaluationConfig = StringEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        requested = [("max_length", self.max_length), *(("evaluation.lengths", n) for n in self.evaluation.lengths)]
        for place, length in requested:
            reason = self.generator.refusal(length)
            if reason is not None:
                yield f"{place} {length} is too short: {reason}"

    @property
    def measured_lengths(self) -> tuple[int, ...]:
        """The lengths that evaluation measures."""
        return self.evaluation.lengths or (self.max_length,)

    def build(self) -> GeneratedData:
        return GeneratedData(self)

    @property
    def name(self) -> str:
        return self.generator.kind

    @property
    def length(self) -> int:
        return self.generator.row(self.max_length)

    @property
    def measured_length(self) -> int:
        return self.generator.row(max(self.measured_lengths))

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        return {"lengths": list(self.measured_lengths), "examples": self.evaluation.examples}

    def measured(self) -> dict[str, Plain]:
        evaluation = self.evaluation
        drawn: dict[str, Plain] = {"split": evaluation.split, "examples": evaluation.examples, "seed": evaluation.seed}
        return drawn | {"lengths": list(self.measured_lengths)}

    def known_values(self) -> KnownValues | None:
        chance = self.generator.chance(self.measured_lengths)
        return None if chance is None else KnownValues("accuracy", {"chance": chance, "every answer": 1.0})

    def restored(self, metadata: Mapping[str, Plain]) -> StringDescription:
        vocabulary = Vocabulary(size=self.generator.symbols, boundary=0, unit="piece", byte_lengths=None)
        return StringDescription(vocabulary=vocabulary, length=int(metadata["max_length"]))


class GeneratedData(Data):
    """Batches of generated strings."""

    config: GeneratedDataConfig

    @property
    def content(self) -> str:
        return f"{self.config.name}-{canonical_hash([VERSION, self.config.generator.to_dict()], 32)}"

    @property
    def description(self) -> StringDescription:
        return self.config.restored(self.metadata())

    def metadata(self) -> dict[str, Plain]:
        return {"max_length": self.config.length}

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(meanings=self.config.generator.meanings())

    def example_name(self, ordinal: int) -> str:
        place, number = divmod(ordinal, self.config.evaluation.examples)
        return f"{self.config.measured_lengths[place]}:{number}"

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "generator": self.content,
            "max_length": config.max_length,
            "lengths": config.lengths,
            "batch_size": config.batch_size,
            "seed": config.seed,
        }

    def training(self) -> Reading:
        return self._reading(partial(_Endless, self.config, self.rows(self.config.batch_size)))

    def evaluation(self, split: Split) -> Reading:
        rows = self.rows(self.config.evaluation.batch_size or self.config.batch_size)
        return self._reading(partial(_Once, self.config, split, rows))

    def _reading(self, open_strings: Callable[[Shard], Batches]) -> Reading:
        return Reading(open_strings, self.rank(), self.config.workers)


class _RequestedString(NamedTuple):
    """A string with its ordinal in the pass and the length that was requested."""

    example: int
    length: int
    string: String


EMPTY = String(np.zeros(0, np.int64), np.zeros(0, np.int64))


def batched(strings: list[_RequestedString], cursor: Plain) -> StringBatch:
    """Makes a batch of strings, with rows padded to the longest; of none, one row of padding, for a rank without a
    share of it."""
    strings = strings or [_RequestedString(0, 0, EMPTY)]
    longest = max(1, *(len(item.string.inputs) for item in strings))
    inputs = np.zeros((len(strings), longest), np.int64)
    targets = np.full((len(strings), longest), IGNORED, np.int64)
    for row, item in enumerate(strings):
        inputs[row, : len(item.string.inputs)] = item.string.inputs
        targets[row, : len(item.string.targets)] = item.string.targets
    lengths = torch.tensor([len(item.string.inputs) for item in strings])
    return StringBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.arange(longest) < lengths[:, None],
        torch.tensor([item.example for item in strings]),
        torch.tensor([item.length for item in strings]),
        json.dumps(cursor),
        padded=int(lengths.min()) < longest,
    )


class _Endless:
    """Training strings, whose ordinals are counted over all ranks."""

    def __init__(self, config: GeneratedDataConfig, rows: int, share: Shard) -> None:
        self.config, self.rows, self.share = config, rows, share
        self.lengths, self.taken = config.generator.lengths_to(config.max_length), 0

    def chunk(self) -> Iterator[StringBatch]:
        """Returns the next ``CHUNK`` batches."""
        for _ in range(CHUNK):
            ordinals = self.share.of(range(self.taken, self.taken + self.rows))
            self.taken += self.rows
            yield batched([*map(self._string, ordinals)], self.taken)

    def skip(self) -> None:
        """Passes over as many."""
        self.taken += CHUNK * self.rows

    def go_to(self, cursor: str) -> None:
        self.taken = int(json.loads(cursor))

    def _string(self, ordinal: int) -> _RequestedString:
        config = self.config
        random = random_of(config.seed, "train", config.max_length, ordinal)
        length = config.max_length
        if config.lengths == "uniform":
            length = int(random.choice(self.lengths))
        return _RequestedString(ordinal, length, config.generator.make(length, random))


class _Once:
    """Evaluation strings, one length after another. No batch mixes lengths."""

    def __init__(self, config: GeneratedDataConfig, split: Split, rows: int, share: Shard) -> None:
        self.config, self.split, self.share = config, split, share
        self.taken = 0
        numbers = range(config.evaluation.examples)
        self.batches = [
            (place, numbers[start : start + rows])
            for place in range(len(config.measured_lengths))
            for start in range(0, len(numbers), rows)
        ]

    def chunk(self) -> Iterator[StringBatch]:
        """Returns the next ``CHUNK`` batches, fewer at the end."""
        for place, numbers in self.batches[self.taken : self.taken + CHUNK]:
            self.taken += 1
            yield batched([self._string(place, number) for number in self.share.of(numbers)], self.taken)

    def skip(self) -> None:
        """Passes over as many."""
        self.taken += CHUNK

    def go_to(self, cursor: str) -> None:
        self.taken = int(json.loads(cursor))

    def _string(self, place: int, number: int) -> _RequestedString:
        length, evaluation = self.config.measured_lengths[place], self.config.evaluation
        random = random_of(evaluation.seed, self.split, length, number)
        example = place * evaluation.examples + number
        return _RequestedString(example, length, self.config.generator.measured.make(length, random))
