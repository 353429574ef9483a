"""Waiting for processes that tests start: as long as a busy machine may need, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 120.0
"""The longest wait; processes that tests start usually take ten seconds."""


def wait_for(condition: Callable[[], object], what: str = "it did not happen in time", every: float = 0.02) -> None:
    """Waits until the condition holds; fails after ``SECONDS``. what: the message. every: seconds between checks."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(every)


@contextmanager
def when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Calls ``act`` in a thread as soon as the condition holds. Fails where it does not hold within ``SECONDS``."""
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            wait_for(condition)
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not errors, errors
