"""One call of the kit: the jobs to do, the archive of runs that is carried between machines, and the summary."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu import ROOT
from benchmarks.gpu.goals import goals
from benchmarks.gpu.job import PARTS, KitJob, jobs, rehearsals
from benchmarks.gpu.job_queue import GRACE_SECONDS, Kit, attempts_in, end_group, last_attempts, tail_of
from benchmarks.gpu.process import JobProcess
from benchmarks.gpu.summary import markdown, table_of, table_of_goals
from lit_transformers.records.files import replace_file, write_text

__all__ = ["Session", "SessionError", "pack", "unpack"]

MACHINE, SUMMARY, RUNS = "machine.json", "summary.md", "runs.tar.gz"
DESCRIBING_SECONDS = 120.0
"""How long a machine may take to import the modules that the kit needs, and to describe itself."""
MOST_FILES, LARGEST_FILE = 8, 16 * 2**20
"""How many files a loan returns, and the bytes of the largest."""
STOPPED = 143
"""The exit status of a call that was stopped by a signal."""
CLOSING_SECONDS = GRACE_SECONDS + 10.0
"""Seconds reserved at the end of a call: for the running job to stop, for the archive and for the summary."""


class SessionError(Exception):
    """A call cannot be begun; the message names the remedy."""


class Session:
    """A call of the kit by its command line. ``out``: the folder to carry away. ``work``: the folder that stays."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work, self.out = options, work, options.out.resolve()
        self.begun = time.monotonic()
        self.kit = Kit(self.out, work)
        self.console = Console()

    def run(self) -> int:
        """Runs the pending jobs within the minutes given. Returns 0, 1 where the last attempt at a job failed or timed
        out, or ``STOPPED``. Raises SessionError where the call cannot be begun."""
        all_jobs = rehearsals() if self.options.rehearse else jobs()
        selected_jobs = selected(all_jobs, self.options.part or [], self.options.job or [])
        if self.options.list:
            self.console.print(table_of(selected_jobs, last_attempts(attempts_in(self.out))))
            return 0
        signal.signal(signal.SIGTERM, stop)
        if self.options.rehearse:
            os.environ |= {"LIT_TRANSFORMERS_REHEARSAL": "1", "OMP_NUM_THREADS": "1"}
        machine = self.describe_machine()
        if not self.options.rehearse and machine["gpu"] is None:
            raise SessionError("no CUDA device is to be found; --rehearse runs the kit on a CPU")
        unpack(self.out / RUNS, self.work / "runs")
        todo = self.kit.pending(selected_jobs, self.options.again)
        self.console.print(
            f"{len(todo)} of {len(selected_jobs)} jobs are to do, {self.options.minutes:g} minutes are given"
        )
        try:
            self.kit.run(todo, 60 * self.options.minutes - CLOSING_SECONDS - (time.monotonic() - self.begun))
        except KeyboardInterrupt:
            self.console.print("stopped; the same command resumes")
            return STOPPED
        finally:
            pack(self.work / "runs", self.out / RUNS)
            last = last_attempts(attempts_in(self.out))
            write_text(self.out / SUMMARY, markdown(all_jobs, last, machine))
            self.console.print(table_of(selected_jobs, last))
            self.console.print(table_of_goals(goals(last, machine)))
            for line in too_large_to_return(self.out):
                self.console.print(line)
        outcomes = [last[job.name].outcome for job in selected_jobs if job.name in last]
        return int("failed" in outcomes or "timed out" in outcomes)

    def describe_machine(self) -> dict[str, Any]:
        """Hardware and versions, also written to a file. A separate process reads them, so that this one holds no GPU.

        Raises SessionError, with the last line of the error, where the suite cannot be imported.
        """
        log = self.work / "machine.log"
        log.unlink(missing_ok=True)
        process = JobProcess("benchmarks.gpu.machine", [str(self.out / MACHINE)], ROOT, log)
        try:
            status = process.wait(DESCRIBING_SECONDS)
        finally:
            end_group(process.group)
        if status != 0:
            last = (tail_of(log, 0) or ["no output"])[-1]
            raise SessionError(f"{last}; carry the missing packages as wheels: python -m benchmarks.gpu.wheels --help")
        machine: dict[str, Any] = json.loads((self.out / MACHINE).read_text(encoding="utf-8"))
        return machine


def selected(all_jobs: Sequence[KitJob], parts: Sequence[str], names: Sequence[str]) -> list[KitJob]:
    """The jobs of the given parts and names; all where none are given. Raises SessionError for an unknown one."""
    for part in parts:
        if part not in PARTS:
            raise SessionError(f"--part {part}: there are {', '.join(PARTS)}")
    job_names = [job.name for job in all_jobs]
    for name in names:
        if name not in job_names:
            raise SessionError(f"--job {name!r}: there are {', '.join(job_names)}")
    return [job for job in all_jobs if (not parts or job.part in parts) and (not names or job.name in names)]


def too_large_to_return(out: Path) -> Iterator[str]:
    """Yields a line for each limit of a loan that the files of the folder of results exceed."""
    files = sorted(path for path in out.iterdir() if path.is_file())
    if len(files) > MOST_FILES:
        yield f"{len(files)} files in {out.name}, and {MOST_FILES} are returned: pack some of them"
    for path in files:
        if path.stat().st_size > LARGEST_FILE:
            yield f"{path.name} has {path.stat().st_size / 2**20:.1f} MiB, and {LARGEST_FILE / 2**20:g} are returned"


def stop(number: int, frame: object) -> None:
    """A signal handler that ends a call as Ctrl-C does: the running job is ended, and the runs are packed."""
    raise KeyboardInterrupt


def pack(runs: Path, archive: Path) -> None:
    """Writes everything of the runs except their weights, which are too large, to an archive."""
    if not runs.exists():
        return

    def without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name)
        excluded = name.name.startswith("checkpoint") or "trained" in name.parts or name.name in ("lock", "ledger.lock")
        return None if excluded else member

    def write(new_archive: Path) -> None:
        with tarfile.open(new_archive, "w:gz") as file:
            file.add(runs, arcname=".", filter=without_weights)

    replace_file(archive, write)


def unpack(archive: Path, runs: Path) -> None:
    """Unpacks the archive of an earlier machine into the folder of runs, unless that folder exists."""
    if archive.exists() and not runs.exists():
        with tarfile.open(archive) as file:
            file.extractall(runs, filter="data")
