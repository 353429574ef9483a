"""Lower states of passages on disk: the outputs of the lower layers of a ``deformer`` (arXiv:2005.00697) for each
window of each passage. They are computed once, and any number of processes can read them."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, final, get_args

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lit_transformers.checked_files import NOTHING, CheckedFile, CheckedWriter, Extent, Precision, VectorLayout
from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.inference.passages import PassageLine
from lit_transformers.printing.amounts import memory
from lit_transformers.records.files import write_json

__all__ = ["ANEW", "Manifest", "PassageStates", "PassageStatesWriter", "PassageWindow"]

WINDOW = np.dtype([("begin", "<i8"), ("passage", "<i8"), ("first", "<i4"), ("symbols", "<i4")])
PASSAGE = np.dtype([("line", "<i8"), ("text", "<i8"), ("bytes", "<i4"), ("windows", "<i8")])
"""The line of a passage in its file, the offset and the size of its text in bytes, and the number of its first
window."""
STATES, WINDOWS, PASSAGES, TEXTS = "states", "windows", "passages", "texts"
MANIFEST, UNFINISHED, LOCK = "manifest.json", "unfinished.json", "lock"
"""A complete folder has the first file, an incomplete one has the second."""
FORMAT = 1
ANEW = "encode the passages again into another folder"
HIDDEN = {"tokenizer": "another tokenizer", "weights": "other weights of the lower layers"}
"""Dependencies of states whose values are hashes, and their names in messages."""


class PassageWindow(NamedTuple):
    """A window of a passage. number: of the window. passage: number of the passage. symbols: the symbols of the passage
    that the window holds."""

    number: int
    passage: int
    symbols: range

    @property
    def tokens(self) -> int:
        """The number of vectors of the window: one for each symbol, and one for the final [SEP]."""
        return len(self.symbols) + 1


class Manifest(NamedTuple):
    """The contents of a folder of states. dependencies: the weights, tokenizer and windows that the states depend on,
    by name. width: channels of a state. passages, windows, tokens: counts. files: the saved part of each file."""

    dependencies: Mapping[str, Plain]
    precision: Precision
    width: int
    passages: int
    windows: int
    tokens: int
    files: Mapping[str, Extent]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a manifest. Raises ConfigError if the file is damaged or has another format."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            checksum, version = plain.pop("checksum"), plain.pop("format")
            is_whole = checksum == canonical_hash(plain, 32)
            files = {name: Extent(*extent) for name, extent in plain.pop("files").items()}
            manifest = cls(**plain, files=files)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigError(f"is damaged; {ANEW}", str(path)) from None
        if version != FORMAT or not is_whole:
            reason = "is damaged" if version == FORMAT else f"is of format {version}, and this version reads {FORMAT}"
            raise ConfigError(f"{reason}; {ANEW}", str(path))
        return manifest

    def write(self, path: Path) -> None:
        plain: dict[str, Plain] = self._asdict() | {"files": {name: [*extent] for name, extent in self.files.items()}}
        write_json(path, plain | {"format": FORMAT, "checksum": canonical_hash(plain, 32)})

    def lines(self) -> Iterator[str]:
        """Yields lines that report the sizes."""
        yield f"passages: {self.passages:,}, in {self.windows:,} windows of {self.tokens:,} tokens"
        yield f"states in {self.precision}: {memory(self.files[STATES].size)}"
        sizes = {name: VectorLayout(name, self.width).total(self.windows, self.tokens) for name in get_args(Precision)}
        each = (f"{name} {round(size / max(self.passages, 1)):,}" for name, size in sizes.items())
        yield f"bytes a passage: {', '.join(each)}"

    def require(self, own: Mapping[str, Plain], folder: Path) -> None:
        """Raises ConfigError if a network with the dependencies ``own`` cannot read the states. The message names the
        first difference."""
        for name, value in own.items():
            if self.dependencies.get(name) != value:
                differs = f"{name} {self.dependencies.get(name)}, and this network has {value}"
                raise ConfigError(f"holds states of {HIDDEN.get(name, differs)}; {ANEW}", str(folder))


@final
class PassageStates:
    """Reads the states that a ``PassageStatesWriter`` has written to a folder. The files are memory maps that all
    processes share, and only the parts in use are read.

    own: the dependencies of the network that reads the states, by name, as ``dependencies`` of the writer. Raises
    ConfigError if the folder holds no states, or if they are incomplete, damaged or written by another network. A
    damaged block raises it when the block is first read.
    """

    def __init__(self, folder: Path, own: Mapping[str, Plain], file: str = MANIFEST) -> None:
        if not (folder / file).exists():
            reason = "holds no states of passages; write them by: encode CHECKPOINT PASSAGES --to FOLDER"
            if (folder / UNFINISHED).exists():
                reason = "holds incomplete states; start encode again, which continues"
            raise ConfigError(reason, str(folder))
        self.folder, self.manifest = folder, Manifest.read(folder / file)
        self.manifest.require(own, folder)
        self.layout = VectorLayout(self.manifest.precision, self.manifest.width)
        files = {name: CheckedFile(folder / name, self.manifest.files[name]) for name in FILES}
        self.files = files
        self.windows, self.passages = (
            files[name].read(0, files[name].size).view(record)
            for name, record in ((WINDOWS, WINDOW), (PASSAGES, PASSAGE))
        )

    def __len__(self) -> int:
        return len(self.passages)

    def passage(self, number: int) -> PassageLine:
        """Returns a passage by its number."""
        line, begin, size, _ = self.passages[number].item()
        return PassageLine(line, self.files[TEXTS].read(begin, size).tobytes().decode())

    def number_of(self, line: int) -> int | None:
        """Returns the number of the passage in a line of the file of passages; None if the line holds no passage."""
        number = int(np.searchsorted(self.passages["line"], line))
        return number if number < len(self) and self.passages["line"][number] == line else None

    def windows_of(self, number: int) -> Iterator[PassageWindow]:
        """Yields the windows of a passage."""
        stop = self.passages["windows"][number + 1] if number + 1 < len(self) else len(self.windows)
        for window in range(int(self.passages["windows"][number]), int(stop)):
            _, passage, first, symbols = self.windows[window].item()
            yield PassageWindow(window, passage, range(first, first + symbols))

    def states(self, window: PassageWindow) -> Float[Tensor, "p d"]:
        """Returns the states (p, d) of a window in float32: one for each symbol, and one for the final [SEP]."""
        begin = int(self.windows["begin"][window.number])
        return self.layout.read(self.files[STATES].read(begin, self.layout.size(window.tokens)), window.tokens)


FILES = (STATES, WINDOWS, PASSAGES, TEXTS)


@final
class PassageStatesWriter:
    """Writes states to a folder in the order of the passages, with constant memory. ``save`` makes them permanent:
    after a kill, another process continues after the last save. ``finish`` makes the folder complete.

    dependencies: the weights, tokenizer and windows that the states depend on, by name. ``passages``: number of
    passages in the folder. Raises ConfigError if the folder holds other files or states of another network, or another
    process writes to it.
    """

    def __init__(self, folder: Path, dependencies: Mapping[str, Plain], layout: VectorLayout) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not any((folder / name).exists() for name in (MANIFEST, UNFINISHED, LOCK)):
            raise ConfigError("holds other files; name a new folder", str(folder))
        self.folder, self.layout = folder, layout
        self.lock = (folder / LOCK).open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError("another process encodes into it; wait for it", str(folder)) from None
        self.is_finished = (folder / MANIFEST).exists()
        if not self.is_finished and not (folder / UNFINISHED).exists():
            for name in FILES:
                CheckedWriter(folder / name).save()
            Manifest(dependencies, *layout, 0, 0, 0, dict.fromkeys(FILES, NOTHING)).write(folder / UNFINISHED)
        self.before = PassageStates(folder, dependencies, MANIFEST if self.is_finished else UNFINISHED)
        self.manifest = self.before.manifest
        if layout.precision != self.manifest.precision:
            reason = f"holds states in {self.manifest.precision}, and --precision is {layout.precision}"
            raise ConfigError(f"{reason}; {ANEW}", str(folder))
        self.files = {} if self.is_finished else self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self.files.values():
            file.close()
        self.lock.close()

    @property
    def passages(self) -> int:
        return self.manifest.passages

    def _opened(self) -> dict[str, CheckedWriter]:
        return {name: CheckedWriter(self.folder / name, self.manifest.files[name]) for name in FILES}

    def require_held(self, number: int, passage: PassageLine) -> None:
        """Raises ConfigError if the folder holds another passage with this number."""
        if self.before.passage(number) != passage:
            reason = f"holds another passage in the place of line {passage.line}"
            raise ConfigError(f"{reason}; {ANEW}", str(self.folder))

    def add(self, passage: PassageLine, windows: Sequence[tuple[range, Float[Tensor, "p d"]]]) -> None:
        """Appends a passage. windows: for each window, the symbols of the passage that it holds, and the states (p, d)
        of these symbols and of the final [SEP]."""
        if self.is_finished:  # from now on readers refuse the folder as incomplete
            (self.folder / MANIFEST).rename(self.folder / UNFINISHED)
            self.is_finished, self.files = False, self._opened()
        files, manifest, text = self.files, self.manifest, passage.text.encode()
        record = (passage.line, files[TEXTS].append(text), len(text), manifest.windows)
        files[PASSAGES].append(np.array(record, PASSAGE).tobytes())
        for symbols, states in windows:
            begin = files[STATES].append(self.layout.written(states))
            window: Any = (begin, manifest.passages, symbols.start, len(symbols))
            files[WINDOWS].append(np.array(window, WINDOW).tobytes())
        tokens = sum(len(symbols) + 1 for symbols, _ in windows)
        self.manifest = manifest._replace(
            passages=manifest.passages + 1, windows=manifest.windows + len(windows), tokens=manifest.tokens + tokens
        )

    def save(self) -> None:
        """Writes all passages added so far to the disk."""
        if self.is_finished:
            return
        for file in self.files.values():
            file.save()
        self.manifest = self.manifest._replace(files={name: file.extent for name, file in self.files.items()})
        self.manifest.write(self.folder / UNFINISHED)

    def finish(self) -> Manifest:
        """Saves all passages, marks the folder as complete, and returns its manifest."""
        self.save()
        if not self.is_finished:
            (self.folder / UNFINISHED).rename(self.folder / MANIFEST)
        return self.manifest
