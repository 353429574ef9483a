"""The parts of a study that W&B shows: the answer as a run, a workspace and a report, online by a stand-in of W&B's
API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from services.wandb_api import KEY, Recorded
from wandb_logins import logged_out

from ablations import wandb_command
from ablations.dashboard import build_dashboard, winners_plan
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import Plan, Tuning
from lit_transformers.runs import wandb_logging
from lit_transformers.wandb_target import WandbTarget
from reports.read.results import read_results
from reports.report import find
from reports.restore import restore
from reports.show.rows import answer_tables
from sweeps.wandb.answer import answer_id
from sweeps.wandb.dashboard import ShownAnswer, define, make_report, make_workspace

pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "published" / "xl_recurrence" / "results.jsonl"
FILE = ROOT / "ablations" / "studies" / "xl_recurrence.py"
ONLINE = WandbTarget("online", "suite")


@pytest.fixture
def study(tmp_path: Path) -> tuple[Plan, Path]:
    """A study whose runs have finished: its plan, and the folder of runs."""
    published = read_results(RESULTS)
    restore(published, tmp_path / "runs", {run.key for run in published.runs})
    return published.plan, tmp_path / "runs"


def table(server: Recorded, run: str, name: str) -> dict[str, list[object]]:
    (file,) = [file for file in server.runs[run].files if file.startswith(f"media/table/answer/{name}_")]
    return json.loads(server.file("run", run, file))


@pytest.mark.slow
def test_an_answer_is_sent_once_and_a_new_one_replaces_it(
    study: tuple[Plan, Path], wandb_server: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, runs = study
    assert build_dashboard(plan, FILE, runs, ONLINE, "again") and build_dashboard(plan, FILE, runs, ONLINE, "again")
    (run,) = wandb_server.runs.values()
    assert (run.project, run.group, run.job_type, run.exit_code) == ("suite", "xl_recurrence", "answer", 0)
    assert len(run.rows()) == 1 and "answer: as it was sent before" in capsys.readouterr().out
    assert run.config["study file"] == {"value": "xl_recurrence.py"} and run.config["commit"]["value"]
    findings = find(read_results(RESULTS))
    for name, expected in answer_tables(findings).items():
        sent = table(wandb_server, run.name, name)
        assert (sent["columns"], sent["data"]) == ([*expected.columns], [[*row] for row in expected.rows]), name
    (picture,) = [file for file in run.files if file.startswith("media/images/pictures/differences_")]
    assert (
        wandb_server.file("run", run.name, picture)
        == (runs / "studies/xl_recurrence/report/differences.png").read_bytes()
    )
    workspace, report = wandb_server.views.values()
    assert (workspace.type, report.type, report.title) == ("project-view", "runs", "xl_recurrence")
    assert findings.study.plan.question in json.dumps(report.spec) and run.summary["headline"] in json.dumps(
        report.spec
    )
    (runs / plan.arms[0].runs[0].key / "record.json").unlink()
    assert build_dashboard(plan, FILE, runs, ONLINE, "again")
    assert [*wandb_server.runs] == [run.name] and run.summary["runs/finished"] == run.summary["runs/planned"] - 1
    assert len(run.rows()) == 2 and len(wandb_server.views) == 2
    assert "15 of 16 runs have finished" in json.dumps([view.spec for view in wandb_server.views.values()])


@pytest.mark.slow
def test_without_a_key_the_answer_is_a_run_that_wandb_can_sync(
    study: tuple[Plan, Path], wandb_server: Recorded, tmp_path: Path
) -> None:
    plan, runs = study
    with logged_out(tmp_path):
        assert build_dashboard(plan, FILE, runs, ONLINE, "again") and build_dashboard(plan, FILE, runs, ONLINE, "again")
    assert not wandb_server.operations()
    (folder,) = runs.glob(f"studies/xl_recurrence/wandb/offline-run-*-{answer_id('xl_recurrence')}")
    environment = os.environ | {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": wandb_server.address}
    words = [sys.executable, "-m", "wandb", "sync", str(folder)]
    completed = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90)
    assert completed.returncode == 0, completed.stderr
    (run,) = wandb_server.runs.values()
    assert (run.name, run.group) == (answer_id("xl_recurrence"), "xl_recurrence")
    expected = answer_tables(find(read_results(RESULTS)))["verdicts"]
    assert table(wandb_server, run.name, "verdicts")["data"] == [[*row] for row in expected.rows]


@pytest.mark.slow
def test_winners_of_a_search_are_named_so(study: tuple[Plan, Path], wandb_server: Recorded) -> None:
    plan, runs = study
    with pytest.raises(ConfigError, match="no search of xl_recurrence has ended"):
        winners_plan(runs, plan)
    tuning = Tuning(budget={"trials": 8}, metric="val/bpb", selected_on="validation", reported_on="test")
    folder = runs / "studies"
    shutil.copytree(folder / "xl_recurrence", folder / "xl_recurrence_tuned")
    assert build_dashboard(replace(plan, study="xl_recurrence_tuned", tuning=tuning), FILE, runs, ONLINE, "again")
    assert winners_plan(runs, plan).tuning == tuning
    (run,) = wandb_server.runs.values()
    assert run.group == "xl_recurrence_tuned" and run.display_name is not None
    assert run.display_name.endswith("winners of a search, on test")
    shown = "winners of a search: 8 trials, selected on the validation split, measured on test"
    assert all(shown in json.dumps(view.spec) for view in wandb_server.views.values())


def test_a_plain_table_holds_the_numbers_of_the_report() -> None:
    findings = find(read_results(RESULTS))
    tables = answer_tables(findings)
    (contrast,) = findings.primary
    assert contrast.estimate is not None and contrast.estimate.interval is not None
    differences = dict(zip(tables["differences"].columns, tables["differences"].rows[0], strict=True))
    assert differences["95 % interval, low"] == contrast.estimate.interval.low
    assert differences["95 % interval, high"] == contrast.estimate.interval.high
    verdict = dict(zip(tables["verdicts"].columns, tables["verdicts"].rows[0], strict=True))
    assert (verdict["comparison"], verdict["verdict"]) == (contrast.name, contrast.verdict)
    assert (verdict["low"], verdict["difference"]) == (contrast.estimate.interval.low, contrast.estimate.difference)
    of_seeds = [row[2] for row in tables["seeds"].rows if row[0] == contrast.name]
    assert len(of_seeds) == verdict["seeds"] and abs(sum(of_seeds) / len(of_seeds) - verdict["difference"]) < 1e-9  # type: ignore[arg-type, operator]


def test_workspace_and_report_are_written_without_a_key_as_wandbs_classes_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also before any run has finished."""
    from wandb_workspaces.reports.v2.internal import ReportViewspec
    from wandb_workspaces.workspaces.internal import View

    with logged_out(tmp_path):
        wandb_command.dashboard("xl_recurrence", tmp_path / "runs")
    assert "The answer is pending: none of 16 runs has finished" in capsys.readouterr().out
    folder = tmp_path / "runs" / "studies" / "xl_recurrence" / "wandb"
    for name, kind in (("workspace", View), ("report", ReportViewspec)):
        text = (folder / f"{name}.json").read_text()
        read = kind.model_validate_json(text)
        again = read.model_dump_json(by_alias=True, exclude_none=True)  # reading adds empty lists of comments
        assert json.loads(again.replace(',"inlineComments":[]', "")) == json.loads(text)
        assert "The answer is pending" in text and "val/bpb" in text and "test/bpb" in text
    assert not [*folder.glob("offline-run-*")]


