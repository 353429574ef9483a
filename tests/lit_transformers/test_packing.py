"""Packed files: few bytes, read back to the bit, and refused where they are damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_transformers.compression.quantise_weights import rows_of
from lit_transformers.compression.share_values import shared_values
from lit_transformers.config import ConfigError
from lit_transformers.exchange.pack import pack_checkpoint
from lit_transformers.packing.codings import packed, unpacked
from lit_transformers.packing.packed_file import packed_contents, write_packed
from lit_transformers.quantisation import dequantised, levels_of
from lit_transformers.training.checkpoints import read


def matrix(rows: int = 128, columns: int = 256) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.05


def quantised(bits: int, symmetric: bool = True, granularity: str = "channel") -> Tensor:
    rows = rows_of(matrix(), granularity, 32)  # type: ignore[arg-type]
    return dequantised(levels_of(rows, bits, symmetric)).view(128, 256)


def pruned(share: float, of: Tensor) -> Tensor:
    return of.masked_fill(torch.rand(of.shape, generator=torch.Generator().manual_seed(1)) < share, 0)


def with_negative_zero(of: Tensor) -> Tensor:
    changed = of.clone()
    changed[0, 0] = -0.0
    return changed


# The most bits a weight may take: those of the levels, or their entropy, and those of scales, values and masks.
TENSORS: dict[str, tuple[Tensor, str, float]] = {
    "8 bits by channel": (quantised(8), "levels", 8.0),
    "4 bits by channel": (quantised(4), "levels", 3.6),
    "4 bits by group": (quantised(4, granularity="group"), "levels", 4.6),
    "4 bits, not symmetric": (quantised(4, symmetric=False), "levels", 3.8),
    "2 bits by channel": (quantised(2), "levels", 1.0),
    "3 bits by tensor": (quantised(3, granularity="tensor"), "palette", 1.8),
    "16 values": (shared_values(matrix(), 4, 20), "palette", 4.0),
    "zeros": (torch.zeros(64, 64), "sparse", 0.2),
    "nine of ten are zero": (pruned(0.9, matrix()), "sparse", 3.2 + 0.6),
    "a negative zero among zeros": (with_negative_zero(pruned(0.9, matrix())), "sparse", 3.2 + 0.6),
    "pruned and 4 bits": (pruned(0.7, quantised(4)), "levels", 2.4),
    "any weights": (matrix(), "raw", 32.0),
    "a negative zero": (torch.tensor([[0.0, -0.0, 1.0, -1.0]]).repeat(64, 1), "palette", 4.0),
    "no numbers": (torch.tensor([[torch.nan, torch.inf, -torch.inf, 1e-42]]).repeat(64, 1), "palette", 4.0),
    "a number": (torch.tensor(0.5), "raw", 32.0),
    "a vector": (torch.randn(7), "raw", 32.0),
    "nothing": (torch.zeros(0, 4), "raw", 32.0),
    "integers": (torch.arange(12).view(3, 4), "raw", 64.0),
    "bfloat16": (matrix().bfloat16(), "raw", 16.0),
    "numbers of bfloat16": (matrix().bfloat16().float(), "bfloat16", 16.0),
    "bfloat16 without numbers": (torch.tensor([[torch.nan, -0.0, *range(700)]]).bfloat16().float(), "bfloat16", 16.0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_takes_few_bits_and_is_read_back_to_the_bit(name: str) -> None:
    tensor, coding, most = TENSORS[name]
    own = packed(tensor)
    back = unpacked(own)
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert own.coding == coding and 8 * len(own.data) <= most * tensor.numel()


def test_tied_tensors_are_stored_once_and_plain_data_are_kept(tmp_path: Path) -> None:
    table = matrix()
    weights = {"table": table, "bias": torch.randn(5), "softmax": table}
    stored = write_packed(tmp_path / "a.packed", {"config": {"seed": 3}}, weights)
    plain, back = packed_contents(tmp_path / "a.packed")
    assert stored.keys() == {"table", "bias"} and plain == {"config": {"seed": 3}}
    assert all(torch.equal(back[name], tensor) for name, tensor in weights.items()) and back.keys() == weights.keys()


@pytest.mark.parametrize("place", [0, 7, 9, 40, -200, -2])
def test_a_flipped_byte_is_refused_wherever_it_is(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.packed"
    write_packed(path, {}, {"table": quantised(4)})
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"a\.packed: is "):
        read(path)


@pytest.mark.parametrize("length", [0, 6, 8, 12, 100, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.packed"
    write_packed(path, {}, {"table": quantised(4)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigError, match=r"cut short|no checkpoint"):
        read(path)


def test_a_file_of_another_version_is_refused_with_both(tmp_path: Path) -> None:
    path = tmp_path / "a.packed"
    path.write_bytes(struct.pack("<7sBQ", b"LITPACK", 2, 0))
    with pytest.raises(ConfigError, match="of version 2; this suite reads version 1"):
        read(path)


def test_a_checkpoint_is_packed_once_and_only_a_checkpoint(tmp_path: Path) -> None:
    torch.save(
        {
            "lit_transformers": {"config": {}},
            "state_dict": {"a.weight": quantised(4), "a.count": torch.tensor(3), "b.weight": matrix().bfloat16()},
        },
        tmp_path / "a.ckpt",
    )
    lines = pack_checkpoint(tmp_path / "a.ckpt", tmp_path / "a.packed")
    assert lines[0].startswith("levels: 1 tensors, ") and "times smaller" in lines[-1]
    assert read(tmp_path / "a.packed")["state_dict"]["a.count"] == 3
    assert torch.equal(read(tmp_path / "a.packed")["state_dict"]["a.weight"], quantised(4))
    assert torch.equal(read(tmp_path / "a.packed")["state_dict"]["b.weight"], matrix().bfloat16())
    with pytest.raises(ConfigError, match="exists; name a new file"):
        pack_checkpoint(tmp_path / "a.ckpt", tmp_path / "a.packed")
    with pytest.raises(ConfigError, match="is no checkpoint of a run"):
        pack_checkpoint(tmp_path, tmp_path / "b.packed")
