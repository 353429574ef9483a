"""The process of one run: it locks the directory, writes the log, and ends when its parent does."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path

from lit_transformers.config import ConfigError
from lit_transformers.records.files import LOG, RECORD
from lit_transformers.training.disk_space import what_is_full
from sweeps.ledger.lock import BusyError, locked
from sweeps.ledger.run_records import read_record, write_failure
from sweeps.object_store import Store, store_of
from sweeps.process.order import BUSY, FULL, HEADER, INTERRUPTED, KILLED, Fault, RunOrder, perform, reporter
from sweeps.process.parent import die_with_parent
from sweeps.process.torchrun import perform_together

__all__ = ["redirect_output", "work"]

LOCK_SECONDS = 20.0
"""How long a run waits for the dying process of a killed command to leave its directory."""


def work(order: RunOrder, connection: Connection) -> None:
    """Does one run and exits: 0 with a record on disk, INTERRUPTED with a checkpoint, KILLED where a rank or a data
    loader was killed, BUSY with nothing done, FULL where nothing can be written."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the fork server ignores it and so would its children
    die_with_parent()
    order.directory.mkdir(parents=True, exist_ok=True)
    redirect_output(order.directory / LOG)
    connection.send(None)  # from here on SIGTERM is handled
    try:
        with locked(order.directory / "lock", LOCK_SECONDS):
            store = store_of(order.runs)
            status = _run(order, connection) if store is None else _run_in_store(order, connection, store)
    except BusyError:
        status = BUSY
    except OSError as error:
        if what_is_full(error) is None:
            raise
        status = FULL
    sys.exit(status)


def _run_in_store(order: RunOrder, connection: Connection, store: Store) -> int:
    """Does the run from its state in the store, and leaves its files there. A run whose files cannot be put into the
    store has not ended: it has failed, and resumes when the command is run again."""
    key = order.ticket.key
    try:
        store.pull_run(key)
        record = read_record(order.directory).record
        for source in order.ticket.sources if record is None or record.outcome == "failed" else ():
            store.pull_source(source)
        with store.mirrored(key):
            status = _run(order, connection)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the files are being saved already
        if status in (0, INTERRUPTED):
            store.push_run(key)
    except ConfigError as error:
        print(error, flush=True)
        write_failure(order.runs, order.ticket, str(error), resumable=True)
        return 0
    return status


def _run(order: RunOrder, connection: Connection) -> int:
    record = read_record(order.directory).record
    if record is not None:
        if record.outcome != "failed" or not (order.repeat or record.may_resume(order.time_limit)):
            return 0  # another command ended the run before this one locked it
        (order.directory / RECORD).unlink()
    print(
        f"{HEADER}{datetime.now():%Y-%m-%d %H:%M:%S} process {os.getpid()}: {order.ticket.arm}, "
        f"seed {order.ticket.seed}",
        flush=True,
    )
    report = reporter(connection)
    result = perform(order, report) if order.ticket.ranks == 1 else perform_together(order, report)
    if isinstance(result, Fault) and result.killed:
        print(result.reason, flush=True)
        (order.directory / RECORD).unlink(missing_ok=True)  # of a rank that failed because another one was gone
        return KILLED
    if isinstance(result, Fault):
        write_failure(order.runs, order.ticket, result.reason, resumable=result.resumable)
    return INTERRUPTED if result is None else 0


def redirect_output(log: Path) -> None:
    """Redirects all output of the process, that of C libraries included, to the run's log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
