"""Packed checkpoints: one file with the plain data of a checkpoint and its tensors, each in its shortest coding.

bytes 0-7      "LITPACK" and the version
bytes 8-15     length of the header
header         JSON, compressed: the plain data, and for each tensor its name, coding, shape, dtype and details, and
               the length of its bytes
then           the bytes of the tensors
last 4 bytes   CRC-32 of all bytes before them
"""

from __future__ import annotations

import json
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.packing.codings import PackedTensor, packed, unpacked
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.files import replace_file

__all__ = ["is_packed", "packed_bytes", "packed_contents", "write_packed"]

MAGIC, VERSION = b"LITPACK", 1
START = struct.Struct("<7sBQ")


def is_packed(path: Path) -> bool:
    """Whether there is a file that begins as a packed one does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def packed_bytes(
    plain: Mapping[str, Any], tensors: Mapping[str, Tensor], progress: Callable[[str], None] = lambda name: None
) -> tuple[bytes, dict[str, PackedTensor]]:
    """Returns the file's bytes and the packed tensors by name. Tensors that share their storage, such as tied
    embeddings, are stored once. progress: called with each name before it is packed."""
    stored: dict[str, PackedTensor] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and place in first:
            same[name] = first[place]
            continue
        first[place] = name
        progress(name)
        stored[name] = packed(tensor)
    entries = {name: {**asdict(own), "data": len(own.data)} for name, own in stored.items()}
    header = lzma.compress(json.dumps({"plain": plain, "tensors": entries, "same": same}).encode())
    parts = [START.pack(MAGIC, VERSION, len(header)), header, *(own.data for own in stored.values())]
    whole = b"".join(parts)
    return whole + struct.pack("<I", zlib.crc32(whole)), stored


def write_packed(
    path: Path,
    plain: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, PackedTensor]:
    """Writes a packed file, and returns the packed tensors by name."""
    data, stored = packed_bytes(plain, tensors, progress)
    replace_file(path, lambda fresh: fresh.write_bytes(data))
    return stored


def packed_contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the plain data and the tensors of a packed file. Raises ConfigError, with the file and the fault, where
    it is cut short, damaged or of another version."""
    data = path.read_bytes()
    try:
        magic, version, length = START.unpack_from(data)
    except struct.error:
        raise ConfigError("is a packed file that is cut short; pack again", str(path)) from None
    if magic != MAGIC or version != VERSION:
        raise ConfigError(f"is a packed file of version {version}; this suite reads version {VERSION}", str(path))
    if len(data) < START.size + length + 4 or struct.unpack("<I", data[-4:])[0] != zlib.crc32(data[:-4]):
        raise ConfigError("is a packed file that is cut short or damaged; pack again", str(path))
    try:
        header = json.loads(lzma.decompress(data[START.size : START.size + length]))
        tensors: dict[str, Tensor] = {}
        begin = START.size + length
        for name, entry in header["tensors"].items():
            end = begin + entry["data"]
            own = PackedTensor(
                entry["coding"], tuple(entry["shape"]), entry["dtype"], data[begin:end], entry["details"]
            )
            tensors[name], begin = unpacked(own), end
        tensors |= {name: tensors[first] for name, first in header["same"].items()}
    except Exception as error:
        raise ConfigError(f"is a packed file that cannot be read: {first_line(error)}", str(path)) from None
    return header["plain"], tensors
