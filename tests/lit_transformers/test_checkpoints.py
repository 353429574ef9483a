"""A checkpoint of which a byte has changed is refused, and so is what never was one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_transformers.checkpoints import read
from lit_transformers.config import ConfigError

HELD = {"lit_transformers": {"config": {"seed": 3}}, "state_dict": {"weight": torch.arange(40.0), "steps": 7}}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(part, other[name]) for name, part in one.items())
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_a_bit_that_flips_anywhere_is_refused_or_was_of_nothing_that_is_read(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.ckpt", tmp_path / "damaged.ckpt"
    torch.save(HELD, whole)
    content = whole.read_bytes()
    refused = 0
    for place in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        damaged.write_bytes(flipped)
        try:
            assert equal(read(damaged), HELD), f"byte {place}"
        except ConfigError as error:
            assert error.path == str(damaged)
            refused += 1
    assert equal(read(whole), HELD) and refused > len(content) / 6


@pytest.mark.parametrize("content", [b"not a checkpoint\n", b"", b"PK\x03\x04 and no more"])
def test_what_is_no_checkpoint_is_refused_by_its_name_and_fault(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.ckpt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert str(refusal.value) == f"{path}: is no checkpoint of a run, or a damaged one: File is not a zip file"
