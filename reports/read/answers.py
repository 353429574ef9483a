"""Which comparisons answer the questions of studies that were published before their plans said so.

``answers.json`` lies next to the publications and holds, by the folder of each, names like those of ``Plan.answer``.
The results of a publication stay as they were measured and planned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lit_transformers.records.files import write_json
from reports.read.study import ReportError, Study

ANSWERS = "answers.json"
FORMER = "former_verdicts.json"
"""A file next to the publications: by folder and comparison, the verdict with which the comparison was published."""
STATED_LATER = "Which comparisons answer the question was stated after these results were known."


def with_answer(study: Study, directory: Path) -> Study:
    """Returns a published study, of this folder, with the answer that was stated later, which a note says; unchanged
    where its plan has one or none was stated. Raises ReportError where the file of answers is damaged."""
    answer = _read(directory.parent / ANSWERS).get(directory.name)
    if answer is None or study.plan.answer is not None:
        return study
    return replace(study, plan=replace(study.plan, answer=tuple(answer)), notes=(*study.notes, STATED_LATER))


def former_verdicts(directory: Path) -> dict[str, str]:
    """Returns the verdicts that the study of this folder was published with, by comparison; empty where none are kept.
    Raises ReportError where the file is damaged."""
    path = directory.parent / FORMER
    if not path.exists():
        return {}
    try:
        former: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        return dict(former.get(directory.name, {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise ReportError(f"{path}: damaged ({error}); restore it: git checkout {path.name}") from None


def write_answers(folder: Path, answers: Mapping[str, Sequence[str]]) -> Path:
    """Writes the answers of the publications in a folder, by theirs, and returns the path of the file."""
    path = folder / ANSWERS
    write_json(path, {name: list(answers[name]) for name in sorted(answers)})
    return path


def _read(path: Path) -> dict[str, list[str]]:
    if not path.exists():
        return {}
    remedy = "write it again by: python -m ablations answers"
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path}: {error}; {remedy}") from None
    is_valid = isinstance(answers, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in answers.values()
    )
    if not is_valid:
        raise ReportError(f"{path}: does not hold lists of names by folder; {remedy}")
    return answers
