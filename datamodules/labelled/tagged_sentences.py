"""Tagged sentences as rows of the pieces of their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch

from datamodules.core.documents import SPLITS, Split, cache_folder
from datamodules.core.errors import DataError
from datamodules.core.examples import Example
from datamodules.core.index import IndexedCorpus, cached_value
from datamodules.core.tokenizers import Symbols, Tokenizer
from datamodules.labelled.texts import StoredTexts, TextExamplesConfig
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import LABEL, WordTagLabels
from lit_transformers.config import Plain, canonical_hash, nearest
from lit_transformers.entities import LONGEST, OUTSIDE, SCHEMES, EntityRules, Scheme, scheme_of

__all__ = ["TagInventory", "TaggedSentences", "WordPieces", "inventory_of", "stored_words", "word_pieces"]

VERSION = 1
"""Part of every cache key. Change it when the inventory of a corpus changes."""
CHUNK = 512
"""The number of sentences whose entities are computed together."""


class WordPieces(NamedTuple):
    """The pieces of a sentence. symbols: of all words. words: the number of the word of each symbol, from 1. cut: the
    number of words without a symbol, because the row is too short."""

    symbols: Symbols
    words: Symbols
    cut: int


def word_pieces(tokenizer: Tokenizer, words: Sequence[str], longest: int) -> WordPieces:
    """Returns the first ``longest`` pieces of words, tokenized within their sentence. A word without pieces becomes the
    unknown symbol, or [MASK] if the tokenizer has no unknown symbol."""
    pieces = [own if len(own) else _placeholder(tokenizer) for own in tokenizer.encode_words(words)]
    symbols = np.concatenate([np.zeros(0, np.int64), *pieces])[:longest].astype(np.int64)
    numbers = np.repeat(np.arange(1, len(pieces) + 1), [len(own) for own in pieces])[:longest]
    return WordPieces(symbols, numbers, len(pieces) - (int(numbers[-1]) if len(numbers) else 0))


def _placeholder(tokenizer: Tokenizer) -> Symbols:
    return np.array([RowSymbols.of(tokenizer).mask if tokenizer.unknown is None else tokenizer.unknown])


class TagInventory(NamedTuple):
    """The tags and entities of a corpus. names: of the tags, in the order of their numbers. entities: of the training
    split, each as its words joined by spaces; empty if tags do not spell entities."""

    names: tuple[str, ...]
    entities: frozenset[str]


def stored_pairs(stored: bytes) -> list[tuple[str, str]]:
    """Returns the words of a stored sentence, each with its tag."""
    pairs = (line.partition("\t") for line in stored.decode().split("\n") if line)
    return [(word, tag) for word, _, tag in pairs]


def stored_words(stored: bytes) -> list[str]:
    """Returns the words of a stored sentence."""
    return [word for word, _ in stored_pairs(stored)]


def inventory_of(corpus: IndexedCorpus, labels: Sequence[str], scheme: Scheme | Literal["none"] | None) -> TagInventory:
    """Returns the inventory of a corpus, from the cache if possible. labels: the allowed tags; () for any. scheme: an
    argument of ``scheme_of``. Raises DataError, which names the line, for a tag outside ``labels``, and for a tag that
    the scheme does not allow at its place."""
    key = [corpus.fingerprint, [*labels], scheme]
    names, entities = _remembered(key, lambda: [*map(sorted, _inventory(corpus, labels, scheme))])
    return TagInventory(tuple(labels) or tuple(sorted(names, key=_outside_first)), frozenset(entities))


def _outside_first(tag: str) -> tuple[bool, str]:
    return tag != OUTSIDE, tag


def _remembered(key: Plain, computed: Callable[[], Plain]) -> Plain:
    """Returns the value of ``computed``, from the cache if possible."""
    return cached_value(cache_folder() / "tags" / canonical_hash([VERSION, key], 32), computed)


def _inventory(corpus: IndexedCorpus, labels: Sequence[str], given: Scheme | Literal["none"] | None) -> TagInventory:
    """Returns the tags, in any order, and the entities of the training split."""
    first_places: dict[str, str] = {}
    for split in SPLITS:
        for name, stored in _sentences(corpus, split):
            for number, (_, tag) in enumerate(stored_pairs(stored)):
                if tag not in first_places:
                    first_places[tag] = _line_of(name, stored, number)
    if labels and (unknown := [tag for tag in first_places if tag not in labels]):
        hint = nearest(unknown[0], labels)
        raise DataError(f"{first_places[unknown[0]]}: the tag {unknown[0]!r} is not in data.source.labels; {hint}")
    names = tuple(labels) or tuple(sorted(first_places, key=_outside_first))
    if len(names) < 2:
        raise DataError(f"data.source: every word has the tag {names[0]!r}; correct data.source.label")
    scheme = scheme_of(names, given)
    if scheme is None:
        return TagInventory(names, frozenset())
    for tag, place in first_places.items():
        if tag != OUTSIDE and not re.fullmatch(f"[{SCHEMES[scheme].prefixes}](-.+)?", tag):
            known = ", ".join(f"{prefix}-" for prefix in SCHEMES[scheme].prefixes if prefix != OUTSIDE)
            raise DataError(
                f"{place}: the tag {tag!r} begins with no prefix of {scheme}, {known}; correct data.source.scheme"
            )
    return TagInventory(names, _entities(corpus, names, scheme))


def _entities(corpus: IndexedCorpus, names: Sequence[str], scheme: Scheme) -> frozenset[str]:
    """Returns the entities of the training split. Raises DataError for a tag, in any split, outside an entity."""
    rules, numbers, entities = EntityRules(names, scheme), {name: number for number, name in enumerate(names)}, set()
    for split in SPLITS:
        sentences = [*_sentences(corpus, split)]
        for first in range(0, len(sentences), CHUNK):
            chunk = [(name, stored, stored_pairs(stored)) for name, stored in sentences[first : first + CHUNK]]
            tags = torch.full((len(chunk), max(len(pairs) for _, _, pairs in chunk)), rules.outside)
            for row, (_, _, pairs) in enumerate(chunk):
                tags[row, : len(pairs)] = torch.tensor([numbers[tag] for _, tag in pairs])
            spans = rules.spans(tags)
            for (name, stored, pairs), begins, stops in zip(
                chunk, spans.begins.tolist(), spans.stops.tolist(), strict=True
            ):
                own = [(start, stops[start]) for start in range(len(pairs)) if begins[start]]
                covered = {number for start, stop in own for number in range(start, stop)}
                for number, (_, tag) in enumerate(pairs):
                    if tag != OUTSIDE and number not in covered:
                        raise DataError(_broken(name, stored, number, tag, scheme))
                if split == "train":
                    entities |= {" ".join(word for word, _ in pairs[start:stop]) for start, stop in own}
    return frozenset(entities)


def _broken(name: str, stored: bytes, number: int, tag: str, scheme: Scheme) -> str:
    """Returns the message for a tag that is in no entity."""
    pairs, place = stored_pairs(stored), _line_of(name, stored, number)
    before = f"after {pairs[number - 1][1]}" if number else "at the beginning of a sentence"
    remedy = "set data.source.scheme to IOB1 or none" if scheme == "IOB2" else "correct data.source.scheme"
    return f"{place}: the tag {tag} {before} is in no entity of {scheme}; correct the line, or {remedy}"


def _line_of(name: str, stored: bytes, number: int) -> str:
    """Returns the place of a word, ``file:line``. ``name`` is the place of the first word of its sentence."""
    lines = [offset for offset, line in enumerate(stored.decode().split("\n")) if line]
    file, _, first = name.rpartition(":")
    return f"{file}:{int(first) + lines[number]}"


def _sentences(corpus: IndexedCorpus, split: Split) -> Iterator[tuple[str, bytes]]:
    """Yields the names and stored forms of the sentences of a split; none if the split is empty."""
    if corpus.count(split):
        for document in corpus.documents(split):
            yield document.name, document.text


class TaggedSentences(StoredTexts):
    """Sentences of an index, stored as a line for each word: the word, a tab and its tag."""

    def __init__(
        self, config: TextExamplesConfig, corpus: IndexedCorpus, inventory: TagInventory, tags: WordTagLabels
    ) -> None:
        super().__init__(config, corpus)
        self.known, self.scheme = inventory.entities, tags.scheme
        self.longest_known = min(max((entity.count(" ") + 1 for entity in self.known), default=0), LONGEST)

    @cached_property
    def numbers_of(self) -> Mapping[str, int]:
        """The number of each tag of the files in the network's order of labels."""
        return dict(zip(self.config.class_names[LABEL], self.numbers[LABEL], strict=True))

    def decisive(self) -> list[Plain]:
        return [self.config.class_names[LABEL], self.scheme]

    def texts_of(self, stored: bytes) -> Sequence[bytes]:
        return [" ".join(stored_words(stored)).encode()]

    def example_of(self, stored: bytes) -> Example:
        pairs, rows = stored_pairs(stored), self.rows
        words = [word for word, _ in pairs]
        pieces = word_pieces(self.tokenizer, words, rows.longest)
        labels = [(self.numbers_of[tag], self._known_from(words, number)) for number, (_, tag) in enumerate(pairs)]
        numbers = np.append(pieces.words, np.zeros(len(rows.end), np.int64)).astype(np.int64)
        symbols, _ = rows.row(pieces.symbols)
        return Example(symbols, labels, words=numbers)

    def reading_messages(self) -> list[str]:
        return [*self.corpus.messages, *_remembered([self.fingerprint, "cut"], lambda: [*self._cut()])]

    def _known_from(self, words: Sequence[str], start: int) -> int:
        """Returns the training entities that begin at a word, as the bits of ``WordTagLabels``: bit n - 1 for n
        words."""
        last = min(self.longest_known, len(words) - start)
        return sum(
            1 << count - 1 for count in range(1, last + 1) if " ".join(words[start : start + count]) in self.known
        )

    def _cut(self) -> Iterator[str]:
        """Yields a message for each split whose words were cut from rows."""
        for split in SPLITS:
            if split == "test" and not self.corpus.count("test"):
                continue
            cut = words = 0
            for _, stored in _sentences(self.corpus, split):
                own = stored_words(stored)
                words += len(own)
                cut += word_pieces(self.tokenizer, own, self.rows.longest).cut
            if cut:
                yield (
                    f"{cut:,} of {words:,} words of {split} are beyond the {self.config.length} symbols of a row; they "
                    "count as wrong in measures"
                )
