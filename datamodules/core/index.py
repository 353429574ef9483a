"""A corpus on disk: an index of its documents, made once and kept, so that any document takes a single read.

Plain files are read in place. Files that must be unpacked (compressed files, tars, JSON lines, parquet) are unpacked
once, by several processes, into files next to the index. Memory use stays constant: only the index is held, and that is
mapped from disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache, partial
from io import BytesIO
from itertools import pairwise
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
from datamodules.core.preparing import ByteCount, PreparationProgress, alone, lines_while
from datamodules.core.processes import TaskKilled, in_processes, is_orphan
from datamodules.core.reading import OPEN_FILES, cut, damage
from lit_transformers.config import Plain, canonical_hash

__all__ = [
    "CorpusPart",
    "IndexedCorpus",
    "IndexedDocuments",
    "Text",
    "cached_value",
    "index_corpus",
    "index_parts",
    "make_once",
    "normal",
    "writing",
]

RECORD = np.dtype(
    [("origin", "<i8"), ("row", "<i8"), ("offset", "<i8"), ("file", "<i4"), ("start", "<i8"), ("length", "<i8")]
)
VERSION = 4
"""Part of every cache key: changes when the same files give other documents."""
PACKED, META, VALUE = "packed", "meta.json", "value.json"
BLOCK = 4096
BUFFER = 1 << 20
GAP = 1 << 12
"""How many bytes between two documents are read and left out where documents are read in order."""


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
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.rstrip(b"\n")


class _Record(NamedTuple):
    origin: int
    row: int
    offset: int
    file: int
    start: int
    length: int


class CorpusPart(NamedTuple):
    """A part of a corpus, which the next part continues.

    texts: returns its texts, and counts in its argument the items that it leaves out. size: the bytes of files that it
    reads. apart: whether another process may read it, which then stores all of its texts, as they are unpacked.
    """

    texts: Callable[[Counter[str]], Iterator[Text]]
    size: int
    apart: bool


def index_corpus(
    key: Plain, prefix: str, piece: int, texts: Iterator[Text], left_out: Counter[str] | None = None
) -> IndexedCorpus:
    """Returns the corpus that ``key`` names: from the cache, or made now from ``texts``.

    key: plain data that changes whenever the files may have changed. prefix: put before the hash of the content.
    left_out: counts of the items left out, filled while ``texts`` are read and stored with the corpus. Raises DataError
    for a file that is missing or damaged, and for a cache that cannot be written.
    """
    left_out = Counter() if left_out is None else left_out
    return index_parts(key, prefix, piece, [CorpusPart(lambda _: texts, 0, apart=False)], left_out)


def index_parts(
    key: Plain, prefix: str, piece: int, parts: Iterable[CorpusPart], left_out: Counter[str], size: int | None = None
) -> IndexedCorpus:
    """Returns the corpus of ``index_corpus`` from its parts, which several processes read at once. The index depends on
    the parts, not on the number of processes. Parts that were complete when a process was killed are kept.

    parts: taken only where the corpus is made. size: the bytes of files that all parts read; None: not known.
    """
    folder = cache_folder() / "corpora" / canonical_hash([VERSION, key, dict(left_out)], 32)
    progress = None if size is None else ByteCount(size)
    make_once(folder, META, partial(_make, prefix, piece, parts, left_out, progress), progress)
    return IndexedCorpus(folder)


def _make(
    prefix: str,
    piece: int,
    parts: Iterable[CorpusPart],
    left_out: Counter[str],
    progress: PreparationProgress | None,
    folder: Path,
) -> None:
    """Makes an index from its parts in order; those that are apart are read ahead."""
    builder, taken = _Builder(folder), deque[CorpusPart]()

    def tasks() -> Iterator[Callable[[], Path]]:
        for number, part in enumerate(parts):
            taken.append(part)
            if part.apart:
                yield partial(_write_part, folder / f"{number:05}", piece, part)

    def read_here(until_apart: bool) -> None:
        while taken and not (until_apart and taken[0].apart):
            for text in (part := taken.popleft()).texts(left_out):
                builder.add(text, piece)
            done(part)

    def done(part: CorpusPart) -> None:
        if progress is not None:
            progress.done += part.size

    for written in in_processes(tasks()):
        read_here(until_apart=True)
        left_out.update(builder.add_part(written))
        done(taken.popleft())
    read_here(until_apart=False)
    builder.finish(prefix, left_out)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turns the errors of writing a cache into a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{place}: cannot write the cache ({error.strerror}); set LIT_CACHE to a folder with room"
        ) from None


def make_once(
    folder: Path, last: str, make: Callable[[Path], None], progress: PreparationProgress | None = None
) -> None:
    """Makes a folder of the cache where it is missing. Of processes that need it at once, one makes it and the others
    wait. If the process that makes it is killed, the next one finds the files that it wrote.

    last: the file whose presence means that the folder is complete. make: fills a temporary folder, which may hold the
    files of a killed process. progress: as in ``_made_aside``. Raises DataError where it cannot be written.
    """
    if (folder / last).exists():
        return
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with writing(folder.parent):
            is_alone = held.enter_context(alone(folder))
        if not (folder / last).exists():
            with _made_aside(folder, last, progress, kept=is_alone) as temporary:
                make(temporary)


def cached_value(folder: Path, computed: Callable[[], Plain]) -> Plain:
    """Returns a value from a folder of the cache. Of processes that need it at once, one computes it and the others
    wait. Raises DataError where it is damaged or cannot be written."""
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / VALUE).exists():
        with ExitStack() as held:
            with writing(folder.parent):
                held.enter_context(alone(folder))
            if not (folder / VALUE).exists():
                value = computed()
                with _made_aside(folder, VALUE) as temporary:
                    (temporary / VALUE).write_text(json.dumps(value), encoding="utf-8")
    try:
        return json.loads((folder / VALUE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{folder}: damaged cache; remove this folder and it is made again") from None


@contextmanager
def _made_aside(
    folder: Path, last: str, progress: PreparationProgress | None = None, kept: bool = False
) -> Iterator[Path]:
    """Gives a temporary folder, which is moved to ``folder`` at the end, so that no reader sees a partial one. Prints
    lines while it takes long.

    last: the file whose presence means that the folder is complete. progress: stated by the lines; None: they state the
    bytes in the folder. kept: whether the temporary folder stays where the process is stopped, for the next one; no
    other process may then make it. Raises DataError where it cannot be written.
    """
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if kept:
            (temporary := folder.with_name(f"{folder.name}.unfinished")).mkdir(exist_ok=True)
        else:
            temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with lines_while(folder, temporary, progress):
            yield temporary
        with writing(folder):
            _publish(temporary, folder, last)
    except BaseException as error:
        if not kept or (isinstance(error, Exception) and not isinstance(error, TaskKilled)):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path, last: str) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / last).exists():  # otherwise another process was faster, with the same content
            raise


class _Pack:
    """Writes texts to a file, many at once. ``size``: the number of bytes so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self.pending: list[bytes] = []
        self.waiting = 0
        with writing(path.parent):
            self.file = path.open("wb", buffering=0)

    def add(self, content: bytes) -> int:
        """Writes some bytes and returns where they begin."""
        self.pending.append(content)
        self.waiting += len(content)
        self.size += len(content)
        if self.waiting >= BUFFER:
            self._flush()
        return self.size - len(content)

    def close(self) -> None:
        self._flush()
        self.file.close()

    def _flush(self) -> None:
        with writing(self.path.parent):
            remaining = memoryview(b"".join(self.pending))
            while remaining:
                remaining = remaining[self.file.write(remaining) :]
        self.pending, self.waiting = [], 0


