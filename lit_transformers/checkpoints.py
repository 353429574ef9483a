"""Checkpoints are read as they were written, or refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from lit_transformers.config import ConfigError
from lit_transformers.record import first_line


def read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """What a checkpoint of a run holds, on the CPU. Nothing in the file is executed; mmap: tensors stay on disk.

    Raises ConfigError, with the file and the fault, for what is damaged or no checkpoint of this suite.
    """
    verify(path)
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        found["lit_transformers"], found["state_dict"]
    except Exception as error:
        raise ConfigError(f"is no checkpoint of a run: {first_line(error)}", str(path)) from None
    return found


def verify(path: Path) -> None:
    """Raises ConfigError where a byte is not as torch.save wrote it.

    Such a file is a zip archive with a part for each tensor, and each part has a checksum (CRC-32), which torch.load
    does not look at.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # of a file that is no archive, or has a damaged list of parts, errors are of many types
        raise ConfigError(f"is no checkpoint of a run, or a damaged one: {first_line(error)}", str(path)) from None
    if damaged is not None:
        way_out = "train again, or put a whole copy in its place"
        raise ConfigError(f"is a damaged checkpoint, its part {damaged} is not what was written: {way_out}", str(path))
