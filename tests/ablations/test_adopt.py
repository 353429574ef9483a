"""Runs that were done elsewhere become runs of a study, on the stand-in."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from test_looks import STUDY, finish_runs

from ablations.__main__ import main
from lit_transformers.records.files import RECORD
from reports.read.study import load_study

THREE_SEEDS = STUDY.replace("Looks(2, 4, 6)", "3")
VALUES = {"8": 2.0, "0": 2.5, "4": 2.0}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "memory.py"
    path.write_text(THREE_SEEDS)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two of three seeds of two arms, in the layout of Lightning's CSVLogger, of which one run is cut off."""
    for memory, value in VALUES.items():
        for seed in range(2):
            folder = tmp_path / "logs" / f"memory={memory}" / f"seed_{seed}"
            folder.mkdir(parents=True)
            with (folder / "metrics.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("step", "bits"), (1, 4.0), (2, value + seed / 8)])
    (tmp_path / "logs/memory=4/seed_1/metrics.csv").write_text("step,bits\n1,4.0\n2,2.0\n3,2.")
    return tmp_path / "logs"


def adopt(logs: Path, study: Path, *options: str) -> int:
    return main(["adopt", str(logs), str(study), "--metric", "bits", "--runs", str(study.parent / "runs"), *options])


def test_runs_of_elsewhere_are_runs_of_the_study_and_the_missing_ones_are_done_here(
    logs: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert adopt(logs, study) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "5 runs adopted, 0 were there; next: python -m ablations run" in printed
    assert "not finished, and to be done here: memory=4/seed_1" in printed
    (record,) = [
        one for path in runs.glob(f"*/{RECORD}") if "memory=0/seed_1" in json.dumps(one := json.loads(path.read_text()))
    ]
    assert record["outcome"] == "finished" and record["metrics"] == {"val/bpb": 2.625}
    assert record["config"] == {"memory": "0", "seed": 1}
    assert adopt(logs, study) == 0
    assert "0 runs adopted, 5 were there" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["status", str(study), "--runs", str(runs)]) == 0
    assert "5" in capsys.readouterr().out
    finish_runs(study, runs, 3)
    assert main(["run", str(study), "--runs", str(runs)]) == 0
    judged = load_study(runs, "memory")
    assert judged.missing() == 0
    assert [run.value for run in judged.of("memory=0")][:2] == [2.5, 2.625]
    (note,) = [note for note in judged.notes if note.startswith("brought in from")]
    assert "baseline, seeds 0, 1; memory=0, seeds 0, 1; memory=4, seeds 0" in note


def test_arms_with_other_names_are_matched_or_refused(
    logs: Path, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for memory in VALUES:
        (logs / f"memory={memory}").rename(logs / f"{memory}-cells")
    assert adopt(logs, study) == 2
    error = capsys.readouterr().err
    assert "its arms are 0-cells, 4-cells, 8-cells, and those of the study baseline, memory=0, memory=4" in error
    assert error.count("\n") == 1
    assert adopt(logs, study, "--match", "memory=0=0-cells", "--match", "baseline=8-cells") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 runs adopted" in printed
    assert "not runs of this study, by arm or seed: 4-cells/seed_0, 4-cells/seed_1" in printed