def test_a_dashboard_that_cannot_be_built_with_a_key_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logged_out(tmp_path) as patch, pytest.raises(typer.Exit) as ended:
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        wandb_command.dashboard("xl_recurrence", tmp_path / "runs")
    assert ended.value.exit_code == 1
    assert "W&B cannot be reached" in capsys.readouterr().out


def test_a_dashboard_is_what_wandbs_own_classes_accept() -> None:
    answer = ShownAnswer(["# Does it help?", "Better."], ["| a |"], ["verdicts"], ["differences"])
    definition = define("project", "study", "Does it help?", "val/bpb", ["a=on", "a=off"], answer)
    assert json.loads(json.dumps(definition)) == definition
    workspace, report = make_workspace(definition, ""), make_report(definition, "")
    names = ["answer", "learning curves", "where they end", "updates"]
    assert [section.name for section in workspace.sections] == names
    sent = [panel.y[0] for panel in workspace.sections[3].panels]
    assert [getattr(name, "name", name) for name in sent] == [*wandb_logging.UPDATES, wandb_logging.MEMORY]
    assert workspace.sections[0].panels[2].table_name == "answer/verdicts"
    assert "val/bpb" in str(workspace.sections[1].panels[0].y)
    assert report.title == "study" and report.blocks[-1].text == "| a |"
