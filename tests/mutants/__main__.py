"""Plants faults one at a time in a copy of the checkout, and shows which test notices each.

    python -m tests.mutants --only entmax
    python -m tests.mutants --workers 4
    python -m tests.mutants --gates

Exits with status 1 where a fault survives, where its text is not there exactly once, or where a test that should notice
it does not exist or fails without it. Only tracked files are copied, and the checkout itself is never changed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.mutants.fault import Fault
from tests.mutants.faults import FAULTS
from tests.mutants.gates import NONE_FAILED, failed_gate, models_by_file

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 180.0
"""Seconds after which a fault counts as noticed, because its tests hang."""
HEAVY = ("torch", "lightning", "torchmetrics", "hypothesis", "scipy.stats", "optuna", "sacrebleu", "pydantic", "entmax")
"""Packages that are imported once, before a process is forked for each fault."""
SURVIVED = ""
Models = Sequence[Mapping[str, Any]]
"""Configs of models as plain data."""


class Result(NamedTuple):
    """The test that noticed a fault, SURVIVED where none did, the gate that fails too, if gates were run and there are
    models whose code the fault is in, and the seconds that all this took."""

    fault: Fault
    caught_by: str
    gate: str
    seconds: float


class Recorder:
    """A plugin of pytest that keeps the names of tests that failed, in order, and of those that passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.passed and report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"import of {report.nodeid}")


