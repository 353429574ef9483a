"""Reuses weights: runs that differ only in how they are measured train once, and later ones copy the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import replace_file
from lit_transformers.runs.config import RunConfig
from lit_transformers.training.checkpoints import TRAINING, read

FOLDER = "trained"


def takes_over(config: RunConfig) -> bool:
    """Whether a run copies the weights that a run with the same training key has trained. Several ranks would have to
    agree on the donor, a run that validates meanwhile has separate curves, and one of no steps trains nothing."""
    training = config.training
    return training.devices == 1 and training.validate_every is None and training.steps > 0


def take_over(directory: Path, training_key: str, checkpoint: str, held: Mapping[str, Plain]) -> str | None:
    """Copies the final checkpoint of a run with the same training key into ``directory``, unless that has its own.

    held: the contents of the checkpoint in that directory besides its weights: the config and the data of the run that
    takes the weights over. Returns the name of the run that they came from, or None where there is none, its checkpoint
    is damaged, or its folder now holds another run. Runs that train at the same time train independently, with equal
    results.
    """
    marker = directory.parent / FOLDER / training_key
    if (directory / checkpoint).exists() or not marker.exists():
        return None
    donor = marker.read_text(encoding="utf-8").strip()
    source = directory.parent / donor / checkpoint
    if donor != Path(donor).name or not source.exists():
        return None
    try:
        contents = read(source, mmap=True)
    except ConfigError as error:
        print(f"{error}; this run is trained by itself", flush=True)
        return None
    if contents["lit_transformers"].get(TRAINING) != training_key:
        return None
    contents["lit_transformers"] = dict(held)
    replace_file(directory / checkpoint, lambda fresh: torch.save(contents, fresh))
    return donor


def offer(directory: Path, training_key: str) -> None:
    """Records that the run in ``directory`` is fully trained, under its training key, for other runs."""
    marker = directory.parent / FOLDER / training_key
    marker.parent.mkdir(exist_ok=True)
    replace_file(marker, lambda fresh: fresh.write_text(directory.name, encoding="utf-8"))
