"""Runs in an object store: ``--runs s3://bucket/prefix``, or any other address that fsspec knows.

All work is done in a working copy, a folder of this machine, as it is without a store. This module alone mirrors it. A
command brings missing files when it begins, and puts new and changed files into the store when it ends. The process of
a run brings the checkpoint before it resumes, puts each checkpoint into the store during training, and puts the results
there last.

A store replaces objects whole, but not several at once. So a record is put there after all files of its run. It is
created, never replaced: a record that is there already stays, unless it is of a run that failed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast
from uuid import uuid4

from lit_transformers.config import ConfigError, canonical_hash
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.files import (
    CHECKPOINT,
    COMMAND_ERRORS,
    COMMAND_OUTPUT,
    CURVES,
    DOCUMENTS,
    OUTPUTS,
    RECORD,
    RUN,
    SENT_UPDATES,
    replace_file,
    write_json,
    write_text,
)
from lit_transformers.records.study_folder import is_plain_name
from sweeps.addresses import secrets_of, without_secrets

__all__ = [
    "CACHE",
    "CREDENTIALS",
    "LEASES",
    "PATIENCE",
    "Store",
    "address_of",
    "is_address",
    "opened",
    "prepared",
    "shown_address",
    "store_at",
    "store_of",
]

CACHE = "LIT_TRANSFORMERS_CACHE"
"""The variable that names the folder of working copies."""
ADDRESS = "object-store.txt"
"""The file of a working copy with the address of its store."""
MIRRORED = "mirrored.json"
"""The last transfer of each file in either direction: its identity in the store, and its size and time here."""
FOLDER_ID = "folder.id"
"""The id by which a ledger knows a folder of runs: all working copies of a store have the id of the store."""
LEASES = "leases"
"""The folder of a store that says which machine does which run."""
STUDIES = "studies"
OF_ONE_MACHINE = ("plans", "slurm")
"""Folders of a study that are of no use to other machines: the cache of plans, and the jobs of a cluster."""

FILES = (RUN, CURVES, SENT_UPDATES, DOCUMENTS, OUTPUTS)
"""The files of a run that its record is nothing without, where it has them."""
PATIENCE = 300.0
"""For how many seconds a failed operation on a store is tried again."""
RETRY_SECONDS = 2.0
WATCH_SECONDS = 0.5
"""How often the process of a run looks for a new checkpoint."""
LOOK_SECONDS = 10.0
"""The shortest time between two looks for the records of runs that other machines do."""
TRANSFERS = 16
"""How many small files are brought at a time."""
FINAL = (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError, ImportError)
"""Errors of a store that trying again does not repair."""
CREDENTIALS = ("AWS_", "FSSPEC_", "GOOGLE_", "GCSFS_", "STORAGE_EMULATOR_HOST")
"""The prefixes of the variables by which the libraries of stores find a server and its keys."""
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extras that install the packages for an address, by its scheme."""

Answer = TypeVar("Answer")
Listing = Mapping[str, Mapping[str, Any]]
"""The objects of a store: the known properties of each, by its path below the address."""


def is_address(runs: str | Path) -> bool:
    """Whether runs are in a store, and not in a folder."""
    return isinstance(runs, str) and "://" in runs


def store_of(runs: Path) -> Store | None:
    """Returns the store that a folder of runs is a working copy of, or a part of one; None where it is neither."""
    for folder, part in ((runs, ""), (runs.parent, runs.name)):
        with suppress(OSError):
            address = (folder / ADDRESS).read_text(encoding="utf-8").removesuffix("\n")
            if is_address(address):
                return Store(f"{address}/{part}" if part else address, runs)
    return None


def address_of(runs: Path) -> str | None:
    """Returns the address of the store that a folder of runs is a working copy of, or None."""
    store = store_of(runs)
    return None if store is None else store.address


def shown_address(runs: Path) -> str:
    """Returns the value of ``--runs``: the folder or, if it is a working copy, the address of its store."""
    return address_of(runs) or str(runs)


