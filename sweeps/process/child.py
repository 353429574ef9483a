"""Does a training run in a separate process: starts it, receives its progress, stops it, and reads how it ended.

The processes are forked from a server that has imported torch once, so that a run starts
as soon as the last has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import ModuleType

import psutil

from lit_transformers.machine.memory import memory_of_tree
from sweeps.process.order import KILLED, News, RunOrder
from sweeps.process.preload import RUNNER
from sweeps.process.temporary import temporary_files
from sweeps.process.worker import work

__all__ = ["Attempt", "LaunchError", "prepare_server", "start"]

_SERVER = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the ordinary check for a device would spoil CUDA for processes forked later
}
_NO_WARNING = "ignore:resource_tracker"
"""Of the semaphores of loaders whose run was killed: the process that prints it is the one that removes them."""
DEATH_SECONDS = 2.0
"""How long a server may take to end that was killed: its children are seen to lose it before that, and it refuses to
start another process."""
_SERVER_DIED = 255
"""The status that multiprocessing gives to a process whose server has died."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class LaunchError(ValueError):
    """A process cannot be started; the message gives the reason."""


def prepare_server(runner: str) -> None:
    """Starts the fork server, which imports the runner while the caller continues. Harmless when it runs already.

    It ignores the signals of the terminal and of batch systems, which reach a whole process group: it has nothing to
    save, and must outlive the runs that have. Numeric libraries are set to make no thread pools before the fork.
    """
    forkserver_context = multiprocessing.get_context("forkserver")
    forkserver_context.set_forkserver_preload(["sweeps.process.preload"])
    with temporary_files() as variables:
        quiet = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), _NO_WARNING)))
        environment = {**_SERVER, **variables, RUNNER: runner, "PYTHONWARNINGS": quiet}
        previous = {name: os.environ.get(name) for name in environment}
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
        os.environ.update(environment)
        try:
            forkserver.ensure_running()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name, value in previous.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def without_main() -> Iterator[None]:
    """Hides the script that is being run from the processes that are started meanwhile. They would run it once more to
    import their arguments from it, but no argument comes from it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def start(process: ForkServerProcess, runner: str) -> None:
    """Starts a process, and before it the server, again where that is killed meanwhile. Raises LaunchError where that
    fails for as long as a server may take to end."""
    last_try = None
    while True:
        prepare_server(runner)
        try:
            with without_main():
                process.start()
            return
        except (EOFError, OSError) as error:
            last_try = last_try or time.monotonic() + DEATH_SECONDS
            if time.monotonic() >= last_try:
                reason = f"no process could be started ({type(error).__name__}: {error}); nothing is lost, run again"
                raise LaunchError(reason) from None
        time.sleep(0.02)


class Attempt:
    """One attempt at one run: the process that does it, whether by itself or by ranks that torchrun starts."""

    def __init__(self, order: RunOrder) -> None:
        """Starts the process. Raises LaunchError where that fails."""
        context = multiprocessing.get_context("forkserver")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(order, sender), name=order.ticket.key)
        self.accepts_stop = False
        """Whether the process is ready to receive a request to stop."""
        try:
            start(self._process, order.runner)
        except LaunchError:
            self._receiver.close()
            raise
        finally:
            sender.close()
        self._handle, self._server = None, None
        with suppress(psutil.NoSuchProcess):  # it may have been killed already
            self._handle = psutil.Process(self._process.pid)
            self._server = self._handle.parent()

    @property
    def ready(self) -> list[int | Connection]:
        """The objects for ``multiprocessing.connection.wait``: ready on progress, or on the end of the process."""
        return [self._process.sentinel, *([] if self._receiver.closed else [self._receiver])]

    @property
    def status(self) -> int | None:
        """The exit status, negative the number of the signal that killed it; None while the process runs."""
        return self._process.exitcode

    def kill_reason(self) -> str | None:
        """Returns a text that names the process that was killed from outside: this one, another one of the run, or its
        server; None if none was."""
        if self.status == -signal.SIGKILL:
            return "its process was killed (signal 9)"
        if self.status == KILLED:
            return "one of its ranks or data loaders, or its command, was killed"
        if self.status == _SERVER_DIED and _dies(self._server):
            return "the process that it was forked from was killed"
        return None

    def news(self) -> Iterator[News]:
        """Yields all progress messages that have arrived and were not read yet."""
        try:
            while not self._receiver.closed and self._receiver.poll():
                message = self._receiver.recv()
                if message is None:
                    self.accepts_stop = True
                else:
                    yield message
        except (EOFError, OSError):
            self._receiver.close()

    def stop(self) -> None:
        """Asks the process to write its checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills the process. Its data loading workers and ranks end too, when they see that it is gone."""
        self._process.kill()

    def close(self, seconds: float = 0.0) -> None:
        """Waits up to ``seconds`` for the process to end by itself, then kills it."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        if self.status == _SERVER_DIED and self._handle is not None:  # without its server it may still run
            with suppress(psutil.NoSuchProcess):
                self._handle.kill()
        self._receiver.close()

    def memory(self) -> int:
        """Returns the bytes of resident memory of the process and of all that it has started."""
        assert self._process.pid is not None
        return memory_of_tree(self._process.pid)


def _dies(process: psutil.Process | None) -> bool:
    """Whether a process is gone or a zombie, or is so in a moment."""
    deadline = time.monotonic() + DEATH_SECONDS
    try:
        while process is not None and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pass
    return True
