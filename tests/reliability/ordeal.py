"""A command whose processes are killed again and again, and which is started again; and the results of its runs."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from waiting import SECONDS, wait_for

__all__ = ["Ordeal", "finished_records", "run_command", "what_training_left"]

KINDS = ("run", "run", "server", "run", "run", "run", "command", "run", "run", "run")
"""The processes to kill, over and over: a run most often, because a server or a command that is gone takes its runs
with it."""


def run_command(study: Path, runs: Path, *words: str) -> list[str]:
    """``python -m ablations run`` with two workers of one thread."""
    shares = ["--workers", "2", "--threads", "1"]
    return [sys.executable, "-m", "ablations", "run", str(study), "--runs", str(runs), *shares, *words]


def finished_records(runs: Path) -> dict[str, bytes]:
    """The contents of the records of finished runs, by key."""
    records = {path.parent.name: path.read_bytes() for path in runs.glob("*/record.json")}
    return {key: text for key, text in records.items() if json.loads(text)["outcome"] == "finished"}


def what_training_left(runs: Path) -> dict[str, Any]:
    """The results that must not depend on interruptions, by run: records without ``measured``."""
    results = {}
    for path in runs.glob("*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["measured"]
        results[path.parent.name] = record
    return results


class Ordeal:
    """Kills the processes of one command at random moments, and starts it again when it has ended.

    ``finished`` holds the record of every run as it was first seen.
    """

    def __init__(self, runs: Path, command: list[str], log: Path, seed: int = 0) -> None:
        self.runs, self.command, self.log = runs, command, log
        self.chance = random.Random(seed)
        self.process: subprocess.Popen[bytes] | None = None
        self.finished: dict[str, bytes] = {}
        self.hit = {"command": 0, "server": 0, "run": 0}
        self.had_checkpoint = 0

    @property
    def kills(self) -> int:
        """How many processes have been killed so far."""
        return sum(self.hit.values())

    def kill_somebody(self, gap: float) -> None:
        """Waits about ``gap`` seconds and kills the command, its fork server or one of its runs; runs most often."""
        process = self._started()
        if self.chance.random() < 0.8:
            self._wait_for_a_run(process)
        if self.chance.random() < 0.2:
            self._wait_for_a_checkpoint(process)
        time.sleep(self.chance.uniform(0, 2 * gap))
        self.check_records()
        children = living(psutil.Process(process.pid).children(recursive=True)) if process.poll() is None else []
        runs = [child for child in children if self._run_of(child)]
        kind = KINDS[self.kills % len(KINDS)]
        others = [child for child in children if child not in runs]
        victims = {"run": runs, "server": others, "command": [process]}[kind]
        if victims and process.poll() is None:
            self._strike(kind, self.chance.choice(victims))

    def go_on_undisturbed(self) -> None:
        """Starts the command until it ends with status 0, at most three times."""
        for _ in range(3):
            if self._started().wait(timeout=3 * SECONDS) == 0:
                break
            self.check_records()
        self.check_records()

    def close(self) -> None:
        """Leaves no command behind where a test has failed; its runs die with it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def check_records(self) -> None:
        """Fails where a finished run was done again: another attempt would have left another record."""
        records = finished_records(self.runs)
        for key, record in self.finished.items():
            assert records.get(key) == record, f"run {key} was finished, and its record has changed"
        self.finished = records

    def left_behind(self) -> list[int]:
        """Processes that still write to the log of a run."""
        return [process.pid for process in living(list(psutil.process_iter())) if self._run_of(process)]

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self.process

    def _wait_for_a_run(self, process: subprocess.Popen[bytes]) -> None:
        wait_for(
            lambda: process.poll() is not None or any(self._runs_at_work(process)), "no run was started", every=0.1
        )

    def _wait_for_a_checkpoint(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for a checkpoint of some run: otherwise nearly all kills would hit runs that have only begun."""
        wait_for(
            lambda: (
                process.poll() is not None
                or any((run / "checkpoint.ckpt").exists() for run in self._runs_at_work(process))
            ),
            "no run kept a checkpoint",
            every=0.1,
        )

    def _runs_at_work(self, process: subprocess.Popen[bytes]) -> Iterator[Path]:
        """The directories of the runs that a command's processes are working on."""
        return filter(None, map(self._run_of, psutil.Process(process.pid).children(recursive=True)))

    def _run_of(self, process: psutil.Process) -> Path | None:
        """The directory of the run that a process is working on, by the file that its output goes to."""
        try:
            log = Path(f"/proc/{process.pid}/fd/1").readlink()
        except OSError:
            return None
        return log.parent if log.is_relative_to(self.runs) else None

    def _strike(self, kind: str, victim: psutil.Process | subprocess.Popen[bytes]) -> None:
        if isinstance(victim, psutil.Process) and (directory := self._run_of(victim)):
            self.had_checkpoint += (directory / "checkpoint.ckpt").exists()
        try:
            victim.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return
        self.hit[kind] += 1
        if isinstance(victim, subprocess.Popen):
            victim.wait()


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that are neither gone nor zombies."""
    running = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
        except psutil.NoSuchProcess:
            continue
    return running
