"""A corpus on disk: an index of its documents, made once and kept, so that any document takes a single read.

Plain files are read where they are. What must be unpacked (compressed files, tars, JSON lines, parquet) is unpacked
once into one file beside the index. Memory use stays constant: only the index is held, and that is mapped from disk.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import (
    SPLITS,
    Corpus,
    Document,
    Documents,
    DocumentStream,
    Limit,
    Split,
    cache_folder,
)
from datamodules.core.errors import DataError
from datamodules.core.permutations import shuffled
from datamodules.core.preparing import TextCount, lines_while
from datamodules.core.reading import OPEN_FILES, cut, damage
from lit_transformers.config import Plain, canonical_hash

__all__ = ["IndexedCorpus", "IndexedDocuments", "Text", "index_corpus", "made_aside", "normal", "writing"]

RECORD = np.dtype(
    [("origin", "<i8"), ("row", "<i8"), ("offset", "<i8"), ("file", "<i4"), ("start", "<i8"), ("length", "<i8")]
)
VERSION = 3
"""Part of every cache key: changes when the same files give other documents."""
PACKED, META = "packed", "meta.json"
BLOCK = 4096


class Text(NamedTuple):
    """One text of a source, before it is cut: ``length`` bytes of ``stream`` from its position, or all that follow.

    ``container``: the file that a read error names. ``path``: the file whose bytes can be read again in place, from
    ``offset`` on; None where they must be unpacked. ``row``: as in ``reading.Entry``. ``says``: the source of a
    pair, or a text without its label, by which equal ones are known; None for all of the stream.
    """

    origin: str
    split: Split
    stream: BinaryIO
    container: Path
    path: Path | None = None
    row: int = -1
    offset: int = 0
    length: int | None = None
    says: bytes | None = None


def normal(text: bytes) -> bytes:
    """Returns a text with line feeds alone as line ends, and none at its end."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n")


class _Record(NamedTuple):
    origin: int
    row: int
    offset: int
    file: int
    start: int
    length: int


def index_corpus(
    key: Plain, prefix: str, piece: int, texts: Iterator[Text], left_out: Counter[str] | None = None
) -> IndexedCorpus:
    """Returns the corpus that ``key`` names: from the cache, or made now from ``texts``.

    key: plain data that changes whenever the files may have changed. prefix: put before the hash of the content.
    left_out: counts of what is left out, filled while ``texts`` are read and kept with the corpus. Raises DataError: a
    file that is missing or damaged, a cache that cannot be written.
    """
    folder = cache_folder() / "corpora" / canonical_hash([VERSION, key, dict(left_out or {})], 32)
    if not (folder / META).exists():
        with made_aside(folder, META) as temporary:
            builder = _Builder(temporary)
            for text in texts:
                with damage(text.container):
                    builder.add(text, piece)
            builder.finish(prefix, left_out or {})
    return IndexedCorpus(folder)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turns the errors of writing a cache into a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{place}: cannot write the cache ({error.strerror}); set LIT_CACHE to a folder with room"
        ) from None


@contextmanager
def made_aside(folder: Path, last: str, progress: TextCount | None = None) -> Iterator[Path]:
    """Gives a temporary folder, which is moved to ``folder`` at the end, so that no reader sees a partial one. Prints
    lines while it takes long.

    last: the file whose presence means that the folder is complete. progress: what the lines state; None for the bytes
    in the folder. Raises DataError where it cannot be written.
    """
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with lines_while(folder, temporary, progress):
            yield temporary
        with writing(folder):
            _publish(temporary, folder, last)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path, last: str) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / last).exists():  # otherwise another process was faster, with the same content
            raise


