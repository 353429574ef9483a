"""Documents on disk as sentences of symbols, of which any one takes a single read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from datamodules.core.documents import Corpus, Document, Documents, Split, cache_folder
from datamodules.core.errors import DataError
from datamodules.core.index import make_once, writing
from datamodules.core.integers import IntegerWriter, mapped
from datamodules.core.reading import OPEN_FILES
from datamodules.core.stored import StoredSymbols, SymbolWriter
from datamodules.core.tokenizers import Tokenizer
from lit_transformers.config import canonical_hash

__all__ = ["SentenceStore", "Sentences", "opened", "sentences_of"]

VERSION = 1
"""Part of every cache key: changes when the same documents and tokenizer give other sentences or symbols."""
META, SYMBOLS, STARTS, DOCUMENTS = "meta.json", "symbols", "starts.npy", "documents.npy"
GAP = re.compile(r"(?<=\S)[^\S\n]*\n\s*|(?<=[.!?])\s+(?=(?P<next>\S))|(?<=[.!?][\"'”’)])\s+(?=(?P<after_quote>\S))")
"""White space at which a sentence may end. Each run of it is tried once, however long it is."""
OPENERS = "\"'“‘(["
"""Quotes and brackets that a sentence may begin with."""


def sentences_of(document: Document) -> Iterator[Document]:
    """Yields the sentences of a document, each as a document at its own offset.

    A sentence ends at the end of a line, and after ``.``, ``!`` or ``?``, and a quote or bracket that closes behind it,
    where white space and a capital letter, a digit, a quote or an opening bracket follow. An abbreviation before a name
    therefore ends one too. A sentence begins with one space, regardless of the white space before it, as a word within
    a text does: its symbols are the same wherever it stands, and in a row it is apart from the one before.
    """
    text = document.text.decode(errors="surrogateescape")
    start = offset = 0
    for stop, after in [*_gaps(text), (len(text), len(text))]:
        sentence = text[start:stop].encode(errors="surrogateescape")
        content = sentence.strip()
        if content:
            place = document.offset + offset + sentence.index(content)
            yield Document(document.name, b" " + content, place - 1)
        offset += len(text[start:after].encode(errors="surrogateescape"))
        start = after


def _gaps(text: str) -> Iterator[tuple[int, int]]:
    """Yields where the white space between two sentences begins and ends."""
    for gap in GAP.finditer(text):
        following = gap["next"] or gap["after_quote"]
        if following is None or following.isupper() or following.isdigit() or following in OPENERS:
            yield gap.span()


def lines_of(document: Document) -> Iterator[Document]:
    """Yields the lines of a document that are not empty, each as a document at its own offset, with one space before
    it."""
    offset = document.offset
    for line in document.text.splitlines(keepends=True):
        if content := line.strip():
            yield Document(document.name, b" " + content, offset + line.index(content) - 1)
        offset += len(line)


class Sentences:
    """The sentences of a split: a view of files, of which only the parts in use are read.

    symbols: the symbols of every sentence, each of which has some. documents: the ordinal of the first sentence of
    every document, and at the end the number of sentences; a document may have none. Raises DataError where the cache
    is damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            narrow = json.loads((folder / META).read_text(encoding="utf-8"))["narrow"]
            self.symbols = StoredSymbols(folder / SYMBOLS, folder / STARTS, narrow)
            self.documents = mapped(folder / DOCUMENTS)
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None


class SentenceStore:
    """The sentences of a corpus, by a tokenizer. Those of a split are stored when it is first read.

    lines: whether a sentence is a line, regardless of the marks within it. Raises DataError where a split is empty or
    cannot be read.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, lines: bool = False) -> None:
        parts = [VERSION, corpus.fingerprint, tokenizer.to_dict(), *(["lines"] if lines else [])]
        self.corpus, self.tokenizer, self.lines = corpus, tokenizer, lines
        self.folder = cache_folder() / "rows" / canonical_hash(parts, 32)

    @property
    def divide(self) -> Callable[[Document], Iterator[Document]]:
        """The function that yields the sentences of a document."""
        return lines_of if self.lines else sentences_of

    def texts(self, split: Split) -> Iterator[Document]:
        """Yields the sentences of a split as they are written."""
        for document in self.corpus.documents(split):
            yield from self.divide(document)

    def folder_of(self, split: Split) -> Path:
        """Returns the folder of the sentences of a split (``opened``), which are written where they are missing."""
        folder = self.folder / split

        def make(temporary: Path) -> None:
            with writing(folder):
                _write(temporary, self.corpus.documents(split), self.tokenizer, self.divide)

        make_once(folder, META, make)
        return folder


@lru_cache(maxsize=OPEN_FILES)
def opened(folder: Path) -> Sentences:
    """Returns the sentences in a folder of a SentenceStore; they are opened once in a process."""
    return Sentences(folder)


def _write(
    folder: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    divide: Callable[[Document], Iterator[Document]],
) -> None:
    """Writes the symbols of all sentences that have any, one after another, and where each document begins."""
    symbols = (folder / SYMBOLS).open("wb")
    with symbols, IntegerWriter(folder / STARTS) as starts, IntegerWriter(folder / DOCUMENTS) as begins:
        begins.append(0)
        writer = SymbolWriter(symbols, starts, tokenizer)
        for document in documents:
            for sentence in divide(document):
                writer.add(sentence, keep_empty=False)
            begins.append(writer.texts)
    (folder / META).write_text(json.dumps({"narrow": writer.narrow}))
