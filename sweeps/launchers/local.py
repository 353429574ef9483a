"""Does runs on this machine: a process for each, a limited number at a time, all stopped together and none lost.

The parent never trains: it claims runs from the ledger, reads their progress, enforces limits, and shows the table. A
run's outcome is that of its record, however its process ended.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

from lit_transformers.records.files import LOG
from lit_transformers.training.disk_space import checkpoint_bytes, lack_of_space
from lit_transformers.wandb_target import NO_TARGET, WandbTarget
from sweeps.launchers.limits import write_bytes, write_seconds
from sweeps.launchers.share import Share
from sweeps.launchers.sources import Readiness, fail, readiness
from sweeps.ledger.ledger import DISK_SECONDS, Ending, Ledger, Pulse
from sweeps.ledger.lock import is_locked
from sweeps.ledger.run_records import read_record, write_failure
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row
from sweeps.process.child import Attempt, LaunchError
from sweeps.process.order import BUSY, FULL, HEADER, INTERRUPTED, News, RunOrder, Spread
from sweeps.survey import close

__all__ = ["CHECKPOINT_SECONDS", "MAX_STOPS", "LaunchError", "Options", "Summary", "handled_signals", "launch"]

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
POLL_SECONDS = 0.5
MEMORY_SECONDS = 1.0
"""How often the memory of runs is measured, where there is a limit."""
CHECKPOINT_SECONDS = 60.0
"""How long a run may take to write its checkpoint when it is stopped, or its whole time limit, if that is less."""
MAX_STOPS = 3
"""How often a run that was stopped or killed from outside is resumed by the same command."""


class Options(NamedTuple):
    """How runs are done: the runner, the share of the machine, and the metric of a record that decides.

    time_limit: seconds of one attempt at a run; memory_limit: bytes that all processes of a run may hold together.
    wandb: whether and where runs are sent to Weights & Biases. deadline: the monotonic time at which all runs stop, as
    by a SIGALRM. loggers: the loggers of each run, besides Weights & Biases. spread: the nodes of the ranks of a run.
    parameters: the number of parameters of each arm's network, from which the size of its checkpoint is estimated
    beforehand. group: the common name of the runs where they are shown, such as the folder of their plan: runs of
    another scale, with other changes, or of a search are another group.
    """

    runner: str
    share: Share
    metric: str
    retry_failed: bool = False
    study: str = ""
    wandb: WandbTarget = NO_TARGET
    group: str = ""
    time_limit: float | None = None
    memory_limit: int | None = None
    deadline: float | None = None
    loggers: tuple[str, ...] = ()
    spread: Spread = Spread()
    parameters: Mapping[str, float | None] = {}


class Summary(NamedTuple):
    """The state of every run, and the number of the signal that stopped the command, if any."""

    rows: Sequence[Row]
    stopped_by: int | None

    @property
    def failed(self) -> int:
        """The number of runs that failed or are invalid."""
        return sum(row.state in (State.FAILED, State.INVALID) for row in self.rows)


@dataclass
class _Job:
    """A run in progress. ``limit_reason``: which limit it exceeded, if any; ``exceeded_limit``: the time limit in
    seconds, if it exceeded that one; ``stop_requested``: when the request to stop came; ``lost``: whether the ledger
    has given the run to another worker."""

    row: Row
    claim: int
    attempt: Attempt
    devices: str | None
    start: float
    stop_requested: float | None = None
    limit_reason: str | None = None
    exceeded_limit: float | None = None
    lost: bool = False


@dataclass
class _Launch:
    """The state of one command's runs. lack: why no run is claimed, for want of room on the disk; is_full: whether that
    was so for a run that was done, so that none is claimed any more. missing: since when there is no record of sources
    that this command does not do."""

    runs: Path
    ledger: Ledger
    board: Board
    options: Options
    rows: list[Row]
    jobs: list[_Job] = field(default_factory=list)
    stops: dict[str, int] = field(default_factory=dict)
    stopped_by: int | None = None
    kill_now: bool = False
    lack: str | None = None
    is_full: bool = False
    memory_checked: float = -math.inf
    missing: dict[str, float] = field(default_factory=dict)


def launch(runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options) -> Summary:
    """Does every waiting run, in order, and returns when all have ended or a signal arrives.

    A run that fails stops no other. A run that another command holds is waited for, and taken over if that command
    dies. On SIGINT, SIGTERM or SIGUSR2 the runs write their checkpoints and are returned to the ledger. Raises
    LaunchError where the disk has no room for the checkpoint of a run, when those that have it are through.
    """
    state = _Launch(runs, ledger, board, options, rows)
    ledger.attend(board.say, lambda: state.stopped_by is None)
    with handled_signals(state), board:
        board.watch(rows)
        try:
            ledger.reap()
            ledger.enter(Ending(row.ticket, row.state.value, row.reason, row.value) for row in rows if row.state.over)
            _run_loop(state)
        finally:
            _close_attempts(state)
            board.refresh()
    return Summary(rows, state.stopped_by)


def _run_loop(state: _Launch) -> None:
    """Starts runs, reads their progress and closes them until none is left or the command is stopped."""
    last_claimed = last_beat = -1e9
    while True:
        now = time.monotonic()
        if state.stopped_by is None and state.options.deadline is not None and now > state.options.deadline:
            state.stopped_by = signal.SIGALRM
        if (
            state.stopped_by is None
            and len(state.jobs) < state.options.share.workers
            and now - last_claimed > POLL_SECONDS
        ):
            _fill_workers(state)
            last_claimed = now if len(state.jobs) < state.options.share.workers else -1e9
        if state.stopped_by is not None:
            _stop_runs(state)
        if not state.jobs and (state.stopped_by is not None or all(row.state.over for row in state.rows)):
            return
        if not state.jobs and state.lack is not None:
            raise LaunchError(state.lack)
        if now - last_beat > state.ledger.heartbeat:
            _send_heartbeat(state)
            last_beat = now
        _enforce_limits(state)
        _wait_for_news(state)
        for job in [job for job in state.jobs if job.attempt.status is not None]:
            _finish(state, job)
            last_claimed = -1e9
        state.board.refresh()


def _fill_workers(state: _Launch) -> None:
    """Claims waiting runs while there are free workers. Runs that another command holds are checked again later."""
    by_key = {row.ticket.key: row for row in state.rows}
    for row in state.rows:
        if state.stopped_by is not None or len(state.jobs) >= state.options.share.workers:
            return
        if row.state == State.ELSEWHERE and _close_by_record(state, row):
            continue
        if row.state in (State.WAITING, State.ELSEWHERE):
            able = _able_to_begin(state, row, by_key)
            if not able.ready and able.failure is None:
                continue
            if able.ready and not _has_disk_space(state, row):
                return
            _claim_and_start(state, row, able.failure)


def _able_to_begin(state: _Launch, row: Row, by_key: Mapping[str, Row]) -> Readiness:
    """Returns whether a run may begin. A source that this command does not do has some time to show its record."""
    able = readiness(state.runs, row.ticket, by_key)
    if able.missing is None:
        return able
    since = state.missing.setdefault(able.missing, time.monotonic())
    if time.monotonic() - since < DISK_SECONDS:
        return able
    return Readiness(False, f"its source {able.missing} is not done; run the study, which does it first")


def _has_disk_space(state: _Launch, row: Row) -> bool:
    """Whether the disk has room for the checkpoint of a run and of those in progress."""
    if not state.is_full:
        rows = [row, *(job.row for job in state.jobs)]
        state.lack = lack_of_space(state.runs, sum(_checkpoint_bytes(state.options, one.ticket) for one in rows))
    return state.lack is None


def _checkpoint_bytes(options: Options, ticket: Ticket) -> int:
    training = ticket.config.get("training")
    return checkpoint_bytes(options.parameters.get(ticket.arm), training if isinstance(training, dict) else {})


def _claim_and_start(state: _Launch, row: Row, failure: str | None = None) -> None:
    """Claims and starts a run, unless its directory is locked or the ledger has given it to another worker.

    failure: why it cannot begin for good, so that it is claimed and has failed."""
    claim = None
    if not is_locked(row.ticket.directory(state.runs) / "lock"):
        claim = state.ledger.claim(row.ticket, state.options.study)
    if claim is not None and failure is not None:
        if not _close_by_record(state, row):
            fail(state.runs, row, failure)
        state.ledger.settle(claim, row.state.value, row.reason, row.value)
    elif claim is not None:
        _start_run(state, row, claim)
    elif ended_run := state.ledger.ended_elsewhere(row.ticket.key):
        row.state, row.reason, row.value = State(ended_run.outcome), ended_run.reason, ended_run.value
    else:
        row.state = State.ELSEWHERE


def _send_heartbeat(state: _Launch) -> None:
    """Sends the heartbeat, kills runs that the ledger has given to others, and releases those of dead workers."""
    pulses = {job.claim: _pulse(job.row) for job in state.jobs}
    for claim in state.ledger.beat(pulses):
        for job in (job for job in state.jobs if job.claim == claim):
            job.lost = True
            job.attempt.kill()
    state.ledger.reap()


def _pulse(row: Row) -> Pulse:
    return Pulse(row.state.value, row.step, row.steps, row.seconds_left)


def _start_run(state: _Launch, row: Row, claim: int) -> None:
    options = state.options
    devices = options.share.place((job.devices for job in state.jobs), row.ticket.ranks // options.spread.nodes)
    order = RunOrder(
        row.ticket,
        state.runs.resolve(),
        options.runner,
        options.share.threads,
        devices,
        options.retry_failed,
        options.group or options.study,
        options.wandb,
        options.time_limit,
        options.loggers,
        options.spread,
    )
    row.state, row.reason = State.STARTING, None
    row.taken += 1
    try:
        attempt = Attempt(order)
    except LaunchError:
        state.ledger.release(claim, "not started")
        raise
    state.jobs.append(_Job(row, claim, attempt, devices, time.monotonic()))


def _wait_for_news(state: _Launch) -> None:
    """Waits for progress or for the end of a process, for at most the poll interval."""
    wait([source for job in state.jobs for source in job.attempt.ready], timeout=POLL_SECONDS)
    for job in state.jobs:
        _receive_news(job)


def _receive_news(job: _Job) -> None:
    """Receives all progress that a run has sent and updates its row."""
    for news in job.attempt.news():
        _update_row(job.row, news)


def _update_row(row: Row, news: News) -> None:
    """Updates a row from progress. The steps of the gates do not count as the run's."""
    row.state = State(news.phase)
    if row.state != State.GATES:
        row.step, row.steps, row.seconds_left = news.step, news.steps, news.seconds_left
    if not math.isnan(news.loss):
        row.loss = news.loss


