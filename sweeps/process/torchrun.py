"""One run by several ranks: torchrun starts them, and the run's own process controls them.

Every rank is connected to the run's process by a socket. Through it each rank receives its order and any request to
stop, the first one sends its progress, and each sends its outcome; a rank ends at once when the connection is closed.
So to its parent a run of many ranks is like a run of one process. Where they are spread over several nodes the command
of the launcher starts a torchrun on each of them, srun in a SLURM job.
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
from types import FrameType
from typing import Any, NamedTuple

from lit_transformers.records.record import Record
from sweeps.ledger.run_records import read_record
from sweeps.process.meeting import SECRET, Meeting, meeting_point
from sweeps.process.order import Fault, News, RunOrder

__all__ = ["TORCHRUN", "RankOutcome", "import_path", "perform_together"]

TORCHRUN = ("-m", "torch.distributed.run", f"--log-dir={os.devnull}")
"""The words that start torchrun, without a folder for logs: it would leave that behind, and ranks write none there."""
POLL_SECONDS = 0.5
LINGER_SECONDS = 40.0
"""How long torchrun may take to end once a rank has; it gives the others 30 seconds itself."""
ORPHAN_SECONDS = 2.0
"""How long ranks may continue without torchrun before their connections are closed."""


class RankOutcome(NamedTuple):
    """The outcome of a rank: "finished", "invalid", "interrupted" or "failed", and why where it failed."""

    rank: int
    outcome: str
    fault: Fault | None = None


@dataclass
class _Ranks:
    """The state of a run's ranks. ``fault``: the first one reported; later ones are its consequences."""

    report: Callable[[Any], None]
    connections: list[Connection] = field(default_factory=list)
    ended: list[RankOutcome] = field(default_factory=list)
    finished: set[Connection] = field(default_factory=set)
    fault: Fault | None = None
    stopping: bool = False

    def add_rank(self, connection: Connection, order: RunOrder) -> None:
        """Sends a new rank its order, and the request to stop if that was sent to the others already."""
        connection.send(order)
        self.connections.append(connection)
        if self.stopping:
            connection.send("stop")

    def receive(self, connection: Connection) -> None:
        """Receives one message. A rank whose connection ends without an outcome was killed."""
        try:
            message = connection.recv()
        except (EOFError, OSError):
            self.connections.remove(connection)
            connection.close()
            if connection not in self.finished and not self.stopping:
                self.fault = self.fault or Fault("a rank was killed", resumable=True, killed=True)
            return
        if isinstance(message, News):
            self.report(message)
        else:
            self.finished.add(connection)
            self.ended.append(message)
            if message.fault and not self.fault:
                self.fault = message.fault._replace(reason=_with_rank(message.rank, message.fault.reason))

    def stop(self) -> None:
        """Asks all ranks to stop; they agree among themselves on the step."""
        self.stopping = True
        for connection in self.connections:
            try:
                connection.send("stop")
            except OSError:
                continue  # it has ended


def perform_together(order: RunOrder, report: Callable[[Any], None]) -> Record | Fault | None:
    """Does the run with as many ranks as its config requests. Returns a Record, a Fault or None, as ``perform``
    does."""
    ranks = _Ranks(report)
    with meeting_point(order.spread.host) as meeting, _stop_requests(ranks):
        command = [*_torchrun(order), "-m", "sweeps.process.rank", meeting.address]
        environment = _environment(order) | ({SECRET: meeting.secret} if meeting.secret else {})
        # A separate session: the parent passes on the signals that a terminal sends to all processes of a command.
        agent = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            _supervise(order, ranks, meeting, agent)
        finally:
            for connection in ranks.connections:
                connection.close()
            _terminate(agent)
    return _outcome(order, ranks, agent.returncode)


def _torchrun(order: RunOrder) -> list[str]:
    """Returns the command that starts ranks on this node, or on each of several."""
    torchrun = [sys.executable, *TORCHRUN]
    ranks, (nodes, start, host) = order.ticket.ranks, order.spread
    if nodes == 1:
        return [*torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    endpoint = f"{host}:{_free_port()}"
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={order.ticket.key}"]
    return [*start, *torchrun, f"--nnodes={nodes}", f"--nproc-per-node={ranks // nodes}", *rendezvous]


def _free_port() -> int:
    """Returns a port that nobody listens at, for torchrun, which is to listen there a moment later."""
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _supervise(order: RunOrder, ranks: _Ranks, meeting: Meeting, agent: subprocess.Popen[bytes]) -> None:
    """Sends every rank the order, and receives messages until torchrun and all ranks have ended, or a deadline. Where a
    stop is requested before any rank has connected, none begins."""
    connected, deadline = 0, math.inf
    while (agent.poll() is None or ranks.connections) and time.monotonic() < deadline:
        for source in wait([meeting.listener, *ranks.connections], timeout=POLL_SECONDS):
            if isinstance(source, Connection):
                ranks.receive(source)
            else:
                meeting.let_in()
        for connection in meeting.admitted():
            connected += 1
            ranks.add_rank(connection, order)
        if ranks.stopping and not connected:
            agent.terminate()
            return
        if agent.poll() is not None:
            deadline = min(deadline, time.monotonic() + ORPHAN_SECONDS)
        elif ranks.fault or (connected == order.ticket.ranks and not ranks.connections):
            deadline = min(deadline, time.monotonic() + LINGER_SECONDS)


def _outcome(order: RunOrder, ranks: _Ranks, status: int | None) -> Record | Fault | None:
    """Returns the first fault, else the record that the first rank wrote, else None where a stop was requested."""
    record = read_record(order.directory).record
    if ranks.fault is not None and (record is None or record.outcome == "failed"):
        is_recorded = record is not None and ranks.fault.reason.startswith(str(record.reason))
        return record if is_recorded else ranks.fault
    if record is not None:
        return record
    if ranks.stopping or any(rank_outcome.outcome == "interrupted" for rank_outcome in ranks.ended):
        return None
    if status == -signal.SIGKILL:
        return Fault("torchrun was killed", resumable=True, killed=True)
    hint = "; see log.txt" if status else ": code or data changed while they ran; run the command again"
    return Fault(f"its ranks ended without a record (torchrun: status {status}){hint}", resumable=True)


def _with_rank(rank: int, reason: str) -> str:
    """Returns the reason of a fault, with the rank if it is not the one that writes the record."""
    return f"{reason} (rank {rank})" if rank else reason


@contextmanager
def _stop_requests(ranks: _Ranks) -> Iterator[None]:
    """Passes SIGTERM on to every rank by its connection: torchrun would kill ranks that take longer than 30 seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        ranks.stop()

    previous_handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def import_path() -> str:
    """Returns the PYTHONPATH by which another process can import the modules that this one can."""
    return os.pathsep.join(path or str(Path.cwd()) for path in sys.path)


def _environment(order: RunOrder) -> dict[str, str]:
    """Returns the environment of torchrun and its ranks: the import path, and the order's devices and threads."""
    threads = str(order.threads)
    devices = {} if order.devices is None else {"CUDA_VISIBLE_DEVICES": order.devices}
    return {
        **os.environ,
        "PYTHONPATH": import_path(),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        **devices,
    }


def _terminate(agent: subprocess.Popen[bytes]) -> None:
    """Waits for torchrun to end, and kills it after a timeout. Its ranks end with their connections."""
    try:
        agent.wait(timeout=POLL_SECONDS * 4)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
