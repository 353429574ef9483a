"""A study in which nearly every run misbehaves: each ends as it should, the sound ones finish, the report tells all."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import reports
from ablations import catalog
from ablations.__main__ import main
from ablations.options import err
from ablations.plan import PlannedStudy, Request, make_plan
from reports.show.tables import escape_markdown
from sweeps.launchers.local import Options, Summary, launch
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.survey import survey

pytestmark = pytest.mark.slow

STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Which of these runs end well?",
    baseline=RunConfig(),
    design="explicit",
    arms={"sound": {}, **{fault: {"training.fault": fault} for fault in FAULTS}, "sound too": {"model.width": 32}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""
REASONS = {
    "nan": "failed: not-a-number",
    "memory": "failed: out of memory",
    "leak": "failed: out of memory: it held",
    "raise": "failed: RuntimeError: something broke",
    "kill always": "failed: its process was killed (signal 9), and 3 times before: most likely out of memory",
    "exit": "failed: its process ended with status 3",
    "hang": "failed: time limit of 1s reached",
    "gate": "invalid: a gate failed: no future leak",
}
MEMORY_LIMIT = 768 << 20
"""More than runs hold that are forked from a server which other tests have had import torch."""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedStudy:
    path = tmp_path_factory.mktemp("spec") / "misbehaving.py"
    path.write_text(STUDY.replace("FAULTS", repr(list(REASONS))))
    return make_plan("misbehaving", catalog.load(path), Request())


def go(runs: Path, plan: PlannedStudy, run_tickets: list[Ticket], **limits: Any) -> Summary:
    options = Options(plan.runner, Share(workers=2, threads=1), plan.metric, study=plan.study, **limits)
    rows, _ = survey(runs, run_tickets, plan.metric, retry_failed=False)
    ledger = Ledger(runs)
    try:
        return launch(runs, ledger, Board(Console(file=io.StringIO()), plan.metric), rows, options)
    finally:
        ledger.close()


def test_every_way_to_misbehave_is_told_apart_and_stops_no_other_run(tmp_path: Path, planned: PlannedStudy) -> None:
    """A time limit is for the one that hangs: others may take longer than that on a busy machine."""
    planned.write(tmp_path)
    hanging = [ticket for ticket in planned.tickets() if ticket.arm == "hang"]
    others = [ticket for ticket in planned.tickets() if ticket.arm != "hang"]
    summaries = go(tmp_path, planned, others, memory_limit=MEMORY_LIMIT), go(tmp_path, planned, hanging, time_limit=1.0)
    rows = {row.ticket.arm: row for summary in summaries for row in summary.rows}
    page = reports.write_report(tmp_path, "misbehaving").read_text(encoding="utf-8")
    assert rows["sound"].state == rows["sound too"].state == State.FINISHED
    for fault, reason in REASONS.items():
        assert rows[fault].state == reason.partition(":")[0]
        assert f"{rows[fault].state}: {rows[fault].reason}".startswith(reason)
        record = json.loads((rows[fault].ticket.directory(tmp_path) / "record.json").read_text())
        assert f"{record['outcome']}: {record['reason']}".startswith(reason)
        assert escape_markdown(reason) in page


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file system that is soon full")
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount_point], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield mount_point
    subprocess.run(["umount", mount_point], check=True)


def test_a_full_disk_is_named_and_with_room_again_the_same_command_goes_on(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, runs = tmp_path / "two_widths.py", small_disk / "runs"
    study.write_text(STUDY.replace("FAULTS", "[]"))
    (small_disk / "ballast").write_bytes(bytes(2 << 20))
    words = ["run", str(study), "--runs", str(runs)]
    assert main(words) in (1, 2)
    output, errors = capsys.readouterr()
    assert "full" in errors or "No space left" in output + errors
    (small_disk / "ballast").unlink()
    assert main(words) == 0
    assert finishes(runs) == [1, 1]


def test_files_that_were_cut_or_overwritten_are_named_and_only_their_runs_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(err, "width", 300)
    study, runs = tmp_path / "two_widths.py", tmp_path / "runs"
    study.write_text(STUDY.replace("FAULTS", "[]"))
    words = ["run", str(study), "--runs", str(runs)]
    assert main(words) == 0
    damaged, intact = sorted(runs.glob("*/record.json"))
    content = intact.read_bytes()
    damaged.write_bytes(damaged.read_bytes()[:200])
    (runs / "ledger.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    capsys.readouterr()
    status, errors = main(words), capsys.readouterr().err
    assert status == 0, errors
    assert f"{damaged}: not JSON" in errors and "ledger.db" in errors
    assert intact.read_bytes() == content
    assert json.loads(damaged.read_text())["outcome"] == "finished"
    assert sorted(finishes(runs)) == [1, 2]


def finishes(runs: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in runs.glob("*/finishes.txt")]