class _Builder:
    """Writes an index: one file of records per split, the unpacked text, and meta.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hash = hashlib.sha256()
        self.origins: list[str] = []
        self.files: dict[str, int] = {PACKED: 0}
        self.pending: dict[Split, list[_Record]] = {split: [] for split in SPLITS}
        self.contents: dict[Split, array[int]] = {split: array("Q") for split in SPLITS}
        self.packed = 0
        with writing(folder):
            self.pack = (folder / PACKED).open("wb")
            self.indexes = {split: (folder / f"{split}.index").open("wb") for split in SPLITS}

    def add(self, text: Text, piece: int) -> None:
        # A name in a file system may be any bytes.
        origin = text.origin.encode(errors="backslashreplace").decode()
        if not self.origins or self.origins[-1] != origin:
            self.origins.append(origin)
        position = 0
        for content in cut(text.stream, piece, text.length):
            self._record(text, position, content)
            position += len(content)

    def _record(self, text: Text, position: int, content: bytes) -> None:
        offset = text.offset + position
        if text.path is None:
            file, start = 0, self.packed
            with writing(self.folder):
                self.pack.write(content)
            self.packed += len(content)
        else:
            file, start = self.files.setdefault(str(text.path.resolve()), len(self.files)), offset
        self.hash.update(f"{text.split}\0{self.origins[-1]}\0{text.row}\0{offset}\0{len(content)}\0".encode())
        self.hash.update(content)
        if says := normal(content if text.says is None else text.says).strip():
            digest = hashlib.blake2b(says, digest_size=8).digest()
            self.contents[text.split].append(int.from_bytes(digest))
        self.pending[text.split].append(_Record(len(self.origins) - 1, text.row, offset, file, start, len(content)))
        if len(self.pending[text.split]) == BLOCK:
            self._flush(text.split)

    def _flush(self, split: Split) -> None:
        with writing(self.folder):
            self.indexes[split].write(np.array(self.pending[split], dtype=RECORD).tobytes())
        self.pending[split].clear()

    def finish(self, prefix: str, left_out: Mapping[str, int]) -> None:
        for split in SPLITS:
            self._flush(split)
        fingerprint = prefix + self.hash.hexdigest()[:32]
        meta = {
            "fingerprint": fingerprint,
            "files": list(self.files),
            "origins": self.origins,
            "left_out": dict(left_out),
            "repeated": self._repeated(),
        }
        with writing(self.folder):
            for file in (self.pack, *self.indexes.values()):
                file.close()
            (self.folder / META).write_text(json.dumps(meta), encoding="utf-8")

    def _repeated(self) -> dict[str, int]:
        """Returns how many texts of each other split are in train too."""
        trained = np.unique(np.array(self.contents["train"], np.uint64))
        counts = {split: int(np.isin(self.contents[split], trained).sum()) for split in SPLITS if split != "train"}
        return {split: count for split, count in counts.items() if count}


class IndexedCorpus(Corpus):
    """A corpus whose index is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = str(_meta(folder)["fingerprint"])

    @property
    def left_out(self) -> dict[str, int]:
        """The number of texts that were left out when the corpus was read, by reason."""
        return dict(_meta(self.folder).get("left_out", {}))

    @property
    def repeated(self) -> list[str]:
        """Sentences on how many texts of other splits stand in train too, however their lines end."""
        counts = _meta(self.folder)["repeated"]
        return [
            f"{count:,} of {self.count(split):,} texts of {split} stand in train too" for split, count in counts.items()
        ]

    @property
    def messages(self) -> list[str]:
        """Counts of what was left out, and of texts that stand in two splits."""
        return [*(f"{count:,} {reason}" for reason, count in self.left_out.items() if count), *self.repeated]

    def count(self, split: Split) -> int:
        """Returns the number of documents of a split, which may be 0."""
        return len(_index(self.folder, split))

    def documents(self, split: Split) -> IndexedDocuments:
        return IndexedDocuments(self.folder, split)


@cache
def _meta(folder: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None
    return meta


@lru_cache(maxsize=OPEN_FILES)
def _index(folder: Path, split: Split) -> npt.NDArray[np.void]:
    path = folder / f"{split}.index"
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, RECORD)
    return np.memmap(path, RECORD, mode="r")


