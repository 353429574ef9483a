"""Any data set of the Hugging Face hub, streamed: only a window of documents is stored here at a time."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from datamodules.core.documents import Corpus, Document, Documents, DocumentStream, Limit, Split
from datamodules.core.errors import DataError
from datamodules.core.reading import cut
from datamodules.text.articles import headed
from datamodules.text.sources import SourceConfig, split_by_hash
from lit_transformers.config import Fraction, Plain, Positive, canonical_hash, nearest

__all__ = ["HubConfig", "commit", "streamed", "unreachable"]

HELD_OUT = "-by-lines"
"""Part of the fingerprint of data of which a share is held out: changes when the share is another one."""
ANYWHERE = ("name", "revision", "window")
"""The fields of the config that say where the data are and in which order they are read. All others decide what the
documents of a split are."""
FIRST: dict[str, Plain] = {"epoch": 0, "window": 0, "rows": None, "first": 0, "bytes": 0, "index": 0}


class HubConfig(SourceConfig, kind="hub"):
    """A data set by its name on the hub, or a local folder that ``datasets.load_dataset`` can read.

    subset      the configuration of the data set, such as wikitext-103-raw-v1
    revision    branch, tag or commit; the fingerprint carries the commit it stands for
    column      the column that holds the text
    rows        documents: each row is a document. wikitext: each row is a line, each article a document
    train       the hub's names of the splits; where validation or test is None, its documents are a share
    validation  ``held_out`` of the train split, chosen by a hash of the text
    test
    window      number of documents within which training shuffles
    """

    name: str
    subset: str | None = None
    revision: str | None = None
    column: str = "text"
    rows: Literal["documents", "wikitext"] = "documents"
    train: str = "train"
    validation: str | None = "validation"
    test: str | None = "test"
    held_out: Fraction = 0.05
    window: Positive = 1000

    def build(self) -> Corpus:
        return _HubCorpus(self)

    def hub_split(self, split: Split) -> str:
        """Returns the hub's name of the split that holds the documents of ``split``."""
        hub_name = {"train": self.train, "validation": self.validation, "test": self.test}[split]
        return self.train if hub_name is None else hub_name

    def keeps(self, split: Split, text: bytes) -> bool:
        """Whether a document of the hub's split belongs to ``split``."""
        if self.hub_split(split) != self.train:
            return True
        validation, test = (self.held_out if hub_name is None else 0.0 for hub_name in (self.validation, self.test))
        return split_by_hash(text, validation, test) == split


@cache
def _open(config: HubConfig, split: Split) -> Any:
    """Returns the streaming data set. Raises DataError: no network, no such data set, split or column."""
    return streamed(config.name, config.subset, config.hub_split(split), config.revision, [config.column])


def streamed(name: str, subset: str | None, split: str, revision: str | None, columns: Sequence[str]) -> Any:
    """Returns a split of a data set of the hub, or of a local folder, which is read as a stream.

    Raises DataError: no network, no such data set or split, one of the columns is missing.
    """
    import datasets

    try:
        dataset = datasets.load_dataset(name, subset, split=split, revision=revision, streaming=True)
    except Exception as error:  # the library raises a dozen kinds, some of its HTTP client
        raise unreachable(name, error) from None
    for column in columns:
        if dataset.column_names is not None and column not in dataset.column_names:
            raise DataError(f"hub data set {name}: no column {column!r}; {nearest(column, dataset.column_names)}")
    return dataset


def unreachable(name: str, error: Exception) -> DataError:
    """Returns the error for a data set of text or of pairs that cannot be read, with the user's remedies."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(
        f"hub data set {name}: cannot be read ({reason}); check its name, subset, splits and the network, "
        "or use local text (source=files, source=stdlib; of pairs source=parallel, source=messages)"
    )


class _HubCorpus(Corpus):
    def __init__(self, config: HubConfig) -> None:
        self.config = config
        held_out = HELD_OUT if None in (config.validation, config.test) else ""
        whole, chosen = HubConfig(name=config.name).to_dict(), config.to_dict()
        part = {name: value for name, value in chosen.items() if name not in ANYWHERE and value != whole[name]}
        suffix = f"-{canonical_hash(part)}" if part else ""
        self.fingerprint = f"hub-{commit(config.name, config.revision)}{held_out}{suffix}"

    def documents(self, split: Split) -> _HubDocuments:
        return _HubDocuments(self.config, split)


def commit(name: str, revision: str | None) -> str:
    """Returns the commit on the hub, or a hash of a local folder's files. Raises DataError."""
    folder = Path(name)
    if folder.is_dir():
        digest = hashlib.sha256()
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(file.relative_to(folder).as_posix().encode(errors="surrogateescape"))
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:32]
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    except Exception as error:  # as in streamed
        raise unreachable(name, error) from None


