"""Damage to a text for decoders that write a part of it: MASS (Song et al. 2019, arXiv:1905.02450), spans behind
sentinels, prefix language modelling and language modelling of T5 (Raffel et al. 2020, arXiv:1910.10683, section 3.3);
and a schedule of one corruption in the first epochs and another one after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.denoising.corruptions import Corrupted, CorruptionConfig, PlainText, Rate, count_of, too_long
from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.pairs.source import Longest
from lit_transformers.config import Positive

__all__ = ["CausalTargetConfig", "MASSConfig", "PhasesConfig", "PrefixTargetConfig", "SpanCorruptionConfig"]

Integers = npt.NDArray[np.int64]


class MASSConfig(CorruptionConfig, kind="mass"):
    """A span of the row is masked, symbol by symbol, and the decoder writes this span alone, each symbol at its
    original position (arXiv:1905.02450, sections 3.2 and 4.1). The span lies anywhere in the row.

    share  of the row that the span has, k / m in the paper, rounded to a number of symbols, which is at least 1. With 1
           the decoder is a language model whose encoder knows nothing but the length
    """

    placed: ClassVar[bool] = True

    share: Annotated[float, Field(gt=0, le=1)] = 0.5

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        length = count_of(self.share, len(text.symbols))
        start = int(chance.integers(len(text.symbols) - length + 1))
        source = text.symbols.copy()
        source[start : start + length] = symbols.mask
        return Corrupted(source, text.symbols[start : start + length], start, False)

    def longest(self, length: int) -> Longest:
        return Longest(length, length)

    def usual(self, length: int) -> Longest:
        return Longest(length, count_of(self.share, length - 1))


class SpanCorruptionConfig(CorruptionConfig, kind="span_corruption"):
    """Spans are replaced by a sentinel each, and the decoder writes them, each after its sentinel, and a last sentinel
    (arXiv:1910.10683, sections 3.1.4 and 3.3.4).

    All ways to divide the hidden symbols into spans are equally likely, and so are all ways to place these apart from
    each other. In the code of T5 a row begins with visible symbols and ends with a span.

    rate     the share of symbols that are hidden, rounded to a number, which is at least 1
    mean     the mean length of the spans, which decides how many there are. None: places are drawn one by one, and
             those that follow each other are a span (section 3.3.2: i.i.d., "replace spans"); T5 draws their number too
    dropped  hidden symbols leave nothing behind, and are written without sentinels ("drop corrupted tokens")
    """

    rate: Rate = 0.15
    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = 3.0
    dropped: bool = False

    def refusal(self, length: int) -> str | None:
        return None if self.mean is None else too_long(self.mean, self.rate, length)

    def hidden(self, count: int, chance: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Returns which of ``count`` symbols are hidden."""
        is_hidden = np.zeros(count, np.bool_)
        total = count_of(self.rate, count)
        if self.mean is None:
            is_hidden[chance.choice(count, total, replace=False)] = True
            return is_hidden
        spans = self.spans(count)
        cuts = np.sort(chance.choice(total - 1, spans - 1, replace=False)) + 1
        lengths = np.diff(cuts, prepend=0, append=total)
        before = np.sort(chance.choice(count - total + 1, spans, replace=False))
        begins = before + np.cumsum(lengths) - lengths
        is_hidden[np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(total)] = True
        return is_hidden

    def spans(self, count: int) -> int:
        """Returns how many spans there are in ``count`` symbols, or may be at most."""
        total = count_of(self.rate, count)
        apart = count - total + 1
        return min(total, apart, total if self.mean is None else max(round(total / self.mean), 1))

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        is_hidden = self.hidden(len(text.symbols), chance)
        if self.dropped:
            return Corrupted(text.symbols[~is_hidden], text.symbols[is_hidden])
        begins = np.flatnonzero(is_hidden & ~np.concatenate([[False], is_hidden[:-1]]))
        numbers = np.arange(len(begins))
        source = text.symbols.copy()
        source[begins] = symbols.sentinels[numbers]
        is_hidden_after = is_hidden.copy()
        is_hidden_after[begins] = False
        places = np.searchsorted(np.flatnonzero(is_hidden), begins)
        target = np.insert(text.symbols[is_hidden], places, symbols.sentinels[numbers])
        return Corrupted(source[~is_hidden_after], np.append(target, symbols.sentinels[len(begins)]))

    def sentinels(self, length: int) -> int:
        return 0 if self.dropped else self.spans(length - 1) + 1

    def longest(self, length: int) -> Longest:
        # A shorter row may keep as many symbols, but none keeps more.
        total, spans = count_of(self.rate, length - 1), 0 if self.dropped else self.spans(length - 1)
        return Longest(length - total + spans, total + 1 + (0 if self.dropped else spans + 1))

    def usual(self, length: int) -> Longest:
        longest = self.longest(length)
        if self.dropped or self.mean is not None:
            return longest
        touching = round(self.rate * count_of(self.rate, length - 1))
        return Longest(longest.source - touching, longest.target - touching)


class PrefixTargetConfig(CorruptionConfig, kind="prefix_lm"):
    """A row is divided at a random place: the encoder reads the first part, the decoder writes the rest
    (arXiv:1910.10683, section 3.3.1). Of a row of one symbol the encoder reads none."""

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        count = len(text.symbols)
        place = int(chance.integers(min(1, count - 1), count))
        return Corrupted(text.symbols[:place], text.symbols[place:])

    def longest(self, length: int) -> Longest:
        return Longest(max(length - 1, 1), max(length - 1, 2))

    def usual(self, length: int) -> Longest:
        return Longest((length - 1) // 2 + 1, length // 2 + 1)


class CausalTargetConfig(CorruptionConfig, kind="lm"):
    """The encoder reads the boundary alone, and the decoder writes the row: a language model (arXiv:1910.10683, section
    3.2.3)."""

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        return Corrupted(text.symbols[:0], text.symbols)

    def longest(self, length: int) -> Longest:
        return Longest(1, length)

    def usual(self, length: int) -> Longest:
        return Longest(1, length)


class PhasesConfig(CorruptionConfig, kind="phases"):
    """One corruption in the first epochs and another one after them, within a run, as fine-tuning does. An evaluation
    measures the second one.

    first   the corruption of the first ``epochs``
    epochs  passes over all rows
    then    the corruption of later epochs
    """

    first: CorruptionConfig = CausalTargetConfig()
    epochs: Positive = 1
    then: CorruptionConfig = PrefixTargetConfig()

    def conflicts(self) -> Iterator[str]:
        for name, part in (("first", self.first), ("then", self.then)):
            if isinstance(part, PhasesConfig):
                yield f"{name} is one corruption, and cannot have phases"

    @property
    def permutes(self) -> bool:
        return any(part.permutes for part in self.every())

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        return self.then.corrupt(text, symbols, chance)

    def at(self, epoch: int) -> CorruptionConfig:
        return self.first if epoch < self.epochs else self.then

    def every(self) -> tuple[CorruptionConfig, ...]:
        return (self.first, self.then)

    def longest(self, length: int) -> Longest:
        return widest([part.longest(length) for part in self.every()])

    def usual(self, length: int) -> Longest:
        return self.first.usual(length)

    def sentinels(self, length: int) -> int:
        return max(part.sentinels(length) for part in self.every())

    def refusal(self, length: int) -> str | None:
        return next(filter(None, (part.refusal(length) for part in self.every())), None)


def widest(sizes: list[Longest]) -> Longest:
    """Returns the sizes of the longest source and of the longest target among several pairs."""
    return Longest(max(size.source for size in sizes), max(size.target for size in sizes))