def _stop_runs(state: _Launch) -> None:
    """Asks every run that can receive it to stop, once, and kills it after a timeout or a second signal."""
    for job in state.jobs:
        if job.stop_requested is None and job.attempt.accepts_stop:
            _request_stop(job)
        elif state.kill_now or (
            job.stop_requested is not None and time.monotonic() - job.stop_requested > CHECKPOINT_SECONDS
        ):
            job.attempt.kill()


def _request_stop(job: _Job) -> None:
    job.attempt.stop()
    job.stop_requested = time.monotonic()


def _enforce_limits(state: _Launch) -> None:
    """Stops runs that exceed the time limit, and kills those that exceed the memory limit."""
    time_limit, memory_limit, now = state.options.time_limit, state.options.memory_limit, time.monotonic()
    for job in state.jobs if time_limit is not None else ():
        assert time_limit is not None
        if job.limit_reason is None and now - job.start > time_limit:
            job.limit_reason, job.exceeded_limit = f"time limit of {write_seconds(time_limit)} reached", time_limit
            _request_stop(job)
        elif (
            job.limit_reason
            and job.stop_requested is not None
            and now - job.stop_requested > min(time_limit, CHECKPOINT_SECONDS)
        ):
            job.attempt.kill()
    if memory_limit is None or now - state.memory_checked < MEMORY_SECONDS:
        return
    state.memory_checked = now
    for job in state.jobs:
        used_bytes = job.attempt.memory()
        if used_bytes > memory_limit:
            job.limit_reason = (
                f"out of memory: it held {write_bytes(used_bytes)}, the limit is {write_bytes(memory_limit)}"
            )
            job.attempt.kill()


