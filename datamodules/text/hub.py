"""Any data set of the Hugging Face hub, streamed: only a buffer of documents is held here at a time."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from datamodules.core.documents import Corpus, Document, Documents, DocumentStream, Limit, Split, thinned
from datamodules.core.errors import DataError
from datamodules.core.learning import first
from datamodules.core.order import EvenlySpaced, kept, sorted_by
from datamodules.core.reading import cut
from datamodules.text.articles import headed
from datamodules.text.sources import SourceConfig, split_by_hash
from lit_transformers.config import Fraction, Plain, Positive, canonical_hash, nearest

__all__ = ["HubConfig", "commit", "streamed", "unreachable"]

HELD_OUT = "-by-lines"
"""Part of the fingerprint of data of which a share is held out: changes when the share is another one."""
ANYWHERE = ("name", "revision", "window", "buffer")
"""The fields of the config that say where the data are and in which order they are read. All others decide the
documents of a split."""
STRANDS = 4
"""Shards that training reads in turn, a document of each. All of them are opened to resume, each up to its place."""
BUFFER_BYTES = 1 << 26
"""The text of a buffer: documents beyond are in the next one. To resume reads a buffer again."""
ROWS = 256
"""Rows that are read at a time."""
FEW_SHARDS = 64
"""With fewer files than this, each row group of parquet is a shard from the beginning on. Otherwise the row groups of a
file get their own order when it is opened: to make shards of them, thousands of files would have to be opened first."""
SPREAD = 16
"""The least number of shards whose beginnings are a sample of the whole. Of fewer shards, documents are passed over."""
SAMPLE_STRANDS = 64
PASSED_OVER = 16
"""A pass over documents for a sample ends after this many times the bytes of the sample."""
EXAMINED_BYTES = 1 << 27
Place = TypeVar("Place")
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
    buffer      number of documents: training shuffles shards (files, or the row groups of parquet), reads four of them
                in turn, and shuffles each ``buffer`` of their documents, or 64 MB, by seed and epoch
    window      number of documents: training reads all documents in their order instead, and shuffles within windows;
                None: shards are shuffled
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
    buffer: Positive = 10_000
    window: Positive | None = None

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


@cache
def _shards(config: HubConfig, split: Split) -> Any:
    """Returns the streaming data set in as many shards as are known at once."""
    dataset = _open(config, split)
    return dataset.reshard() if dataset.num_shards < FEW_SHARDS else dataset


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
        _require_column(name, column, dataset.column_names)
    return dataset


def _require_column(name: str, column: str, columns: Sequence[str] | None) -> None:
    """Raises DataError where the columns of a data set are known and lack one."""
    if columns is not None and column not in columns:
        raise DataError(f"hub data set {name}: no column {column!r}; {nearest(column, columns)}")


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

    @property
    def messages(self) -> list[str]:
        """That training documents are sorted, where training does not shuffle all of them."""
        documents, in_order = self.documents("train"), self.config.window is not None
        if not in_order and documents.number_of_shards() >= SPREAD:
            return []
        order = kept([self.fingerprint, documents.number_of_shards()], documents.sorted_by)
        if order is None:
            return []
        way_out = "divide them into 16 files or more, or read local files by data.source=files, which shuffles them all"
        if in_order:
            way_out = "set data.source.window=null, so that shards are shuffled"
        return [f"training documents are sorted {order}, and shuffled only near their places; {way_out}"]


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

    @property
    def title(self) -> str:
        """The name of the data set and of its split."""
        return f"{self.config.name}:{self.config.hub_split(self.split)}"

    def name(self, ordinal: int) -> str:
        return f"{self.title}:{ordinal + 1}"

    def no_document(self) -> DataError:
        """Returns the error of a split without documents."""
        name, split = self.config.name, self.split
        return DataError(f"hub data set {name}: no {split} document; set data.source.{split} to another split")

    def other_order(self, order: str, window: str) -> DataError:
        """Returns the error of a position in another order of documents. window: the value that the field should
        get."""
        return DataError(
            f"hub data set {self.config.name}: the checkpoint's position is one in {order}; set data.source.window to "
            f"{window}, or start anew"
        )

    def training(self, seed: int) -> DocumentStream:
        return _Shards(self, seed) if self.config.window is None else _Windows(self, seed, self.config.window)

    def evaluation(self, limit: Limit) -> DocumentStream:
        return _HubInOrder(self, limit)

    def texts(self, dataset: Any, state: Plain) -> Iterator[tuple[bytes, Plain]]:
        """Yields each document from ``state`` on (None: the beginning), with the state after it."""
        if state is not None:
            dataset.load_state_dict(state)
        return self._texts(self._rows(dataset))

    def texts_from(self, dataset: Any, row: int) -> Iterator[tuple[bytes, int]]:
        """Yields each document of a shard from a row on, with the number of the row after it."""
        return self._texts(self._rows_from(dataset, row))

    def sample(self, size: int, seed: int) -> Iterator[Document]:
        """Yields the beginnings of shards, of 64 at a time, or passes over the first documents where the shards are
        few: at most 16 times the bytes of the sample."""
        if self.number_of_shards() < SPREAD:
            return thinned(first(self, PASSED_OVER * size), size, seed)
        strands = _Interleaved(self, seed, _beginning(0, SAMPLE_STRANDS, self.number_of_shards()))
        return first((document for row in iter(strands.next_row, None) for _, document in row), size)

    def number_of_shards(self) -> int:
        """Returns the number of shards that are shuffled."""
        return 1 if self.config.rows == "wikitext" else int(_shards(self.config, self.split).num_shards)

    def sorted_by(self) -> str | None:
        """Returns how the documents are sorted; None where nothing shows that they are. Of many shards, the beginnings
        of some are examined, otherwise the first 128 MB."""
        spaced, number = EvenlySpaced(), self.number_of_shards()
        if number < SPREAD:
            for document in first(self, EXAMINED_BYTES):
                spaced.add(document.text)
        else:
            for shard in np.linspace(0, number - 1, SPREAD).astype(int).tolist():
                dataset = _shards(self.config, self.split).shard(num_shards=number, index=shard)
                for text, _ in islice(self.texts_from(dataset, 0), spaced.most // SPREAD):
                    spaced.add(text)
        return sorted_by(spaced.texts)

    def pieces(self, text: bytes) -> Iterator[bytes]:
        return cut(BytesIO(text), self.config.piece)

    def _rows(self, dataset: Any) -> Iterator[tuple[bytes, Plain]]:
        try:
            # Not iter(): within a worker of a DataLoader it would split the data into its own shards.
            for row in dataset.iter(batch_size=1):
                yield self._encoded(row[self.config.column][0]), dataset.state_dict()
        except (OSError, EOFError) as error:
            raise unreachable(self.config.name, error) from None

    def _rows_from(self, dataset: Any, row: int) -> Iterator[tuple[bytes, int]]:
        """Yields the text of each row of a shard, from one on, with the number of the next."""
        place = 0
        try:
            for table in dataset.with_format("arrow").iter(batch_size=ROWS):
                _require_column(self.config.name, self.config.column, table.column_names)
                for value in table.column(self.config.column).slice(max(row - place, 0)).to_pylist():
                    row += 1
                    yield self._encoded(value), row
                place += len(table)
        except (OSError, EOFError) as error:
            raise unreachable(self.config.name, error) from None

    def _encoded(self, value: object) -> bytes:
        if not isinstance(value, str):
            kind = type(value).__name__
            raise DataError(f"hub data set {self.config.name}: {self.config.column!r} holds {kind}, not text")
        return value.encode(errors="replace")

    def _texts(self, rows: Iterator[tuple[bytes, Place]]) -> Iterator[tuple[bytes, Place]]:
        """Yields the documents of these rows that belong to the split, each with the place after it."""
        documents = self._articles(rows) if self.config.rows == "wikitext" else rows
        return (item for item in documents if self.config.keeps(self.split, item[0]))

    def _articles(self, rows: Iterator[tuple[bytes, Place]]) -> Iterator[tuple[bytes, Place]]:
        text, has_title = bytearray(), False
        previous_state: Any = None
        for title, line, state in headed(rows):
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
        dataset = _independent_copy(_open(self.documents.config, self.documents.split))
        for text, _ in self.documents.texts_from(dataset, 0):
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

    def __init__(self, documents: _HubDocuments, seed: int, size: int) -> None:
        self.documents, self.seed, self.most = documents, seed, size
        self.window: list[tuple[int, Document]] = []
        self.loaded: dict[str, Plain] | None = None
        self.go_to(FIRST)

    def state(self) -> Plain:
        return dict(self.at)

    def go_to(self, state: Plain) -> None:
        if "window" not in state:
            raise self.documents.other_order("shards that are shuffled", "null")
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
            if len(self.window) >= self.most:
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
            raise self.documents.no_document()
        self._load()


class _Strand:
    """One of the shards that are read in turn. ``place``: its place in the order of shards. ``part``: the place of the
    row group in the order of those of the shard. ``row``: the next row of the row group. ``count``: the documents of
    the row group that were read."""

    def __init__(self, place: int, part: int, row: int, count: int) -> None:
        self.place, self.part, self.row, self.count = place, part, row, count
        self.shard = self.number = self.parts = 0
        self.texts: Iterator[tuple[bytes, int]] | None = None

    def state(self) -> list[int]:
        return [self.place, self.part, self.row, self.count]


class _Interleaved:
    """The documents of one epoch from several shards in turn, in the order of shards that seed and epoch give."""

    def __init__(self, documents: _HubDocuments, seed: int, state: dict[str, Plain]) -> None:
        self.documents = documents
        self.shards, self.next, self.turn = state["shards"], state["next"], state["turn"]
        self.key = [seed, state["epoch"]]
        self.order = np.random.default_rng([*self.key, 1]).permutation(self.shards)
        self.strands = [_Strand(*strand) for strand in state["strands"]]

    def state(self) -> dict[str, Plain]:
        """Returns the place after the documents that were read."""
        return {"next": self.next, "turn": self.turn, "strands": [strand.state() for strand in self.strands]}

    def next_row(self) -> list[tuple[int, Document]] | None:
        """Returns the next document with its ordinal, or all pieces of a long one; None at the end."""
        while self.strands:
            self.turn %= len(self.strands)
            strand = self.strands[self.turn]
            if strand.texts is None:
                self._open(strand)
            assert strand.texts is not None
            if (item := next(strand.texts, None)) is not None:
                self.turn += 1
                return self._documents(strand, *item)
            self._next_part(strand)
        return None

    def _documents(self, strand: _Strand, text: bytes, row: int) -> list[tuple[int, Document]]:
        """Returns the pieces of a text. An ordinal is the same in every epoch, and ordinals are dense where shards have
        about as many documents each."""
        pieces = []
        for piece in self.documents.pieces(text):
            ordinal = (strand.count * strand.parts + strand.number) * self.shards + strand.shard
            place = f"shard {strand.shard + 1}.{strand.number + 1}:{strand.count + 1}"
            pieces.append((ordinal, Document(f"{self.documents.title}:{place}", piece)))
            strand.count += 1
        strand.row = row
        return pieces

    def _open(self, strand: _Strand) -> None:
        strand.shard = int(self.order[strand.place])
        if self.documents.config.rows == "wikitext":
            shard, strand.parts = _independent_copy(_open(self.documents.config, self.documents.split)), 1
        else:
            dataset = _shards(self.documents.config, self.documents.split)
            shard = dataset.shard(num_shards=self.shards, index=strand.shard).reshard()
            strand.parts = shard.num_shards
            parts = np.random.default_rng([*self.key, 2, strand.shard]).permutation(strand.parts)
            strand.number = int(parts[strand.part])
            shard = shard.shard(num_shards=strand.parts, index=strand.number)
        strand.texts = self.documents.texts_from(shard, strand.row)

    def _next_part(self, strand: _Strand) -> None:
        """Goes to the next row group of a shard, or to the next shard, or drops the strand where all are taken."""
        if strand.part + 1 < strand.parts:
            self.strands[self.turn] = _Strand(strand.place, strand.part + 1, 0, 0)
        elif self.next < self.shards:
            self.strands[self.turn] = _Strand(self.next, 0, 0, 0)
            self.next += 1
        else:
            del self.strands[self.turn]


def _beginning(epoch: int, strands: int, shards: int) -> dict[str, Plain]:
    """Returns the state at the beginning of an epoch."""
    opened = min(strands, shards)
    places = [[place, 0, 0, 0] for place in range(opened)]
    return {"epoch": epoch, "buffer": 0, "index": 0, "shards": shards, "next": opened, "turn": 0, "strands": places}


class _Buffer(NamedTuple):
    """Documents in the order in which they are given, and the state after them; None at the end of an epoch."""

    documents: list[tuple[int, Document]]
    after: dict[str, Plain] | None


class _Shards(DocumentStream):
    """An endless stream: shards are read in an order of (seed, epoch), some in turn, and each buffer of their documents
    is shuffled by (seed, epoch, buffer).

    The state names where the buffer begins and the place in it, and holds no text: to resume reads the buffer again.
    """

    def __init__(self, documents: _HubDocuments, seed: int) -> None:
        self.documents, self.seed = documents, seed
        self.shards = documents.number_of_shards()
        self.buffers: dict[tuple[int, int], _Buffer] = {}
        self.reader: tuple[tuple[int, int], _Interleaved] | None = None
        self.go_to(self._beginning(0))

    def _beginning(self, epoch: int) -> dict[str, Plain]:
        return _beginning(epoch, STRANDS, self.shards) | {"most": self.documents.config.buffer}

    def state(self) -> Plain:
        return dict(self.at)

    def go_to(self, state: Plain) -> None:
        if "strands" not in state:
            raise self.documents.other_order("windows in order", "its old value, such as 1000")
        if state["shards"] != self.shards:
            raise DataError(
                f"hub data set {self.documents.config.name}: has {self.shards} shards, and the checkpoint's position "
                f"is one of {state['shards']}; install the version of datasets that it was made with, or start anew"
            )
        if state["most"] != self.documents.config.buffer:
            raise DataError(
                f"hub data set {self.documents.config.name}: the checkpoint's position is one in buffers of "
                f"{state['most']}; set data.source.buffer to that, or start anew"
            )
        self.at: dict[str, Plain] = dict(state)

    def take(self) -> tuple[int, Document]:
        while self.at["index"] >= len((buffer := self._buffer()).documents):
            self._advance(buffer)
        item = buffer.documents[self.at["index"]]
        self.at["index"] += 1
        return item

    def _advance(self, buffer: _Buffer) -> None:
        """Goes to the next buffer, or to the next epoch where this one has ended."""
        if buffer.after is not None:
            self.at = dict(buffer.after)
        elif buffer.documents or self.at["buffer"]:
            self.at = self._beginning(self.at["epoch"] + 1)
        else:
            raise self.documents.no_document()

    def _buffer(self) -> _Buffer:
        """Returns the buffer at ``self.at``, which is read unless it is one of the last two. Lanes resume from
        documents of a few buffers."""
        name = (self.at["epoch"], self.at["buffer"])
        if name not in self.buffers:
            while len(self.buffers) > 1:
                del self.buffers[next(iter(self.buffers))]
            self.buffers[name] = self._read(name)
        return self.buffers[name]

    def _read(self, name: tuple[int, int]) -> _Buffer:
        if self.reader is None or self.reader[0] != name:
            self.reader = name, _Interleaved(self.documents, self.seed, self.at)
        epoch, number = name
        reader, documents, size = self.reader[1], list[tuple[int, Document]](), 0
        while len(documents) < self.documents.config.buffer and size < BUFFER_BYTES:
            if (row := reader.next_row()) is None:
                break
            documents += row
            size += sum(len(document.text) for _, document in row)
        after = self.at | reader.state() | {"buffer": number + 1, "index": 0} if documents else None
        self.reader = (epoch, number + 1), reader
        order = np.random.default_rng([self.seed, epoch, 3, number]).permutation(len(documents))
        return _Buffer([documents[place] for place in order], after)


def _independent_copy(dataset: Any) -> Any:
    """Returns a copy with its own position: the library keeps the position on the data set."""
    return copy.deepcopy(dataset)
