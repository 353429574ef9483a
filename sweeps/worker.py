"""What happens in the process of one run: its lock, its log, its threads, and the news it sends to its parent."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from lit_transformers.config import Config, Plain
from sweeps.lock import BusyError, locked
from sweeps.records import is_resumable, read_record, write_failure
from sweeps.ticket import Ticket

__all__ = ["BUSY", "INTERRUPTED", "News", "Order", "Runner", "work"]

INTERRUPTED = 75
"""Exit status of a run that was asked to stop and left a checkpoint."""
BUSY = 76
"""Exit status of a process that found its run directory in other hands."""

LOCK_SECONDS = 20.0
"""How long a run waits for the dying process of a killed command to leave its directory."""
NEWS_SECONDS = 0.2
"""How often a run speaks at most, so that watching costs nothing."""


class News(NamedTuple):
    """One line of the live table, as the run tells it."""

    phase: str
    step: int
    steps: int
    loss: float
    seconds_left: float | None


class Order(NamedTuple):
    """What a worker is told: which run, where, by which module, with how many threads, on which CUDA device if any."""

    ticket: Ticket
    runs: Path
    runner: str
    threads: int
    device: str | None
    repeat: bool
    """Whether a run that failed by itself is tried again."""
    study: str
    wandb: str
    """What is mirrored to Weights & Biases: disabled, offline or online."""


class Runner(Protocol):
    """What the module of a RunConfig offers: ``lit_transformers.run`` is the real one."""

    RunConfig: type[Config]
    Interrupted: type[BaseException]

    def fit(
        self, config: Any, directory: Path, progress: Callable[[Any], None] | None = None, **mirror: Any
    ) -> dict[str, Plain]: ...


def work(order: Order, speaker: Connection) -> None:
    """Does one run and exits: 0 with a record on disk, INTERRUPTED with a checkpoint, BUSY with nothing done."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the fork server ignores it and so would its children
    threading.Thread(target=_die_with_parent, daemon=True).start()
    directory = order.ticket.directory(order.runs)
    directory.mkdir(parents=True, exist_ok=True)
    _write_to(directory / "log.txt")
    speaker.send(None)  # from here on a SIGTERM is heard
    try:
        with locked(directory / "lock", LOCK_SECONDS):
            status = _run(order, directory, speaker)
    except BusyError:
        status = BUSY
    sys.exit(status)


def _run(order: Order, directory: Path, speaker: Connection) -> int:
    done = read_record(directory).record
    if done is not None:
        if done["outcome"] != "failed" or not (order.repeat or is_resumable(done)):
            return 0  # another command ended it between this one's look and its lock
        (directory / "record.json").unlink()
    print(
        f"--- {datetime.now():%Y-%m-%d %H:%M:%S} process {os.getpid()}: {order.ticket.arm}, seed {order.ticket.seed}",
        flush=True,
    )
    try:
        runner = cast(Runner, importlib.import_module(order.runner))
        _limit(order)
        config = runner.RunConfig.from_dict(order.ticket.config)
        try:
            runner.fit(config, directory, _reporter(speaker), **_mirror(order))
        except runner.Interrupted:
            return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        is_input = isinstance(error, ValueError)  # data or device that is not there, say: a person mends it and goes on
        write_failure(order.runs, order.ticket, _reason(error), resumable=is_input)
    return 0


def _mirror(order: Order) -> dict[str, Any]:
    """The argument for a mirror, where one is wanted."""
    if order.wandb == "disabled":
        return {}
    from lit_transformers.mirror import Mirror

    return {"mirror": Mirror(cast(Any, order.wandb), study=order.study, arm=order.ticket.arm)}


def _reason(error: Exception) -> str:
    """Why a run failed, in a table cell's length."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "out of memory"
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


def _limit(order: Order) -> None:
    """Keeps the process to its share of the machine. The runner has imported torch, where it needs it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(order.threads)
    if order.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = order.device


def _reporter(speaker: Connection) -> Callable[[Any], None]:
    """A progress callback that sends every change of phase, every last step, and else a few a second."""
    last_phase, last_time = "", 0.0

    def report(progress: Any) -> None:
        nonlocal last_phase, last_time
        now = time.monotonic()
        if progress.phase == last_phase and progress.step < progress.steps and now - last_time < NEWS_SECONDS:
            return
        last_phase, last_time = progress.phase, now
        try:
            speaker.send(News(progress.phase, progress.step, progress.steps, progress.loss, progress.seconds_left))
        except OSError:  # the parent is gone; an exception here would be recorded as a failure of the run
            os.kill(os.getpid(), signal.SIGKILL)

    return report


def _die_with_parent() -> None:
    """Ends this process the moment its parent does: nobody else would, and a new command wants the run."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _write_to(log: Path) -> None:
    """Everything the process prints, C libraries included, goes to the run's log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
