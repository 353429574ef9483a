"""Locks on files: one process at a time works in a run directory, or opens the ledger's file.

POSIX record locks, because they belong to one process: its children (data loading workers) don't inherit them, and
the kernel drops them the moment it dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BusyError", "is_locked", "locked"]

_depths: dict[str, int] = {}
"""How many times this process holds each lock. A record lock has no count, and the first close releases it."""


class BusyError(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Holds the lock; waits up to ``patience`` seconds for it, then raises BusyError. May be nested in one thread."""
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
    """Whether another process holds the lock now."""
    if not path.exists() or str(path.resolve()) in _depths:
        return False
    with path.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _acquire(descriptor: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"{path}: another process (not {os.getpid()}) is at work here; wait for it or stop it"
                ) from None
            time.sleep(0.02)
        else:
            return
