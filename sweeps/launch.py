"""Runs on this machine: a process for each, so many at a time, all stopped together and none lost.

The processes come from a fork server that has imported torch once. The parent never trains: it hands out runs by the
ledger, listens, and shows. A run's outcome is what its record says, however its process ended.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from sweeps.ledger import Ending, Ledger
from sweeps.live import Board, Row
from sweeps.lock import is_locked
from sweeps.records import is_resumable, read_record, write_failure
from sweeps.share import Share
from sweeps.survey import close
from sweeps.ticket import State, Ticket
from sweeps.worker import BUSY, INTERRUPTED, News, Order, work

__all__ = ["LaunchError", "Options", "Summary", "launch", "prepare_server"]

POLL_SECONDS = 0.5
CHECKPOINT_SECONDS = 60.0
"""How long a run may take to write its checkpoint when asked to stop."""
_SERVER = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the ordinary check for a device would spoil CUDA for processes forked later
}
MAX_STOPS = 3
"""How often a run stopped from outside is taken up again by the same command."""


class LaunchError(ValueError):
    """No process can be made here; the message says why."""


class Options(NamedTuple):
    """How runs are done: by which module, on what share of the machine, and which number of a record decides."""

    runner: str
    share: Share
    metric: str
    retry_failed: bool = False
    study: str = ""
    wandb: str = "disabled"


class Summary(NamedTuple):
    """What became of every run, and the signal that stopped the command, if any."""

    rows: Sequence[Row]
    stopped_by: int | None

    @property
    def failed(self) -> int:
        """How many runs ended badly."""
        return sum(row.state in (State.FAILED, State.INVALID) for row in self.rows)


@dataclass
class _Job:
    """A run at work."""

    row: Row
    claim: int
    process: ForkServerProcess
    listener: Connection
    device: str | None
    hears: bool = False
    told: float | None = None


@dataclass
class _Launch:
    """The state of one command's runs."""

    runs: Path
    ledger: Ledger
    board: Board
    options: Options
    rows: list[Row]
    jobs: list[_Job] = field(default_factory=list)
    stops: dict[str, int] = field(default_factory=dict)
    stopped_by: int | None = None
    insisted: bool = False


def prepare_server(runner: str) -> None:
    """Starts the fork server, which imports the runner while the caller goes on. Harmless when it runs already.

    It ignores the signals of the terminal and of batch systems, which reach a whole process group: it has nothing to
    save, and must outlive the runs that have. Numeric libraries are told to make no thread pools before the fork.
    """
    forkserver_context = multiprocessing.get_context("forkserver")
    forkserver_context.set_forkserver_preload([runner, "sweeps.worker"])
    before = {name: os.environ.get(name) for name in _SERVER}
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ.update(_SERVER)
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def launch(runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options) -> Summary:
    """Does every run that waits, in order, and returns when all are over or a signal came.

    A run that fails stops no other. A run in the hands of another command is waited for, and taken over should that
    command die. On SIGINT or SIGTERM the runs write their checkpoints and go back to the ledger.
    """
    state = _Launch(runs, ledger, board, options, rows)
    with _signals(state), board:
        board.watch(rows)
        try:
            ledger.reap()
            ledger.submit([row.ticket for row in rows if not row.state.over])
            ledger.enter(Ending(row.ticket, row.state.value, row.reason, row.value) for row in rows if row.state.over)
            _loop(state)
        finally:
            _end_all(state)
            board.refresh()
    return Summary(rows, state.stopped_by)


def _loop(state: _Launch) -> None:
    """Starts, listens and closes until nothing is left to do."""
    looked = beaten = -1e9
    while True:
        now = time.monotonic()
        if state.stopped_by is None and len(state.jobs) < state.options.share.workers and now - looked > POLL_SECONDS:
            _start_more(state)
            looked = now if len(state.jobs) < state.options.share.workers else -1e9
        if state.stopped_by is not None:
            _ask_to_stop(state)
        if not state.jobs and (state.stopped_by is not None or all(row.state.over for row in state.rows)):
            return
        if now - beaten > state.ledger.heartbeat:
            state.ledger.beat(job.claim for job in state.jobs)
            state.ledger.reap()
            beaten = now
        _listen(state)
        for job in [job for job in state.jobs if job.process.exitcode is not None]:
            _finish(state, job)
            looked = -1e9
        state.board.refresh()


def _start_more(state: _Launch) -> None:
    """Takes waiting runs while there are free workers. What another command holds is looked at again later."""
    for row in state.rows:
        if state.stopped_by is not None or len(state.jobs) >= state.options.share.workers:
            return
        if row.state == State.ELSEWHERE and _close_by_record(state, row):
            continue
        if row.state in (State.WAITING, State.ELSEWHERE):
            claim = _claim(state, row.ticket)
            if claim is None:
                row.state = State.ELSEWHERE
            else:
                _start(state, row, claim)


def _claim(state: _Launch, ticket: Ticket) -> int | None:
    """Takes a run, unless it is in other hands: by the ledger, or by the lock on its directory."""
    if is_locked(ticket.directory(state.runs) / "lock"):
        return None
    if state.ledger.is_over(ticket.key):  # the other command ended without a record that counts here
        state.ledger.submit([ticket])
    return state.ledger.claim(ticket.key)


