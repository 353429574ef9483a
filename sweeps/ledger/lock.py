"""Locks on files: one process at a time works in a run directory, or opens the ledger's file.

POSIX record locks, because they belong to one process: its children (data loading workers) don't inherit them, and
the kernel drops them the moment it dies, however it dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BusyError", "LockError", "is_locked", "locked"]

_depths: dict[str, int] = {}
"""How many times this process holds each lock. A record lock has no count, and the first close releases it."""


class BusyError(ValueError):
    """Another process holds the lock."""


class LockError(ValueError):
    """A file system gives no locks; the message names the file, the reason and the way out."""


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Holds the lock; waits up to ``patience`` seconds for it, then raises BusyError. May be nested in one thread.

    Raises LockError where the file system gives no locks.
    """
    name = str(path.resolve())
    if name in _depths:
        _depths[name] += 1
        try:
            yield
        finally:
            _depths[name] -= 1
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        _acquire(file.fileno(), path, patience)
        _depths[name] = 1
        try:
            yield
        finally:
            del _depths[name]


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock now. Raises LockError where the file system gives no locks."""
    if not path.exists() or str(path.resolve()) in _depths:
        return False
    with path.open("a") as file:
        return not _taken(file.fileno(), path)


def _taken(descriptor: int, path: Path) -> bool:
    """Takes the lock, unless another process holds it. Raises LockError where the file system gives none."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise LockError(
            f"{path}: its file system gives no locks ({errno.errorcode.get(error.errno or 0, '?')}: {error.strerror}); "
            "take a folder on another one, or mount it with locks (NFS: start its lock service, or local_lock=all "
            "where one machine alone works in it)"
        ) from None
    return True


def _acquire(descriptor: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _taken(descriptor, path):
        if time.monotonic() >= deadline:
            raise BusyError(f"{path}: another process (not {os.getpid()}) is at work here; wait for it or stop it")
        time.sleep(0.02)