class _Records:
    """The records of texts of every split, in files of a folder, and a hash of eight bytes of each text's content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origins: list[str] = []
        self.pending: dict[Split, list[_Record]] = {split: [] for split in SPLITS}
        self.contents: dict[Split, bytearray] = {split: bytearray() for split in SPLITS}
        with writing(folder):
            self.files = {split: (folder / f"{split}.index").open("wb") for split in SPLITS}

    def origin(self, name: str) -> int:
        """Returns the number of a name among those of texts."""
        if not self.origins or self.origins[-1] != name:
            self.origins.append(name)
        return len(self.origins) - 1

    def add(self, split: Split, record: _Record, says: bytes) -> None:
        if says := normal(says).strip():
            self.contents[split] += hashlib.blake2b(says, digest_size=8).digest()
        pending = self.pending[split]
        pending.append(record)
        if len(pending) == BLOCK:
            self.flush(split)

    def extend(self, split: Split, records: npt.NDArray[np.void], contents: bytes) -> None:
        self.flush(split)
        self.contents[split] += contents
        with writing(self.folder):
            self.files[split].write(records.tobytes())

    def flush(self, split: Split) -> None:
        with writing(self.folder):
            self.files[split].write(np.array(self.pending[split], dtype=RECORD).tobytes())
        self.pending[split].clear()

    def close(self) -> None:
        for split in SPLITS:
            self.flush(split)
        with writing(self.folder):
            for file in self.files.values():
                file.close()


class _Piece(NamedTuple):
    """A piece of a text, with its offset and the bytes that the fingerprint hashes before it."""

    offset: int
    head: bytes
    content: bytes


def _pieces(text: Text, origin: str, piece: int) -> Iterable[_Piece]:
    """Returns the pieces of a text. Raises DataError where it cannot be read."""
    stream = text.stream
    if isinstance(stream, BytesIO) and text.length is None and len(stream.getvalue()) < piece:
        content = stream.read()
        return (_piece(text, origin, text.offset, content),) if content else ()
    return _cut_pieces(text, origin, piece)


def _cut_pieces(text: Text, origin: str, piece: int) -> Iterator[_Piece]:
    offset = text.offset
    with damage(text.container):
        for content in cut(text.stream, piece, text.length):
            yield _piece(text, origin, offset, content)
            offset += len(content)


def _piece(text: Text, origin: str, offset: int, content: bytes) -> _Piece:
    head = f"{text.split}\0{origin}\0{text.row}\0{offset}\0{len(content)}\0"
    return _Piece(offset, head.encode(), content)


@lru_cache
def _in_utf8(origin: str) -> str:
    """Returns the name of a text as UTF-8 can write it: in a file system it may be any bytes."""
    return origin.encode(errors="backslashreplace").decode()


def _write_part(folder: Path, piece: int, part: CorpusPart) -> Path:
    """Writes a part of an index to a folder, which may be there already, and returns the folder. Each text is preceded
    by the bytes that the fingerprint hashes with it, so that the hash of the file equals the hash of its texts."""
    if (folder / META).exists():
        return folder
    temporary = folder.with_name(f"{folder.name}.partial")
    with writing(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.mkdir()
    pack, records, left_out = _Pack(temporary / PACKED), _Records(temporary), Counter[str]()
    for number, text in enumerate(part.texts(left_out)):
        origin = _in_utf8(text.origin)
        named = records.origin(origin)
        for offset, head, content in _pieces(text, origin, piece):
            start = pack.add(head + content) + len(head)
            record = _Record(named, text.row, offset, 0, start, len(content))
            records.add(text.split, record, content if text.says is None else text.says)
        if number % BLOCK == 0 and is_orphan():
            raise DataError(f"{folder}: the process that wanted it has ended")
    pack.close()
    records.close()
    with writing(folder):
        for split in SPLITS:
            (temporary / f"{split}.contents").write_bytes(records.contents[split])
        meta = {"origins": records.origins, "left_out": left_out}
        (temporary / META).write_text(json.dumps(meta), encoding="utf-8")
        temporary.rename(folder)
    return folder


class _Builder:
    """Writes an index: one file of records per split, the unpacked text, and meta.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hash = hashlib.sha256()
        self.files: dict[str, int] = {PACKED: 0}
        self.stamps: list[Stamp | None] = [None]
        self.parts: list[Path] = []
        self.records = _Records(folder)
        self.pack = _Pack(folder / PACKED)

    def add(self, text: Text, piece: int) -> None:
        origin = _in_utf8(text.origin)
        named = self.records.origin(origin)
        for offset, head, content in _pieces(text, origin, piece):
            self.hash.update(head)
            self.hash.update(content)
            if text.path is None:
                file, start = 0, self.pack.add(content)
            else:
                file, start = self._number(str(text.path.resolve()), text.path), offset
            record = _Record(named, text.row, offset, file, start, len(content))
            self.records.add(text.split, record, content if text.says is None else text.says)

    def add_part(self, folder: Path) -> dict[str, int]:
        """Adds the part that ``_write_part`` has written, and returns the counts of its items left out."""
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        numbers = np.array([self.records.origin(name) for name in meta["origins"]], np.int64)
        with damage(folder), (folder / PACKED).open("rb", buffering=0) as pack:
            while chunk := pack.read(BUFFER):
                self.hash.update(chunk)
        for split in SPLITS:
            records = np.fromfile(folder / f"{split}.index", RECORD)
            if len(records):
                records["origin"], records["file"] = numbers[records["origin"]], len(self.files)
            self.records.extend(split, records, (folder / f"{split}.contents").read_bytes())
        self._number(f"{folder.name}/{PACKED}")
        self.parts.append(folder)
        return dict(meta["left_out"])

    def _number(self, name: str, in_place: Path | None = None) -> int:
        """Returns the number of a file with texts, which must stay as it is where it is read in place."""
        if name not in self.files:
            self.files[name] = len(self.files)
            self.stamps.append(None if in_place is None else _stamp(in_place.stat()))
        return self.files[name]

    def finish(self, prefix: str, left_out: Mapping[str, int]) -> None:
        self.records.close()
        meta = {
            "fingerprint": prefix + self.hash.hexdigest()[:32],
            "files": [*zip(self.files, self.stamps, strict=True)],
            "origins": self.records.origins,
            "left_out": dict(left_out),
            "repeated": self._repeated(),
        }
        self.pack.close()
        with writing(self.folder):
            for part in self.parts:
                # The file that marks a part as complete is removed first: a process may be killed here.
                for name in (META, *(f"{split}.{kind}" for split in SPLITS for kind in ("index", "contents"))):
                    (part / name).unlink()
            (self.folder / META).write_text(json.dumps(meta), encoding="utf-8")

    def _repeated(self) -> dict[str, int]:
        """Returns how many texts of each other split are in train too."""
        contents = {split: np.frombuffer(says, np.uint64) for split, says in self.records.contents.items()}
        trained = np.sort(contents["train"])
        counts = {split: _held(contents[split], trained) for split in SPLITS if split != "train"}
        return {split: count for split, count in counts.items() if count}