class _HubDocuments(Documents):
    """The documents of a split. Every rank, and every worker of one, reads all of them from the hub, and encodes those
    of its lanes, and others whose length nobody has entered into the cache."""

    def __init__(self, config: HubConfig, split: Split) -> None:
        self.config, self.split = config, split

    def __iter__(self) -> Iterator[Document]:
        stream = self.evaluation(Limit())
        while (item := stream.take()) is not None:
            yield item[1]

    def name(self, ordinal: int) -> str:
        return f"{self.config.name}:{self.config.hub_split(self.split)}:{ordinal + 1}"

    def training(self, seed: int) -> DocumentStream:
        return _Windows(self, seed)

    def evaluation(self, limit: Limit) -> DocumentStream:
        return _HubInOrder(self, limit)

    def texts(self, dataset: Any, state: Plain) -> Iterator[tuple[bytes, Plain]]:
        """Yields each document from ``state`` on (None: the beginning), with the state after it."""
        if state is not None:
            dataset.load_state_dict(state)
        rows = self._articles(dataset) if self.config.rows == "wikitext" else self._rows(dataset)
        return (item for item in rows if self.config.keeps(self.split, item[0]))

    def pieces(self, text: bytes) -> Iterator[bytes]:
        return cut(BytesIO(text), self.config.piece)

    def _rows(self, dataset: Any) -> Iterator[tuple[bytes, Plain]]:
        try:
            # Not iter(): within a worker of a DataLoader it would split the data into shards of its own.
            for row in dataset.iter(batch_size=1):
                value = row[self.config.column][0]
                if not isinstance(value, str):
                    kind = type(value).__name__
                    raise DataError(f"hub data set {self.config.name}: {self.config.column!r} holds {kind}, not text")
                yield value.encode(errors="replace"), dataset.state_dict()
        except (OSError, EOFError) as error:
            raise unreachable(self.config.name, error) from None

    def _articles(self, dataset: Any) -> Iterator[tuple[bytes, Plain]]:
        text, has_title, previous_state = bytearray(), False, None
        for title, line, state in headed(self._rows(dataset)):
            if title is not None and has_title:
                yield bytes(text), previous_state
                text.clear()
            has_title = has_title or title is not None
            text += line if line.endswith(b"\n") else line + b"\n"
            previous_state = state
        if text:
            yield bytes(text), previous_state


class _HubInOrder(DocumentStream):
    """One pass in order."""

    def __init__(self, documents: _HubDocuments, limit: Limit) -> None:
        self.documents, self.limit = documents, limit
        self.go_to({"ordinal": 0})

    def state(self) -> Plain:
        return {"ordinal": self.ordinal}

    def go_to(self, state: Plain) -> None:
        self.ordinal = int(state["ordinal"])
        self.items = self._walk(self.ordinal)

    def take(self) -> tuple[int, Document] | None:
        item = next(self.items, None)
        if item is not None:
            self.ordinal = item[0] + 1
        return item

    def _walk(self, start: int) -> Iterator[tuple[int, Document]]:
        ordinal = size = 0
        for text, _ in self.documents.texts(
            _independent_copy(_open(self.documents.config, self.documents.split)), None
        ):
            for piece in self.documents.pieces(text):
                if ordinal == self.limit.documents or (self.limit.bytes is not None and size >= self.limit.bytes):
                    return
                if ordinal >= start:
                    document = Document(self.documents.name(ordinal), piece)
                    yield ordinal, self.limit.applied(document, size)
                ordinal, size = ordinal + 1, size + len(piece)


class _Windows(DocumentStream):
    """An endless stream: whole windows of documents are read, each is shuffled by (seed, pass, window).

    The state names the rows that a window starts from and the place in the window: the shuffle buffer of the library
    could not be restored exactly.
    """

    def __init__(self, documents: _HubDocuments, seed: int) -> None:
        self.documents, self.seed = documents, seed
        self.window: list[tuple[int, Document]] = []
        self.loaded: dict[str, Plain] | None = None
        self.go_to(FIRST)

    def state(self) -> Plain:
        return dict(self.at)

    def go_to(self, state: Plain) -> None:
        self.at: dict[str, Plain] = dict(state)
        if not self._is_loaded():
            self.texts = self._texts_from(self.at["rows"])
            self._load()

    def take(self) -> tuple[int, Document]:
        while self.at["index"] >= len(self.window):
            self._advance()
        item = self.window[self.at["index"]]
        self.at["index"] += 1
        return item

    def _is_loaded(self) -> bool:
        return self.loaded is not None and all(self.at[key] == self.loaded[key] for key in ("epoch", "window"))

    def _texts_from(self, rows: Plain) -> Iterator[tuple[bytes, Plain]]:
        return self.documents.texts(_independent_copy(_open(self.documents.config, self.documents.split)), rows)

    def _load(self) -> None:
        """Reads the window at ``self.at`` from ``self.texts``, which are at its beginning."""
        self.window, self.after = [], self.at["rows"]
        for text, after in self.texts:
            for piece in self.documents.pieces(text):
                ordinal = self.at["first"] + len(self.window)
                self.window.append((ordinal, Document(self.documents.name(ordinal), piece)))
            self.after = after
            if len(self.window) >= self.documents.config.window:
                break
        self.loaded = dict(self.at)
        self.size = len(self.window)
        key = [self.seed, self.at["epoch"], self.at["window"], 0]
        order = np.random.default_rng(key).permutation(self.size)
        self.window = [self.window[place] for place in order]

    def _advance(self) -> None:
        """Goes to the next window, or to the next pass where this one has ended."""
        at = self.at
        if self.size:
            self.at = at | {
                "window": at["window"] + 1,
                "rows": self.after,
                "first": at["first"] + self.size,
                "index": 0,
            }
        elif at["first"]:
            self.at = FIRST | {"epoch": at["epoch"] + 1}
            self.texts = self._texts_from(None)
        else:
            name, split = self.documents.config.name, self.documents.split
            raise DataError(f"hub data set {name}: no {split} document; set data.source.{split} to another split")
        self._load()


def _independent_copy(dataset: Any) -> Any:
    """Returns a copy with a position of its own: the library keeps the position on the data set."""
    return copy.deepcopy(dataset)
