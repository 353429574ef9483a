"""The answer of a study as a run on W&B: tables and pictures of its report, in the group of the study's runs.

Its id follows from the study's folder, so that a new answer replaces the old one. Without a network it is an offline
run, which ``wandb sync`` sends.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import Plain, canonical_hash
from lit_transformers.runs.wandb_logging import private_settings
from lit_transformers.wandb_target import TAG_LETTERS, WandbTarget
from sweeps.wandb.sent import OFFLINE, SentViews, place_of, read_sent, write_sent

__all__ = [
    "JOB_TYPE",
    "PICTURES",
    "TABLES",
    "AnswerTable",
    "StudyAnswer",
    "answer_id",
    "offline_answers",
    "send_answer",
]

JOB_TYPE = "answer"
TABLES, PICTURES = "answer", "pictures"
"""The prefixes of the names of its tables and pictures."""


class AnswerTable(NamedTuple):
    """The columns and rows of a table; None stands for an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


class StudyAnswer(NamedTuple):
    """The parts of an answer that are shown.

    name: the name of the answer's run. summary and facts: the run's summary and config. pictures: PNG files with their
    captions, by name.
    """

    name: str
    summary: Mapping[str, Plain]
    facts: Mapping[str, Plain]
    tables: Mapping[str, AnswerTable]
    pictures: Mapping[str, tuple[Path, str]]

    def digest(self) -> str:
        """Returns a hash of all that is shown."""
        pictures = {
            name: [hashlib.sha256(path.read_bytes()).hexdigest(), caption]
            for name, (path, caption) in self.pictures.items()
        }
        tables = {name: [[*table.columns], [[*row] for row in table.rows]] for name, table in self.tables.items()}
        return canonical_hash([self.name, dict(self.summary), dict(self.facts), tables, pictures])


def answer_id(study: str) -> str:
    """Returns the id of the run that shows the answer of a study. study: the folder of its plan."""
    return f"answer-{canonical_hash(study)}"


def send_answer(answer: StudyAnswer, target: WandbTarget, study: str, folder: Path) -> bool:
    """Sends an answer, or writes it as an offline run below the folder ``wandb`` of a study, and returns whether that
    was necessary: an answer that was sent or written before is not sent again.

    study: the folder of its plan. folder: its path. Raises OSError where it cannot be written, and the errors of wandb
    where it cannot be sent.
    """
    place, before, digest = place_of(target), read_sent(folder), answer.digest()
    written = _offline_runs(folder, study)
    was_sent = before.get(place, SentViews()).answer == digest
    if was_sent or (target.mode == "offline" and written and before.get(OFFLINE, SentViews()).answer == digest):
        return False
    _log(answer, target, study, folder)
    for path in written:  # an older answer, which would be sent under the same id
        shutil.rmtree(path, ignore_errors=True)
    where = OFFLINE if target.mode == "offline" else place
    write_sent(folder, before | {where: before.get(where, SentViews())._replace(answer=digest)})
    return True


def offline_answers(folder: Path, study: str) -> str:
    """Returns the pattern of the offline runs of an answer, for ``wandb sync``."""
    return str(folder / "wandb" / f"offline-run-*-{answer_id(study)}")


def _offline_runs(folder: Path, study: str) -> list[Path]:
    return [*folder.glob(f"wandb/offline-run-*-{answer_id(study)}")]


def _log(answer: StudyAnswer, target: WandbTarget, study: str, folder: Path) -> None:
    import wandb

    wandb.setup(wandb.Settings(silent=True))  # otherwise it prompts for a key on a terminal
    run = wandb.init(
        project=target.project,
        entity=target.entity,
        mode=target.mode,
        dir=folder,
        id=answer_id(study),
        name=answer.name,
        group=study,
        job_type=JOB_TYPE,
        tags=[*_tags([study, JOB_TYPE, *target.tags])],
        config=dict(answer.facts),
        resume="allow" if target.mode == "online" else None,
        reinit="create_new",
        settings=private_settings(),
    )
    try:
        run.log(_shown(answer), commit=True)
        run.summary.update(dict(answer.summary))
    finally:
        run.finish()


def _tags(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(name[:TAG_LETTERS] for name in names)


def _shown(answer: StudyAnswer) -> dict[str, Any]:
    import wandb

    tables = {
        f"{TABLES}/{name}": wandb.Table(
            columns=[*table.columns], data=[[*row] for row in table.rows], allow_mixed_types=True
        )
        for name, table in answer.tables.items()
    }
    pictures = {
        f"{PICTURES}/{name}": wandb.Image(str(path), caption=caption)
        for name, (path, caption) in answer.pictures.items()
    }
    return tables | pictures
