"""Tests as a job of the kit: ``python -m benchmarks.gpu.pytests --log FILE --json FILE [arguments of pytest]``.

Tests that the log says have passed are not run again; the outcomes of all tests in the log are written as the result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import ROOT
from lit_transformers.records.files import write_json

TESTS = str(ROOT / "tests")


def result_of(log: Path) -> dict[str, Any]:
    """How many tests passed, failed and were skipped, and which failed, with the last line of their messages."""
    sys.path.insert(0, TESTS)
    from resumable import lines_of

    last = {line["test"]: line for line in lines_of(log)}
    failed = {test: line["message"].strip() for test, line in last.items() if line["outcome"] == "failed"}
    return {
        "outcomes": dict(Counter(line["outcome"] for line in last.values())),
        "seconds": sum(line["seconds"] for line in last.values()),
        "failed": {test: message.splitlines()[-1] if message else "" for test, message in failed.items()},
    }


def run_tests(arguments: Sequence[str]) -> None:
    """Runs pytest, whose plugin is among the tests, and exits with its status."""
    os.chdir(ROOT)
    sys.path.insert(0, TESTS)
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    sys.exit(pytest.main(["--no-header", "-p", "resumable", *arguments]))


def main() -> int:
    """Runs pytest until it ends or receives SIGTERM, writes the result, and returns pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pytests", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="a line for every test; read first, then added to")
    parser.add_argument("--json", type=Path, required=True, help="where the result is written")
    options, arguments = parser.parse_known_args()
    arguments = [argument for argument in arguments if argument != "--"]
    # Forked: modules that are imported here need not be imported there, and a test may take its whole process down.
    process = multiprocessing.get_context("fork").Process(
        target=run_tests, args=(["--log", str(options.log), *arguments],)
    )
    process.start()
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    process.join()
    write_json(options.json, result_of(options.log))
    assert process.exitcode is not None
    return process.exitcode


if __name__ == "__main__":
    sys.exit(main())