def _finish(state: _Launch, job: _Job) -> None:
    """Closes a job by the record of its run, or by the exit status of its process where there is none."""
    state.jobs.remove(job)
    _receive_news(job)
    job.attempt.close()
    status, row = job.attempt.status, job.row
    if job.lost:
        row.state = State.ELSEWHERE
    elif _close_by_record(state, row):
        state.ledger.settle(job.claim, row.state.value, row.reason, row.value)
    elif job.limit_reason:
        _fail(state, job, job.limit_reason, resumable=False)
    elif state.stopped_by is not None or status in (INTERRUPTED, BUSY, -signal.SIGTERM):
        _return_to_ledger(state, job, status)
    elif reason := job.attempt.kill_reason():
        _resume_killed(state, job, reason)
    else:
        _fail(state, job, _exit_reason(status, row.ticket.directory(state.runs)), resumable=True)


def _fail(state: _Launch, job: _Job, reason: str, *, resumable: bool) -> None:
    """Marks a run as failed and writes the record that it could not write itself."""
    row = job.row
    row.state, row.reason = State.FAILED, reason
    try:
        write_failure(state.runs, row.ticket, reason, resumable=resumable, time_limit=job.exceeded_limit)
    except OSError as error:
        row.reason = f"{reason}; its record cannot be written: {error.strerror}"
    _note_fullness(state, row)
    state.ledger.settle(job.claim, "failed", row.reason)


