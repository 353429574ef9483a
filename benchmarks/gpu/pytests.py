"""Tests as a job of the kit: ``python -m benchmarks.gpu.pytests --log FILE --json FILE [arguments of pytest]``.

Tests that the log says have passed are not run again; what the log says of all of them is written as the result.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu.runner import ROOT
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


def main() -> int:
    """Runs pytest until it ends or receives SIGTERM, writes the result, and returns pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pytests", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="a line for every test; read first, then added to")
    parser.add_argument("--json", type=Path, required=True, help="where the result is written")
    options, arguments = parser.parse_known_args()
    arguments = [argument for argument in arguments if argument != "--"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "resumable", "--log", str(options.log), *arguments]
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths})
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    status = process.wait()
    write_json(options.json, result_of(options.log))
    return status


if __name__ == "__main__":
    sys.exit(main())
