"""Arms are trained again at half and twice the learning rate, after the runs of the study, and once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forked import prepare
from standin.chains import finishes
from standin.run import RunConfig as Standin

from ablations.__main__ import main
from ablations.ablation import Ablation, Metric, Rates
from ablations.plan import Request, make_plan
from ablations.rates import plan_rates
from lit_transformers import RunConfig
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import PlannedRates
from lit_transformers.records.rate_values import load_rates
from lit_transformers.runner import load_runner


def library_study(**training: object) -> Ablation:
    baseline = RunConfig().override({f"training.{name}": value for name, value in training.items()})
    return Ablation(
        question="?",
        baseline=baseline,
        design="explicit",
        arms={"slow": {}, "fast": {"training.optimizer.learning_rate": 0.01}},
        metric=Metric("val/bpb"),
    )


def test_a_study_whose_runs_state_no_rate_plans_none() -> None:
    study = Ablation(
        question="?",
        baseline=Standin(),
        design="explicit",
        arms={"small": {}, "large": {"model.mixer.memory": 9}},
        metric=Metric("val/bpb", goal="minimize"),
    )
    planned = make_plan("no_rate", study, Request())
    assert planned.plan.rates is None and planned.with_rates(0).plan.rates is None
    with pytest.raises(ConfigError, match="study no_rate: no run states a learning rate; name lr"):
        planned.with_rates(2)


@pytest.mark.slow
def test_each_arm_has_multiples_of_its_own_rate_and_the_keys_of_its_runs_stay() -> None:
    planned = make_plan("rates", library_study(), Request())
    bare = make_plan("rates", replace(library_study(), rates=None), Request())
    assert planned.plan.by_key() == bare.plan.by_key() and planned.plan.rates == PlannedRates((0.5, 2.0), 2)
    scaled = plan_rates(planned, planned.plan.rates)
    by_arm = {arm.name: [scaled.configs[run.key] for run in arm.runs] for arm in scaled.plan.arms}
    read = load_runner(planned.runner).config.from_dict
    rates = {arm: {read(one).get("training.optimizer.learning_rate") for one in of} for arm, of in by_arm.items()}
    default = RunConfig().training.optimizer.learning_rate
    assert rates == {
        "slow rate=x0.5": {0.5 * default},
        "fast rate=x0.5": {0.005},
        "slow rate=x2": {2 * default},
        "fast rate=x2": {0.02},
    }
    assert [len(of) for of in by_arm.values()] == [2, 2, 2, 2]


def test_rates_that_are_none_are_refused_in_a_line() -> None:
    for factors in ((), (1.0,), (0.5, 0.5)):
        with pytest.raises(ConfigError, match=r"factors: name each other rate once"):
            Rates(factors=factors)


STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does a batch matter?",
    baseline=RunConfig().override({"training.rate": 1.0}),
    design="explicit",
    arms={"small": {}, "large": {"model.mixer.memory": 9}},
    metric=Metric("val/bpb", goal="minimize"),
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    prepare()
    yield tmp_path


def test_a_study_trains_them_after_its_runs_and_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, runs = folder / "batches.py", folder / "runs"
    path.write_text(STUDY)
    words = ["run", str(path), "--runs", str(runs), "--workers", "2", "--threads", "1"]
    assert main([*words, "--rates", "0"]) == 0
    assert load_rates(runs, "batches") is None
    assert main(["plan", str(path), "--runs", str(runs)]) == 0
    assert "then 8 runs at 0.5 and 2 times the learning rate" in " ".join(capsys.readouterr().out.split())
    assert main(["status", str(path), "--runs", str(runs)]) == 0
    assert "at other learning rates: 8 runs, not measured yet" in capsys.readouterr().out
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    early = [line for line in lines if "8 runs at other learning rates follow; report so far: " in line]
    assert len(early) == 1 and early[0].startswith("batches: 1 unresolved; ") and lines.index(early[0]) < len(lines) - 3
    assert main(["status", str(path), "--runs", str(runs)]) == 0
    assert "at other learning rates: 8 of 8 runs have a value" in capsys.readouterr().out
    rates = load_rates(runs, "batches")
    assert rates is not None and rates.factors == [0.5, 2.0] and len(rates.runs) == 8
    assert all(run.value is not None for run in rates.runs)
    assert {finishes(runs / run.key) for run in rates.runs} == {1} == {finishes(runs / run.of) for run in rates.runs}
    assert len({run.key for run in rates.runs} | {run.of for run in rates.runs}) == 12
    assert main(words) == 0
    assert {finishes(runs / run.key) for run in rates.runs} == {1}, "finished runs are not trained again"
    assert "## The arms at other learning rates" in (runs / "studies/batches/report/report.md").read_text()
    assert main(["clean", str(path), "--runs", str(runs)]) == 0
    assert not any((runs / run.key / "checkpoint.ckpt").exists() for run in rates.runs)
    assert all((runs / run.of / "checkpoint.ckpt").exists() for run in rates.runs), "which reports may measure again"
