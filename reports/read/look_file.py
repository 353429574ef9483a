"""The file that declares, before the first result, how a table is judged: its looks, arms, metric, margin and baseline.

Whoever commits it before the runs can show later that neither the seeds at which they looked nor the size that counts
as an effect were chosen by the results.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from lit_transformers.config import ConfigError
from lit_transformers.records.files import write_json
from lit_transformers.records.measure import Goal
from lit_transformers.records.schema import IF_ANY, Checked, Name, Number, first_fault, parse, to_plain
from reports.read.study import ReportError
from reports.read.table_study import TableQuestion

__all__ = ["LookFile", "committed", "load_look_file"]

_OPTIONS = {"baselines": "--baseline", "goal": "--minimize or --maximize", "step": "--over"}
_OF_COLUMNS = ("metric", "task", "correct", "total", "step")


@dataclass(frozen=True)
class LookFile(Checked):
    """The looks of a judgement and its question. step: the column of the time to a target. Other fields: as in
    ``TableQuestion`` and ``ColumnRoles``."""

    metric: Name
    goal: Goal
    looks: tuple[int, ...]
    arms: tuple[str, ...]
    baselines: Annotated[tuple[str, ...], IF_ANY] = ()
    margin: Annotated[Number | None, IF_ANY] = None
    target: Annotated[Number | None, IF_ANY] = None
    to_target: Annotated[Number | None, IF_ANY] = None
    step: Annotated[str | None, IF_ANY] = None
    ratio: Annotated[bool, IF_ANY] = False
    unpaired: Annotated[bool, IF_ANY] = False
    task: Annotated[str | None, IF_ANY] = None
    correct: Annotated[str | None, IF_ANY] = None
    total: Annotated[str | None, IF_ANY] = None

    def check(self) -> None:
        if not self.looks or any(first >= second for first, second in zip((0, *self.looks), self.looks, strict=False)):
            raise ConfigError(f"looks {self.looks} do not rise; name each number of seeds once, in order", "looks")

    @classmethod
    def of(cls, question: TableQuestion, goal: Goal, baselines: tuple[str, ...], arms: tuple[str, ...]) -> LookFile:
        """Returns the file of a question whose goal, baselines and arms are known."""
        given = {name: _given(question, name) for name in (one.name for one in fields(cls))}
        return cls(**{**given, "goal": goal, "baselines": baselines, "arms": arms})

    def write(self, path: Path) -> None:
        write_json(path, to_plain(self))

    def applied(self, question: TableQuestion, path: Path) -> TableQuestion:
        """Returns the question as it was declared. Raises ReportError where it states something else."""
        for name in (one.name for one in fields(self)):
            given, declared = _given(question, name), getattr(self, name)
            if given and given != declared:
                option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
                raise ReportError(
                    f"{path} declares {option} {_text(declared)}, and the command says {_text(given)}; omit the "
                    "option, or judge without --plan"
                )
        columns = replace(
            question.columns,
            metric=self.metric,
            task=self.task,
            correct=self.correct,
            total=self.total,
            step=self.step or question.columns.step,
        )
        others = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _OF_COLUMNS}
        return replace(question, columns=columns, **others)


def _given(question: TableQuestion, name: str) -> Any:
    if name == "step" and question.to_target is None:
        return None
    return getattr(question.columns if name in _OF_COLUMNS else question, name)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "nothing"
    return "nothing" if value in (None, False) else f"{value:g}" if isinstance(value, float) else str(value)


def load_look_file(path: Path) -> LookFile:
    """Reads such a file. Raises ReportError where it holds none, OSError where it cannot be read."""
    try:
        return parse(LookFile, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: declares no looks ({first_fault(error)}); write it by --write-plan") from None


def committed(path: Path) -> str:
    """Returns in a sentence whether a file is committed in git as it is, and since when."""
    commit = _git(path, "log", "-1", "--format=%h of %cs")
    if not commit:
        return f"looks: declared in {path.name}, which is in no commit: nothing shows that it is older than the results"
    if _git(path, "status", "--porcelain"):
        return f"looks: declared in {path.name}, which has changed since its last commit, {commit}"
    return f"looks: declared in {path.name}, unchanged since commit {commit}"


def _git(path: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(path.resolve().parent), *arguments, "--", path.name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
