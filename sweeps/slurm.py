"""Runs on a SLURM cluster: an array of jobs, one for each run, that claim their runs from the ledger as all workers do.

A job does its run as a command on that machine would. Before its time is up SLURM warns it: the run writes its
checkpoint, goes back to the ledger, and the job is put in the queue again. The command that submits the jobs only
watches: it may end and be started again, and submits anew what was lost. A job with the report waits for the array.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import submitit
from rich.console import Console
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import CommandFunction, DelayedSubmission

from lit_transformers.config import ConfigError, nearest
from lit_transformers.cores import requested_threads
from lit_transformers.files import RECORD, write_json
from sweeps.launch import MAX_STOPS, Options, Summary, launch
from sweeps.ledger import Ledger
from sweeps.limits import parse_bytes, parse_seconds
from sweeps.live import Board, Row
from sweeps.records import read_record
from sweeps.share import Share, share_machine
from sweeps.survey import close, survey
from sweeps.ticket import State, Ticket

__all__ = ["Cluster", "launch_on_slurm", "parse_parameters"]

STORAGE = "LIT_TRANSFORMERS_STORAGE"
"""The variable that tells jobs the ledger's address. It may hold a password, so it stands in no file of ours."""
LOOK_SECONDS = 2.0
WARNING_SECONDS = 120
"""How long before the end of its time a job is warned: a checkpoint, and room for it."""
DEFAULT_MINUTES = 60
MAX_WARNINGS = 1000
"""How often a job may use up its time and be put back."""
JOBS = "jobs.json"
OPTION = "--slurm"


class Cluster(NamedTuple):
    """How jobs are submitted: submitit's parameters, the ledger's address, and the command of the report."""

    parameters: Mapping[str, Any]
    storage: str | None
    report: Sequence[str]


class Job:
    """One run as a job. It is stored when it is submitted, and called on the node: again after it was put back."""

    def __init__(self, runs: Path, ticket: Ticket, options: Options, heartbeat: int, grace: int) -> None:
        """heartbeat and grace: those of the command that watches; by its own it would take a slower one for dead."""
        self.runs, self.ticket, self.options = runs, ticket, options
        self.heartbeat, self.grace = heartbeat, grace

    def __call__(self) -> str:
        """Does the run, or what is left of it; how it ended."""
        options = self.options._replace(share=_share(self.ticket))
        retry, limit = options.retry_failed, options.time_limit
        rows, _ = survey(self.runs, [self.ticket], options.metric, retry_failed=retry, time_limit=limit)
        if rows[0].state.over:
            return rows[0].state
        ledger = Ledger(self.runs, os.environ.get(STORAGE), self.heartbeat, self.grace)
        try:
            summary = launch(self.runs, ledger, Board(Console(width=120), options.metric), rows, options)
        finally:
            ledger.close()
        if summary.stopped_by == signal.SIGUSR2:  # now submitit hears it too, and puts the job back in the queue
            signal.raise_signal(signal.SIGUSR2)
        if summary.stopped_by is not None:
            sys.exit(128 + summary.stopped_by)
        return rows[0].state

    def checkpoint(self) -> DelayedSubmission:
        """What is called after the job was put back in the queue: the same, since the run has its own checkpoint."""
        return DelayedSubmission(self)


@dataclass
class _Watch:
    """What the submitting command knows of its jobs: ids by key, how often each was submitted, and seen no more."""

    runs: Path
    ledger: Ledger
    board: Board
    options: Options
    cluster: Cluster
    folder: Path
    begin: Callable[[], None]
    jobs: dict[str, str]
    unseen: Counter[str] = field(default_factory=Counter)
    submitted: Counter[str] = field(default_factory=Counter)
    stopped_by: int | None = None


def launch_on_slurm(
    runs: Path, ledger: Ledger, board: Board, rows: list[Row], options: Options, cluster: Cluster,
    begin: Callable[[], None] = lambda: None,
) -> Summary:  # fmt: skip
    """Submits a job for every run that waits, and watches until all are over. Jobs outlive a command that is stopped.

    begin: is called when SLURM has taken the runs, before the job of their report is submitted.
    Raises ConfigError where SLURM refuses the jobs.
    """
    folder = runs.resolve() / "studies" / options.study / "slurm"
    watch = _Watch(runs.resolve(), ledger, board, options, cluster, folder, begin, _kept_jobs(folder / JOBS))
    with _signals(watch), board:
        board.watch(rows)
        _tell_jobs(cluster.storage)
        _clear(watch, rows)
        while watch.stopped_by is None:
            _submit(watch, _look(watch, rows))
            board.refresh()
            if all(row.state.over for row in rows):
                break
            time.sleep(LOOK_SECONDS)
        if watch.stopped_by is not None:
            board.say(f"the jobs go on without this command; scancel {' '.join(_arrays(watch.jobs))} ends them")
    return Summary(rows, watch.stopped_by)


def parse_parameters(assignments: Iterable[str]) -> dict[str, Any]:
    """``partition=gpu``, ``time=2h`` (or minutes), ``mem=8GiB``, ``gpus_per_node=1``: what submitit calls them.

    Raises ConfigError for a name that it does not know.
    """
    known = submitit.SlurmExecutor._valid_parameters()
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not text:
            raise ConfigError(f"write name=value, not {assignment!r}", OPTION)
        if name not in known:
            raise ConfigError(f"no parameter {name!r}; {nearest(name, known)}", OPTION)
        where = f"{OPTION} {name}"
        if name == "time":
            found[name] = int(text) if text.isdigit() else math.ceil(parse_seconds(text, where) / 60)
        elif name == "mem":
            found[name] = parse_bytes(text, where) / (1 << 30)
        else:
            found[name] = int(text) if text.isdigit() else text
    return found


