"""Being asked to stop: SIGTERM, as a wish that training looks at between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stop", "stop_requests"]


class Stop:
    """Calling it says whether SIGTERM has come. Signals reach the main thread alone; elsewhere it never has."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self) -> bool:
        return self.asked.is_set()

    def listen(self) -> None:
        """Makes SIGTERM set the wish and do nothing else.

        A Lightning trainer puts its own handler before this one whenever it starts: that one ends the process at the
        next batch, also within an evaluation, and with several ranks speaks to the others from within the signal,
        amid whatever they are exchanging. So this is called again once the trainer runs.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda number, frame: self.asked.set())


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Listens for as long as the block lasts."""
    before = signal.getsignal(signal.SIGTERM)
    stop = Stop()
    stop.listen()
    try:
        yield stop
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
