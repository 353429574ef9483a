"""A pytest plugin that makes a long run of tests resumable: ``PYTHONPATH=tests pytest -p resumable --log FILE ...``.

Every test that ends adds a line to the file. The next start with the same file leaves out those that passed or were
skipped under the same ``--device`` and ``--precision``; those that failed, or had not ended, run again. Under
pytest-xdist every worker leaves out the same ones, and the controller alone writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TAIL = 2_000
"""The number of characters of a failure's message that are logged: the last ones."""
DONE = ("passed", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("resumable", "a run of tests that resumes after it was stopped")
    group.addoption(
        "--log",
        type=Path,
        metavar="FILE",
        help="add a line of JSON for every test that ends (test, outcome, seconds, message, device, precision), and "
        "leave out those that by this file passed or were skipped under the same --device and --precision; delete the "
        "file to begin anew",
    )


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("log")
    if path is not None:
        config.pluginmanager.register(Resumable(path.absolute(), config))


class Resumable:
    """The log of a test run, read at the start and then appended to. numerics: the options that results hold for."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path = path
        self.numerics = {name: config.getoption(name, default=None) for name in ("device", "precision")}
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.writes = worker_input is None
        self.running: dict[str, list[pytest.TestReport]] = {}
        if worker_input is not None:  # a worker that replaces another must skip the same tests
            self.done = set(worker_input["done"])
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done = {
            line["test"]
            for line in lines_of(path)
            if line["outcome"] in DONE and all(line.get(name) == value for name, value in self.numerics.items())
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["done"] = sorted(self.done)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        deselected = [item for item in items if item.nodeid in self.done]
        if deselected:
            config.hook.pytest_deselected(items=deselected)
            items[:] = [item for item in items if item.nodeid not in self.done]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.done:
            session.exitstatus = pytest.ExitCode.OK  # nothing is left to do

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.writes:
            return
        self.running.setdefault(report.nodeid, []).append(report)
        if report.when in ("setup", "call"):
            return
        line = summary(self.running.pop(report.nodeid)) | self.numerics  # after its teardown, or a worker's crash
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


def summary(reports: Sequence[pytest.TestReport]) -> dict[str, Any]:
    """The log line of a test from the reports of its phases: failed where one did, else skipped where one was."""
    outcomes = [report.outcome for report in reports]
    outcome = next((worst for worst in ("failed", "skipped") if worst in outcomes), "passed")
    message = "\n".join(reason(report) for report in reports if report.outcome == outcome != "passed")
    seconds = round(sum(report.duration for report in reports), 3)
    return {"test": reports[0].nodeid, "outcome": outcome, "seconds": seconds, "message": message[-TAIL:]}


def reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. An incomplete last line, of a run that was killed, is removed from the file. Raises
    UsageError where another line was not written by this plugin."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        os.truncate(path, len(complete))
    lines = []
    for number, text in enumerate(complete.decode(errors="replace").splitlines(), start=1):
        try:
            line = json.loads(text)
            lines.append(line | {"test": line["test"], "outcome": line["outcome"]})
        except (ValueError, KeyError, TypeError):
            raise pytest.UsageError(f"--log {path}: line {number} tells of no test; name another file") from None
    return lines
