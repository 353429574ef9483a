"""What happens in the process of one run: its lock, its log, and its end when its parent's comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import datetime
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

from lit_transformers.files import RECORD
from sweeps.lock import BusyError, locked
from sweeps.order import BUSY, INTERRUPTED, Fault, Order, perform, reporter
from sweeps.records import is_resumable, read_record, write_failure
from sweeps.torchrun import perform_together

__all__ = ["work"]

LOCK_SECONDS = 20.0
"""How long a run waits for the dying process of a killed command to leave its directory."""


def work(order: Order, speaker: Connection) -> None:
    """Does one run and exits: 0 with a record on disk, INTERRUPTED with a checkpoint, BUSY with nothing done."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the fork server ignores it and so would its children
    threading.Thread(target=_die_with_parent, daemon=True).start()
    order.directory.mkdir(parents=True, exist_ok=True)
    _write_to(order.directory / "log.txt")
    speaker.send(None)  # from here on a SIGTERM is heard
    try:
        with locked(order.directory / "lock", LOCK_SECONDS):
            status = _run(order, speaker)
    except BusyError:
        status = BUSY
    sys.exit(status)


def _run(order: Order, speaker: Connection) -> int:
    done = read_record(order.directory).record
    if done is not None:
        if done["outcome"] != "failed" or not (order.repeat or is_resumable(done, order.time_limit)):
            return 0  # another command ended it between this one's look and its lock
        (order.directory / RECORD).unlink()
    print(
        f"--- {datetime.now():%Y-%m-%d %H:%M:%S} process {os.getpid()}: {order.ticket.arm}, seed {order.ticket.seed}",
        flush=True,
    )
    report = reporter(speaker)
    ended = perform(order, report) if order.ticket.ranks == 1 else perform_together(order, report)
    if isinstance(ended, Fault):
        write_failure(order.runs, order.ticket, ended.reason, resumable=ended.resumable)
    return INTERRUPTED if ended is None else 0


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
