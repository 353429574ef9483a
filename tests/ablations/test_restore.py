"""The published runs of a study are restored where the study is resumed, on the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin.run import RunConfig, fit
from test_looks import STUDY, finish_runs, present

from ablations import catalog
from ablations.__main__ import main
from ablations.plan import Request, make_plan
from lit_transformers.records.files import CURVES, DOCUMENTS, RECORD, RESULTS
from reports import report
from reports.publish import publish


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file of a study of which two of six seeds are published below ``published``."""
    monkeypatch.setattr(report, "draw_figures", lambda *arguments: {})
    path, runs = tmp_path / "memory.py", tmp_path / "first"
    path.write_text(STUDY)
    finish_runs(path, runs, 2)
    for number, record in enumerate(runs.glob(f"*/{RECORD}")):
        record.with_name(CURVES).write_text(
            f"step,tokens,name,value\n1,64,train/loss,{2.5 + number}\n2,128,train/loss,2\n"
        )
        record.with_name(DOCUMENTS).write_text(
            f"document,name,nats,tokens,bytes\n0,a b,{1 / 7 + number},3,4\n1,,2,3,4\n"
        )
    assert main(["run", str(path), "--runs", str(runs)]) == 0
    publish(runs, "memory", tmp_path / "published")
    return path


def restore(study: Path, runs: Path) -> int:
    return main(["restore", str(study), "--in", str(study.parent / "published"), "--runs", str(runs)])


def test_what_is_restored_is_what_was_published_and_the_study_takes_its_next_look(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published, runs = tmp_path / "published/memory" / RESULTS, tmp_path / "second"
    assert restore(study, runs) == 0
    assert "6 runs restored, 0 were there; next: python -m ablations run" in capsys.readouterr().out
    publish(runs, "memory", tmp_path / "again")
    assert (tmp_path / "again/memory" / RESULTS).read_bytes() == published.read_bytes()
    assert b'"documents":{' in published.read_bytes() and b'"curves":{"' in published.read_bytes()
    finish_runs(study, runs, 6)
    assert main(["run", str(study), "--runs", str(runs), "--until", "decided"]) == 0
    assert present(runs)[1] == {"planned": [2, 4, 6], "taken": [2, 4, 6]}
    assert present(runs)[0]["memory=0"] == 2


def test_a_stage_is_restored_unless_runs_that_are_left_start_from_it(tmp_path: Path) -> None:
    """Such a run needs the weights of the stage, which is trained again."""
    path, runs = tmp_path / "memory.py", tmp_path / "first"
    text = STUDY.replace("standin.run import RunConfig", "standin.chains import chain")
    path.write_text(text.replace("RunConfig()", "chain(3, 4)").replace("Looks(2, 4, 6)", "2"))
    planned = make_plan("memory", catalog.load(path), Request())
    for ticket in planned.tickets():
        ticket.directory(runs).mkdir(parents=True)
        fit(RunConfig.from_dict(ticket.config), ticket.directory(runs))
    planned.write(runs, None)
    publish(runs, "memory", tmp_path / "published")
    own, stages = {*planned.plan.by_key()}, {stage.seed: stage.key for stage in planned.plan.stages}
    assert restore(path, tmp_path / "second") == 0
    assert {record.parent.name for record in (tmp_path / "second").glob(f"*/{RECORD}")} == own | {*stages.values()}
    lost = planned.plan.arms[1].runs[1]
    results = tmp_path / "published/memory" / RESULTS
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if f'"key":"{lost.key}"' not in line or '"kind":"study"' in line))
    assert restore(path, tmp_path / "third") == 0
    restored = {record.parent.name for record in (tmp_path / "third").glob(f"*/{RECORD}")}
    assert restored == (own - {lost.key}) | {stages[0]}


def test_runs_that_are_there_are_left_as_they_are(study: Path, tmp_path: Path) -> None:
    first = make_plan("memory", catalog.load(study), Request(seeds=2)).plan.arms[0].runs[0].key
    (tmp_path / "second" / first).mkdir(parents=True)
    (tmp_path / "second" / first / RECORD).write_text("of before")
    assert restore(study, tmp_path / "second") == 0
    assert (tmp_path / "second" / first / RECORD).read_text() == "of before"


def test_runs_of_other_code_are_refused_in_one_line_with_the_commit_that_has_theirs(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "published/memory" / RESULTS
    results.write_text(results.read_text().replace('"environment":{}', '"environment":{"commit":"0123abc"}'))
    capsys.readouterr()
    study.write_text(STUDY.replace("RunConfig()", "RunConfig().override({'training.steps': 21})"))
    assert restore(study, tmp_path / "second") == 2
    message = capsys.readouterr().err
    assert "none of its 6 runs has today's code, config and data; check out commit 0123abc to use them" in message
    assert len(message.splitlines()) == 1 and not [*(tmp_path / "second").rglob(RECORD)]
