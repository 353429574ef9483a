"""The kit for a borrowed GPU as it is used: a rehearsal of all of it, wheels for another machine, results at home."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import collect, runner, wheels
from benchmarks.gpu.job import CONTRACTS, GPU_TESTS, jobs, rehearsals
from benchmarks.gpu.runner import JobAttempt, Kit, attempts_in

TESTS = Path(__file__).parents[1]


def call(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One call of the kit in a folder."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(folder / "out"), *options]
    return subprocess.run([*command, "--work", str(folder / "work")], capture_output=True, text=True, cwd=TESTS.parent)


@pytest.mark.slow
def test_a_rehearsal_does_everything_and_leaves_nothing_to_do(tmp_path: Path) -> None:
    """Except for a second study, whose job is as the first one's."""
    rehearsed = [job for job in rehearsals() if job.part != "g"]
    completed = call(tmp_path, "--minutes", "9", *(word for part in "abcdef" for word in ("--part", part)))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    attempts = attempts_in(tmp_path / "out")
    assert [(attempt.name, attempt.outcome) for attempt in attempts] == [(job.name, "finished") for job in rehearsed]
    outcomes = [attempt.result["outcomes"] for attempt in attempts if attempt.part in "ae"]
    assert all(outcome.get("passed") or outcome.get("skipped") for outcome in outcomes), "every job of tests has some"
    assert {attempt.part for attempt in attempts} == set("abcdef")
    assert len(list((tmp_path / "out").iterdir())) <= 8, "a call may return so few files"
    assert not Kit(tmp_path / "out", tmp_path).pending(rehearsed)


def test_the_jobs_of_further_studies_differ_from_that_of_the_first_by_the_study_alone() -> None:
    for kit_jobs in (jobs(), rehearsals()):
        (first,) = (job for job in kit_jobs if job.part == "d")
        further = [job for job in kit_jobs if job.part == "g"]
        assert further and all(job.module == first.module for job in further)
        for job in further:
            assert [word.replace(job.name, first.name) for word in job.arguments] == list(first.arguments)


def test_every_job_has_a_name_of_its_own() -> None:
    for kit_jobs in (jobs(), rehearsals()):
        assert len({job.name for job in kit_jobs}) == len(kit_jobs)


@pytest.mark.parametrize(("mark", "listed"), [("gpu", GPU_TESTS), ("any_device", CONTRACTS)])
def test_every_file_with_tests_of_a_mark_is_run_there(mark: str, listed: tuple[str, ...]) -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path not in (Path(__file__), TESTS / "test_numerics.py")]
    marked = {f"tests/{path.relative_to(TESTS)}" for path in files if f"pytest.mark.{mark}" in path.read_text()}
    assert marked == set(listed)


def test_wheels_are_of_all_that_is_needed_there_and_is_not_present(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        "optuna": ["alembic>=1", "colorlog", "tomli; python_version < '3.11'", "plotly; extra == 'all'"],
        "alembic": ["Mako", "sqlalchemy"],
    }

    def metadata_of(name: str, requirements: Iterable[Requirement]) -> Mapping[str, Any]:
        return {"version": "1", "requires_dist": needs.get(name, [])}

    monkeypatch.setattr(wheels, "metadata_of", metadata_of)
    monkeypatch.setattr(
        wheels, "project_requirements", lambda: [Requirement(line) for line in ("optuna>=4", "wandb", "torch", "Rich")]
    )
    assert set(wheels.missing(wheels.names_in("rich==14.0\n# a comment\nSQLAlchemy==2.0\n"))) == {
        "optuna", "alembic", "colorlog", "mako",
    }  # fmt: skip


def test_results_name_the_commit_where_it_is_the_code_that_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "code_fingerprint", lambda: "this")
    monkeypatch.setattr(collect, "commit", lambda: "abc123")
    (tmp_path / "machine.json").write_text(json.dumps({"gpu": "NVIDIA H200"}))
    kit = Kit(tmp_path, tmp_path)
    for name, code in (("speed", "other"), ("tests", "other"), ("speed", "this")):
        kit.write(JobAttempt("b", name, "finished", 1.0, "python -m x", code))
    attempts = collect.collected(tmp_path)["attempts"]
    assert {attempt["name"]: attempt["commit"] for attempt in attempts} == {"speed": "abc123", "tests": None}


def test_the_fingerprint_of_the_code_follows_a_change_of_any_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "one.py").write_text("1")
    before = runner.code_fingerprint()
    (tmp_path / "benchmarks" / "one.py").write_text("2")
    assert runner.code_fingerprint() != before
