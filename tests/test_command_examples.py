"""The studies of commands in examples/ run as they stand: each to its report, by the command that their users type."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import warm_python

from lit_transformers.records.files import RECORD

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "descent_study": ("", "loss", 8, ("--until", "decided")),
    "forest_study": ("sklearn", "accuracy", 8, ()),
    "nano_gpt_study": ("torch", "val_loss", 6, ("--rates", "0")),
    "trainer_study": ("transformers", "eval_loss", 6, ("--rates", "0")),
}
"""The package that each needs besides the suite, its metric, the number of its runs, and further options. The first one
adds seeds after a look."""
HEAVY = ("sklearn.ensemble", "sklearn.datasets", "transformers.trainer")
"""Modules of the commands that take seconds to import; the installed ones are imported once for all commands."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Path]:
    """A ``python`` that has imported these modules."""
    with warm_python(*(name for name in HEAVY if importlib.util.find_spec(name.partition(".")[0]))) as folder:
        yield folder / "python"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "descent_study" else pytest.mark.slow) for name in EXAMPLES]
)
def test_a_study_of_a_command_runs_to_its_report(name: str, warm: Path, tmp_path: Path) -> None:
    package, metric, count, options = EXAMPLES[name]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    words = ["run", f"examples/commands/{name}.py", "--runs", str(tmp_path), "--workers", "2", *options]
    ended = subprocess.run([warm, "-m", "ablations", *words], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = [json.loads(path.read_text()) for path in tmp_path.glob(f"*/{RECORD}")]
    assert len(records) == count and {record["outcome"] for record in records} == {"finished"}
    assert len({record["metrics"][metric] for record in records}) == count, "arms or seeds have the same numbers"
    report = (tmp_path / "studies" / name / "report" / "report.md").read_text()
    assert "stopped run" in (tmp_path / "studies" / name / "plan.json").read_text() and "against the baseline" in report
