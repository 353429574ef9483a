"""Does runs on a SLURM cluster: an array of jobs, one for each run, that claim their runs from the ledger.

A job does its run as a command on that machine would. Before its time is up SLURM sends it a signal: the run writes its
checkpoint and is returned to the ledger, and the job is requeued. The command that submits the jobs only watches them:
it may end and be started again, and resubmits lost jobs. Runs that start from others are an array that waits for the
jobs of these, and a job that writes the report waits for all.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
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
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import CommandFunction, DelayedSubmission

from lit_transformers.config import ConfigError
from lit_transformers.machine.cores import requested_threads
from lit_transformers.records.files import write_json
from sweeps.launchers.limits import is_count, parse_bytes, parse_count, parse_seconds
from sweeps.launchers.local import MAX_STOPS, Options, Summary
from sweeps.launchers.remote import (
    STORAGE,
    RemoteRun,
    able_to_begin,
    named_values,
    node_share,
    remove_failed_records,
    require_equal_parts,
    update_rows,
)
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row
from sweeps.object_store import address_of
from sweeps.process.order import Spread

__all__ = ["Cluster", "launch_on_slurm", "parse_parameters", "require_slurm"]

LOOK_SECONDS = 2.0
WARNING_SECONDS = 120
"""How long before its time limit a job receives the signal: enough to write a checkpoint."""
EARLY_SECONDS = 60
"""How much earlier than that the signal may come."""
DEFAULT_MINUTES = 60
MAX_WARNINGS = 1000
"""How often a job may use up its time and be requeued."""
JOBS = "jobs.json"
OPTION = "--slurm"
NO_TIME = (
    "the time of its job was up, and a stopped run of its command begins anew; give jobs more time, such as "
    "--slurm time=8h, or set resume='folder'"
)
NO_SLURM = "there is no SLURM here: srun is not found; use --launcher local"


class Cluster(NamedTuple):
    """How jobs are submitted: submitit's parameters, the ledger's address, and the command of the report."""

    parameters: Mapping[str, Any]
    storage: str | None
    report: Sequence[str]

    @property
    def nodes(self) -> int:
        """The nodes of a job, over which the ranks of its run are spread."""
        return int(self.parameters.get("nodes", 1))

    @property
    def limits(self) -> dict[str, int]:
        """The time of a job in minutes, and how many seconds before its end it receives the signal."""
        limits = {"time": DEFAULT_MINUTES, "signal_delay_s": WARNING_SECONDS}
        return {name: int(self.parameters.get(name, value)) for name, value in limits.items()}

    @property
    def seconds(self) -> float:
        """The seconds after which a signal says that the time of a job is up."""
        return 60.0 * self.limits["time"] - self.limits["signal_delay_s"] - EARLY_SECONDS


class Job:
    """One run as a job. It is pickled when it is submitted, and called on the first of its nodes, again each time it is
    requeued.

    seconds: from which on a warning means that the time of the job is up, and not that another one takes its place.
    """

    def __init__(self, run: RemoteRun, nodes: int, seconds: float) -> None:
        self.run, self.nodes, self.seconds = run, nodes, seconds

    def __call__(self) -> str:
        """Does the run, or the rest of it, and returns its state."""
        started = time.monotonic()
        share = _share(self.run.ticket, self.nodes)
        summary = self.run.perform(share, os.environ.get(STORAGE), _spread(self.nodes))
        if summary.stopped_by == signal.SIGUSR2:
            if time.monotonic() - started >= self.seconds and not self.run.resumes:
                self.run.fail(NO_TIME)
                return State.FAILED
            signal.raise_signal(signal.SIGUSR2)  # now submitit receives it too, and requeues the job
        if summary.stopped_by is not None:
            sys.exit(128 + summary.stopped_by)
        return summary.rows[0].state

    def checkpoint(self) -> DelayedSubmission:
        """Returns the job to do when this one was requeued: the same job, since the run has its own checkpoint."""
        return DelayedSubmission(self)


@dataclass
class _Watch:
    """The state of the submitting command: job ids by key, and how often each run was submitted and not seen."""

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
    """Submits a job for every waiting run, and watches until all have ended. Jobs outlive a command that is stopped.

    begin: called when SLURM has accepted the jobs, before the job of their report is submitted.
    Raises ConfigError where SLURM refuses the jobs, or where its nodes cannot share the ranks of a run.
    """
    require_equal_parts(runs, cluster.nodes, rows, options, OPTION)
    folder = runs.resolve() / "studies" / options.study / "slurm"
    watch = _Watch(runs.resolve(), ledger, board, options, cluster, folder, begin, _read_jobs(folder / JOBS))
    with _handled_signals(watch), board:
        board.watch(rows)
        _export_storage(cluster.storage)
        queue = _queue()
        remove_failed_records(watch.runs, (row for row in rows if watch.jobs.get(row.ticket.key) not in queue))
        while watch.stopped_by is None:
            waiting = _update_rows(watch, rows)
            able_to_begin(watch.runs, waiting, rows)
            _submit(watch, waiting, rows)
            board.refresh()
            if all(row.state.over for row in rows):
                break
            time.sleep(LOOK_SECONDS)
        if watch.stopped_by is not None:
            board.say(
                f"the jobs continue without this command; to end them: scancel {' '.join(_array_ids(watch.jobs))}"
            )
    return Summary(rows, watch.stopped_by)


def parameter_names() -> set[str]:
    """Returns the parameters of a job that submitit knows. It has no public list of them where there is no SLURM."""
    return set(submitit.SlurmExecutor._valid_parameters())


def parse_parameters(assignments: Iterable[str]) -> dict[str, Any]:
    """Parses ``partition=gpu``, ``time=2h`` (or minutes), ``mem=8GiB``, ``gpus_per_node=1`` for submitit.

    Raises ConfigError for a name that submitit does not know.
    """
    parameters: dict[str, Any] = {}
    for name, text in named_values(assignments, parameter_names(), "parameter", OPTION):
        place = f"{OPTION} {name}"
        if name == "time":
            parameters[name] = int(text) if is_count(text) else math.ceil(parse_seconds(text, place) / 60)
        elif name == "mem":
            parameters[name] = parse_bytes(text, place) / (1 << 30)
        elif name == "nodes":
            parameters[name] = parse_count(text, name, place)
        else:
            parameters[name] = int(text) if is_count(text) else text
    return parameters


def _spread(nodes: int) -> Spread:
    """Returns the nodes of this job, of which this is the first.

    SLURM warns all steps of a job of the end of its time. Only the run's own process answers, so the others ignore it.
    """
    if nodes == 1:
        return Spread()
    srun = ("srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1")
    deaf = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")
    return Spread(nodes, (*srun, *deaf), socket.gethostname())


def _share(ticket: Ticket, nodes: int = 1) -> Share:
    """Returns the job's share of a node: its cores divided equally among the ranks that are there, unless
    OMP_NUM_THREADS is set."""
    ranks = ticket.ranks // nodes
    cores = os.environ.get("SLURM_CPUS_PER_TASK") or "1"
    return node_share(ticket, requested_threads() or max(1, int(cores) // ranks), ranks)


def _export_storage(storage: str | None) -> None:
    """Sets the ledger's address in the environment, which sbatch passes on to jobs."""
    os.environ.pop(STORAGE, None)
    if storage is not None:
        os.environ[STORAGE] = storage


