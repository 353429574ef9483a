"""A run at work in a process of its own: start it, hear how it goes, ask it to stop, learn how it ended.

The processes come from a fork server that has imported torch once, so that a run begins as soon as the last has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection

import psutil

from sweeps.order import News, Order
from sweeps.preload import RUNNER
from sweeps.worker import work

__all__ = ["Attempt", "LaunchError", "prepare_server"]

_SERVER = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the ordinary check for a device would spoil CUDA for processes forked later
}
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class LaunchError(ValueError):
    """No process can be made here; the message says why."""


def prepare_server(runner: str) -> None:
    """Starts the fork server, which imports the runner while the caller goes on. Harmless when it runs already.

    It ignores the signals of the terminal and of batch systems, which reach a whole process group: it has nothing to
    save, and must outlive the runs that have. Numeric libraries are told to make no thread pools before the fork.
    """
    forkserver_context = multiprocessing.get_context("forkserver")
    forkserver_context.set_forkserver_preload(["sweeps.preload"])
    surroundings = {**_SERVER, RUNNER: runner}
    before = {name: os.environ.get(name) for name in surroundings}
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    os.environ.update(surroundings)
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Attempt:
    """One attempt at one run: the process that does it, whether by itself or by torchrun's ranks below it."""

    def __init__(self, order: Order) -> None:
        """Starts it. Raises LaunchError where the machine gives no process."""
        prepare_server(order.runner)
        context = multiprocessing.get_context("forkserver")
        self._listener, speaker = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(order, speaker), name=order.ticket.key)
        self.hears = False
        """Whether a wish to stop would be heard by now."""
        try:
            self._process.start()
        except (EOFError, OSError) as error:
            self._listener.close()
            raise LaunchError(
                f"no process could be started ({type(error).__name__}: {error}); nothing is lost, run again"
            ) from None
        finally:
            speaker.close()

    @property
    def ready(self) -> list[int | Connection]:
        """What ``multiprocessing.connection.wait`` can wait for: news, or the end."""
        return [self._process.sentinel, *([] if self._listener.closed else [self._listener])]

    @property
    def status(self) -> int | None:
        """Its exit status, below zero the signal that killed it; None while it lives."""
        return self._process.exitcode

    def news(self) -> Iterator[News]:
        """All that it has said and nobody has heard yet."""
        try:
            while not self._listener.closed and self._listener.poll():
                said = self._listener.recv()
                if said is None:
                    self.hears = True
                else:
                    yield said
        except (EOFError, OSError):
            self._listener.close()

    def stop(self) -> None:
        """Asks it to write its checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, and what it has started: data loading workers see their parent die, ranks their leash."""
        self._process.kill()

    def close(self, seconds: float = 0.0) -> None:
        """Leaves no process behind: waits so long for it to end by itself, and kills it then."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        if self.status == 255 and self._process.pid:  # the fork server died and cannot tell; it may still be at work
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        self._listener.close()

    def memory(self) -> int:
        """Bytes held in memory by it and by all that it has started."""
        held = 0
        with suppress(psutil.NoSuchProcess):
            above = psutil.Process(self._process.pid)
            for process in (above, *above.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    held += process.memory_info().rss
        return held
