"""Runs jobs one after the other until the time is up, and keeps one line of JSON for every attempt.

A job is a separate process group with its own limit. At the limit it receives SIGTERM and, some seconds later, SIGKILL.
The result of a job is in ``results.jsonl`` as soon as it ends, so that a call which is itself killed loses the running
job and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from benchmarks.gpu import ROOT
from benchmarks.gpu.job import KitJob
from benchmarks.gpu.process import JobProcess

__all__ = ["GRACE_SECONDS", "RESULTS", "JobAttempt", "Kit", "attempts_in", "code_fingerprint", "last_attempts"]

CODE = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports", "benchmarks", "tests")
RESULTS = "results.jsonl"
GRACE_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL, in which a study writes its checkpoints."""
TAIL_LINES = 15
GLANCE_SECONDS = 1.0
"""Seconds between two looks at the log of a job."""
WIDEST = 200
"""The most characters of a line that is said."""

Outcome = Literal["finished", "failed", "timed out", "stopped"]
"""timed out: the job reached its own limit. stopped: the call ended, a person stopped it, or a resumable job reached
its limit."""


class JobAttempt(NamedTuple):
    """One attempt at a job: its outcome, its measurements and its code version. ``tail``: the end of its output."""

    part: str
    name: str
    outcome: Outcome
    seconds: float
    command: str
    code: str
    result: Any = None
    tail: Sequence[str] = ()
    date: str = ""


def attempts_in(folder: Path) -> list[JobAttempt]:
    """All attempts in a folder of results, oldest first. An incomplete last line is left out.

    Raises ValueError, with the place, for a line that is no attempt.
    """
    path = folder / RESULTS
    if not path.exists():
        return []
    attempts = []
    for number, line in enumerate(whole_lines(path.read_bytes()).decode().splitlines(), start=1):
        try:
            attempts.append(JobAttempt(**json.loads(line)))
        except (ValueError, TypeError):
            raise ValueError(f"{path}, line {number}: not an attempt of the kit") from None
    return attempts


def whole_lines(content: bytes) -> bytes:
    """The content up to the end of its last whole line."""
    return content[: content.rfind(b"\n") + 1]


def last_attempts(attempts: Iterable[JobAttempt]) -> dict[str, JobAttempt]:
    """The last attempt at every job, by its name."""
    return {attempt.name: attempt for attempt in attempts}


def code_fingerprint() -> str:
    """A hash of every Python file that a job may use: the machine may have the files and no git."""
    digest = sha256()
    for package in CODE:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Kit(NamedTuple):
    """Runs jobs and records attempts at them.

    out: the folder of results. work: the folder of large files that stay on the machine. say: prints a line.
    """

    out: Path
    work: Path
    say: Callable[[str], None] = print

    def pending(self, jobs: Sequence[KitJob], again: bool = False) -> list[KitJob]:
        """The jobs that did not finish, in order: those that failed are repeated. With ``again`` all jobs are."""
        latest = last_attempts(attempts_in(self.out))
        return [job for job in jobs if again or job.name not in latest or latest[job.name].outcome != "finished"]

    def run(self, jobs: Sequence[KitJob], seconds: float) -> list[KitJob]:
        """Runs jobs in order within ``seconds``, and returns those for which too little time was left."""
        deadline, waiting = time.monotonic() + seconds, []
        for number, job in enumerate(jobs, start=1):
            left = deadline - time.monotonic()
            if left < job.needed:
                waiting.append(job)
                continue
            self.say(f"[{number}/{len(jobs)}] {job.part} {job.name}: at most {min(left, job.limit):.0f} s")
            begun = time.monotonic()
            try:
                attempt = self.attempt(job, left)
            except KeyboardInterrupt:
                seconds = round(time.monotonic() - begun, 1)
                self.write(JobAttempt(job.part, job.name, "stopped", seconds, job.command, code_fingerprint()))
                raise
            self.write(attempt)
            self.say(f"    {attempt.outcome} after {attempt.seconds:.0f} s")
        return waiting

    def attempt(self, job: KitJob, left: float) -> JobAttempt:
        """Runs one job for at most ``left`` seconds, or its own limit."""
        limit = min(left, job.limit)
        folders = {"out": str(self.out), "work": str(self.work)}
        arguments = [argument.format(**folders) for argument in job.arguments]
        writes = self.work / job.writes if job.writes else None
        if writes:
            writes.unlink(missing_ok=True)
        log = self.work / "logs" / f"{job.part}-{job.name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        start = log.stat().st_size if log.exists() else 0
        process = JobProcess(job.module, arguments, ROOT, log)
        begun = time.monotonic()
        try:
            code = self.watched(process, max(0.1, limit), log, start)
        finally:
            end_group(process.group)
        outcome: Outcome = "finished" if code == 0 else "failed"
        if code is None:
            outcome = "timed out" if limit == job.limit and not job.resumable else "stopped"
        return JobAttempt(
            job.part, job.name, outcome, round(time.monotonic() - begun, 1),
            job.command, code_fingerprint(),
            read_json(writes) if writes else None, tail_of(log, start), time.strftime("%Y-%m-%d"),
        )  # fmt: skip

    def watched(self, process: JobProcess, seconds: float, log: Path, start: int) -> int | None:
        """Waits for the end of a job, and says each line that it writes to its log from byte ``start`` on. Returns its
        exit status; None if it still runs after ``seconds`` seconds."""
        deadline, code = time.monotonic() + seconds, None
        with log.open("ab"), log.open("rb") as file:
            file.seek(start)
            while code is None and (left := deadline - time.monotonic()) > 0:
                code = process.wait(min(left, GLANCE_SECONDS))
                self.say_lines(file)
        return code

    def say_lines(self, file: BinaryIO) -> None:
        """Says the whole lines that follow in a log, the last state of each; half of a line is left for later."""
        content = file.read()
        whole = whole_lines(content)
        file.seek(len(whole) - len(content), os.SEEK_CUR)
        for line in whole.decode(errors="replace").splitlines():
            if text := line.rstrip().rpartition("\r")[2]:
                self.say(f"    | {text[:WIDEST]}")

    def write(self, attempt: JobAttempt) -> None:
        """Appends an attempt to the results, after removing an incomplete last line."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / RESULTS
        with path.open("a+b") as file:
            file.seek(0)
            file.truncate(len(whole_lines(file.read())))
            file.write(json.dumps(attempt._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def end_group(group: int) -> None:
    """Sends SIGTERM to the processes left in a job's group, and SIGKILL where they do not end in time."""
    for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if not group_exists(group):
                return
            time.sleep(0.05)


def group_exists(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where it is missing or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def tail_of(log: Path, start: int) -> list[str]:
    """The last lines written to a log since byte ``start``, with the final state of each progress line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = deque((line.decode(errors="replace") for line in file), maxlen=TAIL_LINES)
    return [line.rstrip().rsplit("\r", 1)[-1][:300] for line in lines]
