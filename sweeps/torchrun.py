"""One run by several ranks: torchrun starts them, and the run's own process holds them on a leash.

Every rank is connected to the run's process. It is told its order that way, the first one tells how it goes, a wish to
stop reaches all of them, each says how it ended, and all die the moment that the other end does. So to its parent a
run of many ranks is like a run of one process.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

from lit_transformers.config import Plain
from sweeps.order import Fault, News, Order
from sweeps.records import read_record

__all__ = ["Ended", "perform_together"]

POLL_SECONDS = 0.5
LINGER_SECONDS = 40.0
"""How long torchrun may take to end once a rank has; it gives the others 30 seconds itself."""
ORPHAN_SECONDS = 2.0
"""How long ranks may go on without torchrun before their leash is cut."""


class Ended(NamedTuple):
    """How a rank ended: "finished", "invalid", "interrupted" or "failed", and why where it failed."""

    rank: int
    outcome: str
    fault: Fault | None = None


@dataclass
class _Ranks:
    """What is known of a run's ranks. ``fault``: the first one that was heard of; what follows it is its echo."""

    report: Callable[[Any], None]
    leashes: list[Connection] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    finished: set[Connection] = field(default_factory=set)
    fault: Fault | None = None
    stopping: bool = False

    def greet(self, leash: Connection, order: Order) -> None:
        """Gives a rank its order, and the wish to stop if it comes too late to hear it with the others."""
        leash.send(order)
        self.leashes.append(leash)
        if self.stopping:
            leash.send("stop")

    def hear(self, leash: Connection) -> None:
        """Takes one message. A rank that falls silent without a last word was killed."""
        try:
            message = leash.recv()
        except (EOFError, OSError):
            self.leashes.remove(leash)
            leash.close()
            if leash not in self.finished and not self.stopping:
                self.fault = self.fault or Fault("a rank was killed: most likely out of memory", resumable=True)
            return
        if isinstance(message, News):
            self.report(message)
        else:
            self.finished.add(leash)
            self.ended.append(message)
            if message.fault and not self.fault:
                self.fault = message.fault._replace(reason=_of_rank(message.rank, message.fault.reason))

    def stop(self) -> None:
        """Asks all of them to stop; they agree among themselves on the step."""
        self.stopping = True
        for leash in self.leashes:
            try:
                leash.send("stop")
            except OSError:
                continue  # it has ended


def perform_together(order: Order, report: Callable[[Any], None]) -> dict[str, Plain] | Fault | None:
    """Does the run by as many ranks as its config asks for; answers as ``perform`` does."""
    ranks = _Ranks(report)
    with _door() as (door, address), _stop_requests(ranks):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(order.ticket.ranks), "-m", "sweeps.rank", address]
        # A session of its own: what a terminal sends to all processes of a command is the parent's to pass on.
        agent = subprocess.Popen(command, env=_surroundings(order), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            _attend(order, ranks, door, agent)
        finally:
            for leash in ranks.leashes:
                leash.close()
            _end(agent)
    return _outcome(order, ranks, agent.returncode)


def _attend(order: Order, ranks: _Ranks, door: socket.socket, agent: subprocess.Popen[bytes]) -> None:
    """Gives every rank the order, and listens until torchrun and all ranks have ended, or will not."""
    known, over = 0, math.inf
    while (agent.poll() is None or ranks.leashes) and time.monotonic() < over:
        for ready in wait([door, *ranks.leashes], timeout=POLL_SECONDS):
            if isinstance(ready, Connection):
                ranks.hear(ready)
                continue
            known += 1
            ranks.greet(Connection(door.accept()[0].detach()), order)
        if agent.poll() is not None:
            over = min(over, time.monotonic() + ORPHAN_SECONDS)
        elif ranks.fault or (known == order.ticket.ranks and not ranks.leashes):
            over = min(over, time.monotonic() + LINGER_SECONDS)


def _outcome(order: Order, ranks: _Ranks, status: int | None) -> dict[str, Plain] | Fault | None:
    """By the first thing that went wrong, else by the record that the first rank left, else by what was asked."""
    record = read_record(order.directory).record
    if ranks.fault is not None and (record is None or record["outcome"] == "failed"):
        is_told = record is not None and ranks.fault.reason.startswith(str(record["reason"]))
        return record if is_told else ranks.fault
    if record is not None:
        return record
    if ranks.stopping or any(one.outcome == "interrupted" for one in ranks.ended):
        return None
    told = "; see log.txt" if status else ": code or data changed while they ran; run the command again"
    return Fault(f"its ranks ended without a record (torchrun: status {status}){told}", resumable=True)


def _of_rank(rank: int, reason: str) -> str:
    """What went wrong, and where, if it was not in the rank that writes the record."""
    return f"{reason} (rank {rank})" if rank else reason


@contextmanager
def _door() -> Iterator[tuple[socket.socket, str]]:
    """A socket that only processes of this user on this machine can reach, and its address."""
    with TemporaryDirectory(prefix="ranks-") as folder, socket.socket(socket.AF_UNIX) as door:
        address = str(Path(folder, "leash"))
        door.bind(address)
        door.listen()
        yield door, address


@contextmanager
def _stop_requests(ranks: _Ranks) -> Iterator[None]:
    """SIGTERM goes on to every rank, by the leash: torchrun would kill what takes longer than 30 seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        ranks.stop()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _surroundings(order: Order) -> dict[str, str]:
    """The environment of torchrun and its ranks: what can be imported here, and the order's share of the machine."""
    threads = str(order.threads)
    devices = {} if order.devices is None else {"CUDA_VISIBLE_DEVICES": order.devices}
    places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    return {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **devices}


def _end(agent: subprocess.Popen[bytes]) -> None:
    """Leaves no torchrun behind. Its ranks die with their leash."""
    try:
        agent.wait(timeout=POLL_SECONDS * 4)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
