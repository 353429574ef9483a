"""The inputs from outside of the suite that planning a study reads: modules, other files, folders and environment
variables.

All of them determine the study, so that a stored plan holds only as long as none of them has changed. Modules count
wherever they are imported from, however deep. Files and variables count where code from outside reads them: reads by
torch and other installed packages for themselves do not count, but the installed versions of these packages do.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import multiprocessing
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.plugins import source_files
from lit_transformers.source_code import absolute, imports, is_installed, package_of

__all__ = ["StudyInputs", "imported_afresh", "names_in", "recorded_inputs"]

SUITE = Path(__file__).parents[1]
PACKAGES = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports")
READ_WHOLE = 2**20
"""The size in bytes up to which a file counts by its content; a larger one, by its size and time."""

ALL = "*"
"""Stands for the names of all environment variables, where code goes through them."""


@dataclass
class StudyInputs:
    """The inputs that were read: the stamps of paths and of variables by name, from their first reading.

    certain: whether no module may have been imported by this process before it was edited.
    """

    paths: dict[str, Plain] = field(default_factory=dict)
    variables: dict[str, Plain] = field(default_factory=dict)
    packages: str = ""
    certain: bool = True

    def to_dict(self) -> dict[str, Plain]:
        """Returns the inputs as plain data."""
        return {"paths": self.paths, "variables": self.variables, "packages": self.packages}

    @staticmethod
    def unchanged(plain: Mapping[str, Plain]) -> bool:
        """Whether the inputs are still the ones in ``plain``, an earlier output of ``to_dict``."""
        return (
            plain["packages"] == installed_packages()
            and all(stamp_of_variable(name) == stamp for name, stamp in plain["variables"].items())
            and all(stamp_of_path(Path(path)) == stamp for path, stamp in plain["paths"].items())
        )


def stamp_of_path(path: Path) -> Plain:
    """Returns the stamp of a file, or of the names in a folder, which changes with them; None where there is
    neither."""
    try:
        if path.is_dir():
            return canonical_hash(names_in(path))
        status = path.stat()
        if status.st_size <= READ_WHOLE and path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return [status.st_size, status.st_mtime_ns]
    except OSError:
        return None


def names_in(folder: Path) -> list[str]:
    """Returns the names in a folder, in order; none where there is no such folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def stamp_of_variable(name: str) -> Plain:
    """Returns the stamp of an environment variable, whose value may be a secret; None where it is not set."""
    if name == ALL:
        return canonical_hash(sorted(os.environ))
    value = os.environ.get(name)
    return None if value is None else canonical_hash(value)


def installed_packages() -> str:
    """Returns a hash of the versions of the packages that are installed."""
    folders = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    return canonical_hash([name for folder in folders for name in names_in(Path(folder)) if name.endswith("-info")])


@cache
def is_outside(file: str | Path) -> bool:
    """Whether a file of code is neither of the suite, nor of Python, nor of an installed package."""
    path = Path(file).resolve()
    parts = path.relative_to(SUITE).parts if path.is_relative_to(SUITE) else ("",)
    own = parts[0] in PACKAGES and parts[:2] != ("ablations", "studies")
    return not own and not is_installed(path) and path.is_file()


IMPORTED: dict[str, tuple[Path, Plain]] = {}
"""The file and its stamp of each module from outside that this process has imported for a study."""
RECORDERS: list[Recorder] = []
"""The recorders that are active at present."""
READS = ("open", "os.listdir", "os.scandir")
"""The events of Python's audit at which a file or a folder is read."""


