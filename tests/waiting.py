"""Waiting for what processes of tests do: for as long as a busy machine may need, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 120.0
"""What a test starts takes ten."""


def wait_for(condition: Callable[[], object], what: str = "it did not happen in time", every: float = 0.02) -> None:
    """Until it holds, which it has to in time. what: says what has not happened. every: seconds between two looks."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(every)


@contextmanager
def when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Does something besides, as soon as the condition holds, which it has to in time."""
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            wait_for(condition)
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed, failed
