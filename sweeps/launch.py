"""Runs on this machine: a process for each, so many at a time, all stopped together and none lost.

The parent never trains: it hands out runs by the ledger, listens, keeps limits, and shows. A run's outcome is what its
record says, however its process ended.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from sweeps.ledger import Ending, Ledger, Pulse
from sweeps.limits import write_bytes, write_seconds
from sweeps.live import Board, Row
from sweeps.lock import is_locked
from sweeps.order import BUSY, INTERRUPTED, News, Order
from sweeps.process import Attempt, LaunchError
from sweeps.records import is_resumable, read_record, write_failure
from sweeps.share import Share
from sweeps.survey import close
from sweeps.ticket import State

__all__ = ["LaunchError", "Options", "Summary", "launch"]

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
POLL_SECONDS = 0.5
MEMORY_SECONDS = 1.0
"""How often the memory of runs is looked at, where there is a limit."""
CHECKPOINT_SECONDS = 60.0
"""How long a run may take to write its checkpoint when asked to stop, or its whole limit of time, if that is less."""
MAX_STOPS = 3
"""How often a run stopped from outside is taken up again by the same command."""


class Options(NamedTuple):
    """How runs are done: by which module, on what share of the machine, and which number of a record decides.

    time_limit: seconds of one attempt at a run; memory_limit: bytes that a run may hold, all its processes together.
    """

    runner: str
    share: Share
    metric: str
    retry_failed: bool = False
    study: str = ""
    wandb: str = "disabled"
    time_limit: float | None = None
    memory_limit: int | None = None


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
    """A run at work. ``cut``: which limit it broke, if any; ``late``: the seconds it was given, if it was that one;
    ``lost``: whether the ledger has given it to others."""

    row: Row
    claim: int
    attempt: Attempt
    devices: str | None
    begun: float
    told: float | None = None
    cut: str | None = None
    late: float | None = None
    lost: bool = False


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
    weighed: float = 0.0


def launch(runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options) -> Summary:
    """Does every run that waits, in order, and returns when all are over or a signal came.

    A run that fails stops no other. A run in the hands of another command is waited for, and taken over should that
    command die. On SIGINT, SIGTERM or SIGUSR2 the runs write their checkpoints and go back to the ledger.
    """
    state = _Launch(runs, ledger, board, options, rows)
    ledger.attend(board.say, lambda: state.stopped_by is None)
    with _signals(state), board:
        board.watch(rows)
        try:
            ledger.reap()
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
            _beat(state)
            beaten = now
        _keep_limits(state)
        _listen(state)
        for job in [job for job in state.jobs if job.attempt.status is not None]:
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
            _take(state, row)


def _take(state: _Launch, row: Row) -> None:
    """Starts a run, unless it is in other hands: by the lock on its directory, or by the ledger."""
    claim = None
    if not is_locked(row.ticket.directory(state.runs) / "lock"):
        claim = state.ledger.claim(row.ticket, state.options.study)
    if claim is not None:
        _start(state, row, claim)
    elif ended := state.ledger.ended_elsewhere(row.ticket.key):
        row.state, row.reason, row.value = State(ended.outcome), ended.reason, ended.value
    else:
        row.state = State.ELSEWHERE


def _beat(state: _Launch) -> None:
    """Says that this command lives, ends runs that others were given for its silence, and finds those of the dead."""
    pulses = {job.claim: _pulse(job.row) for job in state.jobs}
    for claim in state.ledger.beat(pulses):
        for job in (job for job in state.jobs if job.claim == claim):
            job.lost = True
            job.attempt.kill()
    state.ledger.reap()


def _pulse(row: Row) -> Pulse:
    return Pulse(row.state.value, row.step, row.steps, row.seconds_left)


def _start(state: _Launch, row: Row, claim: int) -> None:
    options = state.options
    devices = options.share.place((job.devices for job in state.jobs), row.ticket.ranks)
    order = Order(
        row.ticket,
        state.runs.resolve(),
        options.runner,
        options.share.threads,
        devices,
        options.retry_failed,
        options.study,
        options.wandb,
        options.time_limit,
    )
    row.state, row.reason = State.STARTING, None
    row.taken += 1
    try:
        attempt = Attempt(order)
    except LaunchError:
        state.ledger.release(claim, "not started")
        raise
    state.jobs.append(_Job(row, claim, attempt, devices, time.monotonic()))


def _listen(state: _Launch) -> None:
    """Waits for news or for the end of a process, not longer than the poll interval."""
    wait([place for job in state.jobs for place in job.attempt.ready], timeout=POLL_SECONDS)
    for job in state.jobs:
        _hear(job)


def _hear(job: _Job) -> None:
    """Takes all the news that is there."""
    for news in job.attempt.news():
        _note(job.row, news)


def _note(row: Row, news: News) -> None:
    """Brings the row up to date. The steps of the gates are not the run's."""
    row.state = State(news.phase)
    if row.state != State.GATES:
        row.step, row.steps, row.seconds_left = news.step, news.steps, news.seconds_left
    if not math.isnan(news.loss):
        row.loss = news.loss


