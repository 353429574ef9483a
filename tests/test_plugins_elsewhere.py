"""Plug-ins reach every process that does a run: ranks of torchrun, workers elsewhere; also of installed packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_project import SMALL, write_small_project

from lit_transformers.startup.search_path import SUITE

ROOT = Path(__file__).parents[1]
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "decaying-parts"
version = "1.0"
[project.entry-points."lit_transformers.plugins"]
decaying = "decaying_parts"
[tool.setuptools]
py-modules = ["decaying_parts"]
"""

pytestmark = pytest.mark.slow


def run(python: object, folder: Path, *words: object, path: str = "") -> subprocess.CompletedProcess[str]:
    paths = filter(None, [str(ROOT / "tests"), path, str(ROOT)])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120"}
    environment.pop("LIT_TRANSFORMERS_PLUGINS", None)
    command = [str(python), "-m", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)


def records(runs: Path) -> dict[str, dict[str, Any]]:
    """The records of all runs, by key."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(runs.glob("*/record.json"))}


def test_a_plugin_of_an_installed_package_reaches_the_ranks_of_torchrun(python: Path, tmp_path: Path) -> None:
    source, installed, work = (tmp_path / name for name in ("source", "installed", "work"))
    study = write_small_project(source).read_text()
    shutil.move(source / "my_parts.py", source / "decaying_parts.py")
    (source / "pyproject.toml").write_text(PYPROJECT)
    work.mkdir()
    (work / "decays.py").write_text(study.replace("my_parts", "decaying_parts"))
    pip = ["pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "--no-index", "--no-build-isolation"]
    placed = run(sys.executable, tmp_path, *pip, "--target", installed, source)
    assert placed.returncode == 0, placed.stderr
    words = ["run", "decays.py", "--devices", "2", "--rates", "0", *SMALL]
    done = run(python, work, "ablations", *words, path=str(installed))
    assert done.returncode == 0, done.stdout + done.stderr
    ends = records(work / "runs")
    assert {record["outcome"] for record in ends.values()} == {"finished"}
    mixers = [record["config"]["model"]["mixer"]["kind"] for record in ends.values()]
    assert sorted(mixers) == ["attention", "decay"]
    missing = run(python, work, "ablations", "plan", "decays.py")
    assert missing.returncode == 2 and "No module named 'decaying_parts'" in missing.stderr


def test_folders_without_modules_named_as_packages_of_the_suite_shadow_none_of_them(tmp_path: Path) -> None:
    """Where the suite is installed to be edited, Python would make such a folder a package, before it finds ours."""
    for name in SUITE:
        (tmp_path / name).mkdir()
    (tmp_path / "mine.py").write_text("from ablations import Ablation\n")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    words = [sys.executable, "-m", "ablations", "plan", "mine.py"]
    planned = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert planned.stderr.endswith("mine.py has to define ABLATION = Ablation(...)\n"), planned.stderr


def test_a_worker_in_another_folder_does_runs_of_a_project_with_a_plugin(python: Path, tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    study = write_small_project(project)
    elsewhere.mkdir()
    words = (study, "--runs", project / "runs", *SMALL)
    without = run(python, elsewhere, "ablations", "worker", *words)
    assert without.returncode == 2 and "No module named 'my_parts'" in without.stderr
    words = (*words, "--rates", "0")
    worker = run(python, elsewhere, "ablations", "worker", *words, "--plugin", project / "my_parts.py")
    assert worker.returncode == 0, worker.stdout + worker.stderr
    by_worker = records(project / "runs")
    assert len(by_worker) == 2 and {record["outcome"] for record in by_worker.values()} == {"finished"}
    status = run(python, project, "ablations", "status", "decay_or_attention", *SMALL)
    assert status.returncode == 0, status.stdout + status.stderr
    assert "2 finished" in status.stdout, "the project names the same plug-in, and its runs are the worker's"
    assert not list(elsewhere.iterdir())


def test_an_agent_of_wandb_gets_the_plugin_from_the_sweep(python: Path, tmp_path: Path) -> None:
    """W&B's agent runs the sweep's command, with an option for every parameter in place of the last word."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    study, runs = write_small_project(project), project / "runs"
    elsewhere.mkdir()
    words = ("--runs", runs, *SMALL, "--plugin", project / "my_parts.py")
    written = run(python, elsewhere, "ablations", "wandb", study, *words)
    assert written.returncode == 0, written.stdout + written.stderr
    (path,) = runs.glob("studies/*/wandb/grid.yaml")
    sweep = yaml.safe_load(path.read_text())
    (seed,) = sweep["parameters"]["seed"]["values"]
    arm = next(name for name in sweep["parameters"]["arm"]["values"] if "decay" in name)
    start = sweep["command"].index("-m") + 1
    typed = [*sweep["command"][start:-1], f"--arm={arm}", f"--seed={seed}", "--wandb", "disabled"]
    done = run(python, elsewhere, *typed)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = records(runs).values()
    assert (record["outcome"], record["config"]["model"]["mixer"]["kind"]) == ("finished", "decay")
