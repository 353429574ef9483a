"""One rank of a run: torchrun starts ``python -m sweeps.process.rank ADDRESS``, with the socket of its run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.runner import load_runner
from lit_transformers.startup.quick_imports import quick_imports
from sweeps.process.meeting import connected
from sweeps.process.order import Fault, RunOrder, perform, reporter
from sweeps.process.torchrun import RankOutcome

__all__ = ["live"]


def live(address: str) -> None:
    """Receives the order, does this rank's part of the run, and sends the outcome."""
    rank = int(os.environ["RANK"])
    connection = connected(address)
    order: RunOrder = connection.recv()
    with quick_imports():
        load_runner(order.runner)
    threading.Thread(target=_handle_messages, args=(connection,), daemon=True).start()
    result = perform(order, reporter(connection) if rank == 0 else None)
    match result:
        case None:
            connection.send(RankOutcome(rank, "interrupted"))
        case Fault():
            connection.send(RankOutcome(rank, "failed", result))
        case record if record.outcome == "failed":
            fault = Fault(str(record.reason), resumable=record.may_resume())
            connection.send(RankOutcome(rank, "failed", fault))
        case record:
            connection.send(RankOutcome(rank, record.outcome))
            return
    sys.stdout.flush()
    os._exit(0 if result is None else 1)  # the other ranks may be gone, and a collective shutdown would wait for ever


def _handle_messages(connection: Connection) -> None:
    """Turns each message into a SIGTERM to this process, and kills it when the connection is closed."""
    while True:
        try:
            connection.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    live(sys.argv[1])