def _share(ticket: Ticket) -> Share:
    """The share of the node that the job was given, in equal parts for its ranks unless OMP_NUM_THREADS is set."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK") or "1"
    training = ticket.config.get("training") or {}
    threads = requested_threads() or max(1, int(cores) // ticket.ranks)
    return share_machine(1, 1, threads, cuda=training.get("device") in ("auto", "cuda"), ranks=ticket.ranks)


def _tell_jobs(storage: str | None) -> None:
    """Leaves the ledger's address in the environment, which sbatch hands on to jobs."""
    os.environ.pop(STORAGE, None)
    if storage is not None:
        os.environ[STORAGE] = storage


def _clear(watch: _Watch, rows: list[Row]) -> None:
    """Removes the records of failed runs that are to be done again, so that none is taken for the new attempt's."""
    queue = _queue()
    for row in rows:
        if not row.state.over and watch.jobs.get(row.ticket.key) not in queue:
            (row.ticket.directory(watch.runs) / RECORD).unlink(missing_ok=True)


def _look(watch: _Watch, rows: list[Row]) -> list[Row]:
    """Brings rows up to date by records, ledger and queue; returns those that nobody does or will do.

    A job that is gone counts from the second look on: its run's record may come a moment after it.
    """
    queue = _queue()
    watch.ledger.reap()
    standings = {standing.key: standing for standing in watch.ledger.standings()}
    for row in (row for row in rows if not row.state.over):
        key = row.ticket.key
        record, note = read_record(row.ticket.directory(watch.runs))
        if note:
            watch.board.say(note)
        if record is not None:
            close(row, record, watch.options.metric)
        elif key in standings:
            pulse = standings[key].pulse
            row.state, row.step, row.steps, row.seconds_left = State(pulse.phase), *pulse[1:]
        else:
            row.state = State.WAITING
        is_looked_after = key in standings or watch.jobs.get(key) in queue
        watch.unseen[key] = 0 if is_looked_after else watch.unseen[key] + 1
    waiting = [row for row in rows if not row.state.over and watch.unseen[row.ticket.key]]
    return [row for row in waiting if row.ticket.key not in watch.jobs or watch.unseen[row.ticket.key] > 1]


def _submit(watch: _Watch, rows: list[Row]) -> None:
    """Submits a job for each run, as one array, and one for the report that waits for them."""
    for row in rows:
        if watch.submitted[row.ticket.key] > MAX_STOPS:
            row.state, row.reason = State.FAILED, f"its job ended {MAX_STOPS + 1} times without it; see {watch.folder}"
    rows = [row for row in rows if not row.state.over]
    if not rows:
        return
    executor = _executor(watch)
    try:
        with executor.batch():
            beats = (watch.ledger.heartbeat, watch.ledger.grace)
            jobs = [executor.submit(Job(watch.runs, row.ticket, watch.options, *beats)) for row in rows]
        for row, job in zip(rows, jobs, strict=True):
            watch.jobs[row.ticket.key] = job.job_id
            watch.submitted[row.ticket.key] += 1
            watch.unseen[row.ticket.key] = 0
        write_json(watch.folder / JOBS, watch.jobs)
        watch.begin()
        array = jobs[0].job_id.split("_")[0]
        if watch.cluster.report:
            executor.update_parameters(dependency=f"afterany:{array}", job_name=f"report-{watch.options.study}")
            executor.submit(CommandFunction(list(watch.cluster.report)))
    except (FailedJobError, FailedSubmissionError) as error:
        raise ConfigError(f"SLURM refused the jobs: {_last_line(error)}", OPTION) from None
    watch.board.say(f"submitted {len(rows)} runs to SLURM as job {array}; their output is in {watch.folder}")


def _executor(watch: _Watch) -> submitit.SlurmExecutor:
    """What writes and sends the jobs. Raises ConfigError where there is no SLURM here."""
    try:
        executor = submitit.SlurmExecutor(watch.folder, max_num_timeout=MAX_WARNINGS)
    except RuntimeError:
        raise ConfigError("there is no SLURM here: srun is not found; use --launcher local", "--launcher") from None
    parameters = {"time": DEFAULT_MINUTES, "signal_delay_s": WARNING_SECONDS, **watch.cluster.parameters}
    executor.update_parameters(
        job_name=watch.options.study,
        stderr_to_stdout=True,
        additional_parameters={"requeue": True},
        **parameters,
    )
    return executor


def _queue() -> dict[str, str]:
    """The state of each of this user's jobs that has not ended, by the id that submitit knows it by."""
    ask = ["squeue", "--me", "--noheader", "--array", "--format=%i|%T"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the queue of SLURM cannot be read: {_last_line(error)}", "--launcher") from None
    return dict(line.strip().split("|", 1) for line in told.splitlines() if "|" in line)


def _kept_jobs(path: Path) -> dict[str, str]:
    """The jobs of an earlier command. A list that cannot be read costs jobs that find their runs taken."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {str(key): str(job) for key, job in found.items()}
    return {}


def _arrays(jobs: Mapping[str, str]) -> list[str]:
    """The ids of whole arrays."""
    return sorted({job.split("_")[0] for job in jobs.values()})


def _last_line(error: BaseException) -> str:
    told = getattr(error, "stderr", None) or str(error)
    return (told.strip().splitlines() or [type(error).__name__])[-1]


@contextmanager
def _signals(watch: _Watch) -> Iterator[None]:
    """SIGINT and SIGTERM end the watch, and no job."""

    def stop(number: int, frame: FrameType | None) -> None:
        watch.stopped_by = watch.stopped_by or number

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
