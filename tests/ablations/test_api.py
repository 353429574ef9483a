"""Studies from Python are trained, resumed and returned as a DataFrame, on the stand-in."""

from __future__ import annotations

import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import prepare
from standin.run import RunConfig

import ablations
from ablations import Ablation, Looks, Metric, comparisons, run_study
from ablations.__main__ import main
from lit_transformers.config import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "study_from_python.py"
SCRIPT = """
from ablations import Ablation, Metric, run_study
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig(),
    factors={"memory": {"8": {}, "0": {"model.mixer.memory": 0}}},
    seeds=2,
    metric=Metric("val/bpb", goal="minimize"),
)
"""
CALL = "print(run_study(ABLATION, name='memory', progress=False).to_json())\n"


def study(**settings: object) -> Ablation:
    factors = {"memory": {"8": {}, "0": {"model.mixer.memory": 0}, "4": {"model.mixer.memory": 4}}}
    return Ablation(
        question="Does memory help?",
        baseline=RunConfig(),
        factors=factors,
        metric=Metric("val/bpb", goal="minimize"),
        **{"seeds": 2} | settings,
    )


def finishes(runs: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in runs.glob("*/finishes.txt")]


def test_every_name_of_the_front_door_is_there_and_no_other() -> None:
    assert [name for name in ablations.__all__ if not getattr(ablations, name).__doc__] == []
    with pytest.raises(AttributeError, match="has no attribute 'run'"):
        ablations.run  # noqa: B018


def test_a_study_runs_from_python_and_the_command_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "memory.py"
    path.write_text(SCRIPT)
    frame = run_study(path, runs=tmp_path / "runs", changes={"model.width": 8}, seeds=1, progress=False)
    assert frame["comparison"].tolist() == ["memory=0 against the baseline"]
    assert frame["difference"].notna().all() and frame["low"].isna().all() and frame["seeds"].tolist() == [1]
    words = ["run", str(path), "--runs", str(tmp_path / "runs"), "--set", "model.width=8"]
    assert main(words) == 0 and finishes(tmp_path / "runs") == [1] * 4
    later = comparisons(str(path), runs=tmp_path / "runs", changes={"model.width": 8})
    assert later["seeds"].tolist() == [2] and later["low"].lt(later["high"]).all()
    assert Path(later.attrs["report"], "report.md").is_file() and later.attrs["metric"] == "val/bpb"


def test_a_script_that_runs_a_study_at_its_top_level_is_not_run_again_by_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "memory.py"
    script.write_text(f"{SCRIPT}print('once')\n{CALL}")
    environment = os.environ | {"PYTHONSAFEPATH": ""}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "once" and done.stdout.count("once") == 1
    assert finishes(tmp_path / "runs") == [1] * 4
    assert "Run:" not in (tmp_path / "runs/studies/memory/report/report.md").read_text()  # no command knows an object


def test_a_run_that_fails_is_a_warning_and_a_reason(tmp_path: Path) -> None:
    broken = Ablation(
        question="Does a fault matter?",
        baseline=RunConfig(),
        factors={"fault": {"none": {}, "raise": {"training.fault": "raise"}}},
        metric=Metric("val/bpb", goal="minimize"),
        seeds=1,
    )
    with pytest.warns(UserWarning, match="fault=raise, seed 0, failed: "):
        frame = run_study(broken, name="broken", runs=tmp_path, progress=False)
    (row,) = frame.to_dict("records")
    assert math.isnan(row["difference"]) and row["seeds"] == 0 and row["reason"]


def test_a_limit_ends_a_run_and_a_storage_keeps_the_ledger(tmp_path: Path) -> None:
    hanging = Ablation(
        question="Does a limit matter?",
        baseline=RunConfig(),
        factors={"fault": {"none": {}, "hang": {"training.fault": "hang"}}},
        metric=Metric("val/bpb", goal="minimize"),
        seeds=1,
    )
    storage = f"sqlite:///{tmp_path}/shared.db"
    with pytest.warns(UserWarning, match="fault=hang, seed 0, failed: .*time limit"):
        run_study(hanging, name="hanging", runs=tmp_path / "runs", time_limit="3s", storage=storage, progress=False)
    assert (tmp_path / "shared.db").is_file() and not (tmp_path / "runs/ledger.db").exists()


def test_looks_are_taken_until_all_is_decided_or_none_is_left(tmp_path: Path) -> None:
    looks = study(seeds=Looks(2, 3))
    assert run_study(looks, name="looks", runs=tmp_path, progress=False)["seeds"].max() == 2
    frame = run_study(looks, name="looks", runs=tmp_path, until_decided=True, progress=False)
    undecided = frame["verdict"] == "unresolved"
    assert undecided.any() and frame[undecided]["seeds"].eq(3).all()


def test_what_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^run_study: .*name='longer_memory'; got None$"):
        run_study(study(), runs=tmp_path)
    with pytest.raises(ConfigError, match="leave name out"):
        run_study("xl_memory", name="mine", runs=tmp_path)
    with pytest.raises(ConfigError, match=r"^study memory: it states no looks to take; write seeds=Looks"):
        run_study(study(), name="memory", runs=tmp_path, until_decided=True)
    with pytest.raises(ConfigError, match=r"^launcher_options: are those of a cluster; add launcher='slurm' or 'ray'"):
        run_study(study(), name="memory", runs=tmp_path, launcher_options={"cpus": 2})
    with pytest.raises(ConfigError, match=r"^launcher: no launcher 'rya'; did you mean ray"):
        run_study(study(), name="memory", runs=tmp_path, launcher="rya")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^run_study: an Ablation has no file that a job of SLURM could read"):
        run_study(study(), name="memory", runs=tmp_path, launcher="slurm")
    with pytest.raises(ConfigError, match=r"^--memory-per-run: .* --ray memory=SIZE"):
        run_study(study(), name="memory", runs=tmp_path, launcher="ray", memory_per_run="1GiB")
    with pytest.raises(ConfigError, match=r"^study memory: seeds: an arm has at most 1,000 seeds, not 120078$"):
        run_study(study(), name="memory", runs=tmp_path, seeds=120078)
    assert not list(tmp_path.glob("*/record.json"))


def test_options_of_a_cluster_reach_it(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'lit-transformers[ray]'")
    with pytest.raises(ConfigError, match=r"^--ray gpus: wants a whole number of devices, .* not '-1'$"):
        run_study(study(), name="memory", runs=tmp_path, launcher="ray", launcher_options={"gpus": -1})


@pytest.mark.slow
def test_the_example_compares_its_arms(tmp_path: Path) -> None:
    prepare()
    ablation = runpy.run_path(str(EXAMPLE))["STUDY"]
    measured = {"data.evaluation.bytes": 256, "data.evaluation.last": "cut"}
    small = {"training.steps": 2, "data.source.documents": 60, **measured}
    options: dict[str, Any] = {"changes": small, "seeds": 2, "rates": 0, "progress": False}
    frame = run_study(ablation, name="memory_reaches", runs=tmp_path, **options)
    assert frame["comparison"].tolist() == ["memory=0 against the baseline"] and frame["low"].notna().all()
