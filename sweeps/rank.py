"""One rank of a run, as torchrun starts it: ``python -m sweeps.rank ADDRESS``, where its leash is to be had."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection

from sweeps.order import Fault, Order, perform, reporter
from sweeps.records import is_resumable
from sweeps.torchrun import Ended

__all__ = ["live"]


def live(address: str) -> None:
    """The life of one rank, from its order to its last word."""
    rank = int(os.environ["RANK"])
    leash = Client(address)
    order: Order = leash.recv()
    threading.Thread(target=_obey, args=(leash,), daemon=True).start()
    ended = perform(order, reporter(leash) if rank == 0 else None)
    match ended:
        case None:
            leash.send(Ended(rank, "interrupted"))
        case Fault():
            leash.send(Ended(rank, "failed", ended))
        case record if record["outcome"] == "failed":
            fault = Fault(str(record["reason"]), resumable=is_resumable(record))
            leash.send(Ended(rank, "failed", fault))
        case record:
            leash.send(Ended(rank, record["outcome"]))
            return
    sys.stdout.flush()
    os._exit(0 if ended is None else 1)  # the other ranks may be gone, and a farewell to them would wait for ever


def _obey(leash: Connection) -> None:
    """Passes on the wish to stop, and ends this process when the other end of the leash is gone."""
    while True:
        try:
            leash.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    live(sys.argv[1])