def store_at(address: str) -> Store:
    """Returns the store of an address, with the place of its working copy. Nothing is read from the store yet.

    Raises ConfigError for a text that cannot be an address. An address that holds a password is refused too: anybody
    who lists the processes of the machine could read it, and commands print it and write it to files.
    """
    address = address.rstrip("/")
    scheme = address.partition("://")[0]
    if secrets_of(address):
        ways = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if EXTRAS.get(scheme) == "s3" else "FSSPEC_... variables"
        reason = f"holds a password, which others would see; leave it out, and set {ways} in the environment"
        raise ConfigError(reason, without_secrets(address, address))
    if "://" not in address:
        raise ConfigError("names no bucket; write scheme://bucket/prefix", address)
    if scheme == "memory":
        raise ConfigError("is gone with the process that fills it; name a store, or a folder", address)
    caches = os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "lit_transformers"
    return Store(address, Path(caches).expanduser() / "stores" / canonical_hash(address))


def prepared(address: str) -> Store:
    """Returns the store of an address with a working copy that holds no runs yet, unless it is from earlier.

    Raises ConfigError, in one line, where the store cannot be reached or a package that it needs is not installed.
    """
    store = store_at(address)
    at_once = replace(store, patience=0.0)
    at_once.create(FOLDER_ID, uuid4().hex.encode())
    store.folder.mkdir(parents=True, exist_ok=True)
    at_once.bring(FOLDER_ID)
    write_text(store.folder / ADDRESS, store.address + "\n")
    return store


@contextmanager
def opened(runs: str | Path) -> Iterator[Path]:
    """Yields the folder of runs of a path or an address. The folder of a store holds the files of the store except
    checkpoints, and its new and changed files are put into the store at the end; a printed line names the folder."""
    if not is_address(runs):
        yield Path(runs)
        return
    store = prepared(str(runs))
    print(f"{store.address}: working copy {store.folder}", file=sys.stderr, flush=True)
    replace(store, patience=0.0).pull()
    try:
        yield store.folder
    finally:
        store.push()


