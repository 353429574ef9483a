"""Today's code repeats published runs, and both results are shown next to each other, on the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin.run import RunConfig, fit

from ablations import catalog
from ablations.__main__ import main
from ablations.plan import Request, make_plan
from lit_transformers.records.files import RECORD, RESULTS
from reports import report
from reports.publish import publish
from reports.read.results import read_results

STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig(),
    factors={"memory": {"8": {}, "0": {"model.mixer.memory": 0}}},
    seeds=2,
    metric=Metric("val/bpb", goal="minimize"),
)
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file of a study that is published below ``published`` with the results of its runs."""
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: {})
    monkeypatch.setattr(report, "_write_other_formats", lambda *arguments: None)
    path, runs = tmp_path / "memory.py", tmp_path / "runs"
    path.write_text(STUDY)
    for ticket in make_plan("memory", catalog.load(path), Request()).tickets():
        ticket.directory(runs).mkdir(parents=True)
        fit(RunConfig.from_dict(ticket.config), ticket.directory(runs))
    assert main(["run", str(path), "--runs", str(runs)]) == 0
    publish(runs, "memory", tmp_path / "published")
    return path


def reproduce(study: Path, *options: str) -> int:
    folders = ["--in", str(study.parent / "published"), "--runs", str(study.parent / "runs")]
    return main(["reproduce", str(study), *folders, "--workers", "1", *options])


def replace_in_results(study: Path, old: str, new: str) -> None:
    results = study.parent / "published/memory" / RESULTS
    text = results.read_text()
    assert old in text
    results.write_text(text.replace(old, new))


@pytest.mark.slow
def test_runs_are_done_again_although_they_are_there_and_enter_the_publication_on_request(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (study.parent / "published/memory" / RESULTS).read_text()
    assert reproduce(study, "--seeds", "2", "--arm", "memory=0") == 0
    assert "2 of 2 equal to the last digit" in capsys.readouterr().out
    assert len([*(study.parent / "runs/reproduced").glob(f"*/{RECORD}")]) == 2
    assert (study.parent / "published/memory" / RESULTS).read_text() == before
    assert reproduce(study, "--seeds", "2", "--arm", "memory=0", "--write") == 0
    after = (study.parent / "published/memory" / RESULTS).read_text()
    assert after.splitlines()[1:] == before.splitlines()[1:]
    published = read_results(study.parent / "published/memory" / RESULTS)
    assert [(one.arm, one.seed, one.is_equal) for one in published.reproductions] == [
        ("memory=0", 0, True),
        ("memory=0", 1, True),
    ]
    page = (study.parent / "published/memory/report.md").read_text()
    assert "Repeated: 2 runs at commit" in page and "equal to the last digit" in page


@pytest.mark.slow
def test_a_run_that_starts_from_others_is_repeated_with_all_of_its_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: {})
    monkeypatch.setattr(report, "_write_other_formats", lambda *arguments: None)
    path, runs = tmp_path / "memory.py", tmp_path / "runs"
    text = STUDY.replace("from standin.run import RunConfig", "from standin.chains import chain")
    path.write_text(text.replace("RunConfig()", "chain(4, 3, 5)"))
    for ticket in make_plan("memory", catalog.load(path), Request(seeds=1)).tickets():
        ticket.directory(runs).mkdir(parents=True)
        fit(RunConfig.from_dict(ticket.config), ticket.directory(runs))
    assert main(["run", str(path), "--runs", str(runs), "--seeds", "1"]) == 0
    publish(runs, "memory", tmp_path / "published")
    plan = read_results(tmp_path / "published/memory" / RESULTS).plan
    assert [len(plan.chain(arm.runs[0].sources)) for arm in plan.arms] == [2, 2]
    assert reproduce(path) == 0
    assert "1 of 1 equal to the last digit" in capsys.readouterr().out
    assert len([*(runs / "reproduced").glob(f"*/{RECORD}")]) == 3


@pytest.mark.slow
def test_a_value_that_today_s_code_does_not_give_is_shown_with_its_difference(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = read_results(study.parent / "published/memory" / RESULTS).runs[0].value
    replace_in_results(study, f'"val/bpb":{value}', f'"val/bpb":{value + 0.25}')
    assert reproduce(study, "--write") == 0
    printed = capsys.readouterr().out
    assert "-0.25" in printed and "0 of 1 equal to the last digit" in printed
    assert "within 0.25" in (study.parent / "published/memory/report.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ('"memory":8', '"memery":8', (), "today's code refuses its config"),
        ('"fingerprint":"', '"fingerprint":"other ', (), "has read other data than its config stands for"),
        (
            "memory",
            "memory",
            ("--arm", "memory=00"),
            "no arm is called 'memory=00'; did you mean memory=0 or memory=8?",
        ),
    ],
)
def test_what_cannot_be_repeated_is_refused_in_one_line_and_nothing_is_trained(
    study: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, options: tuple[str, ...], message: str
) -> None:
    replace_in_results(study, old, new)
    capsys.readouterr()
    assert reproduce(study, *options) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (study.parent / "runs/reproduced").exists()
