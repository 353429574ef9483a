"""Reads checkpoints, and refuses damaged ones."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from lit_transformers.config import ConfigError
from lit_transformers.packing.packed_file import is_packed, packed_contents
from lit_transformers.printing.error_lines import first_line

_FOLDER = 0x10
"""The bit of a part's attributes by which it is a folder, as MS-DOS had it."""
TRAINING = "training_key"
"""The key of the training key in a checkpoint's plain data."""
CODE = "code"
"""The key of the hashes of the modules of plug-ins that a network was trained by, in a checkpoint's plain data."""


def read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Returns the contents of a run's checkpoint, on the CPU; of a packed one its plain data and its weights.

    Nothing in the file is executed.
    mmap: tensors stay on disk, unless they are packed.
    Raises ConfigError, with the file and the fault, where the file is damaged or is no checkpoint of this suite.
    """
    if is_packed(path):
        plain, weights = packed_contents(path)
        return {"lit_transformers": plain, "state_dict": weights}
    verify(path)
    try:
        contents: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        contents["lit_transformers"], contents["state_dict"]
    except Exception as error:
        raise ConfigError(f"is no checkpoint of a run: {first_line(error)}", str(path)) from None
    return contents


def verify(path: Path) -> None:
    """Raises ConfigError where a byte differs from the file that torch.save wrote."""
    try:
        damaged = damaged_part(path)
    except Exception as error:  # the type of the error varies with the damage
        raise ConfigError(f"is no checkpoint of a run, or a damaged one: {first_line(error)}", str(path)) from None
    if damaged is not None:
        remedy = "train again, or put a whole copy in its place"
        raise ConfigError(
            f"is a damaged checkpoint, its part {damaged} has changed since it was written: {remedy}", str(path)
        )


def damaged_part(path: Path) -> str | None:
    """Returns the name of a part in which a byte differs from the file that torch.save wrote; None where none differs.

    Such a file is a zip archive with a part for each tensor, and each part has a checksum (CRC-32), which torch.load
    does not look at. Of a part that is marked as a folder torch.load reads nothing, and returns uninitialised memory.
    Raises several kinds of errors where it is no zip archive.
    """
    with zipfile.ZipFile(path) as archive:
        folders = (part.filename for part in archive.infolist() if part.external_attr & _FOLDER)
        return archive.testzip() or next(folders, None)
