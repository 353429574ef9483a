"""Which seeds the arms of a study get at each look, on the stand-in, whose runs are done before the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin.run import RunConfig, fit

from ablations import catalog
from ablations.__main__ import main
from ablations.ablation import Looks
from ablations.plan import Request, make_plan
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import load_plan
from lit_transformers.records.schema import to_plain
from reports import report

STUDY = """
from ablations.ablation import Ablation, Looks, Margin, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig(),
    factors={"memory": {"8": {}, "0": {"model.mixer.memory": 0}, "4": {"model.mixer.memory": 4}}},
    design="one_factor",
    seeds=Looks(2, 4, 6),
    metric=Metric("val/bpb", goal="minimize"),
)
"""
DIFFERENCES = {"baseline": 0.0, "memory=0": 0.5, "memory=4": 0.0}
"""By how many bits an arm is worse than the baseline: one that is decided at the first look, and one that never is."""
SPREADS = {"baseline": 0.0, "memory=0": 1e-4, "memory=4": 0.1}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "memory.py"
    path.write_text(STUDY)
    return path


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figures, of which nothing is proven here."""
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: {})
    monkeypatch.setattr(report, "_write_other_formats", lambda *arguments: None)


def finish_runs(study: Path, runs: Path, seeds: int) -> None:
    """Does the runs of all arms without the command, with values that a test knows."""
    plan = make_plan("memory", catalog.load(study), Request(seeds=seeds))
    tickets = {ticket.key: ticket for ticket in plan.tickets()}
    for arm in plan.plan.arms:
        for run in arm.runs:
            directory = tickets[run.key].directory(runs)
            if directory.exists():
                continue
            directory.mkdir(parents=True)
            fit(RunConfig.from_dict(tickets[run.key].config), directory)
            record = json.loads((directory / "record.json").read_text())
            spread = SPREADS[arm.name] * (run.seed % 2 - 0.5)
            record["metrics"]["val/bpb"] = 2.0 + DIFFERENCES[arm.name] + spread
            (directory / "record.json").write_text(json.dumps(record))
            (directory / "documents.csv").unlink(missing_ok=True)


def present(runs: Path) -> tuple[dict[str, int], Any]:
    """Returns the number of seeds of each arm, and the looks, as the study's folder has them."""
    plan = load_plan(runs / "studies/memory/plan.json")
    return {arm.name: len(arm.runs) for arm in plan.arms}, plan.looks and to_plain(plan.looks)


