"""Processes of tests: forked from a server that has imported torch and Lightning, so that one starts in no time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from ports import free_port
from waiting import SECONDS, wait_for

from lit_transformers.runs import Interrupted, RunConfig, fit
from sweeps.process.child import prepare_server

GRACE_SECONDS = 10.0
_servers: set[int] = set()
"""The processes of the fork servers that have imported torch."""


def prepare() -> None:
    """Starts the fork server of this process's tests, which imports torch and Lightning while the test continues.

    A server that a test of the stand-in has started is ended first: it has imported neither, so that every process
    forked from it would.
    """
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_pid is not None and server._forkserver_pid not in _servers:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOWAIT)
    prepare_server(RunConfig.runner)
    _servers.add(server._forkserver_pid)


class Forked:
    """A function that runs in a process, or in several that find each other as torchrun's ranks do.

    function: importable by its name; it and its arguments must be picklable. log: the file that all output goes to.
    ranks: 0 for one process that is no rank.
    """

    def __init__(self, log: Path, function: Callable[..., None], *arguments: Any, ranks: int = 0) -> None:
        prepare()
        context = multiprocessing.get_context("forkserver")
        self.log = log
        self.processes = []
        port = free_port()
        for rank in range(max(ranks, 1)):
            process = context.Process(target=_run_rank, args=(rank, ranks, port, log, function, arguments))
            process.start()
            self.processes.append(process)

    def until(self, happened: Callable[[], bool]) -> None:
        """Waits until ``happened`` is true. Fails where the processes end first, or it takes too long."""

        def has_happened() -> bool:
            if happened():
                return True
            alive = all(process.exitcode is None for process in self.processes)
            assert alive, f"it ended before that: {self.log.read_text()}"
            return False

        wait_for(has_happened, every=0.001)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all processes that are still running."""
        for process in self.processes:
            if process.exitcode is None and process.pid is not None:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(process.pid, number)

    def wait(self) -> list[int | None]:
        """Waits, and returns each rank's exit status, negative for a signal. Where one fails, the rest, which may wait
        for it for ever, are killed some seconds later."""
        while sentinels := [process.sentinel for process in self.processes if process.exitcode is None]:
            has_failed = any(process.exitcode for process in self.processes)
            if not wait(sentinels, GRACE_SECONDS if has_failed else SECONDS):
                self.send(signal.SIGKILL)
        return [process.exitcode for process in self.processes]

    def finish(self) -> None:
        """Waits for the end of all processes, and fails where one of them failed."""
        statuses = self.wait()
        assert not any(statuses), f"{statuses}: {self.log.read_text()}"


def train(config: RunConfig, directory: Path, keep_every: float = 30.0) -> None:
    """Does a run and prints its outcome; for ``Forked``."""
    try:
        record = fit(config, directory, keep_every=keep_every)
    except Interrupted as stop:
        print(stop)
        raise SystemExit(143) from None
    print(record["outcome"], record["reason"])


def training(config: RunConfig, directory: Path, keep_every: float = 30.0) -> Forked:
    """Starts a run in as many processes as its config has devices."""
    directory.mkdir(exist_ok=True)
    ranks = config.training.devices if config.training.devices > 1 else 0
    return Forked(directory / "output.txt", train, config, directory, keep_every, ranks=ranks)


def _run_rank(
    rank: int, ranks: int, port: int, log: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the server ignores them
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    # Line buffering keeps lines of ranks that write at the same time whole.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    if ranks:
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "forked"}
        os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for loaders' workers, as in a process that was not forked
    try:
        function(*arguments)
    except Exception:
        # The other ranks may wait in a collective, and a regular exit would wait for them for ever.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
