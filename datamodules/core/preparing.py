"""Messages and locks of processes that write data to the cache, which takes minutes for a large corpus."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

__all__ = ["ByteCount", "PreparationProgress", "TextCount", "alone", "lines_while", "shown_while"]

FIRST_SECONDS = 3.0
"""A folder that is written faster than this is not worth a line."""
EVERY_SECONDS = 10.0
BAR_SECONDS = 0.5
"""How often the bar on a terminal is drawn anew."""
BAR = 24
MEGABYTE = 1e6


class PreparationProgress:
    """How much is done of a total, in any unit."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def __str__(self) -> str:
        raise NotImplementedError


class TextCount(PreparationProgress):
    """The number of texts that are done, of a total."""

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} texts"


class ByteCount(PreparationProgress):
    """The number of bytes of files that are read, of a total."""

    def __str__(self) -> str:
        return f"{self.done / MEGABYTE:.1f} of {self.total / MEGABYTE:.1f} MB read"


@contextmanager
def shown_while(
    line: Callable[[], str], last: Callable[[float], str], draw: Callable[[Event], None] | None
) -> Iterator[None]:
    """Shows progress if the block takes more than FIRST_SECONDS: prints ``line()`` again and again or, with ``draw``,
    calls it with an event that is set at the end. After a block without an error it prints ``last(seconds)``."""
    done, began = Event(), time.monotonic()

    def watch() -> None:
        is_over = done.wait(FIRST_SECONDS)
        if draw is not None and not is_over:
            draw(done)
            return
        while not is_over:
            _say(line())
            is_over = done.wait(EVERY_SECONDS)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    if (seconds := time.monotonic() - began) > FIRST_SECONDS:
        _say(last(seconds))


@contextmanager
def lines_while(folder: Path, temporary: Path, progress: PreparationProgress | None = None) -> Iterator[None]:
    """Prints the progress, or without one how many bytes a temporary folder holds, as long as it is being filled, and
    at last that it is complete. On a terminal the progress is a bar with the share that is done and the time left.

    folder: the final name of the temporary folder, which the lines state.
    """
    began = time.monotonic()

    def line() -> str:
        return f"prepares {folder}, once: {progress or f'{_bytes_in(temporary) / MEGABYTE:.1f} MB'} so far"

    def last(seconds: float) -> str:
        return f"prepared {folder} in {seconds:.0f} s: {_bytes_in(temporary) / MEGABYTE:.1f} MB"

    def draw(done: Event) -> None:
        while progress is not None:
            _draw(f"prepares {folder.name}, once: {_bar(progress, time.monotonic() - began)}")
            if done.wait(BAR_SECONDS):
                break
        _draw("")

    with shown_while(line, last, draw if progress is not None and sys.stderr.isatty() else None):
        yield


def _bar(progress: PreparationProgress, seconds: float) -> str:
    """Returns the bar of progress after some seconds, with the share that is done in percent and the time left."""
    share = min(progress.done / max(progress.total, 1), 1.0)
    full = int(BAR * share)
    left = f", {_duration(seconds * (1 - share) / share)} left" if share else ""
    return f"[{'#' * full}{'.' * (BAR - full)}] {share:.0%}{left}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Waits until no other process prepares a folder, and keeps others waiting within the block. Prints a line if it
    waits. Yields whether it has the lock: some file systems have no locks.

    The lock is on a file next to the folder. The kernel releases it when the process ends, however it ends.
    """
    path = folder.with_name(f"{folder.name}.lock")
    descriptor = _locked(path, folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _locked(path: Path, folder: Path) -> int | None:
    """Returns the descriptor of the lock file, which this process alone has locked; None without locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say(f"waits for another process, which prepares {folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):  # who had the lock before removed the file
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def _bytes_in(folder: Path) -> int:
    """Returns the bytes of all files below a folder; one that is removed meanwhile has none."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _draw(line: str) -> None:
    """Writes a line in place of the one that the cursor of a terminal is on."""
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
