"""The kit for a borrowed GPU as it is used: a rehearsal of all of it, wheels for another machine, results at home."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import carried, collect, job_queue, session, values, wheels
from benchmarks.gpu.__main__ import parse_options
from benchmarks.gpu.goals import goals
from benchmarks.gpu.job import CONTRACTS, FIRST_CALL, GPU_TESTS, PARTS, jobs, rehearsals
from benchmarks.gpu.job_queue import JobAttempt, Kit, attempts_in
from benchmarks.gpu.machine import NEEDED
from benchmarks.gpu.session import CLOSING_SECONDS
from lit_transformers.mixers import MIXERS

TESTS = Path(__file__).parents[1]


def call(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One call of the kit in a folder."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(folder / "out"), *options]
    return subprocess.run([*command, "--work", str(folder / "work")], capture_output=True, text=True, cwd=TESTS.parent)


@pytest.mark.slow
def test_a_rehearsal_does_every_job_in_the_order_of_its_worth_and_leaves_nothing_to_do(tmp_path: Path) -> None:
    """But for a second study, whose job is as the first one's."""
    parts = "".join(PARTS).replace("n", "")
    rehearsed = [job for job in rehearsals() if job.part in parts]
    completed = call(tmp_path, *(word for part in parts for word in ("--part", part)))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    done = attempts_in(tmp_path / "out")
    assert [(attempt.name, attempt.outcome) for attempt in done] == [(job.name, "finished") for job in rehearsed]
    assert not Kit(tmp_path / "out", tmp_path).pending(rehearsed)
    assert len(list((tmp_path / "out").iterdir())) <= 8, "a call may return so few files"
    attempts = {attempt.part: attempt for attempt in done}
    assert {*attempts} == {*parts}
    rows = attempts["b"].result["rows"]
    compared = {(row["kind"], row["masked"], row["precision"]) for row in rows}
    assert compared == {*product(MIXERS, (True, False), ("float32", "bf16"))}
    assert all(row["agrees"] for row in rows)
    assert attempts["c"].result["outcomes"] == {"skipped": 14}, "twelve cases of FlexAttention, and dropout in two"
    assert attempts["d"].result["killed"] and attempts["d"].result["whole_curve"]
    assert {"tokens_per_second", "masked"} <= attempts["e"].result.keys()
    assert attempts["g"].result["ratio"] > 0
    outcomes = [attempt.result["outcomes"] for attempt in done if attempt.part in "hl"]
    assert all(outcome.get("passed") or outcome.get("skipped") for outcome in outcomes), "every job of tests has some"
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert f"| {len(rows)} of {len(rows)} comparisons agree | not measured |" in summary
    assert summary.count("| not measured |") == 4, "a CPU meets no goal"
    lines = completed.stdout.splitlines()
    assert len([line for line in lines if line.startswith("    | agrees ")]) == len(rows)


def test_the_jobs_of_further_studies_differ_from_that_of_the_first_by_the_study_alone() -> None:
    for kit_jobs in (jobs(), rehearsals()):
        (first,) = (job for job in kit_jobs if job.part == "k")
        further = [job for job in kit_jobs if job.part == "n"]
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


def test_the_jobs_are_in_the_order_of_their_worth_and_the_first_fit_into_one_call() -> None:
    for kit_jobs in (jobs(), rehearsals()):
        parts = [job.part for job in kit_jobs]
        assert parts == sorted(parts) and {*parts} == {*PARTS}
        assert all(0 < job.seconds <= job.limit <= 1200 for job in kit_jobs)
    first = [job for job in jobs() if job.part in FIRST_CALL]
    assert {job.part for job in first} == {*FIRST_CALL}
    assert sum(job.limit for job in first) <= 60 * parse_options([]).minutes - CLOSING_SECONDS
    assert all(job.needed <= job.limit for job in jobs())


@pytest.mark.slow
def test_a_wrong_number_of_a_mixer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All outputs of one, off by a five-thousandth, and the largest gradient of another's inputs by a twentieth. The
    rehearsal shows that every mixer is compared."""
    cases = [case for case in values.cases() if case.kind in ("window", "lstm", "local")]
    monkeypatch.setattr(values, "cases", lambda: iter(cases))
    values.write(tmp_path / "values.npz")
    with np.load(tmp_path / "values.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["window causal 12/outputs"] *= 1.0002
    gradient = arrays["lstm causal 12 masked/gradient x"]
    gradient.flat[np.argmax(abs(gradient))] *= 1.05
    np.savez(tmp_path / "values.npz", **arrays)
    with pytest.raises(SystemExit, match="1"):
        values.compare(tmp_path / "values.npz", tmp_path / "values.json", "cpu", 1)
    rows = json.loads((tmp_path / "values.json").read_text())["rows"]
    assert [(row["kind"], row["precision"], row["masked"]) for row in rows if not row["agrees"]] == [
        ("lstm", "float32", True), ("window", "float32", False),
    ]  # fmt: skip
    assert {row["kind"] for row in rows} == {"window", "lstm", "local"}


IMPORTED = """
import importlib, sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name
carried, modules = (set(words.split(",")) for words in sys.argv[1:])
absent = {
    module for module, names in packages_distributions().items()
    if not carried & {canonicalize_name(name) for name in names} and "lit-transformers" not in names
}
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Present
sys.path[:0] = ["tests", "tests/contracts", "tests/encodings", "tests/lit_transformers"]
for module in sorted(modules):
    importlib.import_module(module)
