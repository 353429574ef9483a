"""Pairs of texts on disk: an index of the texts, and memory-mapped files of their symbols and the start of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from io import BytesIO
from itertools import compress, islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import SPLITS, Document, Split, cache_folder
from datamodules.core.encoding import EncodedTexts, symbol_type
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, IndexedDocuments, Text, make_once, writing
from datamodules.core.integers import IntegerWriter
from datamodules.core.learning import TextsWithin
from datamodules.core.preparing import TextCount
from datamodules.core.processes import in_processes
from datamodules.core.reading import OPEN_FILES
from datamodules.core.stored import StoredSymbols
from datamodules.core.tokenizers import (
    BPEConfig,
    DecodedText,
    Tokenizer,
    TokenizerConfig,
    cached_tokenizer,
    key_of,
    tokenizer_from_dict,
)
from datamodules.pairs.source import Lengths, Longest, Pair, Pairs, PairsConfig, PairsRead, Vocabularies
from lit_transformers.config import Plain, canonical_hash

__all__ = ["WHOLE", "StoredPairs", "TextPairsConfig", "Texts", "pair_text", "texts_of", "tokenizers_of"]

VERSION = 1
"""Part of every cache key: changes when the same texts and tokenizers give other symbols."""
WHOLE = 1 << 30
"""A size of pieces so large that no pair is cut."""
BLOCK = 1 << 17
"""How many pairs a process encodes. A kept block is one of them: raise ``VERSION``."""
BATCH = 1 << 12
"""How many pairs are encoded at a time."""
BUFFER = 1 << 20
META = "meta.json"
SIDES = ("source", "target")
WRITTEN, READ = json.JSONEncoder(ensure_ascii=False), json.JSONDecoder()


class Texts(NamedTuple):
    """The texts of a pair: each of the targets is correct; training reads the first."""

    source: str
    targets: tuple[str, ...]


def pair_text(origin: str, split: Split, row: int, texts: Texts, container: Path) -> Text:
    """Returns a pair as the text that an index stores. Raises DataError where UTF-8 cannot write it."""
    try:
        content = f"[{', '.join(map(WRITTEN.encode, (texts.source, *texts.targets)))}]".encode()
    except UnicodeEncodeError:
        raise DataError(f"{origin}:{row + 1}: holds a character that UTF-8 cannot write") from None
    return Text(origin, split, BytesIO(content), container, row=row, says=texts.source.encode())


def texts_of(document: Document) -> Texts:
    """Returns the pair that an indexed document holds."""
    source, *targets = READ.raw_decode(document.text.decode())[0]
    return Texts(source, tuple(targets))


class TextPairsConfig(PairsConfig):
    """Base of every config of pairs of texts. ``usual``: the maximum lengths where the config of the data sets none."""

    strings: ClassVar[bool] = False
    usual: ClassVar[Longest] = Longest(256, 256)

    def corpus(self) -> IndexedCorpus:
        """Returns the corpus of the texts (``pair_text``). Raises DataError."""
        raise NotImplementedError

    @property
    def longest(self) -> Longest:
        return self.usual

    def refusal(self, length: int) -> str | None:
        return f"texts of pairs from {self.kind} have their own lengths, so no result for {length} symbols exists"

    def reach(self, length: int) -> Longest:
        return self.usual

    def open(self, how: PairsRead) -> StoredPairs:
        return StoredPairs(self.corpus(), how)

    def vocabularies(self, metadata: Mapping[str, Plain]) -> Vocabularies:
        return _vocabularies(*tokenizers_of(metadata))


def tokenizers_of(metadata: Mapping[str, Plain]) -> tuple[Tokenizer, Tokenizer]:
    """Returns the tokenizers of sources and targets, one object where they share it, from ``Data.checkpoint_metadata``.

    Raises DataError where it holds none.
    """
    if metadata.get("tokenizer") is None:
        raise DataError("the checkpoint keeps no tokenizer, for it was not trained on text")
    target = tokenizer_from_dict(metadata["tokenizer"])
    return target if metadata["source_tokenizer"] is None else tokenizer_from_dict(metadata["source_tokenizer"]), target


def _vocabularies(source: Tokenizer, target: Tokenizer) -> Vocabularies:
    return Vocabularies(source.vocabulary, target.vocabulary, DecodedText(target))


class StoredPairs(Pairs):
    """Pairs of a corpus. The symbols of a split are made when it is first read, and stored."""

    def __init__(self, corpus: IndexedCorpus, how: PairsRead) -> None:
        self.corpus, self.fingerprint = corpus, corpus.fingerprint
        if not corpus.count("train"):
            raise self._no_pair("train")
        if how.trained is not None:
            self.source, self.target = tokenizers_of(how.trained.to_dict())
        elif how.source_tokenizer is None:
            self.target = self.source = self._learned_tokenizer(how.tokenizer, (0, 1), "both")
        else:
            self.source = self._learned_tokenizer(how.source_tokenizer, (0,), "sources")
            self.target = self._learned_tokenizer(how.tokenizer, (1,), "targets")
        self.vocabularies = _vocabularies(self.source, self.target)
        self.key = canonical_hash([VERSION, self.fingerprint, key_of(self.source), key_of(self.target)], 32)

    def _learned_tokenizer(self, config: TokenizerConfig | None, sides: tuple[int, ...], learned_on: str) -> Tokenizer:
        """Returns a tokenizer learned on some sides of the training pairs, cached under ``learned_on``."""
        texts = TextsWithin(self.corpus.documents("train"), partial(_texts_of, sides))
        return cached_tokenizer(config or BPEConfig(), texts, f"{self.fingerprint} {learned_on}")

    def count(self, split: Split) -> int:
        return len(self._documents(split))

    def pair(self, split: Split, ordinal: int) -> Pair:
        source, target = _sides(self._folder(split))
        return Pair(source[ordinal], target[ordinal])

    def references(self, split: Split, ordinal: int) -> tuple[str, ...]:
        return texts_of(self._documents(split)[ordinal]).targets

    def name(self, split: Split, ordinal: int) -> str:
        return self._documents(split).name(ordinal)

    def lengths(self, split: Split) -> Lengths:
        source, target = _sides(self._folder(split))
        return Lengths(np.diff(source.starts), np.diff(target.starts))

    def tokenizers(self) -> dict[str, Plain]:
        source = None if self.source is self.target else self.source.to_dict()
        return {"tokenizer": self.target.to_dict(), "source_tokenizer": source}

    def reading_messages(self, split: Split) -> list[str]:
        messages = [f"{count:,} {reason} when they were read" for reason, count in self.corpus.left_out.items()]
        messages += self.corpus.repeated
        unknown = json.loads((self._folder(split) / META).read_text(encoding="utf-8"))["unknown"]
        for side, tokenizer in zip(SIDES, (self.source, self.target), strict=True):
            if tokenizer.unknown is not None:
                total = int(self.lengths(split)._asdict()[side].sum())
                share = unknown[side] / max(total, 1)
                messages.append(f"{share:.2%} of the {side} symbols unknown")
        return messages

    def _no_pair(self, split: Split) -> DataError:
        """Returns the error of a split without pairs, with the counts of other splits and of pairs left out."""
        counts = [f"{self.corpus.count(other):,} in {other}" for other in SPLITS if other != split]
        counts += [f"{count:,} {reason}" for reason, count in self.corpus.left_out.items()]
        remedy = "correct data.source.path, or the field that names the split or its size"
        return DataError(f"data.source: no pair in the split {split!r} ({', '.join(counts)}); {remedy}")

    def _documents(self, split: Split) -> IndexedDocuments:
        if not self.corpus.count(split):
            raise self._no_pair(split)
        return self.corpus.documents(split)

    def _folder(self, split: Split) -> Path:
        """Returns the folder with the symbols of a split, which are made where they are missing."""
        folder = cache_folder() / "pairs" / self.key / split
        progress = TextCount(self.count(split))
        make_once(folder, META, partial(_write, self._documents(split), self.source, self.target, progress), progress)
        return folder


def _texts_of(sides: tuple[int, ...], document: Document) -> Iterator[Document]:
    """Yields the source, the target or both of a pair, as documents to learn a tokenizer from."""
    texts = texts_of(document)
    for side in sides:
        yield Document(document.name, (texts.source, texts.targets[0])[side].encode())


def _write(
    documents: IndexedDocuments, source: Tokenizer, target: Tokenizer, progress: TextCount, folder: Path
) -> None:
    """Writes the symbols of both sides of all documents, one after another, and the start of each. Processes encode
    blocks of them; those that were complete when a process was killed are kept."""
    unknown, narrow = dict.fromkeys(SIDES, 0), [symbol_type(one.vocabulary).itemsize == 2 for one in (source, target)]
    blocks = [range(start, min(start + BLOCK, len(documents))) for start in range(0, len(documents), BLOCK)]
    tasks = (
        partial(_write_block, folder / f"block-{number:05}", documents, block, (source, target))
        for number, block in enumerate(blocks)
    )
    if len(blocks) > 1:  # a process begins with the words that this one knows
        for tokenizer, texts in zip((source, target), next(_batches(documents, blocks[0])), strict=True):
            _encoded(tokenizer, texts)
    with writing(folder), ExitStack() as opened:
        files = [opened.enter_context((folder / side).open("wb")) for side in SIDES]
        starts = [opened.enter_context(IntegerWriter(folder / f"{side}.npy")) for side in SIDES]
        for writer in starts:
            writer.append(0)
        for block, place in zip(blocks, in_processes(tasks, None if len(blocks) > 1 else 1), strict=True):
            for side, file, writer in zip(SIDES, files, starts, strict=True):
                with (place / side).open("rb") as symbols:
                    shutil.copyfileobj(symbols, file, BUFFER)
                writer.extend(writer.last + np.cumsum(np.load(place / f"{side}.npy"), dtype=np.int64))
            for side, count in json.loads((place / META).read_text(encoding="utf-8")).items():
                unknown[side] += count
            progress.done += len(block)
        (folder / META).write_text(json.dumps({"unknown": unknown, "narrow": narrow}))
        for place in folder.glob("block-*"):
            shutil.rmtree(place)


def _write_block(
    place: Path, documents: IndexedDocuments, block: range, tokenizers: tuple[Tokenizer, Tokenizer]
) -> Path:
    """Writes the symbols of both sides of some documents, and how many each has, to a folder, which may be there
    already. Returns the folder."""
    if place.exists():
        return place
    temporary, unknown = place.with_name(f"{place.name}.partial"), dict.fromkeys(SIDES, 0)
    shutil.rmtree(temporary, ignore_errors=True)
    counts: dict[str, list[npt.NDArray[np.int64]]] = {side: [] for side in SIDES}
    with writing(place), ExitStack() as opened:
        temporary.mkdir()
        files = [opened.enter_context((temporary / side).open("wb")) for side in SIDES]
        for batch in _batches(documents, block):
            for side, file, tokenizer, texts in zip(SIDES, files, tokenizers, batch, strict=True):
                encoded = _encoded(tokenizer, texts)
                file.write(encoded.symbols.astype(symbol_type(tokenizer.vocabulary)).tobytes())
                counts[side].append(encoded.counts)
                if tokenizer.unknown is not None:
                    unknown[side] += int(np.count_nonzero(encoded.symbols == tokenizer.unknown))
        for side in SIDES:
            np.save(temporary / f"{side}.npy", np.concatenate(counts[side]))
        (temporary / META).write_text(json.dumps(unknown), encoding="utf-8")
    with writing(place):
        temporary.rename(place)
    return place


def _batches(documents: IndexedDocuments, block: range) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the sources and the first targets of some documents, many at a time."""
    pairs = map(texts_of, documents.between(block.start, block.stop))
    while batch := [*islice(pairs, BATCH)]:
        yield [texts.source for texts in batch], [texts.targets[0] for texts in batch]


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Returns the symbols of texts. A text of white space has none."""
    has_words = np.fromiter((bool(text.strip()) for text in texts), np.bool_, len(texts))
    encoded = tokenizer.encode_texts([*compress(texts, has_words)])
    counts = np.zeros(len(texts), np.int64)
    counts[has_words] = encoded.counts
    return EncodedTexts(encoded.symbols, counts)


@lru_cache(maxsize=OPEN_FILES)
def _sides(folder: Path) -> tuple[StoredSymbols, StoredSymbols]:
    """Opens the symbols of both sides. Raises DataError where the cache is damaged."""
    try:
        narrow = json.loads((folder / META).read_text(encoding="utf-8"))["narrow"]
        source, target = (
            StoredSymbols(folder / side, folder / f"{side}.npy", is_narrow)
            for side, is_narrow in zip(SIDES, narrow, strict=True)
        )
    except (OSError, EOFError, ValueError, KeyError):
        raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None
    return source, target
