"""Runs that were done elsewhere become runs of a study, on the stand-in."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from test_looks import STUDY, finish_runs

from ablations.__main__ import main
from ablations.catalog import load
from ablations.plan import Request, make_plan
from lit_transformers.records.files import RECORD
from reports.judge.comparability import incomparable
from reports.judge.costs import cost_ratio
from reports.judge.fairness import provenance
from reports.read.study import load_study
from reports.show.curves import curves_of
from reports.show.sections import costs
from sweeps.object_store import CACHE

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
    before = {path: path.read_bytes() for path in runs.glob("*/*.*") if path.is_file()}
    assert adopt(logs, study) == 0
    assert "0 runs adopted, 5 were there" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in runs.glob("*/*.*") if path.is_file()} == before
    capsys.readouterr()
    assert main(["status", str(study), "--runs", str(runs)]) == 0
    assert "5" in capsys.readouterr().out
    finish_runs(study, runs, 3)
    assert main(["run", str(study), "--runs", str(runs)]) == 0
    judged = load_study(runs, "memory")
    assert judged.missing() == 0
    assert [run.value for run in judged.of("memory=0")][:2] == [2.5, 2.625]
    (run, *_) = judged.of("memory=0")
    assert run.curves(["val/bpb"])["val/bpb"].tolist() == [[1.0, 4.0], [2.0, 2.5]]
    assert not curves_of(judged, ["val/bpb"]), "steps are drawn over tokens"
    assert not incomparable(judged, {"memory=4": 1.0, "baseline": -1.0}, [0, 1, 2])
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


COMMAND_STUDY = """
from ablations.ablation import Ablation, Metric
from lit_transformers.command_runs import CommandRunConfig
ABLATION = Ablation(
    question="Does a larger rate help?",
    baseline=CommandRunConfig(
        command="sh -c true {rate} {seed}", params={"rate": 1}, metrics={"loss": "minimize"}, folder=None
    ),
    factors={"rate": {"1": {}, "2": {"params.rate": 2}}},
    seeds=2,
    metric=Metric("loss"),
)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """Both seeds of two arms, in the layout of the Trainer of transformers, which keeps how long a run took."""
    for rate, seconds in ((1, 10.0), (2, 40.0)):
        for seed in range(2):
            folder = tmp_path / "trainer" / f"training=fast,rate={rate}" / f"seed_{seed}"
            folder.mkdir(parents=True)
            history = [{"step": step, "loss": 4.0 / step + rate / 8 + seed / 64} for step in (1, 2)]
            state = {"log_history": [*history, {"step": 2, "train_runtime": seconds + seed}]}
            (folder / "trainer_state.json").write_text(json.dumps(state | {"global_step": 2, "max_steps": 2}))
    return tmp_path / "trainer"


def test_runs_of_commands_in_a_store_have_the_curves_and_times_of_elsewhere_apart_from_those_of_here(
    trainer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "machine"))
    study, address = tmp_path / "rates.py", f"file://{tmp_path}/bucket"
    study.write_text(COMMAND_STUDY)
    words = ["adopt", str(trainer), str(study), "--metric", "loss", "--runs", address]
    assert main([*words, "--where", "seed=0"]) == 0 == main(words)
    assert "2 runs adopted, 2 were there" in capsys.readouterr().out
    assert len([*tmp_path.glob(f"bucket/*/{RECORD}")]) == len([*tmp_path.glob("bucket/*/metrics.csv")]) == 4
    (runs,) = (tmp_path / "machine" / "stores").iterdir()
    judged = load_study(runs, "rates", make_plan("rates", load(study), Request()).plan)
    assert "Selection" not in provenance(judged), "the config of elsewhere was read as one of here"
    curves = curves_of(judged, ["loss"])["loss"]
    assert curves["rate=2"][1].tolist() == [[1.0, 4.265625], [2.0, 2.265625]]
    baseline, other = judged.finished("rate=1"), judged.finished("rate=2")
    ratio = cost_ratio(other, baseline, "seconds")
    assert ratio is not None and ratio.value == pytest.approx(math.sqrt(40 / 10 * 41 / 11))

    here = judged.of("rate=2")[1]
    assert here.record is not None
    own = replace(here, record=replace(here.record, environment={}, measured={"seconds": 0.5}))
    mixed = replace(judged, runs=(*judged.runs[:3], own))
    ratio = cost_ratio(mixed.finished("rate=2"), baseline, "seconds")
    assert ratio is not None and ratio.value == pytest.approx(40 / 10.5), (
        "a time of here was compared with one of there"
    )
    assert cost_ratio([own], baseline, "seconds") is None
    names = [str(row[0].label) for row in costs(mixed).rows]
    assert names == [f"1 (baseline), from {trainer}", "2", f"2, from {trainer}"]


def test_a_run_that_was_done_here_or_brought_in_from_another_place_is_not_replaced(
    trainer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, runs = tmp_path / "rates.py", tmp_path / "runs"
    study.write_text(COMMAND_STUDY)
    words = ["adopt", str(trainer), str(study), "--metric", "loss", "--runs", str(runs)]
    assert main([*words, "--where", "seed=0"]) == 0
    (one, other) = sorted(runs.glob(f"*/{RECORD}"), key=lambda path: "rate=2" in path.read_text())
    for path, brought_in in ((one, {}), (other, {"brought_in": {"source": "elsewhere", "run": "x"}})):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": brought_in}))
    before = one.read_bytes(), other.read_bytes()
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert (
        f"rate=1 (baseline) with seed 0 was done here ({one.parent.name}), rate=2 with seed 0 is x of elsewhere"
        in error
    )
    assert "--missing" in error and error.count("\n") == 1 and len([*runs.glob(f"*/{RECORD}")]) == 2
    assert main([*words, "--missing"]) == 0
    assert "2 runs adopted, 0 were there" in " ".join(capsys.readouterr().out.split())
    assert (one.read_bytes(), other.read_bytes()) == before
