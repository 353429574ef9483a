"""Given phrases of one type or several, and where they stand in rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.core.reading import damage, locate, text_lines
from datamodules.core.tokenizers import Tokenizer
from lit_transformers.config import Config, canonical_hash, nearest

__all__ = ["Phrases", "PhrasesConfig"]

Integers = npt.NDArray[np.int64]
Symbols = tuple[int, ...]


class PhrasesConfig(Config):
    """Phrases by type, as of named entities: {"city": ["New York", "Paris"]}.

    Where neither ``listed`` nor ``path`` is set, they are those that the source itself knows (SourceConfig.phrases).

    listed  the phrases of each type
    path    a file, relative to LIT_DATA or to the working folder, of which a line is a phrase, or a type, a tab and a
            phrase
    types   those of the types that are used; none for all
    """

    listed: dict[str, list[str]] = field(default_factory=dict)
    path: str | None = None
    types: tuple[str, ...] = ()

    def conflicts(self) -> Iterator[str]:
        if self.listed and self.path is not None:
            yield "phrases are listed or in a file; drop listed or path"

    def build(self, tokenizer: Tokenizer, known: Mapping[str, Sequence[str]]) -> Phrases:
        """Returns the phrases in symbols. ``known``: those of the source.

        A phrase that holds text without its own symbol, or a special symbol, is left out, because no text has it; of a
        phrase that is named twice the first type counts. Raises DataError where none is left, or a type is unknown.
        """
        by_type = self.listed or (known if self.path is None else _read(self.path))
        if lacking := sorted({*self.types} - {*by_type}):
            raise DataError(
                f"data.noise.phrases.types: there are no phrases of {lacking[0]}; {nearest(lacking[0], by_type)}"
            )
        by_type = {name: by_type[name] for name in self.types or by_type}
        phrases: dict[Symbols, int] = {}
        nameless = {tokenizer.unknown} | (set() if tokenizer.specials is None else {*tokenizer.specials.all})
        for number, of_type in enumerate(by_type.values()):
            for phrase in of_type:
                try:
                    symbols = tuple(tokenizer.encode(b" " + phrase.strip().encode()).tolist())
                except UnicodeEncodeError:
                    continue
                if symbols and nameless.isdisjoint(symbols):
                    phrases.setdefault(symbols, number)
        if not phrases:
            raise DataError(
                f"data.noise.phrases: none of {sum(map(len, by_type.values()))} phrases can be written by tokenizer "
                f"{tokenizer.kind}; set data.noise.phrases.listed, or data.noise.phrases.path to a file"
            )
        return Phrases(phrases)


def _read(path: str) -> dict[str, list[str]]:
    """Returns the phrases of a file by type. Raises DataError where it cannot be read."""
    place = locate(path, "data.noise.phrases.path")
    with damage(place), place.open("rb") as file:
        lines = [*text_lines(file, str(place))]
    by_type: dict[str, list[str]] = {}
    for line in filter(str.strip, lines):
        kind, _, phrase = line.rstrip("\r\n").rpartition("\t")
        by_type.setdefault(kind, []).append(phrase)
    return by_type


class Occurrences(NamedTuple):
    """The phrases in a row, from left to right, none of which share a symbol: the place of the first symbol of each,
    the place after its last, and its type, each (n,)."""

    start: Integers
    stop: Integers
    kind: Integers


class Phrases:
    """``types``: the type of each phrase, by its symbols. A search is cheap for any number of phrases.

    alike: for each type and number of symbols, the phrases that have them.
    """

    def __init__(self, types: Mapping[Symbols, int]) -> None:
        self.types = dict(types)
        self.lengths: dict[int, list[int]] = {}
        self.alike: dict[tuple[int, int], list[Symbols]] = {}
        for symbols, kind in self.types.items():
            self.lengths.setdefault(symbols[0], []).append(len(symbols))
            self.alike.setdefault((kind, len(symbols)), []).append(symbols)
        self.lengths = {first: sorted(set(lengths), reverse=True) for first, lengths in self.lengths.items()}

    @property
    def fingerprint(self) -> str:
        """A hash of all phrases and their types."""
        return canonical_hash([[list(symbols), kind] for symbols, kind in self.types.items()], 32)

    def occurrences(self, symbols: Integers, words: Integers) -> Occurrences:
        """Returns the phrases of a row, the longest one where several begin, each of whole words of one segment.

        words (w, 2): where each word begins, and the place after it, as in ``noises.words_of``.
        """
        row, ends = symbols.tolist(), set(words[:, 1].tolist())
        reached, spans = 0, []
        for start in words[:, 0].tolist():
            if start < reached:
                continue
            for length in self.lengths.get(row[start], ()):
                stop, kind = start + length, self.types.get(tuple(row[start : start + length]))
                if kind is not None and stop in ends:
                    spans.append((start, stop, kind))
                    reached = stop
                    break
        return Occurrences(*np.array(spans, np.int64).reshape(-1, 3).T)
