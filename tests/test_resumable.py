"""A run of tests that is killed resumes after the last finished test, and reports every test once it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

TESTS = Path(__file__).parent
SUITE = """
import pathlib, time
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.mark.parametrize("number", range(6))
def test_numbered(number):
    with (HERE / "ran").open("a") as ran:
        ran.write(f"{number} ")
    if number == 1:
        assert (HERE / "mended").exists(), "x" * 3000 + "the end"
    if number == 2:
        pytest.skip("not here")
    if number == 4 and not (HERE / "mended").exists():
        time.sleep(600)
"""


ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""With the plugins that are named alone: those of other packages take longer to import than the tests to run."""


def command(folder: Path, *options: str) -> list[str]:
    plugins = ["-p", "resumable", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", "-q", *plugins, "--log", str(folder / "log"), *options, str(folder)]


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(folder, *options), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def killed_at_the_fifth(folder: Path) -> None:
    with start(folder) as process:
        wait_for(lambda: (folder / "ran").exists() and "4" in (folder / "ran").read_text())
        process.send_signal(signal.SIGKILL)


def test_a_killed_run_goes_on_and_runs_again_what_failed(folder: Path) -> None:
    killed_at_the_fifth(folder)
    assert [line["outcome"] for line in log_of(folder)] == ["passed", "failed", "skipped", "passed"]
    with (folder / "log").open("a") as log:
        log.write('{"test": "torn')
    (folder / "mended").touch()
    (folder / "ran").unlink()
    with start(folder) as process:
        assert process.wait() == 0
    assert (folder / "ran").read_text().split() == ["1", "4", "5"]
    lines = log_of(folder)
    assert [(line["test"].rpartition("::")[2], line["outcome"]) for line in lines[4:]] == [
        (f"test_numbered[{number}]", "passed") for number in (1, 4, 5)
    ]
    assert lines[1]["message"].endswith("AssertionError") and len(lines[1]["message"]) == 2000
    assert lines[2]["message"] == "Skipped: not here" and all(line["seconds"] >= 0 for line in lines)


@pytest.mark.slow
def test_workers_leave_out_what_is_done_and_one_process_writes(folder: Path) -> None:
    killed_at_the_fifth(folder)
    (folder / "mended").touch()
    (folder / "ran").unlink()
    with start(folder, "-p", "xdist", "-n", "2") as process:
        assert process.wait() == 0
    assert sorted((folder / "ran").read_text().split()) == ["1", "4", "5"]
    assert len(log_of(folder)) == 4 + 3


@pytest.mark.slow
def test_what_passed_under_other_options_is_not_left_out(folder: Path) -> None:
    (folder / "mended").touch()
    (folder / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--precision")\n')
    for precision in ("float32", "bf16", "bf16"):
        with start(folder, "--precision", precision) as process:
            assert process.wait() == 0, "nothing left to do is no failure"
    assert (folder / "ran").read_text().split() == [*"012345", *"012345"]
    assert {(line["device"], line["precision"]) for line in log_of(folder)} == {(None, "float32"), (None, "bf16")}


def test_a_file_of_something_else_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "log").write_text("a diary\n")
    completed = subprocess.run(command(folder), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert completed.returncode == 4 and "line 1 tells of no test" in completed.stderr
    assert (folder / "log").read_text() == "a diary\n"