class Recorder:
    """Notes the reads of a thread below one of its frames."""

    def __init__(self, frame: FrameType) -> None:
        self.inputs = StudyInputs(packages=installed_packages())
        self.frame, self.thread = frame, threading.get_ident()
        self.written = set[str]()
        """The environment variables that the study itself has set."""
        self.busy = False
        """Whether it reads something itself."""

    @contextmanager
    def noting(self, frame: FrameType | None, *, whoever: bool = False) -> Iterator[bool]:
        """Yields whether a read at a frame counts: by code from outside, itself or through a library that it calls, or
        by any code if ``whoever``. Reads during the import of a module are by this module, not by its importer."""
        if self.busy or threading.get_ident() != self.thread:
            yield False
            return
        self.busy = True
        try:
            yield whoever or self.is_outside_code(frame)
        finally:
            self.busy = False

    def is_outside_code(self, frame: FrameType | None) -> bool:
        """Whether code from outside is at work in a frame, or in one that called it during the same import."""
        while frame is not None and frame is not self.frame and not is_import(frame):
            if is_outside(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False

    def read_path(self, path: Path, frame: FrameType) -> None:
        """Notes that a file or a folder is read."""
        path = source_of(path.absolute())
        is_module = path.suffix == ".py"
        with self.noting(frame, whoever=is_module) as counts:
            if counts and (not is_module or is_outside(path)):
                self.add_path(path)

    def add_path(self, path: Path) -> bool:
        """Notes a path as it is now, where it has not been noted yet; returns whether that was so."""
        is_new = str(path) not in self.inputs.paths
        if is_new:
            self.inputs.paths[str(path)] = stamp_of_path(path)
        return is_new

    def read_variable(self, name: str, frame: FrameType) -> None:
        """Notes that an environment variable is read."""
        with self.noting(frame) as counts:
            if counts and name not in self.written and name not in self.inputs.variables:
                self.inputs.variables[name] = stamp_of_variable(name)

    def search_module(self, name: str, folders: Iterable[str], frame: FrameType) -> None:
        """Notes where code from outside looks for a module that does not lie there."""
        importer: FrameType | None = frame
        while importer is not None and is_import(importer):
            importer = importer.f_back
        with self.noting(importer) as counts:
            for folder in (Path(folder).absolute() for folder in folders if counts):
                for path in (folder / f"{name}.py", folder / name / "__init__.py"):
                    if folder.is_dir() and not is_installed(path) and not path.exists():
                        self.add_path(path)

    def add_loaded_modules(self, files: Iterable[Path]) -> None:
        """Notes the modules that this process had imported before, of those that these files and the modules which were
        read import, however deep."""
        modules = [file for file in map(Path, self.inputs.paths) if file.suffix == ".py"]
        pending = [*files, *(file for file, _ in IMPORTED.values()), *modules]
        names = {file: name for name in [*sys.modules] if (file := file_of_module(name))}
        seen = set[Path]()
        while pending:
            file = pending.pop()
            if file in seen or not is_outside(file):
                continue
            seen.add(file)
            if self.add_path(file):
                self.inputs.certain &= file.stat().st_mtime < started()
            if file.suffix != ".py":
                continue  # compiled: its imports cannot be read
            package = package_of(names[file], file) if file in names else ""
            imported = (absolute(name, package) for name in imports(ast.parse(file.read_bytes())))
            pending += [path for name in imported if (path := file_of_module(name))]


def file_of_module(name: str) -> Path | None:
    """Returns the file of a module that this process has imported; None where it has not, or there is no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file else None


def started() -> float:
    """Returns the time at which this process began, or the one whose server has forked it."""
    parent = multiprocessing.parent_process()
    return psutil.Process(parent.pid if parent else None).create_time()


def calling_frame(depth: int) -> FrameType:
    """Returns the frame of a caller: at depth 1, of the one of this function."""
    frame = inspect.currentframe()
    for _ in range(depth):
        frame = frame and frame.f_back
    assert frame is not None
    return frame


def is_import(frame: FrameType) -> bool:
    """Whether a frame is one of the machinery of imports."""
    return frame.f_globals.get("__name__", "").startswith("importlib._bootstrap")


def source_of(path: Path) -> Path:
    """Returns the source file of compiled code, and any other file as it is."""
    try:
        return Path(importlib.util.source_from_cache(path)) if path.suffix == ".pyc" else path
    except ValueError:  # compiled code without its source
        return path


class Searches:
    """A finder of modules that finds none, and notes which are looked for."""

    @staticmethod
    def find_spec(name: str, path: Iterable[str] | None = None, target: object = None) -> None:
        for recorder in RECORDERS:
            recorder.search_module(name.rpartition(".")[2], sys.path if path is None else path, calling_frame(2))


class RecordedEnvironment(type(os.environ)):  # type: ignore[misc]
    """The environment, which notes every read and its reader."""

    def __getitem__(self, name: Any) -> Any:
        for recorder in RECORDERS:
            recorder.read_variable(os.fsdecode(name), calling_frame(2))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        for recorder in RECORDERS:
            recorder.read_variable(ALL, calling_frame(2))
        return super().__iter__()

    def __setitem__(self, name: Any, value: Any) -> None:
        for recorder in RECORDERS:
            recorder.written.add(os.fsdecode(name))
        super().__setitem__(name, value)


def note_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Receives every event that Python audits, and notes files that are read and folders that are listed."""
    if not RECORDERS or event not in READS:
        return
    path, *how = arguments
    if not isinstance(path, str | bytes | os.PathLike):
        path = "." if path is None else None
    writes = event == "open" and (set(how[0] or "") & set("wax") or how[1] & (os.O_WRONLY | os.O_CREAT))
    if path is None or writes:
        return
    for recorder in [*RECORDERS]:
        recorder.read_path(Path(os.fsdecode(path)), calling_frame(2))


@cache
def add_hook() -> None:
    """Adds the hook of events, which stays for good and is thus added once."""
    sys.addaudithook(note_event)


@contextmanager
def recorded_inputs() -> Iterator[StudyInputs]:
    """Notes the reads of this thread inside the block; the inputs are complete when it ends."""
    add_hook()
    recorder = Recorder(calling_frame(3))
    environments = [os.environ, *([os.environb] if os.supports_bytes_environ else [])]
    kind, finder = type(os.environ), Searches()
    RECORDERS.append(recorder)
    sys.meta_path.insert(0, finder)
    for environment in environments:
        environment.__class__ = RecordedEnvironment
    try:
        yield recorder.inputs
    finally:
        for environment in environments:
            environment.__class__ = kind
        sys.meta_path.remove(finder)
        RECORDERS.remove(recorder)
    recorder.add_loaded_modules(source_files())


@contextmanager
def imported_afresh() -> Iterator[None]:
    """Inside, a study imports its modules from outside as they are now, though this process may have imported them for
    a study before they were edited; one that was imported otherwise stays as it is, as Python has it."""
    if any(stamp_of_path(file) != stamp for file, stamp in IMPORTED.values()):
        for name, (source, _) in IMPORTED.items():
            sys.modules.pop(name, None)
            # An edit that keeps the size within one second leaves bytecode that Python takes for that of the new file.
            Path(importlib.util.cache_from_source(source)).unlink(missing_ok=True)
        IMPORTED.clear()
        importlib.invalidate_caches()
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        file = file_of_module(name)
        if file is not None and is_outside(file):
            IMPORTED[name] = file, stamp_of_path(file)
