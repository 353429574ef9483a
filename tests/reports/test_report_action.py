"""The checks that other repositories run: the steps of a workflow that uses the action, and the hook of pre-commit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reports import judge_table
from reports.judged_table import JudgedTable
from reports.read.study import ReportError

ROOT = Path(__file__).parents[2]
WORKFLOW = """
on: pull_request
jobs:
  gain:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: OWNER/lit-transformers@main
        with:
          table: runs/results.csv
          metric: val_loss
          options: --baseline main --margin 0.01
"""


def table(folder: Path, gain: float) -> None:
    (folder / "runs").mkdir()
    values = {"main": (3.281, 3.279, 3.282, 3.280), "new": (3.281, 3.280, 3.280, 3.283)}
    rows = [f"{arm},{seed},{value - gain * (arm == 'new')}" for arm in values for seed, value in enumerate(values[arm])]
    (folder / "runs" / "results.csv").write_text("arm,seed,val_loss\n" + "\n".join(rows) + "\n")


PYTHON = """#!/bin/sh
if [ "$1 $2 $3" = "-m pip install" ]; then shift 3; echo "$@" > "$HERE/installed.txt"; exit; fi
PYTHONPATH="$HERE/bin:$PYTHONPATH" exec "$REAL_PYTHON" "$@"
"""
"""The Python of a runner, which notes the packages to install in place of installing them."""
REFUSES_IMPORTS = """
import os, sys
refused = {*open(os.path.join(os.environ["HERE"], "refused.txt")).read().split()}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} was not installed", name=name)
sys.meta_path.insert(0, Finder)
"""
"""Code that restricts the environment of the tests to the packages that were installed."""


def runner(folder: Path) -> dict[str, str]:
    """Returns the environment of a runner whose Python is the one above."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(PYTHON)
    (folder / "bin" / "python").chmod(0o755)
    (folder / "bin" / "sitecustomize.py").write_text(REFUSES_IMPORTS)
    return {"HERE": str(folder), "REAL_PYTHON": sys.executable, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}


def run_step(command: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def with_requirements(names: Iterable[str]) -> set[str]:
    """Returns packages with all that are installed with them, by their normalised names."""
    closure, pending = set[str](), [*names]
    while pending:
        name = canonicalize_name(pending.pop())
        if name not in closure:
            closure.add(name)
            known = [Requirement(text) for text in requires(name) or ()]
            pending += [one.name for one in known if one.marker is None or one.marker.evaluate({"extra": ""})]
    return closure


def steps() -> list[tuple[str, dict[str, str]]]:
    """Returns the commands of the action as the workflow uses it, and their environments."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (given,) = (step["with"] for step in yaml.safe_load(WORKFLOW)["jobs"]["gain"]["steps"] if "with" in step)
    assert given.keys() <= action["inputs"].keys()
    values = {f"inputs.{name}": given.get(name, one.get("default", "")) for name, one in action["inputs"].items()}
    values["github.action_path"] = str(ROOT)
    return [
        (
            step["run"],
            {
                name: re.sub(r"\${{ (.*?) }}", lambda use: values[use[1]], text)
                for name, text in step.get("env", {}).items()
            },
        )
        for step in action["runs"]["steps"]
    ]


@pytest.mark.parametrize(("gain", "status"), [(0.05, 0), (0.0, 1)])
def test_the_steps_of_the_workflow_fail_where_a_claimed_gain_does_not_hold(
    tmp_path: Path, gain: float, status: int
) -> None:
    """Judging has the packages alone that are installed for it."""
    table(tmp_path, gain)
    summary = tmp_path / "summary.md"
    common = {**os.environ, **runner(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    (install, _), (judge, environment) = steps()
    assert run_step(install, tmp_path, common).returncode == 0
    typed = (tmp_path / "installed.txt").read_text().split()
    installed = with_requirements(word for word in typed if not word.startswith("-")) | {"lit-transformers"}
    refused = [
        name for name, owners in packages_distributions().items() if not installed & {*map(canonicalize_name, owners)}
    ]
    (tmp_path / "refused.txt").write_text(" ".join(refused))
    ended = run_step(judge, tmp_path, {**common, **environment})
    assert "torch" in refused and ended.returncode == status, ended.stdout + ended.stderr
    assert "new against main" in summary.read_text() and summary.read_text().count("```") == 2


def test_the_hook_of_pre_commit_fails_where_a_claimed_gain_does_not_hold(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *command = shlex.split(hook["entry"])
    assert program == "lit-reports"
    table(tmp_path, 0.0)
    arguments = [*command, "runs/results.csv", "--metric", "val_loss", "--require", "better"]
    done = subprocess.run(
        [sys.executable, "-m", "reports", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1


def judged(tmp_path: Path) -> JudgedTable:
    table(tmp_path, 0.05)
    return judge_table(tmp_path / "runs" / "results.csv", "val_loss")


def test_a_notebook_shows_the_answer_and_its_tables(tmp_path: Path) -> None:
    text = judged(tmp_path)._repr_html_()
    assert "Better: new against main" in text
    assert text.count("<table") >= 2
    assert "<button" not in text
    assert "arm: the column arm" in text


def test_a_figure_is_the_one_of_the_report(tmp_path: Path) -> None:
    findings = judged(tmp_path)
    findings.to(tmp_path / "report")
    findings.plot().savefig(tmp_path / "plotted.png", dpi=150, metadata={"Software": None})
    assert (tmp_path / "plotted.png").read_bytes() == (tmp_path / "report" / "differences.png").read_bytes()
    with pytest.raises(ReportError, match="there is no figure 'difference'; did you mean differences"):
        findings.plot("difference")