"""


@pytest.mark.slow
def test_with_the_wheels_the_machine_has_all_that_jobs_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the metadata of the packages that are installed here, in a process that finds no other package."""

    def metadata_of(name: str, requirements: Iterable[Requirement]) -> Mapping[str, Any]:
        try:
            return {"version": version(name), "requires_dist": requires(name) or []}
        except PackageNotFoundError:  # a peer that is not installed here
            return {"version": "0", "requires_dist": []}

    monkeypatch.setattr(wheels, "metadata_of", metadata_of)
    present = wheels.names_in(wheels.PRESENT.read_text())
    missing = set(wheels.missing(present))
    assert "typing-inspection" in missing and not {"typing-inspection", "platformdirs"} & present
    modules = {*NEEDED, "benchmarks.gpu.session", "conftest", "resumable"} | {job.module for job in jobs()}
    modules |= {Path(test).stem for test in (*CONTRACTS, *GPU_TESTS)}
    on_machine, waiting = {*missing, "torch"}, [*present]
    while waiting:  # present packages have their requirements, in the present version
        name = waiting.pop()
        on_machine.add(name)
        needs = [need for need in metadata_of(name, ())["requires_dist"] if "extra" not in need]
        waiting += {canonicalize_name(Requirement(need).name) for need in needs} - on_machine
    command = [sys.executable, "-c", IMPORTED, ",".join(on_machine), ",".join(modules)]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent)
    assert completed.returncode == 0, completed.stderr


def test_what_is_carried_is_counted_and_refused_where_it_is_too_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("/.gpu/\n/ignored/\n")
    for name, size in ((".gpu/wheels/a.whl", 1000), ("published/b", 2000), ("ignored/c", 4000)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    sizes = carried.carried(tmp_path)
    assert (sizes[".gpu"], sizes["published"], sizes["ignored"]) == (1000, 2000, 0)
    monkeypatch.setattr(carried, "carried", lambda: sizes)
    carried.main(limit=1)
    with pytest.raises(SystemExit):
        carried.main(limit=0.001)
    assert "git sparse-checkout set --no-cone '/*' '!/published'" in capsys.readouterr().err


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


def attempt_at(name: str, result: Mapping[str, Any], outcome: Any = "finished") -> dict[str, JobAttempt]:
    return {name: JobAttempt("a", name, outcome, 1.0, "python -m x", "code", result)}


def test_each_goal_is_met_missed_or_not_measured() -> None:
    def verdicts(last: Mapping[str, JobAttempt], gpu: str = "NVIDIA H100 80GB HBM3") -> list[str]:
        return [goal.verdict for goal in goals(last, {"gpu": gpu})]

    assert verdicts({}) == ["not measured"] * 4
    rows = [{"agrees": True}] * 3
    assert verdicts(attempt_at("values of mixers", {"rows": rows}))[0] == "met"
    assert verdicts(attempt_at("values of mixers", {"rows": rows}, "timed out"))[0] == "not measured"
    assert verdicts(attempt_at("values of mixers", {"rows": [*rows, {"agrees": False}]}, "failed"))[0] == "missed"
    for rate, verdict in ((200_000, "met"), (199_999, "missed")):
        last = attempt_at("transformer-xl eager", {"tokens_per_second": rate, "tiny": False})
        assert verdicts(last)[1] == verdict and verdicts(last, "NVIDIA H200")[1] == "not measured"
    for milliseconds, verdict in ((80.0, "met"), (79.0, "missed")):
        row = {"length": 65_536, "milliseconds": {"SDPA flash": milliseconds, "window 512": 10.0}}
        assert verdicts(attempt_at("rows of 64k", {"rows": [row]}))[2] == verdict
    for ratio, verdict in ((1.5, "met"), (1.49, "missed")):
        assert verdicts(attempt_at("runs that share the device", {"ratio": ratio}))[3] == verdict


def test_results_that_a_loan_does_not_return_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / f"{number}.json").write_bytes(b"x")
    assert [*session.too_large_to_return(tmp_path)] == []
    (tmp_path / "8.json").write_bytes(b"x" * 1001)
    monkeypatch.setattr(session, "LARGEST_FILE", 1000)
    first, second = session.too_large_to_return(tmp_path)
    assert first.startswith("9 files in") and second.startswith("8.json has")


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
    monkeypatch.setattr(job_queue, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "one.py").write_text("1")
    before = job_queue.code_fingerprint()
    (tmp_path / "benchmarks" / "one.py").write_text("2")
    assert job_queue.code_fingerprint() != before
