"""One call of the kit: what is to do, the archive of runs that travels between machines, and the summary."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu.job import PARTS, KitJob, jobs, rehearsals
from benchmarks.gpu.runner import GRACE_SECONDS, ROOT, Kit, attempts_in, last_attempts
from benchmarks.gpu.summary import markdown, table_of
from lit_transformers.files import replace_file, write_json, write_text

__all__ = ["Session", "SessionError", "pack", "unpack"]

MACHINE, SUMMARY, RUNS = "machine.json", "summary.md", "runs.tar.gz"
DESCRIBE = """
import json, ablations.__main__, lit_transformers.run
from benchmarks.hardware import describe
print(json.dumps(describe(("lightning", "transformers", "fla-core"))))
"""
"""What the kit imports at all, and the hardware and versions that it runs on."""
STOPPED = 143
"""The exit status of a call that was asked to stop."""
CLOSING_SECONDS = GRACE_SECONDS + 10.0
"""Left at the end of a call: for the job under way to stop, for the archive and for the summary."""


class SessionError(Exception):
    """A call that cannot be begun, with what to do about it."""


class Session:
    """A call of the kit, by its command line: ``out`` for what travels, ``work`` for what stays on the machine."""

    def __init__(self, options: argparse.Namespace, work: Path, environment: dict[str, str]) -> None:
        self.options, self.work, self.out = options, work, options.out.resolve()
        self.begun = time.monotonic()
        rehearsal = {"LIT_TRANSFORMERS_REHEARSAL": "1"} if options.rehearse else {}
        self.kit = Kit(self.out, work, environment | rehearsal)
        self.console = Console()

    def run(self) -> int:
        """Runs what is to do within the minutes, and returns 1 where the last attempt at a job was a failure, or
        ``STOPPED``."""
        every = rehearsals() if self.options.rehearse else jobs()
        wanted = selected(every, self.options.part or [], self.options.job or [])
        if self.options.list:
            self.console.print(table_of(wanted, last_attempts(attempts_in(self.out))))
            return 0
        signal.signal(signal.SIGTERM, stop)
        machine = self.describe_machine()
        if not self.options.rehearse and machine["gpu"] is None:
            raise SessionError("no CUDA device is to be found; --rehearse runs the kit on a CPU")
        unpack(self.out / RUNS, self.work / "runs")
        todo = self.kit.pending(wanted, self.options.again)
        self.console.print(f"{len(todo)} of {len(wanted)} jobs are to do, {self.options.minutes:g} minutes are given")
        try:
            self.kit.run(todo, 60 * self.options.minutes - CLOSING_SECONDS - (time.monotonic() - self.begun))
        except KeyboardInterrupt:
            self.console.print("stopped; the same command goes on")
            return STOPPED
        finally:
            pack(self.work / "runs", self.out / RUNS)
            last = last_attempts(attempts_in(self.out))
            write_text(self.out / SUMMARY, markdown(every, last, machine))
            self.console.print(table_of(wanted, last))
        ended = [last[job.name].outcome for job in wanted if job.name in last]
        return int("failed" in ended or "timed out" in ended)

    def describe_machine(self) -> dict[str, Any]:
        """Hardware and versions, by a process of its own so that this one holds nothing of the device; kept in a file.

        Raises SessionError, with the last line of the error, where the suite cannot be imported.
        """
        command = [sys.executable, "-c", DESCRIBE]
        done = subprocess.run(command, cwd=ROOT, env=self.kit.environment, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise SessionError(f"{last}; carry what is missing as wheels: python -m benchmarks.gpu.wheels --help")
        machine: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        write_json(self.out / MACHINE, machine)
        return machine


def selected(every: Sequence[KitJob], parts: Sequence[str], names: Sequence[str]) -> list[KitJob]:
    """The jobs of the given parts and names; all where none are given. Raises SessionError for what there is not."""
    for part in parts:
        if part not in PARTS:
            raise SessionError(f"--part {part}: there are {', '.join(PARTS)}")
    known = [job.name for job in every]
    for name in names:
        if name not in known:
            raise SessionError(f"--job {name!r}: there are {', '.join(known)}")
    return [job for job in every if (not parts or job.part in parts) and (not names or job.name in names)]


def stop(number: int, frame: object) -> None:
    """Ends a call as Ctrl-C does: the job under way is ended, what was measured is packed."""
    raise KeyboardInterrupt


def pack(runs: Path, archive: Path) -> None:
    """Everything of the runs but their weights, which are too large to travel, into an archive."""
    if not runs.exists():
        return

    def small(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name)
        heavy = name.name.startswith("checkpoint") or "trained" in name.parts or name.name in ("lock", "ledger.lock")
        return None if heavy else member

    def write(fresh: Path) -> None:
        with tarfile.open(fresh, "w:gz") as file:
            file.add(runs, arcname=".", filter=small)

    replace_file(archive, write)


def unpack(archive: Path, runs: Path) -> None:
    """The archive of an earlier machine into the folder of runs, where this machine has none yet."""
    if archive.exists() and not runs.exists():
        with tarfile.open(archive) as file:
            file.extractall(runs, filter="data")
