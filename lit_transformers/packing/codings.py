"""Codings of a tensor as bytes, each read back to the bit. ``packed`` chooses the shortest."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CODINGS", "PackedTensor", "packed", "raw_bytes", "unpacked"]

Array = NDArray[Any]
MOST_LEVELS = 255
"""The greatest magnitude of an integer level."""
ROW_SIZES = (256, 128, 64, 32, 16, 8)
"""The sizes of groups in a row that may have a scale, next to the whole row and the whole tensor."""
PROBE = 32
"""How many rows, and weights of a row, are looked at before all are."""


@dataclass(frozen=True)
class PackedTensor:
    """coding: its name in ``CODINGS``. shape, dtype: of the tensor. data: its bytes. details: plain data that reading
    needs."""

    coding: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes
    details: Mapping[str, Any]


def packed(tensor: Tensor) -> PackedTensor:
    """Returns the shortest coding of a tensor."""
    tensor = tensor.detach().cpu().contiguous()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.dtype is not torch.float32 or tensor.dim() < 2 or not tensor.numel():
        return PackedTensor("raw", shape, dtype, raw_bytes(tensor), {})
    array = tensor.numpy()
    options = [("raw", array.tobytes(), {}), *halves(array), *sparse(array), *palette(array), *levels(array)]
    coding, data, details = min(options, key=lambda option: len(option[1]) + len(str(option[2])))
    return PackedTensor(coding, shape, dtype, data, details)


def unpacked(tensor: PackedTensor) -> Tensor:
    """Returns the tensor that was packed. Raises ValueError for a coding of another version or wrong sizes."""
    if tensor.coding == "raw":
        kind = getattr(torch, tensor.dtype)
        flat = torch.frombuffer(bytearray(tensor.data), dtype=kind) if tensor.data else torch.empty(0, dtype=kind)
        return flat.reshape(tensor.shape)
    if tensor.coding not in CODINGS:
        raise ValueError(f"the coding {tensor.coding} is of another version")
    array = CODINGS[tensor.coding](tensor.data, tensor.shape, tensor.details)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32).reshape(tensor.shape))


def raw_bytes(tensor: Tensor) -> bytes:
    """Returns the bytes of any tensor."""
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


Option = tuple[str, bytes, dict[str, Any]]


def halves(array: Array) -> Iterator[Option]:
    """Yields the coding of weights that are numbers of bfloat16: the upper halves of their bits."""
    bits = array.view(np.uint32)
    if not (bits & 0xFFFF).any():
        yield "bfloat16", (bits >> 16).astype(np.uint16).tobytes(), {}


def read_halves(data: bytes, shape: tuple[int, ...], details: Mapping[str, Any]) -> Array:
    """Returns the array of a coding of upper halves."""
    return (np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def sparse(array: Array) -> Iterator[Option]:
    """Yields the coding of a mask and of the weights that are not zero."""
    kept = array.view(np.uint32) != 0  # by bits, so that a negative zero is kept
    if kept.mean() < 0.97:
        mask, how = symbols_packed(kept.ravel().astype(np.uint8), 1)
        yield "sparse", mask + array[kept].tobytes(), {"mask": [len(mask), how]}


def read_sparse(data: bytes, shape: tuple[int, ...], details: Mapping[str, Any]) -> Array:
    """Returns the array of a sparse coding."""
    size, how = details["mask"]
    kept = symbols_unpacked(data[:size], how, 1, int(np.prod(shape))).astype(bool)
    array = np.zeros(kept.shape, dtype=np.float32)
    array[kept] = np.frombuffer(data[size:], dtype=np.float32)
    return array


def palette(array: Array) -> Iterator[Option]:
    """Yields the coding of at most 256 different weights and of their numbers."""
    flat = array.view(np.uint32).ravel()
    if len(np.unique(flat[: 64 * PROBE])) > 256:
        return
    values, codes = np.unique(flat, return_inverse=True)
    if len(values) <= 256:
        bits = max(1, int(len(values) - 1).bit_length())
        data, how = symbols_packed(codes.astype(np.uint8), bits)
        yield "palette", values.tobytes() + data, {"values": len(values), "bits": bits, "how": how}


def read_palette(data: bytes, shape: tuple[int, ...], details: Mapping[str, Any]) -> Array:
    """Returns the array of a palette coding."""
    size = 4 * details["values"]
    values = np.frombuffer(data[:size], dtype=np.float32)
    return values[symbols_unpacked(data[size:], details["how"], details["bits"], int(np.prod(shape)))]


def levels(array: Array) -> Iterator[Option]:
    """Yields the coding of integer levels with a scale for each row or group, where the weights are their product."""
    columns = array.shape[-1]
    sizes = dict.fromkeys(
        [array.size, columns, *(size for size in ROW_SIZES if columns % size == 0 and size < columns)]
    )
    for size in sizes:
        coded = levels_of_rows(array.reshape(-1, size))
        if coded is None:
            continue
        codes, scales = coded
        # Zeros of all rows have one symbol, or the levels of each row begin at 0, which may take a bit less.
        lows_of_rows = codes.min(axis=1, keepdims=True)
        for lows in (np.full_like(lows_of_rows, codes.min()), lows_of_rows):
            bits = max(1, int((codes - lows).max()).bit_length())
            if bits <= 8:
                data, how = symbols_packed((codes - lows).astype(np.uint8).ravel(), bits)
                parts = [zlib.compress(scales.tobytes(), 9), zlib.compress(lows.astype(np.int16).tobytes(), 9)]
                details = {"row": size, "bits": bits, "how": how, "parts": [len(part) for part in parts]}
                yield "levels", b"".join([*parts, data]), details
        return


def levels_of_rows(rows: Array) -> tuple[Array, Array] | None:
    """Returns integers (r, n) and float32 scales (r, 1) whose products are the weights to the bit; None where there are
    none of magnitude at most ``MOST_LEVELS`` in a span of 256."""
    if not np.isfinite(rows).all() or np.signbit(rows[rows == 0]).any():
        return None
    if len(rows) > 2 * PROBE and levels_of_rows(rows[:: len(rows) // PROBE]) is None:
        return None
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest, np.float32(1)).astype(np.float32)
    left = np.flatnonzero(largest[:, 0] > 0)
    for count in range(1, MOST_LEVELS + 1):
        if not len(left):
            break
        candidates = (largest[left] / np.float32(count)).astype(np.float32)
        fits = are_levels(rows[left, :PROBE], candidates)
        fits[fits] = are_levels(rows[left[fits]], candidates[fits])
        scales[left[fits]] = candidates[fits]
        left = left[~fits]
    codes = np.rint(rows / scales).astype(np.int32)
    if len(left) or int((codes.max(axis=1) - codes.min(axis=1)).max()) > MOST_LEVELS:
        return None
    return codes, scales


def are_levels(rows: Array, scales: Array) -> Array:
    """Returns for each row whether its weights are integers times its scale, to the bit."""
    codes = np.rint(rows / scales)
    return np.asarray((codes.astype(np.float32) * scales == rows).all(axis=1))


def read_levels(data: bytes, shape: tuple[int, ...], details: Mapping[str, Any]) -> Array:
    """Returns the array of a coding of levels."""
    first, second = details["parts"]
    scales = np.frombuffer(zlib.decompress(data[:first]), dtype=np.float32)[:, None]
    lows = np.frombuffer(zlib.decompress(data[first : first + second]), dtype=np.int16)[:, None]
    count = int(np.prod(shape))
    codes = symbols_unpacked(data[first + second :], details["how"], details["bits"], count)
    return (codes.reshape(-1, details["row"]).astype(np.int32) + lows).astype(np.float32) * scales


def symbols_packed(symbols: Array, bits: int) -> tuple[bytes, str]:
    """Returns symbols (n,) below 2^bits as bytes, entropy-coded or in ``bits`` each, whichever is shorter, and which
    it is. As many whole symbols as a byte holds are coded together, so that one of them may take less than a bit."""
    plain = np.packbits((symbols[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint8)) & 1).tobytes()
    together = 8 // bits
    padded = np.concatenate([symbols, np.zeros(-len(symbols) % together, dtype=np.uint8)]).reshape(-1, together)
    coded = huffman((padded << (bits * np.arange(together, dtype=np.uint8))).sum(axis=1, dtype=np.uint8).tobytes())
    return (coded, "entropy") if len(coded) < len(plain) else (plain, "bits")


def symbols_unpacked(data: bytes, how: str, bits: int, count: int) -> Array:
    """Returns the symbols (n,) that were packed."""
    if how == "entropy":
        coded = np.frombuffer(zlib.decompress(data, -zlib.MAX_WBITS), dtype=np.uint8)
        shifts = bits * np.arange(8 // bits, dtype=np.uint8)
        return np.asarray((coded[:, None] >> shifts) & (2**bits - 1), dtype=np.uint8).ravel()[:count]
    digits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * bits).reshape(count, bits)
    return np.asarray(digits @ (1 << np.arange(bits - 1, -1, -1))).astype(np.uint8)


def huffman(data: bytes) -> bytes:
    """Returns bytes in Huffman codes of each block (RFC 1951), without a search for repeated bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


CODINGS = {"bfloat16": read_halves, "sparse": read_sparse, "palette": read_palette, "levels": read_levels}
"""The readers of codings other than raw bytes."""
