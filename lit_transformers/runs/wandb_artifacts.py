"""The files of a run as artifacts at W&B, with their lineage: study file and commit, run, checkpoint and outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS, OUTPUTS, RECORD, RUN
from lit_transformers.records.record import Record, record_to_plain

if TYPE_CHECKING:
    import wandb

__all__ = ["log_artifacts"]

FILES = {"model": (CHECKPOINT,), "outputs": (RUN, CURVES, DOCUMENTS, OUTPUTS)}
"""The files of each type of artifact."""


def log_artifacts(run: wandb.Run, directory: Path, record: Record, study_file: Path) -> None:
    """Sends the file of the study as an input of the run, and the run's checkpoint and outputs as its results.

    A study file that has not changed is one version for all runs. Offline it is sent as a result of the run, since
    wandb refuses an input there. Files that the run has not written are left out.
    Raises OSError where a file cannot be read.
    """
    import wandb

    commit = record.environment.get("commit")
    study = wandb.Artifact(f"study-{_name(study_file.stem)}", "study", metadata={"commit": commit})
    study.add_file(str(study_file), name=study_file.name)
    if run.offline:  # wandb can use an artifact online only
        run.log_artifact(study)
    else:
        run.use_artifact(study)
    for kind, names in FILES.items():
        paths = [directory / name for name in names if (directory / name).is_file()]
        if not paths:
            continue
        metadata = {"run_key": record.key, "seed": record.seed, "commit": commit}
        artifact = wandb.Artifact(f"{kind}-{record.key}", kind, metadata=metadata)
        for path in paths:
            artifact.add_file(str(path), name=path.name, policy="immutable")
        if kind == "outputs":  # the run's own file is written when it has ended
            with artifact.new_file(RECORD, encoding="utf-8") as file:
                json.dump(record_to_plain(record), file, indent=1, ensure_ascii=False)
        run.log_artifact(artifact)


def _name(text: str) -> str:
    """Returns a text in which the characters that no name of an artifact may hold are replaced."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in text)
