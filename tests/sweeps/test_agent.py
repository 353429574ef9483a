"""A study as a W&B sweep, and its agents: run exactly as W&B would run them, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from forked import Forked
from standin.chains import alone, chain, chained, finishes
from standin.tuned import RunConfig
from torch.distributed.distributed_c10d import PrefixStore
from wandb.sdk.lib.wbauth import write_netrc_auth
from wandb_logins import logged_out

from lit_transformers.config import ConfigError
from lit_transformers.runs.wandb_logging import WandbConfig
from lit_transformers.space import Choice, Interval, searched
from lit_transformers.wandb_target import NO_TARGET
from sweeps.wandb import agent
from sweeps.wandb.agent import FILE, parameters
from sweeps.wandb.connection import has_key
from sweeps.wandb.sweep import agent_command, file_name, grid, search, write_sweep

METRIC = {"name": "val/bpb", "goal": "minimize"}


def rendered(command: list[str], values: dict[str, Any], python: str = sys.executable) -> list[str]:
    """The command line that W&B's agent makes of a sweep's command, with its interpreter."""
    arguments = [f"--{name}={value}" for name, value in values.items()]
    replacements = {"${env}": ["/usr/bin/env"], "${interpreter}": [python], "${args}": arguments}
    return [word for part in command for word in replacements.get(part, [part])]


def test_a_grid_has_every_arm_with_every_seed(tmp_path: Path) -> None:
    sweep = grid("study", ["a=on b=off", "a=off b=off"], (3, 4), METRIC, agent_command(["study", "--scale", "demo"]))
    write_sweep(tmp_path / "wandb" / "grid.yaml", sweep)
    loaded = yaml.safe_load((tmp_path / "wandb" / "grid.yaml").read_text())
    assert loaded == sweep
    assert loaded["parameters"] == {"arm": {"values": ["a=on b=off", "a=off b=off"]}, "seed": {"values": [3, 4]}}
    assert (loaded["method"], loaded["metric"]) == ("grid", METRIC)


def test_no_two_arms_have_the_same_file() -> None:
    assert file_name("relative") == "relative"
    assert len({file_name(arm).lower() for arm in ("x=1.5", "x=1_5", "x_1_5", "X=1.5", "x 1.5")}) == 5


def test_a_search_is_of_one_arm_in_its_space_and_has_a_budget() -> None:
    space = searched(RunConfig(), own=True) | {"way": Choice(("x", "y")), "dropout": Interval(0.0, 0.3)}
    sweep = search("study", "on", space, "bayes", 12, METRIC, agent_command(["study", "--search"]))
    assert sweep["run_cap"] == 12 and sweep["parameters"] == {
        "arm": {"value": "on"},
        "training.optimizer.learning_rate": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
        "training.schedule.warmup": {"distribution": "q_log_uniform_values", "min": 2, "max": 15},
        "model.mixer.window": {"distribution": "q_log_uniform_values", "min": 4, "max": 64},
        "way": {"values": ["x", "y"]},
        "dropout": {"distribution": "uniform", "min": 0.0, "max": 0.3},
    }


def test_parameters_are_words_of_the_command_or_lines_of_wandbs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--arm=a=on b=off", "--seed=3", "--training.optimizer.learning_rate=1e-3"]
    expected = {"arm": "a=on b=off", "seed": 3, "training.optimizer.learning_rate": 1e-3}
    assert parameters(words) == expected
    path = tmp_path / "parameters.yaml"
    path.write_text(yaml.safe_dump({"wandb_version": 1} | {name: {"value": value} for name, value in expected.items()}))
    monkeypatch.setenv(FILE, str(path))
    assert parameters([]) == expected
    assert parameters(["--seed=4"]) == expected | {"seed": 4}
    path.write_text("- no\n")
    with pytest.raises(ConfigError, match=r"parameters\.yaml: cannot be read as W&B's parameters"):
        parameters([])


@pytest.mark.parametrize("word", ["seed=3", "--seed", "3"])
def test_a_word_that_is_no_parameter_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="--path=value"):
        parameters([word])


class Late(PrefixStore):
    """The store of a rank that reads late, when the first has long written its values."""

    def get(self, key: str) -> bytes:
        time.sleep(1)
        return super().get(key)


def print_parameters(first: str) -> None:
    """One rank of two. The second gets other arguments, as if a person had started it by hand, and reads late."""
    if os.environ["RANK"] != "0":
        agent.PrefixStore = Late
    try:
        print("told", sorted(parameters([first] if os.environ["RANK"] == "0" else ["--seed=2"]).items()))
    except ConfigError as error:
        print("refused", error)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "told"), [("--seed=1", "told [('seed', 1)]"), ("seed", "refused W&B gives")])
def test_two_ranks_do_what_the_first_was_told(first: str, told: str, tmp_path: Path) -> None:
    ranks = Forked(tmp_path / "output.txt", print_parameters, first, ranks=2)
    ranks.finish()
    assert ranks.log.read_text().count(told) == 2, ranks.log.read_text()


def test_a_key_is_looked_up_as_wandb_itself_does(tmp_path: Path) -> None:
    with logged_out(tmp_path) as patch:
        patch.setenv("NETRC", str(tmp_path / "netrc"))
        assert not has_key()
        write_netrc_auth(host=wandb.setup().settings.base_url, api_key="0" * 40)
        assert has_key()


STUDY = """
from ablations.ablation import Ablation, Match, Metric
from datamodules import EvaluationConfig, FilesConfig, LanguageDataConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig
from lit_transformers.training.config import TrainingConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig(
        model=LanguageModelConfig(dim=8, heads=1, depth=1, mixer=AttentionConfig(memory=8)),
        data=LanguageDataConfig(
            source=FilesConfig(path=CORPUS), segment_length=8, batch_size=2, evaluation=EvaluationConfig(documents=2)
        ),
        training=TrainingConfig(steps=4, log_every=1, device="cpu", devices=2),
    ),
    factors={"memory": {"on": {}, "off": {"model.mixer.memory": 0}}},
    metric=Metric("val/bpb", goal="minimize"),
    match=Match("tokens"),
)
"""


def test_an_agent_does_the_runs_first_that_its_own_starts_from(tmp_path: Path) -> None:
    """It would wait for itself otherwise. Another trial that starts from them does them no more."""
    config, runner = chain(4, 10, 5), "standin.run:RUNNER"
    record = agent.carry_out(config, runner, tmp_path, WandbConfig(NO_TARGET))
    run_tickets = chained(4, 10, 5)
    assert record.key == run_tickets[-1].key and [finishes(tmp_path / one.key) for one in run_tickets] == [1, 1, 1]
    assert record.metrics == alone(4, 10, 5, runs=tmp_path / "quiet")[-1]
    agent.carry_out(chain(4, 10, 6), runner, tmp_path, WandbConfig(NO_TARGET))
    assert [finishes(tmp_path / one.key) for one in run_tickets] == [1, 1, 1]
    with pytest.raises(ConfigError, match=r"start: its source \w+ failed: not-a-number"):
        agent.carry_out(chain(4, 5, fault="nan"), runner, tmp_path, WandbConfig(NO_TARGET))


@pytest.mark.slow
def test_an_agent_of_two_ranks_does_one_run_under_its_key(python: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(30):
        (corpus / f"{number}.txt").write_text(f"{number} is what this text says, and nothing else. " * 3)
    study = tmp_path / "memory.py"
    study.write_text(STUDY.replace("CORPUS", repr(str(corpus))))
    runs = tmp_path / "runs"
    command = agent_command([str(study), "--runs", str(runs), "--wandb", "offline"], ranks=2)
    values = {"arm": "memory=off", "seed": 7, "training.optimizer.learning_rate": 0.002}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment["HOME"] = str(tmp_path)
    completed = subprocess.run(
        rendered(command, values, str(python)),
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (path,) = runs.glob("*/record.json")
    record = json.loads(path.read_text())
    assert (record["key"], record["outcome"], record["seed"]) == (path.parent.name, "finished", 7)
    assert record["config"]["model"]["mixer"]["memory"] == 0
    assert record["config"]["training"]["optimizer"]["learning_rate"] == 0.002
    assert len(list(path.parent.glob("wandb/offline-run-*"))) == 1
    assert completed.stdout.count(f"{record['key']} (") == 1
