"""A tuned study: all arms searched alike, the winners measured on another split, and a plan that says all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin.tuned import RunConfig

from ablations.plan import Request
from ablations.tuning import prepare, tuned_plan
from lit_transformers.config import ConfigError
from lit_transformers.space import Choice
from sweeps.tuning.search import Budget
from sweeps.tuning.tune import TuningResult

STUDY = """
from ablations.ablation import Ablation, Match, Metric
from standin.tuned import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}, "warmup": WARMUP},
    seeds=2,
    metric=Metric("METRIC", goal="minimize"),
    match=Match("tokens"),
)
"""
RATE, WARMUP, WINDOW = "training.optimizer.learning_rate", "training.schedule.warmup", "model.mixer.window"


def write(folder: Path, warmup: str = '{"short": {}, "capped": {"training.breaks_above": 5.0}}', **words: str) -> str:
    path = folder / "recurrence.py"
    text = STUDY.replace("WARMUP", warmup).replace("METRIC", words.get("metric", "val/bpb"))
    path.write_text(text.replace('"tokens"', f'"{words.get("match", "tokens")}"'))
    return str(path)


def tuning_result(arm: str, **values: float) -> TuningResult:
    return TuningResult(arm, values or None, 1.0, "key", 4, 1, 0, 2000)


def test_all_arms_search_the_same_and_a_mixers_own_on_request(tmp_path: Path) -> None:
    tuning = prepare(write(tmp_path), Request())
    assert [set(arm.space) for arm in tuning.arms] == [{RATE, WARMUP}] * 4
    assert [arm.price for arm in tuning.arms] == [600] * 4
    assert [set(arm.space) for arm in prepare(write(tmp_path), Request(), own=True).arms] == [
        {RATE, WARMUP, WINDOW}
    ] * 4


def test_what_one_arm_varies_no_arm_searches(tmp_path: Path) -> None:
    study = write(tmp_path, '{"short": {}, "long": {"training.schedule.warmup": 9}}')
    tuning = prepare(study, Request())
    assert [set(arm.space) for arm in tuning.arms] == [{RATE}] * 4
    assert {arm.config.get(WARMUP) for arm in tuning.arms} == {4, 9}


def test_what_is_set_on_the_command_line_no_arm_searches(tmp_path: Path) -> None:
    tuning = prepare(write(tmp_path), Request(assignments=(f"{RATE}=0.5",)))
    assert {(*arm.space, arm.config.get(RATE)) for arm in tuning.arms} == {(WARMUP, 0.5)}
    with pytest.raises(ConfigError, match="split: cannot be set: values are selected on validation and reported on"):
        prepare(write(tmp_path), Request(assignments=("data.evaluation.split=test",)))


def test_the_winners_are_measured_on_the_test_split_over_the_studys_seeds(tmp_path: Path) -> None:
    tuning = prepare(write(tmp_path), Request())
    outcomes = [tuning_result(arm.name, **{RATE: 10.0 ** -(n + 1), WARMUP: n + 2}) for n, arm in enumerate(tuning.arms)]
    plan = tuned_plan(tuning, outcomes, Budget(trials=4))
    for number, arm in enumerate(plan.plan.arms):
        configs = [RunConfig.from_dict(plan.configs[run.key]) for run in arm.runs]
        assert [config.seed for config in configs] == [0, 1]
        for config in configs:
            assert config.get(RATE) == 10.0 ** -(number + 1) and config.get(WARMUP) == number + 2
            assert config.data.evaluation.split == "test"


def test_the_plan_says_budget_space_splits_and_best_values(tmp_path: Path) -> None:
    tuning = prepare(write(tmp_path), Request())
    plan = tuned_plan(tuning, [tuning_result(arm.name, **{RATE: 1e-2}) for arm in tuning.arms], Budget(tokens=5000))
    assert plan.study == "recurrence_tuned"
    section = plan.plan.tuning
    assert section is not None
    assert (section.budget, section.selected_on, section.reported_on) == ({"tokens": 5000}, "validation", "test")
    first = section.arms[tuning.arms[0].name]
    assert (first.values, first.trials, first.pruned) == ({RATE: 1e-2}, 4, 1)
    assert first.space[RATE] == {"low": 1e-4, "high": 1e-1, "log": True}
    assert plan.plan.commands["run"].endswith("--scale demo --tokens 5000")
    assert "tuned on the validation split, measured on test" in plan.plan.protocol


def test_an_arm_without_a_finished_trial_has_no_winner(tmp_path: Path) -> None:
    tuning = prepare(write(tmp_path), Request())
    with pytest.raises(ConfigError, match="no trial of arm 'recurrence=on warmup=short' has finished"):
        tuned_plan(tuning, [tuning_result(arm.name) for arm in tuning.arms], Budget(trials=4))


def test_what_cannot_be_tuned_fairly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric: speed is not measured on a split"):
        prepare(write(tmp_path, metric="speed"), Request())
    with pytest.raises(ConfigError, match="which a mixer's own knobs change; leave out --with-mixer-space"):
        prepare(write(tmp_path, match="parameters"), Request(), own=True)


def test_the_study_and_the_command_add_knobs_and_the_command_wins(tmp_path: Path) -> None:
    steps = "training.breaks_above"
    path = Path(write(tmp_path, '{"short": {}, "long": {"model.mixer.window": 9}}'))
    path.write_text(
        "from lit_transformers.space import Choice, Conditional, Interval\n"
        + path.read_text().replace("seeds=2,", f"seeds=2, space={{'{steps}': Choice((2.0, 3.0)), "
        f"'training.validate_every': Conditional(Interval(2, 5), '{steps}', 3.0)}},")
    )  # fmt: skip
    arms = prepare(str(path), Request()).arms
    assert all([*arm.space] == [RATE, WARMUP, steps, "training.validate_every"] for arm in arms)
    typed = f"{steps}=4.0,3.0"
    tuning = prepare(str(path), Request(), added=[typed, f"{WARMUP}=1..3 if {steps}=4.0"])
    assert tuning.arms[0].space[steps] == Choice((4.0, 3.0)) and tuning.typed == str(path)
    plan = tuned_plan(tuning, [tuning_result(arm.name, **{RATE: 1e-2}) for arm in tuning.arms], Budget(trials=4))
    assert plan.plan.tuning is not None and f"--space {typed}" in plan.plan.commands["run"]
    described = plan.plan.tuning.arms[tuning.arms[0].name].space
    assert described[WARMUP] == {"low": 1, "high": 3, "log": False, "if": {steps: 4.0}}
    with pytest.raises(ConfigError, match=r"model\.mixer\.window: an arm or --set states its value"):
        prepare(str(path), Request(), added=["model.mixer.window=1..4"])
