"""Generated strings as pairs: the question is the source, the answer the target. Nothing is on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np

from datamodules.core.documents import Split
from datamodules.core.trained import TrainedSymbols
from datamodules.pairs.source import Languages, Longest, Pair, Pairs, PairsConfig, PairsRead, Vocabularies
from datamodules.strings.generators.addition import AdditionConfig
from datamodules.strings.generators.generator import GeneratorConfig, random_of
from datamodules.strings.generators.words import CopyConfig, ReverseConfig
from lit_transformers.batch import IGNORED, SpelledNumbers, Vocabulary
from lit_transformers.config import NonNegative, Plain, Positive, canonical_hash

__all__ = ["StringPairs", "StringPairsConfig"]

VERSION = 1
"""Part of the fingerprint: changes when the same config gives other strings."""
PAIRED = (CopyConfig, ReverseConfig, AdditionConfig)
EXAMPLES = 256
"""Default number of strings of each length in an evaluation."""


class StringPairsConfig(PairsConfig, kind="strings"):
    """Questions and answers (arXiv:1807.03819, section 3.2); each string is a function of seed, split and ordinal.

    generator   copy, reverse or addition
    max_length  the longest question of training
    lengths     uniform: any length up to it, all equally often. fixed: every training question has that length
    train       number of training strings, each once in every pass
    seed        of the strings; their order depends on the data's seed
    """

    strings: ClassVar[bool] = True

    generator: GeneratorConfig = CopyConfig()
    max_length: Positive = 40
    lengths: Literal["fixed", "uniform"] = "uniform"
    train: Positive = 1_000_000
    seed: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        if not isinstance(self.generator, PAIRED):
            kinds = ", ".join(generator.kind for generator in PAIRED)
            yield f"generator {self.generator.kind} asks no question that an answer follows and ends; {kinds} do"
        elif (reason := self.generator.refusal(self.max_length)) is not None:
            yield f"max_length {self.max_length} is too short: {reason}"

    @property
    def languages(self) -> Languages | None:
        return None

    @property
    def longest(self) -> Longest:
        return self.reach(self.max_length)

    def refusal(self, length: int) -> str | None:
        return self.generator.refusal(length)

    def reach(self, length: int) -> Longest:
        return Longest(length + 1, self.generator.row(length) - length - 1)

    def open(self, how: PairsRead) -> StringPairs:
        return StringPairs(self, how.lengths or (self.max_length,), how.examples)

    def vocabularies(self, metadata: Mapping[str, Plain]) -> Vocabularies:
        vocabulary = Vocabulary(size=self.generator.symbols, boundary=0, unit="piece", byte_lengths=None)
        return Vocabularies(vocabulary, vocabulary, SpelledNumbers())


class StringPairs(Pairs):
    """The strings of training, and of each evaluation: equally many of every length, which alternate by ordinal."""

    def __init__(self, config: StringPairsConfig, lengths: tuple[int, ...], examples: int | None) -> None:
        self.config, self.requested_lengths, self.examples = config, lengths, examples or EXAMPLES * len(lengths)
        self.fingerprint = f"strings-{canonical_hash([VERSION, config.to_dict()], 32)}"
        self.vocabularies = config.vocabularies({})
        self.trained = config.generator.lengths_to(config.max_length)

    def count(self, split: Split) -> int:
        return self.config.train if split == "train" else self.examples

    def pair(self, split: Split, ordinal: int) -> Pair:
        length, number = self._place(split, ordinal)
        chance = random_of(self.config.seed, split, length, number)
        requested_length = length
        if split == "train" and self.config.lengths == "uniform":
            requested_length = int(chance.choice(self.trained))
        string = self.config.generator.make(requested_length, chance)
        answer_start = int(np.flatnonzero(string.targets != IGNORED)[0])
        # 0 stands before the question, between question and answer, and at the end, where the boundary will be.
        return Pair(string.inputs[1:answer_start], string.targets[answer_start:-1], requested_length)

    def _place(self, split: Split, ordinal: int) -> tuple[int, int]:
        """Returns the length of a string and its number among the strings of that length."""
        if split == "train":
            return self.config.max_length, ordinal
        number, place = divmod(ordinal, len(self.requested_lengths))
        return self.requested_lengths[place], number

    def references(self, split: Split, ordinal: int) -> tuple[str, ...]:
        return (SpelledNumbers()(self.pair(split, ordinal).target.tolist()),)

    def name(self, split: Split, ordinal: int) -> str:
        length, number = self._place(split, ordinal)
        return f"{split}:{length}:{number}"

    def lengths(self, split: Split) -> None:
        return None

    def tokenizers(self) -> dict[str, Plain]:
        return {"tokenizer": None, "source_tokenizer": None}

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(meanings=self.config.generator.meanings())

    def reading_messages(self, split: Split) -> list[str]:
        return []
