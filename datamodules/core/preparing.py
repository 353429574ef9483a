"""Lines on stderr while data are written to the cache, which takes minutes where a corpus is large."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

__all__ = ["TextCount", "lines_while"]

FIRST_SECONDS = 3.0
"""A folder that is written faster than this is not worth a line."""
EVERY_SECONDS = 10.0
MEGABYTE = 1e6


class TextCount:
    """The number of texts that are done, of a total."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} texts"


@contextmanager
def lines_while(folder: Path, temporary: Path, progress: TextCount | None = None) -> Iterator[None]:
    """Prints the progress, or without one how many bytes a temporary folder holds, as long as it is being filled, and
    at last that it is complete.

    folder: what it will become, which the lines name.
    """
    done, began = Event(), time.monotonic()

    def watch() -> None:
        wait = FIRST_SECONDS
        while not done.wait(wait):
            megabytes = f"{_bytes_in(temporary) / MEGABYTE:.1f} MB"
            _say(f"prepares {folder}, once: {progress or megabytes} so far")
            wait = EVERY_SECONDS

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    if (seconds := time.monotonic() - began) > FIRST_SECONDS:
        _say(f"prepared {folder} in {seconds:.0f} s: {_bytes_in(temporary) / MEGABYTE:.1f} MB")


def _bytes_in(folder: Path) -> int:
    """Returns the bytes of all files below a folder; one that is removed meanwhile has none."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