def _held(values: npt.NDArray[np.uint64], ordered: npt.NDArray[np.uint64]) -> int:
    """Returns how many values are among those of an array in order."""
    if not len(ordered):
        return 0
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return int((ordered[places] == values).sum())


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
        """Counts of the items left out, and of texts that stand in two splits."""
        return [*(f"{count:,} {reason}" for reason, count in self.left_out.items() if count), *self.repeated]

    def count(self, split: Split) -> int:
        """Returns the number of documents of a split, which may be 0."""
        return len(_index(self.folder, split))

    def documents(self, split: Split) -> IndexedDocuments:
        return IndexedDocuments(self.folder, split)


Stamp = list[int]
"""The size and the time of the last change of a file, which is another one where they differ."""


def _stamp(stat: os.stat_result) -> Stamp:
    return [stat.st_size, stat.st_mtime_ns]


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: str, stamp: tuple[int, ...] | None) -> BinaryIO:
    """Returns a file with documents, which is closed when it is used no more. stamp: another one for another file that
    has taken the name."""
    return open(path, "rb", buffering=0)  # noqa: PTH123


def _runs(block: npt.NDArray[np.void]) -> Iterator[range]:
    """Yields the places of records in order, in runs of which a file holds the documents close together."""
    starts, files = block["start"], block["file"]
    gaps = starts[1:] - (starts + block["length"])[:-1]
    is_new = (files[1:] != files[:-1]) | (gaps < 0) | (gaps > GAP) | (starts[1:] // BUFFER != starts[:-1] // BUFFER)
    bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(block)]
    return (range(first, last) for first, last in pairwise(bounds))


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
    return np.memmap(path, RECORD, mode="r").view(np.ndarray)


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
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Document]:
        """Yields the documents with ordinals from ``start`` to before ``stop``. Reads documents that lie close together
        at once."""
        index, origins = _index(self.folder, self.split), _meta(self.folder)["origins"]
        for first in range(start, stop, BLOCK):
            block = index[first : min(first + BLOCK, stop)]
            numbers, rows, offsets = (block[name].tolist() for name in ("origin", "row", "offset"))
            starts, lengths = block["start"].tolist(), block["length"].tolist()
            for run in _runs(block):
                begin, last = starts[run.start], run.stop - 1
                content = self._read(int(block["file"][last]), begin, starts[last] + lengths[last] - begin)
                for place in run:
                    text = content[starts[place] - begin : starts[place] - begin + lengths[place]]
                    name = _named(origins[numbers[place]], rows[place], offsets[place])
                    yield Document(name, text, offsets[place])

    def __getitem__(self, ordinal: int) -> Document:
        record = self._record(ordinal)
        text = self._read(record.file, record.start, record.length)
        return Document(self._named(record), text, record.offset)

    def _read(self, number: int, start: int, length: int) -> bytes:
        """Returns bytes of a file. Raises DataError where it is another one than that which was indexed."""
        name, stamp = _meta(self.folder)["files"][number]
        path = f"{self.folder}/{name}" if stamp is None else name
        try:
            descriptor = _opened(path, None if stamp is None else tuple(stamp)).fileno()
            text = os.pread(descriptor, length, start)
            is_changed = stamp is not None and _stamp(os.fstat(descriptor)) != stamp
        except OSError:
            with damage(Path(path)):
                raise
        if is_changed or len(text) != length:
            raise DataError(f"{path}: has changed since it was indexed; start again to index it anew")
        return text

    def _record(self, ordinal: int) -> _Record:
        return _Record(*_index(self.folder, self.split)[ordinal].item())

    def name(self, ordinal: int) -> str:
        return self._named(self._record(ordinal))

    def _named(self, record: _Record) -> str:
        return _named(_meta(self.folder)["origins"][record.origin], record.row, record.offset)

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


def _named(origin: str, row: int, offset: int) -> str:
    """Returns the name of a document: where it comes from, its row from 1 and its first byte."""
    place = f"{origin}:{row + 1}" if row >= 0 else origin
    return f"{place}@{offset}" if offset else place


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