class IndexedDocuments(Documents):
    """The documents of one split of an index; the ordinal of a document is its row in the index. Cheap to pickle."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        if not len(self):
            raise DataError(
                f"data.source: no document falls to the split {split!r}; give it a larger fraction, more files, "
                "or cut one large file in order (data.source.splits=order)"
            )

    def __len__(self) -> int:
        return len(_index(self.folder, self.split))

    def __iter__(self) -> Iterator[Document]:
        return (self[ordinal] for ordinal in range(len(self)))

    def __getitem__(self, ordinal: int) -> Document:
        record = self._record(ordinal)
        path = self.folder / PACKED if record.file == 0 else Path(_meta(self.folder)["files"][record.file])
        name = self.name(ordinal)
        with damage(path), path.open("rb", buffering=0) as file:
            file.seek(record.start)
            text = file.read(record.length)
        if len(text) != record.length:
            raise DataError(f"{path}: has become shorter since it was indexed; start again to index it anew")
        return Document(name, text, record.offset)

    def _record(self, ordinal: int) -> _Record:
        return _Record(*_index(self.folder, self.split)[ordinal].item())

    def name(self, ordinal: int) -> str:
        record = self._record(ordinal)
        row = f":{record.row + 1}" if record.row >= 0 else ""
        offset = f"@{record.offset}" if record.offset else ""
        return f"{_meta(self.folder)['origins'][record.origin]}{row}{offset}"

    def within(self, limit: Limit) -> int:
        """Returns how many of the first documents the limit admits."""
        count = len(self) if limit.documents is None else min(limit.documents, len(self))
        if limit.bytes is not None:
            lengths = np.cumsum(_index(self.folder, self.split)["length"][:count])
            count = min(count, int(np.searchsorted(lengths, limit.bytes)) + 1)
        return count

    def training(self, seed: int) -> DocumentStream:
        return _Shuffled(self, seed)

    def bytes_within(self, limit: Limit) -> int:
        """Returns how many bytes these documents have as a whole."""
        return int(_index(self.folder, self.split)["length"][: self.within(limit)].sum())

    def evaluation(self, limit: Limit) -> DocumentStream:
        return _InOrder(self, limit)


class _Shuffled(DocumentStream):
    """An endless stream; its state is the number of documents taken, from which pass and place follow."""

    def __init__(self, documents: IndexedDocuments, seed: int) -> None:
        self.documents, self.seed, self.count = documents, seed, len(documents)
        self.taken = 0

    def state(self) -> Plain:
        return self.taken

    def go_to(self, state: Plain) -> None:
        self.taken = int(state)

    def take(self) -> tuple[int, Document]:
        ordinal, read = self.take_unread()
        return ordinal, read()

    def take_unread(self) -> tuple[int, Callable[[], Document]]:
        epoch, place = divmod(self.taken, self.count)
        ordinal = int(shuffled(self.count, self.seed, epoch)[place])
        self.taken += 1
        return ordinal, partial(self.documents.__getitem__, ordinal)


class _InOrder(DocumentStream):
    """One pass in order; its state is the ordinal of the next document."""

    def __init__(self, documents: IndexedDocuments, limit: Limit) -> None:
        self.documents, self.limit, self.count = documents, limit, documents.within(limit)
        self.ordinal = 0

    def state(self) -> Plain:
        return self.ordinal

    def go_to(self, state: Plain) -> None:
        self.ordinal = int(state)

    def take(self) -> tuple[int, Document] | None:
        taken = self.take_unread()
        return None if taken is None else (taken[0], taken[1]())

    def take_unread(self) -> tuple[int, Callable[[], Document]] | None:
        if self.ordinal >= self.count:
            return None
        ordinal, self.ordinal = self.ordinal, self.ordinal + 1
        return ordinal, partial(self._read, ordinal)

    def _read(self, ordinal: int) -> Document:
        document = self.documents[ordinal]
        if ordinal + 1 < self.count:
            return document
        before = self.documents.bytes_within(self.limit) - len(document.text)
        return self.limit.applied(document, before)
