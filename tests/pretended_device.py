"""The CPU in the guise of another device: what computes on it, and fails where tensors of two devices meet.

Its tensors say that they lie on the meta device, the only other one that every build of PyTorch can train on, and
hold their numbers on the CPU. It stands in for CUDA where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
HOST = torch.device("cpu")
aten = torch.ops.aten
MAY_MEET = {aten.copy_.default, aten._to_copy.default, aten._pack_padded_sequence.default}
MAY_MEET |= {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that CUDA too lets read the host: copies, indices, lengths of packed rows."""


class Elsewhere(Tensor):
    """A tensor on the pretended device."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: Tensor) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.values.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a tensor of another device to numpy; copy it to the CPU first")

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor.__getitem__(self, with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        Tensor.__setitem__(self, with_tensors(index), value)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.values!r})"


@contextmanager
def pretended() -> Iterator[None]:
    """Within it the device exists."""
    with swapping(True), Computing(), patch.object(torch, "tensor", tensor):
        yield


@contextmanager
def swapping(swapped: bool) -> Iterator[None]:
    """Whether a parameter that is moved to the device stays itself, so that tied weights stay tied. Elsewhere it always
    does; here it has to be asked for, and ``load_state_dict`` with ``assign`` wants it otherwise."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swapped)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def tensor(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.tensor``, which asks no one what it makes on the meta device."""
    if torch.device(kwargs.get("device") or HOST) == DEVICE:
        return made(*args, **kwargs | {"device": HOST}).to(DEVICE)
    return made(*args, **kwargs)


made = torch.tensor
"""The original."""


def with_tensors(index: Any) -> Any:
    """An index, with tensors for lists, of which PyTorch would make some on the meta device itself."""
    if isinstance(index, tuple):
        return tuple(with_tensors(part) for part in index)
    return made(index, device=HOST) if isinstance(index, list) else index


class Computing(TorchDispatchMode):
    """Every operation, on the device or off it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device that its tensors lie on or that it is told."""
    if func == aten._fused_sdp_choice.default:
        return 0  # by plain products, which are known here
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if away and func not in MAY_MEET:
        strangers = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim()]
        if strangers:
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} was given one of the CPU too")
    told = kwargs.get("device")
    found = func(*tree_map(at_home, args), **tree_map(at_home, kwargs))
    if func is aten.copy_.default or func is aten._index_put_impl_.default or func is aten.index_put_.default:
        return args[0]
    if not (away if told is None else torch.device(told).type == DEVICE.type):
        return found
    if func is aten._pack_padded_sequence.default:
        return Elsewhere(found[0]), found[1]  # how many rows are left at each step is known to the host
    dressed = tree_map(lambda leaf: Elsewhere(leaf) if isinstance(leaf, Tensor) else leaf, found)
    return return_and_correct_aliasing(func, args, kwargs, dressed) if away else dressed


def at_home(leaf: Any) -> Any:
    if isinstance(leaf, Elsewhere):
        return leaf.values
    return HOST if isinstance(leaf, torch.device) and leaf.type == DEVICE.type else leaf
