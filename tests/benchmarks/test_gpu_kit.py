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

from benchmarks.gpu import carried, collect, job_queue, values, wheels
from benchmarks.gpu.__main__ import parse_options
from benchmarks.gpu.job import CONTRACTS, GPU_TESTS, PARTS, jobs, rehearsals
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
def test_a_rehearsal_of_the_first_call_does_what_is_worth_most_and_prints_as_it_goes(tmp_path: Path) -> None:
    """Environment, values, a run and Transformer-XL, in the order of their worth."""
    completed = call(tmp_path, *(word for part in "abcd" for word in ("--part", part)))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    attempts = {attempt.part: attempt for attempt in attempts_in(tmp_path / "out")}
    assert [*attempts] == [*"abcd"] and {attempt.outcome for attempt in attempts.values()} == {"finished"}
    rows = attempts["b"].result["rows"]
    assert {(row["kind"], row["precision"]) for row in rows} == {*product(MIXERS, ("float32", "bf16"))}
    assert all(row["agrees"] for row in rows) and attempts["c"].result["outcomes"]["passed"] == 1
    lines = completed.stdout.splitlines()
    assert len([line for line in lines if line.startswith("    | agrees ")]) == len(rows)


@pytest.mark.slow
def test_a_rehearsal_does_the_rest_and_leaves_nothing_to_do(tmp_path: Path) -> None:
    """But for the parts of the first call, and a second study, whose job is as the first one's."""
    rehearsed = [job for job in rehearsals() if job.part in "efghij"]
    completed = call(tmp_path, *(word for part in "efghij" for word in ("--part", part)))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    attempts = attempts_in(tmp_path / "out")
    assert [(attempt.name, attempt.outcome) for attempt in attempts] == [(job.name, "finished") for job in rehearsed]
    outcomes = [attempt.result["outcomes"] for attempt in attempts if attempt.part in "ei"]
    assert all(outcome.get("passed") or outcome.get("skipped") for outcome in outcomes), "every job of tests has some"
    assert {attempt.part for attempt in attempts} == set("efghij")
    assert len(list((tmp_path / "out").iterdir())) <= 8, "a call may return so few files"
    assert not Kit(tmp_path / "out", tmp_path).pending(rehearsed)


def test_the_jobs_of_further_studies_differ_from_that_of_the_first_by_the_study_alone() -> None:
    for kit_jobs in (jobs(), rehearsals()):
        (first,) = (job for job in kit_jobs if job.part == "h")
        further = [job for job in kit_jobs if job.part == "k"]
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
    first = [job for job in jobs() if job.part in "abcd"]
    assert [job.module.rpartition(".")[2] for job in first] == ["environment", "values", "pytests", "transformer_xl"]
    assert sum(job.seconds for job in first) < 60 * parse_options([]).minutes - CLOSING_SECONDS - 60


@pytest.mark.slow
def test_a_wrong_number_of_any_mixer_is_said(tmp_path: Path) -> None:
    """The largest output of one, off by a thousandth, and the largest gradient of another's inputs by a twentieth."""
    values.write(tmp_path / "values.npz")
    with np.load(tmp_path / "values.npz") as file:
        arrays = {name: file[name] for name in file.files}
    for name, factor in (("window causal 12/outputs", 1.001), ("lstm causal 12/gradient x", 1.05)):
        arrays[name].flat[np.argmax(abs(arrays[name]))] *= factor
    np.savez(tmp_path / "values.npz", **arrays)
    with pytest.raises(SystemExit, match="1"):
        values.compare(tmp_path / "values.npz", tmp_path / "values.json", "cpu", 1)
    rows = json.loads((tmp_path / "values.json").read_text())["rows"]
    assert [(row["kind"], row["precision"]) for row in rows if not row["agrees"]] == [
        ("window", "float32"), ("lstm", "float32"),
    ]  # fmt: skip
    assert {row["kind"] for row in rows} == {*MIXERS}


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
sys.path[:0] = ["tests", "tests/contracts"]
for module in sorted(modules):
    importlib.import_module(module)
"""


@pytest.mark.slow
def test_with_the_wheels_the_machine_has_all_that_jobs_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the metadata of what is installed here, in a process that finds no other package."""

    def metadata_of(name: str, requirements: Iterable[Requirement]) -> Mapping[str, Any]:
        try:
            return {"version": version(name), "requires_dist": requires(name) or []}
        except PackageNotFoundError:  # a peer that is not installed here
            return {"version": "0", "requires_dist": []}

    monkeypatch.setattr(wheels, "metadata_of", metadata_of)
    present = wheels.names_in(wheels.PRESENT.read_text())
    missing = set(wheels.missing(present))
    assert "typing-inspection" in missing and not {"typing-inspection", "platformdirs"} & present
    modules = {*NEEDED, "benchmarks.gpu.session", "contract_cases", "resumable"} | {job.module for job in jobs()}
    on_machine, waiting = {*missing, "torch"}, [*present]
    while waiting:  # what is there has what it needs, in the version that is there
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