def _return_to_ledger(state: _Launch, job: _Job, status: int | None) -> None:
    """Returns an unfinished run to the ledger: it is stopped, waits for another command, or is resumed."""
    key, row = job.row.ticket.key, job.row
    state.ledger.release(job.claim, "busy" if status == BUSY else "interrupted")
    row.state = State.STOPPED if state.stopped_by is not None else State.WAITING
    if status == BUSY:
        row.state = State.ELSEWHERE if state.stopped_by is None else State.STOPPED
    elif state.stopped_by is None:
        state.stops[key] = state.stops.get(key, 0) + 1
        if state.stops[key] > MAX_STOPS:
            row.state, row.reason = State.FAILED, f"stopped from outside {MAX_STOPS + 1} times; run again to resume"


def _resume_killed(state: _Launch, job: _Job, reason: str) -> None:
    """Lets a run whose process was killed start again. If this has happened too often, the run has failed."""
    row = job.row
    state.stops[row.ticket.key] = state.stops.get(row.ticket.key, 0) + 1
    if state.stops[row.ticket.key] > MAX_STOPS:
        _fail(state, job, f"{reason}, and {MAX_STOPS} times before: most likely out of memory", resumable=True)
        return
    state.ledger.release(job.claim, "killed")
    row.state = State.WAITING
    state.board.say(f"{row.ticket.arm}, seed {row.ticket.seed}: {reason}; it restarts")


def _close_by_record(state: _Launch, row: Row) -> bool:
    """Ends the row as its record says. Returns False where there is no record yet or the run will be repeated."""
    record, note = read_record(row.ticket.directory(state.runs))
    if note:
        state.board.say(note)
    if record is None:
        return False
    if row.state == State.ELSEWHERE and record.may_resume(state.options.time_limit):
        return False
    close(row, record, state.options.metric)
    _note_fullness(state, row)
    return True


def _note_fullness(state: _Launch, row: Row) -> None:
    """Ends claiming where the disk or shared memory was full for a run: the next would be trained and lost, too."""
    if row.state == State.FAILED and row.reason is not None and " is full" in row.reason:
        advice = "no further run is begun; make room and run the same command again, nothing that was finished is lost"
        state.lack, state.is_full = f"{state.runs}: {row.reason}; {advice}", True


def _exit_reason(status: int | None, directory: Path) -> str:
    if status is not None and status < 0:
        return f"killed (signal {-status})"
    if status == FULL:
        return "the disk is full"
    if status == 0:
        return "it left no record under its key: code or data changed while it ran; run the command again"
    where = f"see {directory / LOG}" if _has_output(directory / LOG) else "its log holds nothing of it"
    return f"its process ended with status {status}; {where}"


def _has_output(log: Path) -> bool:
    """Whether a log holds more of its last attempt than the line that begins it."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    except OSError:
        return False
    return bool(lines) and not lines[-1].startswith(HEADER)


def _close_attempts(state: _Launch) -> None:
    """Stops all remaining processes when the loop has ended by an error."""
    for job in state.jobs:
        job.attempt.stop()
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    for job in state.jobs:
        job.attempt.close(max(deadline - time.monotonic(), 0.1))


class Stoppable(Protocol):
    """Work that signals stop: ``stopped_by`` is the number of the first signal, ``kill_now`` whether a second one
    came."""

    stopped_by: int | None
    kill_now: bool


@contextmanager
def handled_signals(state: Stoppable) -> Iterator[None]:
    """Ends the loop on SIGINT, SIGTERM or a batch system's warning, SIGUSR2; a second signal kills the runs."""

    def stop(number: int, frame: FrameType | None) -> None:
        state.kill_now = state.stopped_by is not None
        state.stopped_by = state.stopped_by or number

    previous_handlers = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