def _start(state: _Launch, row: Row, claim: int) -> None:
    options = state.options
    prepare_server(options.runner)
    context = multiprocessing.get_context("forkserver")
    listener, speaker = context.Pipe(duplex=False)
    place = options.share.place(job.device for job in state.jobs)
    order = Order(
        row.ticket,
        state.runs.resolve(),
        options.runner,
        options.share.threads,
        place,
        options.retry_failed,
        options.study,
        options.wandb,
    )
    process = context.Process(target=work, args=(order, speaker), name=row.ticket.key)
    row.state, row.reason = State.STARTING, None
    try:
        process.start()
    except (EOFError, OSError) as error:
        state.ledger.release(claim, "not started")
        raise LaunchError(
            f"no process could be started ({type(error).__name__}: {error}); nothing is lost, run again"
        ) from None
    finally:
        speaker.close()
    state.jobs.append(_Job(row, claim, process, listener, place))


def _listen(state: _Launch) -> None:
    """Waits for news or for the end of a process, not longer than the poll interval."""
    open_listeners = [job.listener for job in state.jobs if not job.listener.closed]
    ready = wait([*open_listeners, *(job.process.sentinel for job in state.jobs)], timeout=POLL_SECONDS)
    for job in state.jobs:
        if job.listener in ready:
            _hear(job)


def _hear(job: _Job) -> None:
    """Takes all the news that is there."""
    try:
        while job.listener.poll():
            news = job.listener.recv()
            if news is None:
                job.hears = True
                continue
            _note(job.row, news)
    except (EOFError, OSError):
        job.listener.close()


def _note(row: Row, news: News) -> None:
    """Brings the row up to date. The steps of the gates are not the run's."""
    row.state = State(news.phase)
    if row.state != State.GATES:
        row.step, row.steps, row.seconds_left = news.step, news.steps, news.seconds_left
    if not math.isnan(news.loss):
        row.loss = news.loss


def _ask_to_stop(state: _Launch) -> None:
    """Sends SIGTERM once to every run that can hear it, and SIGKILL where that does not help or a person insists."""
    now = time.monotonic()
    for job in state.jobs:
        if job.told is None and job.hears:
            job.process.terminate()
            job.told = now
        elif state.insisted or (job.told is not None and now - job.told > CHECKPOINT_SECONDS):
            job.process.kill()


def _finish(state: _Launch, job: _Job) -> None:
    """Closes a job by the record of its run, or by how its process ended where there is none."""
    state.jobs.remove(job)
    _hear(job)
    job.listener.close()
    status, row = job.process.exitcode, job.row
    if status == 255 and job.process.pid:  # the fork server died and cannot tell; the run must not outlive its claim
        _kill(job.process.pid)
    if _close_by_record(state, row):
        state.ledger.settle(job.claim, row.state.value, row.reason, row.value)
    elif state.stopped_by is not None or status in (INTERRUPTED, BUSY, -signal.SIGTERM):
        _put_back(state, job, status)
    else:
        reason = _reason(status, row.ticket.directory(state.runs))
        row.state, row.reason = State.FAILED, reason
        try:
            write_failure(state.runs, row.ticket, reason, resumable=True)
        except OSError as error:
            row.reason = f"{reason}; its record cannot be written: {error.strerror}"
        state.ledger.settle(job.claim, "failed", row.reason)


def _put_back(state: _Launch, job: _Job, status: int | None) -> None:
    """Returns an unfinished run to the ledger: to be stopped, to wait for another command, or to be taken up again."""
    key, row = job.row.ticket.key, job.row
    state.ledger.release(job.claim, "busy" if status == BUSY else "interrupted")
    row.state = State.STOPPED if state.stopped_by is not None else State.WAITING
    if status == BUSY:
        row.state = State.ELSEWHERE if state.stopped_by is None else State.STOPPED
    elif state.stopped_by is None:
        state.stops[key] = state.stops.get(key, 0) + 1
        if state.stops[key] > MAX_STOPS:
            row.state, row.reason = State.FAILED, f"stopped from outside {MAX_STOPS + 1} times; run again to go on"


def _close_by_record(state: _Launch, row: Row) -> bool:
    """Ends the row as its record says; False where there is no record yet or it will be repeated."""
    record, note = read_record(row.ticket.directory(state.runs))
    if note:
        state.board.say(note)
    if record is None:
        return False
    if row.state == State.ELSEWHERE and record["outcome"] == "failed" and is_resumable(record):
        return False
    close(row, record, state.options.metric)
    return True


def _reason(status: int | None, directory: Path) -> str:
    if status is not None and status < 0:
        hint = ": most likely out of memory" if status == -signal.SIGKILL else ""
        return f"killed (signal {-status}){hint}"
    if status == 0:
        return "it left no record under its key: code or data changed while it ran; run the command again"
    return f"its process ended with status {status}; see {directory / 'log.txt'}"


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end_all(state: _Launch) -> None:
    """Leaves no process behind when the loop ended by an error of its own."""
    for job in state.jobs:
        job.process.terminate()
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    for job in state.jobs:
        job.process.join(max(deadline - time.monotonic(), 0.1))
        job.process.kill()
        job.process.join()


@contextmanager
def _signals(state: _Launch) -> Iterator[None]:
    """SIGINT and SIGTERM end the loop in order; a second one ends the runs at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        state.insisted = state.stopped_by is not None
        state.stopped_by = state.stopped_by or number

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
