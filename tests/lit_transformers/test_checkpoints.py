"""A checkpoint of which a byte has changed is refused, and so is what never was one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.training.checkpoints import read

HELD = {"lit_transformers": {"config": {"seed": 3}}, "state_dict": {"weight": torch.arange(40.0), "steps": 7}}


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(part, second[name]) for name, part in first.items())
    return torch.equal(first, second) if isinstance(first, Tensor) else bool(first == second)


@pytest.mark.slow
def test_a_bit_that_flips_anywhere_is_refused_or_was_of_nothing_that_is_read(tmp_path: Path) -> None:
    intact_path, damaged_path = tmp_path / "whole.ckpt", tmp_path / "damaged.ckpt"
    torch.save(HELD, intact_path)
    content = intact_path.read_bytes()
    error_count = 0
    for index in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[index] ^= 1 << index % 8
        damaged_path.write_bytes(flipped)
        try:
            assert equal(read(damaged_path), HELD), f"byte {index}"
        except ConfigError as error:
            assert error.path == str(damaged_path)
            error_count += 1
    assert equal(read(intact_path), HELD) and error_count > len(content) / 6


def test_a_part_that_is_marked_as_a_folder_is_refused(tmp_path: Path) -> None:
    """torch.load reads nothing of it, and returns what was in memory."""
    path = tmp_path / "it.ckpt"
    torch.save(HELD, path)
    content = bytearray(path.read_bytes())
    attributes = content.rfind(b"PK\x01\x02", 0, content.rfind(b"it/data/0")) + 38
    content[attributes] |= 0x10
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is a damaged checkpoint, its part it/data/0 is not what was written"):
        read(path)


@pytest.mark.parametrize("content", [b"not a checkpoint\n", b"", b"PK\x03\x04 and no more"])
def test_what_is_no_checkpoint_is_refused_by_its_name_and_fault(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.ckpt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert str(refusal.value) == f"{path}: is no checkpoint of a run, or a damaged one: File is not a zip file"
