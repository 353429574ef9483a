"""Winners of searches that agents of W&B have done, read from the folder of runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from standin.tuned import RUNNER, RunConfig, fit, run_key

from ablations import __main__ as command
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import load_plan
from lit_transformers.space import searched
from reports import report
from sweeps.tuning.recorded_trials import recorded_results
from sweeps.tuning.tune import SearchedArm, TuningGoal, trial_config, validations
from sweeps.wandb.sweep import agent_command, search

STUDY = """
from ablations.ablation import Ablation, Metric
from standin.tuned import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""
HOLDER = """
import pathlib, sys
from sweeps.ledger.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
RATE, WARMUP = "training.optimizer.learning_rate", "training.schedule.warmup"
GOAL = TuningGoal("val/bpb", "minimize")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: {})
    monkeypatch.setattr(report, "_write_other_formats", lambda *arguments: None)
    (tmp_path / "recurrence.py").write_text(STUDY)
    return str(tmp_path / "recurrence.py")


def arms() -> list[SearchedArm]:
    configs = {"on": RunConfig(), "off": RunConfig().override({"model.mixer.memory": 0})}
    return [
        SearchedArm(name, config, searched(config, ["model.mixer.memory"]), 600) for name, config in configs.items()
    ]


def do_trial(runs: Path, arm: SearchedArm, began: int, ends: bool = True, **values: Any) -> str:
    """Writes the files that an agent leaves of a trial: all, or those of a trial that W&B has stopped."""
    config = trial_config(arm.config, {RATE: values.get("rate", 1e-3), WARMUP: values.get("warmup", 4)})
    directory = runs / run_key(config)
    directory.mkdir(parents=True)
    if ends:
        fit(config, directory)
    (directory / "run.yaml").write_text(config.to_yaml())
    os.utime(directory / "run.yaml", (began, began))
    return directory.name


def test_the_best_of_equally_many_trials_wins_in_every_arm(tmp_path: Path) -> None:
    on, off = arms()
    do_trial(tmp_path, on, 1, rate=1e-4)
    winner = do_trial(tmp_path, on, 2, rate=2e-3)
    do_trial(tmp_path, on, 3, ends=False, rate=5e-4)
    do_trial(tmp_path, on, 4, rate=3e-3)  # better, but the other arm has three
    for began, rate in enumerate((2e-4, 1e-2, 5e-3)):
        do_trial(tmp_path, off, began, rate=rate)
    fit(RunConfig().override({RATE: 3e-3}), tmp_path / run_key(RunConfig().override({RATE: 3e-3})))  # no trial
    (best, other), count = recorded_results(tmp_path, [on, off], GOAL, RUNNER)
    assert count == 3 and (best.trials, best.pruned, best.failed) == (3, 1, 0)
    assert (best.key, best.values) == (winner, {RATE: 2e-3, WARMUP: 4})
    assert other.values == {RATE: 5e-3, WARMUP: 4} and (other.trials, other.tokens) == (3, 1800)
    with pytest.raises(ConfigError, match=r"--from-wandb: arm 'off' has 3 trials in .*; its agents need this folder"):
        recorded_results(tmp_path, [on, off], GOAL, RUNNER, trials=4)


def test_a_search_that_is_not_over_has_no_winners(tmp_path: Path) -> None:
    [on, _] = arms()
    key = do_trial(tmp_path, on, 1)
    holder = [sys.executable, "-c", HOLDER, str(tmp_path / key / "lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None and agent.stdout is not None and agent.stdout.readline()
        with pytest.raises(ConfigError, match="a trial of arm 'on' is still running; wait for the agents"):
            recorded_results(tmp_path, [on], GOAL, RUNNER)
        agent.stdin.close()


def test_one_command_trains_and_reports_the_winners(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agents' own runs are the trials, and the sweep's file names the command."""
    runs = tmp_path / "runs"
    assert command.main(["wandb", study, "--method", "bayes", "--runs", str(runs)]) == 0
    [typed] = [line for line in capsys.readouterr().out.splitlines() if "--from-wandb" in line]
    words = yaml.safe_load(next(runs.glob("studies/*/wandb/*.yaml")).read_text())["command"]
    start = words.index("agent")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for arm in ("recurrence=on", "recurrence=off"):
        for rate in (1e-4, 3e-3):
            parameters = [f"--arm={arm}", f"--{RATE}={rate}", f"--{WARMUP}=4"]
            assert command.main([*words[start:-1], "--wandb", "disabled", *parameters]) == 0
            assert "finished" in capsys.readouterr().out
    assert command.main(typed.split()[3:]) == 0
    plan = load_plan(runs / "studies" / "recurrence_tuned" / "plan.json")
    assert plan.tuning is not None and plan.tuning.budget == {"trials": 2}
    assert {arm.values[RATE] for arm in plan.tuning.arms.values() if arm.values} == {3e-3}
    assert "--from-wandb" in plan.commands["run"]


def test_sweeps_end_trials_early_where_our_own_searches_do() -> None:
    [on, _] = arms()
    metric = {"name": "val/bpb", "goal": "minimize"}
    times = validations(on.config)
    sweep = search("study", "on", on.space, "bayes", 12, metric, agent_command([]), times)
    assert (times, sweep["early_terminate"]) == (6, {"type": "hyperband", "min_iter": 2, "eta": 2})
    assert "early_terminate" not in search("study", "on", on.space, "bayes", 12, metric, agent_command([]), 1)