def run_tests(copy: Path, tests: Sequence[str], answer: Path, first_only: bool, models: Models) -> None:
    """Runs tests in a copy of the checkout, in this process, forked for them alone, then the gates of models."""
    os.setsid()
    log = os.open(answer.with_suffix(".log"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(copy)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    recorder = Recorder()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={answer.parent / f'{answer.stem}.tmp'}"]
    status = pytest.main([*options, *(["-x"] if first_only else []), *tests], plugins=[recorder])
    gates = [failed_gate(models)] if models else []
    fields = {"status": int(status), "failed": recorder.failed, "passed": recorder.passed, "gates": gates}
    answer.write_text(json.dumps(fields), encoding="utf-8")


class Trial:
    """A process that runs tests in a copy, with a fault planted in it or with none."""

    def __init__(
        self, copy: Path, tests: Sequence[str], fault: Fault | None = None, number: int = 0, models: Models = ()
    ) -> None:
        self.copy, self.fault, self.began = copy, fault, time.monotonic()
        self.answer = copy.with_name(f"{copy.name}.answer")
        self.answer.unlink(missing_ok=True)
        if fault is not None:
            fault.plant(copy, number)
        arguments = (copy, tests, self.answer, fault is not None, models)
        self.process: BaseProcess = get_context("fork").Process(target=run_tests, args=arguments)
        self.process.start()

    @property
    def late(self) -> bool:
        return self.fault is not None and time.monotonic() - self.began > LIMIT

    def finish(self) -> dict[str, object]:
        """Ends the process and those that it started, takes the fault out again, and returns its answer."""
        hangs = self.process.is_alive()
        assert self.process.pid
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        if self.fault is not None:
            shutil.copy2(ROOT / self.fault.file, self.copy / self.fault.file)
        if not self.answer.exists():
            reason = f"{LIMIT:.0f} seconds" if hangs else f"a process that ended with {self.process.exitcode}"
            return {"status": 1, "failed": [reason], "passed": [], "gates": []}
        answer: dict[str, object] = json.loads(self.answer.read_text(encoding="utf-8"))
        return answer


def copies(folder: Path, count: int) -> list[Path]:
    """Makes copies of the checkout's tracked files."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    places = [folder / f"copy{number}" for number in range(count)]
    for place in places:
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)
    return places


def check(copy: Path, faults: Sequence[Fault]) -> list[str]:
    """Returns the reasons why tests of these faults are of no use: they are missing, skipped, or fail anyway."""
    tests = sorted({test for fault in faults for test in fault.tests})
    trial = Trial(copy, tests)
    trial.process.join()
    answer = trial.finish()
    if failed := texts(answer, "failed"):
        return [f"{test} fails without a fault" for test in failed]
    if answer["status"] != 0:
        lines = trial.answer.with_suffix(".log").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith("ERROR")] or lines[-3:]
    passed = set(texts(answer, "passed"))
    passed |= {name.partition("[")[0] for name in passed}
    return [f"{test} is skipped here" for test in tests if test not in passed]


def texts(answer: dict[str, object], name: str) -> list[str]:
    """Returns the texts of a list in an answer."""
    items = answer[name]
    return [str(item) for item in items] if isinstance(items, list) else []


def results(
    faults: Sequence[Fault], places: Sequence[Path], models: Mapping[str, Models] = MappingProxyType({})
) -> Iterator[Result]:
    """Yields the result of each fault, as soon as it is there; as many at a time as there are copies.

    models: by file, the models whose gates are run as well.
    """
    pending, free, running = list(enumerate(faults)), list(places), list[Trial]()
    try:
        while pending or running:
            while pending and free:
                number, fault = pending.pop(0)
                running.append(Trial(free.pop(0), fault.tests, fault, number, models.get(fault.file, ())))
            wait([trial.process.sentinel for trial in running], timeout=1.0)
            for trial in [trial for trial in running if trial.late or not trial.process.is_alive()]:
                running.remove(trial)
                seconds, answer = time.monotonic() - trial.began, trial.finish()
                free.append(trial.copy)
                failed = texts(answer, "failed")
                caught_by = failed[0] if failed else SURVIVED if answer["status"] == 0 else f"status {answer['status']}"
                assert trial.fault is not None
                yield Result(trial.fault, caught_by, "".join(texts(answer, "gates")), seconds)
    finally:
        for trial in running:
            trial.finish()


def table(rows: Sequence[Result]) -> str:
    """Returns a line for each fault, the survivors last."""
    rows = sorted(rows, key=lambda row: row.caught_by == SURVIVED)
    width = max(len(row.fault.name) for row in rows)
    return "\n".join(
        f"{row.fault.name:<{width}}  {row.seconds:5.1f} s  {row.caught_by or 'SURVIVED ' + ' '.join(row.fault.tests)}"
        + (f"  gate: {row.gate}" if row.gate else "")
        for row in rows
    )


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", default="", help="only faults whose area or name has this in it")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time")
    parser.add_argument("--list", action="store_true", help="show the faults and run nothing")
    parser.add_argument("--gates", action="store_true", help="show too which gate of a published model fails")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without faults first")
    return parser.parse_args(words)


def main() -> int:
    options = parse()
    faults = [fault for fault in FAULTS if re.search(options.only, f"{fault.area}: {fault.name}")]
    unfit = [f"{fault.name}: {reason}" for fault in faults if (reason := fault.unfit(ROOT)) is not None]
    if options.list:
        print("\n".join(f"{fault.area:<12} {fault.name:<60} {fault.file}" for fault in faults))
    if unfit or options.list or not faults:
        print("\n".join(unfit or [f"{len(faults)} faults"]))
        return 1 if unfit or not faults else 0
    began = time.monotonic()
    models: Mapping[str, Models] = {}
    if options.gates:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a fork must import the library from its copy
            models = pool.submit(models_by_file).result()
    for package in HEAVY:
        importlib.import_module(package)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        places = copies(Path(folder).resolve(), options.workers)
        if not options.unchecked and (problems := check(places[0], faults)):
            print("\n".join(problems))
            return 1
        rows = []
        for row in results(faults, places, models):
            rows.append(row)
            print(f"[{len(rows)}/{len(faults)}] {row.fault.name}: {row.caught_by or 'SURVIVED'}", flush=True)
    survivors = sum(row.caught_by == SURVIVED for row in rows)
    seconds = time.monotonic() - began
    gated = [row for row in rows if row.gate]
    failed = sum(row.gate != NONE_FAILED for row in gated)
    note = f"; a gate fails for {failed} of {len(gated)} in the code of models" if gated else ""
    print(f"\n{table(rows)}\n\n{len(rows) - survivors} of {len(rows)} faults were noticed, in {seconds:.0f} s{note}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
