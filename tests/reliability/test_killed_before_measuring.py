"""A study that dies after training and before it has measured how much networks forget measures it when it is run
again."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ordeal import run_command
from standin.chains import finishes
from standin.run import RELEASED
from waiting import wait_for

from ablations import catalog
from ablations.plan import Request, make_plan
from lit_transformers.records.files import CHECKPOINT

STUDY = """
from ablations.ablation import Ablation, Metric, Retention
from standin.chains import chain
from standin.run import RunConfig

METRIC = Metric("val/bpb", goal="minimize")
MEASURED = RunConfig().override({"training.steps": 5, "data.segment": 8, "training.fault": "wait"})
ABLATION = Ablation(
    question="What is forgotten?",
    baseline=chain(6, 4),
    design="explicit",
    arms={"slow": {}, "fast": {"training.batch": 8}},
    seeds=1,
    metric=METRIC,
    retention={"retrieval": Retention(run=MEASURED, metric=METRIC)},
)
"""


def test_a_command_that_dies_between_training_and_measuring_measures_when_it_is_run_again(tmp_path: Path) -> None:
    """Nothing is trained twice, and the report has the measurements."""
    path, runs = tmp_path / "forgetting.py", tmp_path / "runs"
    path.write_text(STUDY)
    plan = make_plan("forgetting", catalog.load(path), Request()).plan
    after = [pair.after.key for of_arm in plan.retention[0].arms.values() for pair in of_arm]
    for pair in (pair for of_arm in plan.retention[0].arms.values() for pair in of_arm):
        (runs / pair.before.key).mkdir(parents=True, exist_ok=True)
        (runs / pair.before.key / RELEASED).touch()
    process = subprocess.Popen(run_command(path, runs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: all((runs / key / CHECKPOINT).exists() for key in after), "nothing was measured")
    finally:
        process.kill()
        process.wait()
    assert {finishes(runs / key) for key in plan.by_key()} == {1} and {finishes(runs / key) for key in after} == {0}
    assert subprocess.run(run_command(path, runs), capture_output=True).returncode == 0
    assert {
        finishes(runs / key) for key in [*plan.by_key(), *plan.retention_runs(), *(one.key for one in plan.stages)]
    } == {1}
    text = (runs / "studies" / "forgetting" / "report" / "report.md").read_text()
    assert "## Forgetting" in text and "not run" not in text
