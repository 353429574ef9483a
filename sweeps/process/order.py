"""The order that a run's process receives, the progress that it sends, and how it does the run."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lit_transformers.records.record import Record, parse_record
from lit_transformers.runner import load_runner
from lit_transformers.training.disk_space import what_is_full
from lit_transformers.training.loader_processes import loader_death, set_loaders_apart
from lit_transformers.training.stopping import ProcessKilled
from lit_transformers.wandb_target import WandbTarget
from sweeps.ledger.ticket import Ticket

if TYPE_CHECKING:
    from lit_transformers.runs.loggers import LoggerConfig
    from lit_transformers.runs.wandb_logging import WandbConfig

__all__ = [
    "BUSY",
    "FULL",
    "HEADER",
    "INTERRUPTED",
    "KILLED",
    "Fault",
    "News",
    "RunOrder",
    "Spread",
    "first_line",
    "perform",
    "reporter",
]

INTERRUPTED = 75
"""Exit status of a run that left a checkpoint after a request to stop."""
BUSY = 76
"""Exit status of a process whose run directory is locked by another one."""
KILLED = 77
"""Exit status of a run of which another process was killed: a data loader, or a rank or torchrun itself."""

FULL = 78
"""Exit status of a process that can write nothing, for the disk is full."""

HEADER = "--- "
"""How the line of a run's log begins that begins an attempt."""

NEWS_SECONDS = 0.2
"""The shortest interval between two progress messages, so that they cost next to nothing."""


class News(NamedTuple):
    """The progress of a run, for its row of the live table."""

    phase: str
    step: int
    steps: int
    loss: float
    seconds_left: float | None


class Spread(NamedTuple):
    """Over how many nodes the ranks of a run are spread, on each equally many.

    start: a command that starts the command behind it once on each node, and ends when all of these have ended, or one
    has failed. host: a name or address by which the nodes reach the node of the run's process. Neither is needed for
    one node.
    """

    nodes: int = 1
    start: tuple[str, ...] = ()
    host: str | None = None


class RunOrder(NamedTuple):
    """The order to a run's process: which run, where, by which runner, and with how many threads per rank."""

    ticket: Ticket
    runs: Path
    runner: str
    threads: int
    devices: str | None
    """The names of the CUDA devices it may use, separated by commas; None to leave the environment as it is."""
    repeat: bool
    """Whether a run that failed by itself is tried again."""
    group: str
    """The common name of the runs of its study and scale, or of its search."""
    wandb: WandbTarget
    """Whether and where runs are sent to Weights & Biases."""
    time_limit: float | None = None
    """Seconds after which its parent stops it. A run that an earlier, shorter limit stopped is resumed."""
    loggers: tuple[str, ...] = ()
    """The names of the loggers that runs have besides Weights & Biases."""
    spread: Spread = Spread()
    """The nodes of its ranks."""

    @property
    def directory(self) -> Path:
        """The directory of the run's files."""
        return self.ticket.directory(self.runs)


class Fault(NamedTuple):
    """Why a run ended without writing a record; resumable: whether running it again may succeed.

    killed: whether one of its processes was killed from outside, so that the run resumes by itself.
    """

    reason: str
    resumable: bool
    killed: bool = False


def perform(order: RunOrder, report: Callable[[Any], None] | None) -> Record | Fault | None:
    """Does the run in this process. Returns its record, a Fault where it broke, or None where it stopped on request.

    A fault such as missing data or a missing device is resumable: the user repairs it and runs the command again.
    """
    try:
        runner = load_runner(order.runner)
        _apply_share(order)
        set_loaders_apart()
        config = runner.config.from_dict(order.ticket.config)
        try:
            shown = {"wandb_config": _wandb_config(order), "logger_config": _logger_config(order)}
            return parse_record(runner.fit(config, order.directory, report, **shown))
        except runner.interrupted:
            return None
    except Exception as error:
        death = error if isinstance(error, ProcessKilled) else loader_death(error)
        if death is not None:
            return Fault(str(death), resumable=True, killed=True)
        with suppress(OSError):  # of a disk without room
            traceback.print_exc()
        full = what_is_full(error)
        return Fault(full or _failure_reason(error), resumable=full is not None or isinstance(error, ValueError))


def reporter(connection: Connection) -> Callable[[Any], None]:
    """Returns a progress callback that sends every change of phase, every last step, and else a few steps a second."""
    last_phase, last_time = "", -math.inf

    def report(progress: Any) -> None:
        nonlocal last_phase, last_time
        now = time.monotonic()
        if progress.phase == last_phase and progress.step < progress.steps and now - last_time < NEWS_SECONDS:
            return
        last_phase, last_time = progress.phase, now
        try:
            connection.send(News(progress.phase, progress.step, progress.steps, progress.loss, progress.seconds_left))
        except OSError:  # the parent is gone; an exception here would be recorded as a failure of the run
            os.kill(os.getpid(), signal.SIGKILL)

    return report


def _wandb_config(order: RunOrder) -> WandbConfig | None:
    """Returns how the run is sent to Weights & Biases, or None where it is not."""
    if order.wandb.mode == "disabled":
        return None
    from lit_transformers.runs.wandb_logging import WandbConfig

    return WandbConfig(order.wandb, order.group, order.ticket.arm, order.ticket.levels)


def _failure_reason(error: Exception) -> str:
    """Returns why a run failed, in one line for a table cell."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "out of memory"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _logger_config(order: RunOrder) -> LoggerConfig | None:
    """Returns which loggers the run has, or None where it has none."""
    if not order.loggers:
        return None
    from lit_transformers.runs.loggers import LoggerConfig

    return LoggerConfig(order.loggers, order.group, order.ticket.arm)


def _apply_share(order: RunOrder) -> None:
    """Limits the process to its threads and CUDA devices. The runner has imported torch if it needs it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(order.threads)
    if order.devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = order.devices
