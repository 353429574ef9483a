"""The study that `new --command` writes from the line of a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_for

from ablations.__main__ import main
from ablations.catalog import load
from ablations.command_study import parse_words, printed_numbers
from ablations.plan import Request, make_plan
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.values import PatternConfig

ROOT = Path(__file__).parents[2]
PROGRAM = """
import argparse
parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("data")
parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
parser.add_argument("--mode")
parser.add_argument("-s", "--random-seed", type=int, default=1)
parser.add_argument("--num-layers", type=int, default=2, help="layers")
args = parser.parse_args()
print("loading")
for step in (1, 2):
    print(f"iter {step}: loss 3.5 | val loss {args.lr * step + args.random_seed:.3f}, time 12ms")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_options_become_parameters_and_the_help_names_the_seed_and_further_options(project: Path) -> None:
    line = f"{sys.executable} train.py corpus.txt --lr 0.3 --mode 'a b'"
    assert main(["new", "rates.py", "--command", line]) == 0
    assert "# --num-layers (default 2): " in Path("rates.py").read_text()
    ablation = load(Path("rates.py"))
    baseline = ablation.baseline
    assert isinstance(baseline, CommandRunConfig) and baseline.params == {"lr": 0.3, "mode": "a b"}
    words = baseline.override({"seed": 7}).filled_command({})
    assert words == [sys.executable, *["train.py", "corpus.txt", "--lr", "0.3", "--mode"], "a b", "--random-seed", "7"]
    assert [*ablation.factors] == ["lr"] and len(make_plan("rates", ablation, Request()).plan.arms) == 2


def test_a_run_shows_how_numbers_are_printed_only_where_that_is_wanted(project: Path) -> None:
    line = f"{sys.executable} train.py corpus.txt --lr=0.3 --random-seed 4"
    assert main(["new", "rates.py", "--command", line, "--try"]) == 0
    baseline = load(Path("rates.py")).baseline
    assert isinstance(baseline, CommandRunConfig) and isinstance(baseline.values, PatternConfig)
    assert baseline.metrics == {"val_loss": "minimize"} and baseline.params == {"lr": 0.3}
    read = baseline.values.read_line("iter 20: loss 3e-1 | val loss 2.25, time 9ms", ["val_loss"])
    assert read is not None and read.step == 20 and read.numbers["val_loss"] == 2.25 and read.numbers["loss"] == 0.3


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program --seed 0", "no-such-program cannot be started: No such file"),
        (f"{sys.executable} -c pass --lr 1", "names no seed, and neither does its --help"),
        ("python 'train.py", "cannot be split into words"),
        ("", "is empty"),
    ],
)
def test_a_command_of_which_no_study_can_be_is_one_line(
    command: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "rates.py", "--command", command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --command: ") and message in error and error.count("\n") == 1
    assert not Path("rates.py").exists()


def test_words_of_several_styles_hold_placeholders() -> None:
    words = ["python", "-m", "train", "model.lr=0.1", "--compile", "--steps", "50", "--seed=3", "-x", "-1.5"]
    parsed = parse_words(words)
    expected = "python -m train model.lr={model_lr} --compile --steps {steps} --seed={seed} -x {x}"
    assert parsed.words == expected.split() and parsed.steps == 50 and parsed.params == {"model_lr": 0.1, "x": -1.5}


SLOW = """#!/bin/sh
n=$(cat count 2>/dev/null || echo 0)
while [ $n -lt 6 ]; do
    n=$((n + 1)); echo $n > count
    test -n "$LIT_RESUME_FROM" || sleep 0.5
    echo "{\\"step\\": $n, \\"loss\\": 0.$1$2$n}"
done
"""
SLOW_STUDY = """
from ablations.ablation import Ablation, Metric
from lit_transformers.command_runs import CommandRunConfig
ABLATION = Ablation(
    question="Does a study of commands survive its worker?",
    baseline=CommandRunConfig(
        command="./slow.sh {rate} {seed}", params={"rate": 1}, metrics={"loss": "minimize"}, resume="folder"
    ),
    factors={"rate": {"1": {}, "2": {"params.rate": 2}}},
    seeds=2,
    metric=Metric("loss"),
)
"""


@pytest.fixture
def slow_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "slow.sh"
    program.write_text(SLOW)
    program.chmod(0o755)
    (tmp_path / "slow.py").write_text(SLOW_STUDY)
    return tmp_path


@pytest.mark.slow
def test_a_study_whose_command_was_killed_continues_in_the_old_folders(slow_study: Path) -> None:
    words = [sys.executable, "-m", "ablations", "run", "slow.py", "--workers", "2"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len([*slow_study.glob("runs/*/output.txt")]) == 2)
    wait_for(lambda: all(path.read_text() for path in slow_study.glob("runs/*/output.txt")))
    killed.kill()
    killed.wait()
    ended = subprocess.run(words, env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outputs = [*slow_study.glob("runs/*/output.txt")]
    steps = [[json.loads(line)["step"] for line in path.read_text().splitlines()] for path in outputs]
    assert len(steps) == 4, "the killed runs were not those that continued"
    assert all(sorted({*printed, 6}) == printed and printed[0] == 1 for printed in steps), "a step was done twice"


def test_parameters_of_wandb_fill_placeholders_and_choose_no_program(
    slow_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["agent", "slow.py", "--wandb", "disabled", "--arm=rate=1", "--seed=0"]
    for change in ("--environment.PATH=/tmp", "--command=sh -c id {seed}", "--shell=true"):
        assert main([*words, change]) == 2
        assert "decides which program is executed, which W&B cannot" in capsys.readouterr().err


def test_lines_of_json_are_recognised() -> None:
    printed = printed_numbers(["start 3", '{"step": 1, "train_loss": 2.5, "eval_accuracy": 0.5}'])
    assert printed == ("JsonLinesConfig()", "eval_accuracy", ["train_loss", "eval_accuracy"])
