"""The process of a job: forked from one that has imported torch and Lightning and never touches a device.

Importing them takes seconds of every process. The server is the one that runs are forked from
(``sweeps.process.child``); a job has its own environment, threads and process group.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from lit_transformers.machine.cores import requested_threads, usable_cores
from sweeps.process.child import prepare_server

__all__ = ["JobProcess"]

RUNNER = "lit_transformers.runs.runner:RUNNER"
"""The import of the server: the library's runner, and with it nearly all modules that jobs need."""
RESTORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""The signals that the server ignores and a job does not."""


class JobProcess:
    """``python -m MODULE ARGUMENTS`` in the environment of this process, as the leader of a process group."""

    def __init__(self, module: str, arguments: Sequence[str], folder: Path, log: Path) -> None:
        """Starts it in ``folder``. log: the file that its output is appended to."""
        prepare_server(RUNNER)
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        words = [module, *arguments]
        self._process = context.Process(target=_run_module, args=(words, dict(os.environ), folder, log, sender))
        self._process.start()
        sender.close()
        with receiver, suppress(EOFError):
            receiver.recv()

    @property
    def group(self) -> int:
        """The number of its process group."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Waits for its end. Returns the exit status, negative for a signal; None if it still runs."""
        self._process.join(seconds)
        return self._process.exitcode


def _run_module(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, started: Connection
) -> None:
    os.setsid()
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    started.send(None)  # from here on the group exists
    started.close()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    if torch := sys.modules.get("torch"):  # which else reads its threads from the environment
        torch.set_num_threads(requested_threads() or usable_cores())
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
