"""Damage to a text before an encoder reads it, for decoders that write the whole text: the noises of BART (Lewis et al.
2020, arXiv:1910.13461, section 2.2), and T5's BERT-style noise and deshuffling (Raffel et al. 2020, arXiv:1910.10683,
section 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.pairs.source import Longest
from lit_transformers.config import Config, Fraction, PositiveFloat

__all__ = [
    "ComposedConfig",
    "Corrupted",
    "CorruptionConfig",
    "DeshufflingConfig",
    "DocumentRotationConfig",
    "PlainText",
    "Rate",
    "SentencePermutationConfig",
    "TextInfillingConfig",
    "TokenDeletionConfig",
    "TokenMaskingConfig",
    "WholeTargetConfig",
    "count_of",
]

Integers = npt.NDArray[np.int64]
Rate = Annotated[float, Field(gt=0, lt=1)]


class PlainText(NamedTuple):
    """A row of text before anything is done to it.

    symbols    (t,) without a boundary, at least one
    sentences  (s,) where each sentence begins, the first one at 0
    """

    symbols: Integers
    sentences: Integers


class Corrupted(NamedTuple):
    """The pair of a damaged row: the input of the encoder, and the output of the decoder.

    source  (s,) the input of the encoder, without the boundary that ends it
    target  (t,) the symbols that the decoder writes
    start   the position of the first symbol of the target
    ends    whether the boundary ends the target and is predicted
    """

    source: Integers
    target: Integers
    start: int = 0
    ends: bool = True


class CorruptionConfig(Config):
    """Base of every corruption of a text; the table CORRUPTIONS lists the kinds.

    ``placed``: whether targets begin at given positions.
    """

    placed: ClassVar[bool] = False

    @property
    def permutes(self) -> bool:
        """Hook: whether it changes the order of sentences, of which some row must then have two. By default it does
        not."""
        return False

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        """Returns source and target of a row, by random numbers of ``chance`` alone."""
        raise NotImplementedError

    def longest(self, length: int) -> Longest:
        """Returns the most symbols of sources and targets, with their boundaries, of rows of up to ``length`` symbols
        with a boundary; the position after the last one where targets are placed."""
        raise NotImplementedError

    def usual(self, length: int) -> Longest:
        """Returns the usual numbers of symbols of a source and a target of a row of ``length`` symbols with a boundary,
        for which costs are counted."""
        raise NotImplementedError

    def sentinels(self, length: int) -> int:
        """Hook: returns how many sentinels rows of up to ``length`` symbols with a boundary need. By default none."""
        return 0

    def refusal(self, length: int) -> str | None:
        """Hook: returns why it cannot be done to rows of up to ``length`` symbols with a boundary; None where it can,
        which is the default."""
        return None

    def at(self, epoch: int) -> CorruptionConfig:
        """Hook: returns the corruption of an epoch. By default it is the same in all epochs."""
        return self

    def every(self) -> tuple[CorruptionConfig, ...]:
        """Hook: returns the corruptions of all epochs, in order; an evaluation uses the last one by default."""
        return (self,)


class WholeTargetConfig(CorruptionConfig):
    """Base of corruptions whose target is the whole row."""

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        """Returns the row as the encoder reads it, with the places where sentences begin if these stay whole."""
        raise NotImplementedError

    def damaged_length(self, symbols: float) -> float:
        """Returns the usual number of symbols of a damaged row that had ``symbols`` symbols."""
        raise NotImplementedError

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        return Corrupted(self.damaged(text, symbols, chance).symbols, text.symbols)

    def longest(self, length: int) -> Longest:
        return Longest(length, length)

    def usual(self, length: int) -> Longest:
        return Longest(max(round(self.damaged_length(length - 1)), 0) + 1, length)


def count_of(rate: float, symbols: int) -> int:
    """Returns how many of ``symbols`` symbols are chosen: the share ``rate``, rounded, and at least one."""
    return min(max(round(rate * symbols), 1), symbols)


def unordered(symbols: Integers) -> PlainText:
    """Returns a row of which only the first sentence is known to begin somewhere."""
    return PlainText(symbols, np.zeros(1, np.int64))


class TokenMaskingConfig(WholeTargetConfig, kind="token_masking"):
    """Symbols at random places become [MASK] (arXiv:1910.13461, section 2.2). With ``replaced`` 0.1 it is the
    BERT-style objective of T5, and with 0 its MASS-style one (arXiv:1910.10683, section 3.3.2).

    rate      the share of symbols that are chosen, rounded to a number, which is at least 1
    replaced  the share of the chosen that become another symbol, drawn uniformly, or by chance the same
    """

    rate: Rate = 0.15
    replaced: Fraction = 0.0

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        source = text.symbols.copy()
        places = chance.choice(len(source), count_of(self.rate, len(source)), replace=False)
        source[places] = symbols.mask
        places = places[chance.random(len(places)) < self.replaced]
        source[places] = chance.choice(symbols.drawable, len(places))
        return PlainText(source, text.sentences)

    def damaged_length(self, symbols: float) -> float:
        return symbols


class TokenDeletionConfig(WholeTargetConfig, kind="token_deletion"):
    """Symbols at random places are deleted, so that it must be found out where any is missing (arXiv:1910.13461,
    section 2.2).

    rate  the share of symbols that are deleted, rounded to a number, which is at least 1
    """

    rate: Rate = 0.15

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        count = len(text.symbols)
        return unordered(np.delete(text.symbols, chance.choice(count, count_of(self.rate, count), replace=False)))

    def damaged_length(self, symbols: float) -> float:
        return symbols * (1 - self.rate)


class TextInfillingConfig(WholeTargetConfig, kind="text_infilling"):
    """Each of several spans becomes a single [MASK], of any length; one of length 0 is a [MASK] where nothing is
    missing (arXiv:1910.13461, section 2.2).

    Lengths are drawn until they add up to as many symbols as the rate asks for, and the last one is cut. Spans do not
    overlap, and all ways to place them are equally likely; two may touch. Spans of length 0 that would make a source
    longer than its row are left out, which happens where few symbols are hidden.

    rate  the share of symbols that are hidden, rounded to a number, which is at least 1; 0.3 as in the released code
    mean  of the Poisson distribution of the lengths
    """

    rate: Rate = 0.3
    mean: PositiveFloat = 3.0

    def refusal(self, length: int) -> str | None:
        return too_long(self.mean, self.rate, length)

    def span_lengths(self, hidden: int, chance: np.random.Generator) -> Integers:
        """Returns lengths of spans of ``hidden`` symbols together, in random order, at most as many as symbols."""
        lengths: list[int] = []
        left = hidden
        while left > 0:
            lengths.append(min(int(chance.poisson(self.mean)), left))
            left -= lengths[-1]
        spans = np.array(lengths, np.int64)
        spans = np.delete(spans, np.flatnonzero(spans == 0)[: max(len(spans) - hidden, 0)])
        return chance.permutation(spans)

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        count = len(text.symbols)
        lengths = self.span_lengths(count_of(self.rate, count), chance)
        pieces = np.ones(count - int(lengths.sum()) + len(lengths), np.int64)
        is_span = np.zeros(len(pieces), np.bool_)
        is_span[chance.choice(len(pieces), len(lengths), replace=False)] = True
        pieces[is_span] = lengths
        begins = np.cumsum(pieces) - pieces
        # A span at the end begins after the last symbol where its length is 0; the symbol read there is overwritten.
        return unordered(np.where(is_span, symbols.mask, text.symbols[np.minimum(begins, count - 1)]))

    def damaged_length(self, symbols: float) -> float:
        return symbols * (1 - self.rate + self.rate / self.mean)


def too_long(mean: float, rate: float, length: int) -> str | None:
    """Returns why spans of this mean length do not fit into rows of up to ``length`` symbols; None where they do."""
    hidden = count_of(rate, length - 1)
    if mean <= hidden:
        return None
    return (
        f"spans of {mean:g} symbols do not fit into a row of {length}, of which {rate:g} are hidden, that is {hidden}; "
        "shorten noise.mean, or raise noise.rate or length"
    )


class SentencePermutationConfig(WholeTargetConfig, kind="sentence_permutation"):
    """The sentences of a row stand in random order (arXiv:1910.13461, section 2.2). A separator between documents
    belongs to the sentence before it."""

    @property
    def permutes(self) -> bool:
        return True

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        sentences = np.split(text.symbols, text.sentences[1:])
        order = chance.permutation(len(sentences))
        lengths = np.array([len(sentences[number]) for number in order])
        return PlainText(np.concatenate([sentences[number] for number in order]), np.cumsum(lengths) - lengths)

    def damaged_length(self, symbols: float) -> float:
        return symbols


class DocumentRotationConfig(WholeTargetConfig, kind="document_rotation"):
    """A row is rotated so that it begins with one of its symbols, any as likely (arXiv:1910.13461, section 2.2)."""

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        return unordered(np.roll(text.symbols, -int(chance.integers(len(text.symbols)))))

    def damaged_length(self, symbols: float) -> float:
        return symbols


class DeshufflingConfig(WholeTargetConfig, kind="deshuffling"):
    """The symbols of a row stand in random order (arXiv:1910.10683, section 3.3.1)."""

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        return unordered(chance.permutation(text.symbols))

    def damaged_length(self, symbols: float) -> float:
        return symbols


class ComposedConfig(WholeTargetConfig, kind="composed"):
    """Several corruptions in turn (arXiv:1910.13461, section 2.2: text infilling and sentence permutation).

    members  the corruptions, in order; a permutation of sentences comes first, for nothing else keeps them whole
    """

    members: tuple[CorruptionConfig, ...] = (SentencePermutationConfig(), TextInfillingConfig())

    def conflicts(self) -> Iterator[str]:
        if len(self.members) < 2:
            yield "members are two or more; set noise to the one alone"
        for number, member in enumerate(self.members):
            if not isinstance(member, WholeTargetConfig):
                yield f"members.{number}: {member.kind} decides the target, and cannot be one of several"
            elif number and member.permutes:
                yield f"members.{number}: {member.kind} must come first; others keep no sentence whole"

    @property
    def permutes(self) -> bool:
        return any(member.permutes for member in self.members)

    def refusal(self, length: int) -> str | None:
        return next(filter(None, (member.refusal(length) for member in self.members)), None)

    def damaged(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> PlainText:
        for member in self.members:
            assert isinstance(member, WholeTargetConfig)
            text = member.damaged(text, symbols, chance)
        return text

    def damaged_length(self, symbols: float) -> float:
        for member in self.members:
            assert isinstance(member, WholeTargetConfig)
            symbols = member.damaged_length(symbols)
        return symbols
