"""Installed from a wheel, in an empty folder: a project of one's own from its first file to its publication."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which a wheel of this checkout is installed, as pip does it, with the files that it
    compiles; its dependencies are those of this environment."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "installed"))
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*pip, *built], check=True, timeout=600)
    (wheel,) = wheels.glob("*.whl")
    placed = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([*pip, *placed], check=True, timeout=600)
    shutil.copy(ROOT / "tests" / "sitecustomize.py", target)  # as for every other process of tests
    return target


def command(installed: Path, folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs an installed command in a folder."""
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-P", str(installed / "bin" / name), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def files(folder: Path) -> dict[str, int]:
    """The files below a folder, with the time of their last change."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_project_of_ones_own_goes_from_init_to_its_publication(installed: Path, tmp_path: Path) -> None:
    """Next to folders that have the names of packages of the suite. Nothing is written where the suite is installed."""
    before = files(installed)
    for name in ("reports", "sweeps"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user was imported')\n")
    steps = ("--set", "training.steps=4")
    outputs = {}
    for name, *words in (
        ("lit-transformers", "init"),
        ("lit-transformers", "check-plugin", "my_parts.py"),
        ("lit-ablations", "list"),
        ("lit-ablations", "run", "decay_or_attention", "--seeds", "2", "--rates", "0", *steps),
        ("lit-ablations", "new", "another_question"),
        ("lit-reports", "publish", "decay_or_attention", *steps),
    ):
        completed = command(installed, tmp_path, name, *words)
        assert completed.returncode == 0, f"{name} {words}: {completed.stdout}\n{completed.stderr}"
        outputs[words[0]] = completed.stdout
    assert "decay_or_attention" in outputs["list"] and "xl_recurrence" in outputs["list"]
    assert "causal, streams" in outputs["check-plugin"] and "failed" not in outputs["check-plugin"]
    assert (tmp_path / "studies" / "another_question.py").is_file()
    (report,) = (tmp_path / "published").glob("decay_or_attention*/report.md")
    assert "decay64" in report.read_text(encoding="utf-8")
    assert files(installed) == before


def test_a_folder_named_as_a_package_of_the_suite_shadows_nothing_but_its_own_command(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "reports.py").write_text("raise SystemExit('the file of the user was imported')\n")
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    words = [sys.executable, "-m", "ablations", "remark", "diet_masks"]  # which imports reports
    completed = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert "the file of the user" not in completed.stderr and completed.returncode == 2, completed.stderr
    (tmp_path / "first").mkdir()
    shutil.copy(tmp_path / "reports.py", tmp_path / "first")
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "first"), str(installed)])
    completed = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 2
    assert completed.stderr.startswith("error: ") and "stands before the package reports" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
