"""Examples with a column of each kind of labels, and pairs of sentences with two labels, which the library does not
know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, final

import numpy as np

from datamodules import Example, Examples, ExamplesConfig, SyntheticConfig
from datamodules.core.documents import SPLITS, Split
from datamodules.core.tokenizers import Bytes
from lit_transformers.batch import (
    ClassedSpanLabels,
    ClassLabels,
    ClassSetLabels,
    GroupLabels,
    LabelledDescription,
    NumberLabels,
    SpanLabels,
    TagLabels,
    Vocabulary,
)
from lit_transformers.config import Plain, Positive


@final
class RisesConfig(SyntheticConfig, kind="rises"):
    """Rows of 8 to ``longest`` of six symbols. Each symbol but the first has a tag, 1 where it is larger than the one
    before; the span is the first longest rise; the label is the last tag. Further columns hold which of the first three
    symbols occur, the mean symbol, two spans with the parity of their lengths, and whether the row is long."""

    train: Positive = 120
    validation: Positive = 60
    test: Positive = 60
    longest: Positive = 12

    def conflicts(self) -> Iterator[str]:
        if self.longest < 8:
            yield "rows have 8 symbols or more; raise longest"

    @property
    def description(self) -> LabelledDescription:
        return LabelledDescription(
            vocabulary=Vocabulary(size=7, boundary=6, unit="word", byte_lengths=None),
            length=self.longest + 1,
            labels=ClassLabels(count=2),
            columns={
                "tags": TagLabels(count=2),
                "rise": SpanLabels(),
                "present": ClassSetLabels(count=3),
                "mean": NumberLabels(),
                "halves": ClassedSpanLabels(count=2),
                "group": GroupLabels(names=("short", "long")),
            },
        )

    def make(self, chance: Random) -> Example:
        symbols = [chance.randrange(6) for _ in range(chance.randint(8, self.longest))]
        tags = [None, *(int(after > before) for before, after in pairwise(symbols))]
        columns = {
            "tags": tags,
            "rise": longest_rise(symbols),
            "present": [symbol for symbol in range(3) if symbol in symbols] if chance.random() < 0.9 else None,
            "mean": sum(symbols) / len(symbols),
            "halves": halves(symbols),
            "group": int(len(symbols) > 9),
        }
        return Example(np.array(symbols, np.int64), tags[-1], columns=columns)


def longest_rise(symbols: list[int]) -> tuple[int, int] | None:
    """The place of the first symbol of the first longest rise, and that after its last; None where nothing rises."""
    spans = [
        (start, stop)
        for start in range(len(symbols))
        for stop in range(start + 2, len(symbols) + 1)
        if all(symbols[place] < symbols[place + 1] for place in range(start, stop - 1))
    ]
    return max(spans, key=lambda span: (span[1] - span[0], -span[0]), default=None)


def halves(symbols: list[int]) -> list[tuple[int, int, int]]:
    """Two spans up to the largest symbol and after it, each with the parity of its length; one where that is last."""
    middle = symbols.index(max(symbols)) + 1
    ends = [(0, middle), (middle, len(symbols))]
    return [(start, stop, (stop - start) % 2) for start, stop in ends if stop > start]


RELATIONS = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")


@final
class SickConfig(ExamplesConfig, kind="sick"):
    """Pairs of sentences as bytes, each with the class of its entailment and a number, its relatedness from 1 to 5
    (Marelli et al. 2014, SICK). folder: of train.txt, validation.txt and test.txt, with columns divided by tabs."""

    folder: str = ""
    length: Positive = 400

    def build(self) -> Sick:
        return Sick(self)

    @property
    def description(self) -> LabelledDescription:
        return LabelledDescription(
            vocabulary=Bytes().vocabulary,
            length=self.length,
            labels=ClassLabels(count=3),
            columns={"relatedness": NumberLabels()},
        )

    def protocol(self) -> dict[str, Plain]:
        return {"length": self.length}


class Sick(Examples):
    """The pairs of the files."""

    def __init__(self, config: SickConfig) -> None:
        texts = {split: Path(config.folder, f"{split}.txt").read_text(encoding="utf-8") for split in SPLITS}
        self.rows: dict[str, list[list[str]]] = {
            split: [line.split("\t") for line in text.splitlines()[1:]] for split, text in texts.items()
        }
        self.longest = config.length - 1
        self.content = hashlib.sha256("\n".join(texts.values()).encode()).hexdigest()
        self.fingerprint = f"sick-{self.longest}-{self.content}"

    def count(self, split: Split) -> int:
        return len(self.rows[split])

    def example(self, split: Split, ordinal: int) -> Example:
        _, first, second, relatedness, relation = self.rows[split][ordinal]
        symbols: Any = Bytes().encode(f"{first}\t{second}".encode())[: self.longest]
        return Example(symbols, RELATIONS.index(relation), columns={"relatedness": float(relatedness)})

    def name(self, split: Split, ordinal: int) -> str:
        return f"{split}:{self.rows[split][ordinal][0]}"
