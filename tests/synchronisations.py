"""Counts how often the host waits for a device, on the pretended device: no GPU is needed.

It knows the operations of which the result has a shape that depends on values, those that return a value to the host,
and copies that are not asynchronous. Only CUDA shows a wait within one of its kernels.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pretended_device
import torch
from pretended_device import Elsewhere, aten
from torch import Tensor
from torch.utils._pytree import tree_leaves

READS = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten._unique2.default,
    aten._pack_padded_sequence.default,
}
"""Operations that return a value, or a tensor of which the shape depends on values."""
ROOT = f"{Path(__file__).parents[1]}/"
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


def waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether CUDA would make the host wait."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_device = [isinstance(tensor, Elsewhere) for tensor in tensors]
    if func in COPIES:
        target = kwargs.get("device")
        places = on_device if target is None else [*on_device, torch.device(target) == pretended_device.DEVICE]
        is_asynchronous = kwargs.get("non_blocking", False) or (func is aten.copy_.default and True in args[2:])
        to_device = places[0] if func is aten.copy_.default else places[-1]
        return len({*places}) > 1 and not (is_asynchronous and to_device)
    if func in INDEXED and any(on_device):
        indices = [index for index in args[1] if index is not None]
        by_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        is_filled = func is not aten.index.Tensor and args[2].numel() == 1  # one value fills a mask without its indices
        return (by_mask and not is_filled) or not all(isinstance(index, Elsewhere) for index in indices)
    return func in READS and any(on_device)


@contextmanager
def counted() -> Iterator[list[str]]:
    """Records each wait within the block, as the operation and the lines of this project that led to it."""
    record: list[str] = []

    def watch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if waits(func, args, kwargs):
            frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(ROOT)]
            places = [f"{frame.filename.removeprefix(ROOT)}:{frame.lineno} {frame.line}" for frame in frames]
            record.append("\n".join([str(func), *places]))

    pretended_device.WATCHERS.append(watch)
    try:
        yield record
    finally:
        pretended_device.WATCHERS.remove(watch)