@dataclass(frozen=True)
class Store:
    """A store by its address, and its working copy. Methods take a run by its key, and a file by its path there.

    patience: for how many seconds putting something is tried again.
    Every method raises ConfigError with one line that names the store.
    """

    address: str
    folder: Path
    patience: float = PATIENCE

    def pull(self) -> None:
        """Brings the records that are missing here, each after the files of its run, and new and changed files of
        studies. A record of a run that failed does not replace a record that is here."""
        listing = self.listing()
        runs = [key for key, _, name in (path.rpartition("/") for path in listing) if name == RECORD]
        studies = [path for path in listing if _is_of_study(path)]
        with ThreadPoolExecutor(TRANSFERS) as transfers:
            list(transfers.map(lambda key: self._pull_results(key, listing), runs))
            list(transfers.map(lambda path: self._pull_file(path, listing), studies))

    def push(self) -> None:
        """Puts new and changed files of studies into the store, and the runs whose records are here alone."""
        listing = self.listing()
        for path in self.folder.glob(f"**/{STUDIES}/**/*"):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and path.suffix != ".part" and _is_of_study(name) and self._is_changed(name):
                self.put(name)
        for path in self.folder.glob(f"**/{RECORD}"):
            name = path.relative_to(self.folder).as_posix()
            if not _is_of_study(name) and (name not in listing or self._is_changed(name)):
                self.push_run(str(PurePosixPath(name).parent))

    def pull_run(self, key: str) -> None:
        """Brings the record of a run or, where there is none, the checkpoint that another machine has left since."""
        listing = self.listing(key)
        self._pull_results(key, listing)
        if f"{key}/{RECORD}" not in listing or _outcome(self.place(key)) == "failed":
            self._pull_file(f"{key}/{CHECKPOINT}", listing)

    def pull_records(self, keys: Collection[str]) -> None:
        """Brings the records of the runs in ``keys`` that have ended elsewhere, if LOOK_SECONDS have passed since the
        last look for any. A record that cannot be brought is tried with the next look."""
        now = time.monotonic()
        if now - _looked_at.get(self.address, -LOOK_SECONDS) < LOOK_SECONDS:
            return
        _looked_at[self.address] = now
        with suppress(ConfigError):
            listing = replace(self, patience=0.0).listing()
            for key in keys:
                self._pull_results(key, listing)

    def pull_record(self, key: str) -> None:
        """Brings the record of a run that has ended elsewhere, if it left one."""
        self._pull_results(key, self.listing(key))

    def pull_checkpoint(self, key: str) -> None:
        """Brings the checkpoint of a run, where there is one and not here."""
        if not self.place(f"{key}/{CHECKPOINT}").exists():
            self._pull_file(f"{key}/{CHECKPOINT}", self.listing(key))

    def pull_source(self, key: str) -> None:
        """Brings the record and the checkpoint of a run that another one starts from."""
        listing = self.listing(key)
        self._pull_results(key, listing)
        self._pull_file(f"{key}/{CHECKPOINT}", listing)

    def push_checkpoint(self, key: str) -> None:
        """Puts the checkpoint of a run as it is now into the store, while training may write the next one."""
        if self._is_changed(f"{key}/{CHECKPOINT}"):
            self.put(f"{key}/{CHECKPOINT}")

    def push_run(self, key: str) -> None:
        """Puts the files that a run has left into the store, its record last. If another machine put a record there
        first, that record stays and is brought, unless it is of a run that failed."""
        directory, record = f"{key}/", f"{key}/{RECORD}"
        if self._is_over(record):
            self._pull_results(key, self.listing(key))
            return
        for name in (*FILES, COMMAND_OUTPUT, COMMAND_ERRORS):
            if self.place(directory + name).exists():
                self.put(directory + name)
        if (log := self.place(f"{directory}log.txt")).exists():
            self.put(f"{directory}log-{socket.gethostname()}.txt", log)
        self.push_checkpoint(key)
        path = self.place(record)
        if not path.exists():
            return
        self.remove_failure(key)
        if not self.create(record, path.read_bytes()):
            self._pull_results(key, self.listing(key))
        self._note(record, path)

    def remove_failure(self, key: str) -> None:
        """Removes the record of a run that failed, which is done again."""
        record = f"{key}/{RECORD}"
        if record in self.listing(key) and not self._is_over(record):
            self.ask(lambda: self.files.rm_file(self.path(record)))

    def remove_checkpoint(self, key: str) -> None:
        """Removes the checkpoint of a run."""
        if f"{key}/{CHECKPOINT}" in self.listing(key):
            self.ask(lambda: self.files.rm_file(self.path(f"{key}/{CHECKPOINT}")))

    @contextmanager
    def mirrored(self, key: str) -> Iterator[None]:
        """Puts each checkpoint of a run into the store while the block trains. A checkpoint that cannot be put there is
        tried again with the next look; when training ends, ``push_run`` raises an error for it."""
        over, failing = threading.Event(), False

        def watch() -> None:
            nonlocal failing
            while not over.wait(WATCH_SECONDS):
                try:
                    replace(self, patience=0.0).push_checkpoint(key)
                    failing = False
                except ConfigError as error:
                    if not failing:
                        print(f"the checkpoint stays here for now: {error}", flush=True)
                    failing = True

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path of the address in it."""
        import fsspec

        scheme = self.address.partition("://")[0]
        try:
            file_system, root = fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            extra = f"'lit-transformers[{EXTRAS[scheme]}]'" if scheme in EXTRAS else str(error.name or scheme)
            raise ConfigError(f"needs a package that is not installed: pip install {extra}", self.address) from None
        except Exception as error:
            raise ConfigError(f"is no address of a store: {_line(error)}", self.address) from None
        return file_system, root.rstrip("/")

    @property
    def files(self) -> Any:
        """The file system of fsspec that the store is in."""
        return self._opened[0]

    def path(self, name: str) -> str:
        """Returns the path of an object in its file system."""
        return f"{self._opened[1]}/{name}"

    def place(self, name: str) -> Path:
        """Returns the path of an object in the working copy. Whoever can write to the store chooses its names: raises
        ConfigError for one that leads out of the working copy, also by a link in there."""
        path = self.folder / name
        if not all(map(is_plain_name, name.split("/"))):
            reason = f"the name {name!r} leads out of the working copy, or is that of no file; remove the object"
            raise ConfigError(reason, self.address)
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder)):
            reason = f"a link in the working copy {self.folder} leads {name!r} out of it; remove the link"
            raise ConfigError(reason, self.address)
        return path

    def ask(self, operation: Callable[[], Answer], patience: float | None = None) -> Answer:
        """Returns the result of an operation on the store, which is tried again for as long as the patience lasts."""
        patience = self.patience if patience is None else patience
        deadline, is_reported = time.monotonic() + patience, False
        while True:
            try:
                return operation()
            except ConfigError:
                raise
            except FINAL as error:
                doubtful = "are the keys" if isinstance(error, PermissionError) else "is the address"
                raise ConfigError(f"{_line(error)}; {doubtful} right?", self.address) from error
            except Exception as error:
                if time.monotonic() >= deadline:
                    text = f"{_line(error)}; nothing that was finished is lost, run again"
                    raise ConfigError(text, self.address) from error
                if not is_reported:
                    line = f"{self.address}: {_line(error)}; trying again for {patience:.0f} s"
                    print(line, file=sys.stderr, flush=True)
                is_reported = True
            time.sleep(RETRY_SECONDS)

    def listing(self, below: str = "") -> dict[str, dict[str, Any]]:
        """Returns the known properties of each object, by its path. below: a folder, to list its objects alone."""
        self.files.invalidate_cache()
        root = self._opened[1]
        objects = self.ask(lambda: self.files.find(f"{root}/{below}" if below else root, detail=True))
        return {path.removeprefix(f"{root}/"): known for path, known in objects.items()}

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object, or None where there is none."""
        try:
            return cast(bytes, self.ask(lambda: self.files.cat_file(self.path(name))))
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write(self, name: str, content: bytes, patience: float | None = None) -> None:
        """Writes an object, and replaces the one that is there."""
        self.ask(lambda: self._with_folder(name, lambda path: self.files.pipe_file(path, content)), patience)

    def create(self, name: str, content: bytes, patience: float | None = None) -> bool:
        """Writes an object where there is none; returns whether that is so. Of several machines one creates it."""

        def create(path: str) -> None:
            self.files.pipe_file(path, content, mode="create")

        try:
            self.ask(lambda: self._with_folder(name, create), patience)
        except ConfigError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        return True

    def put(self, name: str, source: Path | None = None) -> None:
        """Puts a file of the working copy into the store, whole: as it is when this begins."""
        source = source or self.place(name)
        held = source.with_name(f"{source.name}.{os.getpid()}.{threading.get_ident()}.part")
        with suppress(FileNotFoundError):
            os.link(source, held)  # a checkpoint may be replaced meanwhile
            try:
                self.ask(lambda: self._with_folder(name, lambda path: self.files.put_file(str(held), path)))
                self._note(name, held)
            finally:
                held.unlink(missing_ok=True)

    def bring(self, name: str) -> None:
        """Brings an object to its place in the working copy."""
        path = self.place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda fresh: self.ask(lambda: self.files.get_file(self.path(name), str(fresh))))

    def _with_folder(self, name: str, write: Callable[[str], None]) -> None:
        """Writes an object, and the folder for it in a file system that has folders. Nobody's bucket is made."""
        path = self.path(name)
        try:
            write(path)
        except FileNotFoundError:
            if self.address.partition("://")[0] in EXTRAS:
                raise
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            write(path)

    def _pull_results(self, key: str, listing: Listing) -> None:
        """Brings the files of a run with a record, and the record last, unless that is here or is of less worth."""
        record = f"{key}/{RECORD}"
        if record not in listing:
            return
        path = self.place(record)
        is_known = self._mirrored(key).get(RECORD, [""])[0] == _identity(listing[record])
        if is_known and path.exists():
            return
        content = self.read(record)
        if content is None or (_outcome_of(content) == "failed" and path.exists()):
            return
        for name in FILES:
            if f"{key}/{name}" in listing:
                self.bring(f"{key}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda fresh: fresh.write_bytes(content))
        self._note(record, path)

    def _pull_file(self, name: str, listing: Listing) -> None:
        """Brings an object that has changed since it was last brought or put, or is not here."""
        if name not in listing:
            return
        path, known = self.place(name), self._mirrored(str(PurePosixPath(name).parent))
        if not path.exists() or known.get(path.name, [""])[0] != _identity(listing[name]):
            self.bring(name)
            self._note(name, path)

    def _is_over(self, record: str) -> bool:
        """Whether the store has a record of a run that is not done again."""
        content = self.read(record)
        return content is not None and _outcome_of(content) != "failed"

    def _mirrored(self, folder: str) -> dict[str, list[str]]:
        """Returns the last transfers of the files of a folder of the working copy, by name."""
        with suppress(OSError, ValueError):
            path = self.place(MIRRORED if folder == "." else f"{folder}/{MIRRORED}")
            return cast(dict[str, list[str]], json.loads(path.read_text(encoding="utf-8")))
        return {}

    def _is_changed(self, name: str) -> bool:
        """Whether a file is here that is not as it was when it was last brought or put."""
        path = self.place(name)
        known = self._mirrored(str(PurePosixPath(name).parent)).get(path.name, ["", ""])
        return path.exists() and known[1] != _stamp(path)

    def _note(self, name: str, path: Path) -> None:
        """Notes that a file and an object are the same. path: of the file, or of another name of it."""
        stamp, target = _stamp(path), self.place(name)
        self.files.invalidate_cache()
        identity = _identity(self.ask(lambda: self.files.info(self.path(name))))
        if not target.exists():
            return
        folder = target.parent.relative_to(self.folder).as_posix()
        with _NOTING:
            write_json(target.parent / MIRRORED, {**self._mirrored(folder), target.name: [identity, stamp]})


_NOTING = threading.Lock()
_looked_at: dict[str, float] = {}
"""When the records of a store were last looked for, by its address."""


def _line(error: Exception) -> str:
    """Returns the first line of an error of a store, without the passwords of addresses that it repeats."""
    text = without_secrets(str(error).strip())
    return first_line(ValueError(text)) if text else type(error).__name__


def _is_of_study(name: str) -> bool:
    """Whether a path is that of a file of a study that other machines have a use for: a plan, a report."""
    parts = PurePosixPath(name).parts
    return STUDIES in parts[:2] and not {*OF_ONE_MACHINE} & {*parts[:-1]} and parts[-1] != MIRRORED


def _identity(known: Mapping[str, Any]) -> str:
    """Returns the properties that show whether an object was replaced: its size, and its generation, checksum or
    time."""
    names = ("ETag", "generation", "etag", "md5Hash", "crc32c", "mtime", "LastModified", "last_modified", "created")
    return f"{known.get('size')} {next((known[name] for name in names if known.get(name)), '')}"


def _stamp(path: Path) -> str:
    """Returns the properties that show whether a file was replaced or written to."""
    status = path.stat()
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns}"


def _outcome_of(content: bytes) -> str:
    """Returns the outcome of a record; "failed" where it cannot be read, so that it is replaced."""
    try:
        return str(json.loads(content)["outcome"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "failed"


def _outcome(directory: Path) -> str | None:
    """Returns the outcome of the record of a run here, or None where there is none."""
    with suppress(OSError):
        return _outcome_of((directory / RECORD).read_bytes())
    return None