def _update_rows(watch: _Watch, rows: list[Row]) -> list[Row]:
    """Updates rows by records, ledger and queue; returns those that no worker does and no job in the queue will do.

    A job that is gone counts from the second check on, since its run's record may appear a moment later.
    """
    queue, unfinished = _queue(), [row for row in rows if not row.state.over]
    gone = {key for key, job in watch.jobs.items() if job not in queue}
    held = update_rows(watch.runs, watch.ledger, watch.board, unfinished, watch.options.metric, gone)
    for key in (row.ticket.key for row in unfinished):
        is_assigned = key in held or watch.jobs.get(key) in queue
        watch.unseen[key] = 0 if is_assigned else watch.unseen[key] + 1
    waiting = [row for row in rows if not row.state.over and watch.unseen[row.ticket.key]]
    return [row for row in waiting if row.ticket.key not in watch.jobs or watch.unseen[row.ticket.key] > 1]


def _submit(watch: _Watch, rows: list[Row], all_rows: Sequence[Row]) -> None:
    """Submits a job for each run, as one array, and one for the report that waits for them. Runs that start from others
    are in a separate array, which waits for the jobs of those others.

    rows: the runs that nobody does. all_rows: all runs of the command.
    """
    for row in rows:
        if watch.submitted[row.ticket.key] > MAX_STOPS:
            row.state, row.reason = State.FAILED, f"its job ended {MAX_STOPS + 1} times without it; see {watch.folder}"
    levels = _levels(watch, [row for row in rows if not row.state.over], all_rows)
    if not levels:
        return
    try:
        arrays = [_submit_array(watch, level, all_rows) for level in levels]
        watch.begin()
        if watch.cluster.report:
            executor = _executor(watch)
            executor.update_parameters(
                dependency=f"afterany:{':'.join(arrays)}", job_name=f"report-{watch.options.study}", nodes=1
            )
            executor.submit(CommandFunction(list(watch.cluster.report)))
    except (FailedJobError, FailedSubmissionError) as error:
        raise ConfigError(f"SLURM refused the jobs: {_last_line(error)}", OPTION) from None
    jobs, number = " and ".join(arrays), sum(map(len, levels))
    watch.board.say(f"submitted {number} runs to SLURM as job {jobs}; their output is in {watch.folder}")


