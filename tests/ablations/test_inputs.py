"""The inputs from outside of the suite that planning a study reads, and whose change makes a stored plan void, on the
stand-in."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ablations import options
from ablations.inputs import IMPORTED
from ablations.options import whole_plan_for
from ablations.plan import PlannedStudy, Request

STUDY = """
import importlib, os
from pathlib import Path
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig
from bits_of_study import STEPS
try:
    from bits_of_one_machine import EXTRA
except ImportError:
    EXTRA = 0
FOLDER = Path(__file__).parent
LATE = importlib.import_module("bits_" + "late").LATE
STEPS += EXTRA + LATE + int((FOLDER / "steps.txt").read_text()) + len(list((FOLDER / "texts").iterdir()))
STEPS += int(os.environ.get("BITS_STEPS", "0")) + sum(name.startswith("BITS_OF_") for name in os.environ)
os.environ["BITS_THREADS"] = "1"
STEPS *= int(os.environ["BITS_THREADS"])
ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig().override({"training.steps": STEPS}),
    factors={"memory": {"8": {}, "0": {"model.mixer.memory": 0}}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""
FILES = {
    "memory.py": STUDY,
    "bits_of_study.py": "from bits_package import STEPS\n",
    "bits_package/__init__.py": "from .inner import STEPS\n",
    "bits_package/inner.py": "STEPS = 10\n",
    "bits_late.py": "LATE = 0\n",
    "steps.txt": "0",
    "texts/first.txt": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of a study, with the files that the study reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("BITS_THREADS", raising=False)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("bits_")]:
        del sys.modules[name]
    IMPORTED.clear()


@pytest.fixture
def plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, bool]]:
    """Plans the study; returns the steps of its runs, and whether the plan was made now."""
    makes: list[PlannedStudy] = []
    make = options.load_and_plan
    monkeypatch.setattr(options, "load_and_plan", lambda *given: makes.append(make(*given)) or makes[-1])

    def planned() -> tuple[int, bool]:
        makes.clear()
        monkeypatch.delenv("BITS_THREADS", raising=False)
        study = whole_plan_for("memory.py", Path("runs"), Request())
        return next(iter(study.configs.values()))["training"]["steps"], bool(makes)

    return planned


def edit_in_time(path: str, old: str, new: str) -> None:
    """Replaces as much text as there was, and keeps the file's time, by which Python tells compiled code from newer."""
    text, time = Path(path).read_text(), Path(path).stat().st_mtime_ns
    assert old in text and len(old) == len(new)
    Path(path).write_text(text.replace(old, new))
    os.utime(path, ns=(time, time))


EDITS: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], int]] = {
    "the study": (lambda patch: edit_in_time("memory.py", "STEPS *= int(", "STEPS += int("), 12),
    "a module": (lambda patch: Path("bits_of_study.py").write_text("STEPS = 20\n"), 21),
    "a module that a module imports": (lambda patch: edit_in_time("bits_package/inner.py", "10", "20"), 21),
    "a module by a name that is computed": (lambda patch: Path("bits_late.py").write_text("LATE = 5\n"), 16),
    "a module that was not there": (lambda patch: Path("bits_of_one_machine.py").write_text("EXTRA = 3\n"), 14),
    "a file": (lambda patch: Path("steps.txt").write_text("4"), 15),
    "the names in a folder": (lambda patch: Path("texts/second.txt").write_text(""), 12),
    "a variable": (lambda patch: patch.setenv("BITS_STEPS", "6"), 17),
    "the names of variables": (lambda patch: patch.setenv("BITS_OF_MINE", ""), 12),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_plan_that_was_kept_holds_until_what_the_study_read_changes(
    folder: Path, plan: Callable[[], tuple[int, bool]], edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan() == (11, True) and plan() == (11, False)
    change, steps = EDITS[edit]
    change(monkeypatch)
    assert plan() == (steps, True) and plan() == (steps, False)


def test_a_plan_of_a_module_that_was_edited_after_this_process_imported_it_is_not_kept(
    folder: Path, plan: Callable[[], tuple[int, bool]]
) -> None:
    importlib.import_module("bits_of_study")  # as a notebook does, where it stays as it was
    Path("bits_package/inner.py").write_text("STEPS = 20\n")
    assert plan() == (11, True) and plan() == (11, True)


def test_a_compiled_module_outside_of_installed_packages_is_an_input_that_is_not_parsed(
    folder: Path, plan: Callable[[], tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of packages that PYTHONPATH names."""
    compiled = types.ModuleType("bits_compiled")
    compiled.__file__ = str(folder / "bits_compiled.so")
    (folder / "bits_compiled.so").write_bytes(b"\x7fELF\0\0")
    os.utime(folder / "bits_compiled.so", (0, 0))  # before this process imported it
    monkeypatch.setitem(sys.modules, "bits_compiled", compiled)
    (folder / "bits_late.py").write_text("import bits_compiled\nLATE = 0\n")
    assert plan() == (11, True) and plan() == (11, False)
    (folder / "bits_compiled.so").write_bytes(b"\x7fELF\0\0\0")
    assert plan() == (11, True)


def test_what_code_of_the_suite_reads_by_itself_is_no_input(folder: Path, plan: Callable[[], tuple[int, bool]]) -> None:
    study = whole_plan_for("memory.py", Path("runs"), Request())
    outside = [path for path, stamp in study.inputs["paths"].items() if stamp is not None]
    assert {Path(path).relative_to(folder).as_posix() for path in outside if Path(path).is_relative_to(folder)} == {
        *FILES.keys() - {"texts/first.txt"},
        "texts",
    }
    assert not [path for path in outside if "site-packages" in path or "/ablations/" in path]
    assert "BITS_THREADS" not in study.inputs["variables"]
