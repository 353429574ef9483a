"""Runs that differ only in how they are measured are trained once: the later ones take over the weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from lit_transformers.checkpoints import read
from lit_transformers.config import ConfigError
from lit_transformers.files import replace_file
from lit_transformers.folder import TRAINING

FOLDER = "trained"


def take_over(directory: Path, training_key: str, checkpoint: str) -> str | None:
    """Copies the final checkpoint of a finished run that was trained alike into ``directory``, unless it has its own.

    Returns the name of the run it came from, or None, as where its checkpoint is damaged or its folder holds another
    run by now. Runs that train at the same time do so apart, with equal results.
    """
    note = directory.parent / FOLDER / training_key
    if (directory / checkpoint).exists() or not note.exists():
        return None
    donor = note.read_text(encoding="utf-8").strip()
    source = directory.parent / donor / checkpoint
    if donor != Path(donor).name or not source.exists():
        return None
    try:
        trained_as = read(source, mmap=True)["lit_transformers"].get(TRAINING)
    except ConfigError as error:
        print(f"{error}; this run is trained by itself", flush=True)
        return None
    if trained_as != training_key:
        return None
    replace_file(directory / checkpoint, lambda fresh: shutil.copyfile(source, fresh))
    return donor


def offer(directory: Path, training_key: str) -> None:
    """Notes that the run in ``directory`` is trained to the end."""
    note = directory.parent / FOLDER / training_key
    note.parent.mkdir(exist_ok=True)
    replace_file(note, lambda fresh: fresh.write_text(directory.name, encoding="utf-8"))