def _levels(watch: _Watch, rows: Sequence[Row], all_rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the runs that can be submitted: first those whose sources have ended or have jobs, then those whose
    sources are among the first, and so on. A source that somebody does without a job is waited for here."""
    if not rows:
        return []
    queue = _queue()
    awaited = {row.ticket.key for row in all_rows if not row.state.over and watch.jobs.get(row.ticket.key) not in queue}
    levels, pending = [], [*rows]
    while level := [row for row in pending if awaited.isdisjoint(_before(row.ticket))]:
        levels.append(level)
        awaited -= {row.ticket.key for row in level}
        pending = [row for row in pending if row not in level]
    return levels


def _before(ticket: Ticket) -> set[str]:
    """Returns the keys of the runs that have to end before a run begins."""
    return {*ticket.sources, *([ticket.donor] if ticket.donor else ())}


def _submit_array(watch: _Watch, rows: Sequence[Row], all_rows: Sequence[Row]) -> str:
    """Submits runs as one array, which waits for the jobs of those that they start from, and returns its id."""
    executor = _executor(watch)
    unfinished = {row.ticket.key for row in all_rows if not row.state.over}
    before = {key for row in rows for key in _before(row.ticket)} & unfinished & watch.jobs.keys()
    if before:
        executor.update_parameters(
            dependency=f"afterany:{':'.join(_array_ids({key: watch.jobs[key] for key in before}))}"
        )
    with executor.batch():
        timing, address = (watch.ledger.heartbeat, watch.ledger.grace), address_of(watch.runs)
        remote_runs = [RemoteRun(watch.runs, row.ticket, watch.options, *timing, address) for row in rows]
        jobs = [executor.submit(Job(run, watch.cluster.nodes, watch.cluster.seconds)) for run in remote_runs]
    for row, job in zip(rows, jobs, strict=True):
        watch.jobs[row.ticket.key] = job.job_id
        watch.submitted[row.ticket.key] += 1
        watch.unseen[row.ticket.key] = 0
    write_json(watch.folder / JOBS, watch.jobs)
    return str(jobs[0].job_id.split("_")[0])


def _executor(watch: _Watch) -> submitit.SlurmExecutor:
    """Returns the executor that submits the jobs. Raises ConfigError where SLURM is not installed."""
    try:
        executor = submitit.SlurmExecutor(watch.folder, max_num_timeout=MAX_WARNINGS)
    except RuntimeError:
        raise ConfigError(NO_SLURM, "--launcher") from None
    parameters = {**watch.cluster.parameters, **watch.cluster.limits}
    if watch.cluster.nodes > 1:  # the run's process is on the first node, and starts its ranks on all of them
        parameters |= {"ntasks_per_node": 1, "srun_args": ["--nodes=1", "--ntasks=1"]}
    executor.update_parameters(
        job_name=watch.options.study,
        stderr_to_stdout=True,
        additional_parameters={"requeue": True},
        **parameters,
    )
    return executor


def require_slurm() -> None:
    """Raises ConfigError where there is no SLURM, or it does not answer."""
    if shutil.which("srun") is None:
        raise ConfigError(NO_SLURM, "--launcher")
    _queue()


def _queue() -> dict[str, str]:
    """Returns the state of each of this user's unfinished jobs, by the id that submitit uses."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i|%T"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the queue of SLURM cannot be read: {_last_line(error)}", "--launcher") from None
    return dict(line.strip().split("|", 1) for line in output.splitlines() if "|" in line)


def _read_jobs(path: Path) -> dict[str, str]:
    """Reads the job ids of an earlier command. If that fails, runs get a second job, which finds them claimed."""
    with suppress(OSError, ValueError):
        jobs = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(jobs, dict):
            return {str(key): str(job) for key, job in jobs.items()}
    return {}


def _array_ids(jobs: Mapping[str, str]) -> list[str]:
    """Returns the ids of the job arrays."""
    return sorted({job.split("_")[0] for job in jobs.values()})


def _last_line(error: BaseException) -> str:
    message = getattr(error, "stderr", None) or str(error)
    return (message.strip().splitlines() or [type(error).__name__])[-1]


@contextmanager
def _handled_signals(watch: _Watch) -> Iterator[None]:
    """SIGINT and SIGTERM end the watch, and no job."""

    def stop(number: int, frame: FrameType | None) -> None:
        watch.stopped_by = watch.stopped_by or number

    previous_handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