@pytest.mark.slow
def test_each_look_adds_seeds_to_arms_of_what_is_undecided_until_none_is_left(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 6)
    assert main(["run", *words]) == 0
    once = {"planned": [2, 4, 6], "taken": [2]}
    assert present(runs) == (dict.fromkeys(DIFFERENCES, 2), once)
    assert main(["run", *words]) == 0 and present(runs)[1] == once
    assert main(["run", *words, "--until", "decided"]) == 0
    seeds, looks = present(runs)
    assert seeds == {"baseline": 6, "memory=0": 2, "memory=4": 6}
    assert looks == {"planned": [2, 4, 6], "taken": [2, 4, 6]}
    capsys.readouterr()
    assert main(["report", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Worse than the baseline: memory=0: +0.5" in printed and "Unresolved against the baseline: memory=" in printed
    )
    assert load_plan(runs / "studies/memory/plan.json").protocol.endswith(", 2 to 6 seeds")


@pytest.mark.slow
def test_time_that_is_up_ends_after_the_look_and_the_same_command_goes_on(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs"), "--until", "decided"]
    finish_runs(study, runs, 6)
    assert main(["run", *words, "--max-hours", "1e-9"]) == 0
    assert "Time is up. Run the same command to resume." in capsys.readouterr().out
    assert present(runs)[1]["taken"] == [2]
    assert main(["run", *words, "--max-hours", "1"]) == 0
    assert present(runs)[1]["taken"] == [2, 4, 6]


def test_seeds_by_hand_after_a_report_are_a_look_of_their_own_and_more_of_the_same_are_none(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace("Looks(2, 4, 6)", "2"))
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 3)
    assert main(["run", *words]) == 0 and present(runs)[1] is None
    capsys.readouterr()
    for _ in range(2):
        assert main(["run", *words, "--seeds", "3"]) == 0
        assert present(runs) == (dict.fromkeys(DIFFERENCES, 3), {"planned": [2], "taken": [2, 3]})
        assert "added by hand after a report of 2, which counts as a look" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_an_arm_that_failed_gets_its_seeds_when_it_is_repaired_and_a_changed_one_begins_anew(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    monkeypatch.setitem(SPREADS, "memory=0", 9.0)
    finish_runs(study, runs, 6)
    plan = make_plan("memory", catalog.load(study), Request(seeds=2)).plan
    records = {path: path.read_text() for run in plan.arms[1].runs if (path := runs / run.key / "record.json")}
    for path, text in records.items():
        path.write_text(json.dumps(json.loads(text) | {"outcome": "failed", "reason": "no memory"}))
    assert main(["run", *words, "--until", "decided"]) == 1
    looks = {"planned": [2, 4, 6], "taken": [2, 4, 6]}
    assert present(runs) == ({"baseline": 6, "memory=0": 2, "memory=4": 6}, looks)
    for path, text in records.items():
        path.write_text(text)
    assert main(["run", *words]) == 0 and present(runs) == (dict.fromkeys(DIFFERENCES, 6), looks)
    assert "begin anew" not in capsys.readouterr().out

    monkeypatch.setitem(SPREADS, "memory=0", 1e-4)
    study.write_text(STUDY.replace('"model.mixer.memory": 0', '"model.mixer.memory": 1'))
    finish_runs(study, runs, 6)
    assert main(["run", *words]) == 0
    assert present(runs) == ({"baseline": 6, "memory=0": 2, "memory=4": 6}, looks)
    assert "since a look was taken: of memory=0 the looks begin anew" in capsys.readouterr().out


@pytest.mark.slow
def test_looks_at_other_configs_are_not_those_of_the_study(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 4)
    assert main(["run", *words]) == 0 and main(["run", *words, "--seeds", "4"]) == 0
    assert present(runs) == (dict.fromkeys(DIFFERENCES, 4), {"planned": [2, 4, 6], "taken": [2, 4]})
    study.write_text(STUDY.replace("RunConfig()", "RunConfig().override({'training.steps': 21})"))
    finish_runs(study, runs, 2)
    assert main(["run", *words]) == 0
    assert present(runs) == (dict.fromkeys(DIFFERENCES, 2), {"planned": [2, 4, 6], "taken": [2]})
    assert "since a look was taken: of all arms the looks begin anew" in capsys.readouterr().out


def test_a_look_that_nobody_took_is_not_spoken_of(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand without a report before, and after a report of one seed with a plan of more that has not ended."""
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 3)
    assert main(["run", *words, "--seeds", "3"]) == 0
    assert present(runs)[1] == {"planned": [2, 4, 6], "taken": [3]}
    printed = " ".join(capsys.readouterr().out.split())
    assert "looks were planned at 2 and 4 and 6 seeds, and the first one was taken by hand at 3: this one" in printed
    assert "added by hand" not in printed

    study.write_text(STUDY.replace("Looks(2, 4, 6)", "2"))
    runs, words = tmp_path / "second", [str(study), "--runs", str(tmp_path / "second")]
    finish_runs(study, runs, 3)
    assert main(["run", *words, "--seeds", "1"]) == 0
    make_plan("memory", catalog.load(study), Request(seeds=2)).write(runs)  # as a command does that is stopped
    assert main(["run", *words, "--seeds", "3"]) == 0 and present(runs)[1] is None
    assert "by hand" not in capsys.readouterr().out


def test_a_study_that_a_pilot_planned_has_seeds_of_its_own_and_keeps_them(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace("4, 6)", "4, 6, first_seed=6)"))
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 2)
    assert main(["run", *words]) == 0
    plan = load_plan(runs / "studies/memory/plan.json")
    assert {tuple(run.seed for run in arm.runs) for arm in plan.arms} == {(6, 7)}
    assert plan.protocol.endswith(", 2 seeds from seed 6 on")
    assert "Worse than the baseline: memory=0" in " ".join(capsys.readouterr().out.split())
    page = runs / "studies/memory/report/report.md"
    assert "Before these seeds: seeds 0 to 5, which the study does not describe." in page.read_text()
    study.write_text(STUDY.replace("4, 6)", "4, 6, first_seed=6, pilot='seeds 0 to 5 had half of the steps')"))
    assert main(["run", *words]) == 0
    assert "Before these seeds: seeds 0 to 5 had half of the steps." in page.read_text()
    study.write_text(STUDY)
    assert main(["run", *words]) == 2
    assert "a look was taken, and then its first seed changed; undo that" in capsys.readouterr().err


@pytest.mark.parametrize(("first", "second"), [("Looks(2, 4, 6)", "Looks(2, 4, 6)"), ("2", "3")])
def test_a_plan_that_was_changed_after_a_look_was_taken_is_refused_in_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    study.write_text(STUDY.replace("Looks(2, 4, 6)", first))
    runs, words = tmp_path / "runs", [str(study), "--runs", str(tmp_path / "runs")]
    finish_runs(study, runs, 2)
    assert main(["run", *words]) == 0
    capsys.readouterr()
    another = STUDY.replace("Looks(2, 4, 6)", second).replace('"4":', '"5":')
    refused = {
        STUDY.replace("Looks(2, 4, 6)", "Looks(2, 3)"): "and now they are 2, 3; state those again, or remove that",
        another.replace('"val/bpb"', '"val/bpb", margin=Margin(0.1, "small")'): "then its margin and its arms changed",
    }
    for text, expected in refused.items():
        study.write_text(text)
        assert main(["run", *words]) == 2
        message = capsys.readouterr().err
        assert len(message.splitlines()) == 1 and expected in message


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--until", "decided", "--seeds", "3"], "--seeds: the looks of the study say how many seeds"),
        (["--max-hours", "1"], "--max-hours: goes with --until decided, and is above zero"),
        (["--until", "decided", "--max-hours", "-1"], "--max-hours: goes with --until decided, and is above zero"),
        (["--until", "decided"], "study memory: it states no looks to take; write seeds=Looks(3, 6, 10, 16) in it"),
    ],
)
def test_options_of_looks_that_cannot_be_are_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    study.write_text(STUDY.replace("Looks(2, 4, 6)", "2"))
    assert main(["run", str(study), "--runs", str(tmp_path / "runs"), *words]) == 2
    message = capsys.readouterr().err
    assert line in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Looks(3, 3), "seeds: looks (3, 3) do not rise; name each number of seeds once, in order"),
        (lambda: Looks(6, 3), "seeds: looks (6, 3) do not rise; name each number of seeds once, in order"),
        (lambda: Looks(1, 3), "seeds: the first look needs two seeds or more, for of one there is no interval"),
        (lambda: Looks(), "seeds: the first look needs two seeds or more, for of one there is no interval"),
        (lambda: Looks("3"), "seeds.0: input should be a valid integer; got '3'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_looks_are_one_line(make: Callable[[], Looks], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == line


@pytest.mark.slow
def test_a_pilot_says_what_more_seeds_would_decide_and_what_they_cost(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace("Looks(2, 4, 6)", "Looks(2, 4, 8)"))
    words = [str(study), "--runs", str(tmp_path / "runs")]
    assert main(["plan", *words, "--power", "0.8"]) == 2
    assert "no comparison has an interval, whose width is needed; do two seeds first: " in capsys.readouterr().err
    finish_runs(study, tmp_path / "runs", 2)
    assert main(["run", *words]) == 0
    capsys.readouterr()
    assert main(["plan", *words, "--power", "0.8", "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("With a power of 0.8"))
    rows = [line.split() for line in lines[start:] if line.strip()[:1].isdigit()]
    assert [row[:2] for row in rows] == [["4", "4"], ["8", "12"]]
    assert rows[0][-6:] == ["1", "0", "memory=4", "against", "the", "baseline"]
    assert main(["plan", *words, "--power", "1.5"]) == 2
    assert "--power: a power lies from 0.5 to less than 1; got 1.5" in capsys.readouterr().err
