"""Requests to stop: SIGTERM sets a flag that training checks between two steps. And how a run ends early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Diverged", "Interrupted", "ProcessKilled", "Stop", "stop_requests"]


class Diverged(RuntimeError):
    """The loss, or another metric of a run, is not finite any more."""


class Interrupted(RuntimeError):
    """The run received a request to stop. It has written a checkpoint from which it can be resumed, if it has any."""


class ProcessKilled(RuntimeError):
    """A process that the run needs was killed from outside. Run again, the run resumes, from its checkpoint if it has
    one."""


class Stop:
    """A flag; calling it returns whether SIGTERM was received. Only the main thread can listen for signals."""

    def __init__(self) -> None:
        self.request = threading.Event()

    def __call__(self) -> bool:
        return self.request.is_set()

    def listen(self) -> None:
        """Makes SIGTERM set the flag and do nothing else.

        A Lightning trainer installs its own handler whenever it starts: that one ends the process at the next batch,
        also within an evaluation, and with several ranks communicates with the others from within the signal handler,
        in the middle of other exchanges. So this method is called again once the trainer runs.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda number, frame: self.request.set())


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Listens for SIGTERM within the block, and restores the previous handler after it."""
    previous_handler = signal.getsignal(signal.SIGTERM)
    stop = Stop()
    stop.listen()
    try:
        yield stop
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, previous_handler)