def _ask_to_stop(state: _Launch) -> None:
    """Asks every run that can hear it, once, and ends it where that does not help or a person insists."""
    for job in state.jobs:
        if job.told is None and job.attempt.hears:
            _tell(job)
        elif state.insisted or (job.told is not None and time.monotonic() - job.told > CHECKPOINT_SECONDS):
            job.attempt.kill()


def _tell(job: _Job) -> None:
    job.attempt.stop()
    job.told = time.monotonic()


def _keep_limits(state: _Launch) -> None:
    """Stops runs that take longer than they may, and ends those that hold more memory."""
    limit, memory, now = state.options.time_limit, state.options.memory_limit, time.monotonic()
    for job in state.jobs if limit is not None else ():
        assert limit is not None
        if job.cut is None and now - job.begun > limit:
            job.cut, job.late = f"time limit of {write_seconds(limit)} reached", limit
            _tell(job)
        elif job.cut and job.told is not None and now - job.told > min(limit, CHECKPOINT_SECONDS):
            job.attempt.kill()
    if memory is None or now - state.weighed < MEMORY_SECONDS:
        return
    state.weighed = now
    for job in state.jobs:
        held = job.attempt.memory()
        if held > memory:
            job.cut = f"out of memory: it held {write_bytes(held)}, the limit is {write_bytes(memory)}"
            job.attempt.kill()


def _finish(state: _Launch, job: _Job) -> None:
    """Closes a job by the record of its run, or by how its process ended where there is none."""
    state.jobs.remove(job)
    _hear(job)
    job.attempt.close()
    status, row = job.attempt.status, job.row
    if job.lost:
        row.state = State.ELSEWHERE
    elif _close_by_record(state, row):
        state.ledger.settle(job.claim, row.state.value, row.reason, row.value)
    elif job.cut:
        _fail(state, job, job.cut, resumable=False)
    elif state.stopped_by is not None or status in (INTERRUPTED, BUSY, -signal.SIGTERM):
        _put_back(state, job, status)
    else:
        _fail(state, job, _reason(status, row.ticket.directory(state.runs)), resumable=True)


def _fail(state: _Launch, job: _Job, reason: str, *, resumable: bool) -> None:
    """Writes the record that the run could not write."""
    row = job.row
    row.state, row.reason = State.FAILED, reason
    try:
        write_failure(state.runs, row.ticket, reason, resumable=resumable, time_limit=job.late)
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
    if row.state == State.ELSEWHERE and is_resumable(record, state.options.time_limit):
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


def _end_all(state: _Launch) -> None:
    """Leaves no process behind when the loop ended by an error of its own."""
    for job in state.jobs:
        job.attempt.stop()
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    for job in state.jobs:
        job.attempt.close(max(deadline - time.monotonic(), 0.1))


@contextmanager
def _signals(state: _Launch) -> Iterator[None]:
    """SIGINT, SIGTERM, and a batch system's warning end the loop in order; a second one ends the runs at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        state.insisted = state.stopped_by is not None
        state.stopped_by = state.stopped_by or number

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
