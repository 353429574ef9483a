"""What the process of a run is told, what it says while it is at work, and how it does the run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from lit_transformers.config import Config, Plain
from sweeps.ticket import Ticket

__all__ = ["BUSY", "INTERRUPTED", "Fault", "News", "Order", "Runner", "perform", "reporter"]

INTERRUPTED = 75
"""Exit status of a run that was asked to stop and left a checkpoint."""
BUSY = 76
"""Exit status of a process that found its run directory in other hands."""

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
    """What a run's process is told: which run, where, by which module, with how many threads a rank."""

    ticket: Ticket
    runs: Path
    runner: str
    threads: int
    devices: str | None
    """The CUDA devices it may use, by their names with commas between; None to leave that as it is."""
    repeat: bool
    """Whether a run that failed by itself is tried again."""
    study: str
    wandb: str
    """What is mirrored to Weights & Biases: disabled, offline or online."""
    time_limit: float | None = None
    """Seconds after which its parent stops it. A run that an earlier, shorter limit stopped is taken up again."""

    @property
    def directory(self) -> Path:
        """Where everything about the run is kept."""
        return self.ticket.directory(self.runs)


class Runner(Protocol):
    """What the module of a RunConfig offers: ``lit_transformers.run`` is the real one."""

    RunConfig: type[Config]
    Interrupted: type[BaseException]

    def fit(
        self, config: Any, directory: Path, progress: Callable[[Any], None] | None = None, **mirror: Any
    ) -> dict[str, Plain]: ...


class Fault(NamedTuple):
    """Why a run ended without a record of its own; resumable: whether running it again may well end better."""

    reason: str
    resumable: bool


def perform(order: Order, report: Callable[[Any], None] | None) -> dict[str, Plain] | Fault | None:
    """Does the run in this process: its record, or what broke, or None where it was asked to stop.

    Data or a device that is not there, say, is resumable: a person mends it and goes on.
    """
    try:
        runner = cast(Runner, importlib.import_module(order.runner))
        _keep_to_share(order)
        config = runner.RunConfig.from_dict(order.ticket.config)
        try:
            return runner.fit(config, order.directory, report, **_mirror(order))
        except runner.Interrupted:
            return None
    except Exception as error:
        traceback.print_exc()
        return Fault(_reason(error), resumable=isinstance(error, ValueError))


def reporter(speaker: Connection) -> Callable[[Any], None]:
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


def _keep_to_share(order: Order) -> None:
    """Keeps the process to its share of the machine. The runner has imported torch, where it needs it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(order.threads)
    if order.devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = order.devices
