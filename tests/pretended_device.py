"""A pretended device that computes on the CPU, and fails where tensors of two devices meet.

Its tensors report the meta device, the only other one that every build of PyTorch can train on, and hold their numbers
on the CPU. It stands in for CUDA where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
"""Operations that may read the host's tensors on CUDA too: copies, indices, lengths of packed rows."""

WATCHERS: list[Callable[[Any, Any, dict[str, Any]], None]] = []
"""Called with each operation and its arguments before it runs."""


class Elsewhere(Tensor):
    """A tensor on the pretended device."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: Tensor) -> Elsewhere:
        wrapper: Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        wrapper.values = values
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.to(HOST).tolist()

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
    """The context in which the pretended device exists."""
    with swapping(True), Computing(), patch.object(torch, "tensor", tensor):
        yield


@contextmanager
def swapping(swapped: bool) -> Iterator[None]:
    """Sets whether a parameter that is moved to the device stays the same object, so that tied weights stay tied. On
    other devices it always does; here it must be enabled, and disabled for ``load_state_dict`` with ``assign``."""
    previous = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swapped)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(previous)


def tensor(*args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``torch.tensor``, whose tensors on the meta device bypass dispatch modes."""
    if torch.device(kwargs.get("device") or HOST) == DEVICE:
        return original_tensor(*args, **kwargs | {"device": HOST}).to(DEVICE)
    return original_tensor(*args, **kwargs)


original_tensor = torch.tensor
"""The original ``torch.tensor``."""


def with_tensors(index: Any) -> Any:
    """The index with tensors in place of sequences, which PyTorch would otherwise turn into tensors on the meta
    device."""
    if isinstance(index, tuple):
        return tuple(with_tensors([*part] if isinstance(part, tuple) else part) for part in index)
    return original_tensor(index, device=HOST) if isinstance(index, list) else index


class Computing(TorchDispatchMode):
    """Runs every operation, on the device or not, through ``computed``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The outputs of an operation, on the device of its tensors or on the one that it names. Raises RuntimeError where
    tensors of two devices meet."""
    if func == aten._fused_sdp_choice.default:
        return 0  # the plain implementation, whose operations are supported here
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_device = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if on_device and func not in MAY_MEET:
        host_tensors = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim()]
        if host_tensors:
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} was given one of the CPU too")
    for watch in WATCHERS:
        watch(func, args, kwargs)
    requested_device = kwargs.get("device")
    outputs = func(*tree_map(at_home, args), **tree_map(at_home, kwargs))
    if func is aten.copy_.default or func is aten._index_put_impl_.default or func is aten.index_put_.default:
        return args[0]
    if not (on_device if requested_device is None else torch.device(requested_device).type == DEVICE.type):
        return outputs
    if func is aten._pack_padded_sequence.default:
        return Elsewhere(outputs[0]), outputs[1]  # the numbers of rows left at each step are on the host
    wrapped = tree_map(lambda leaf: Elsewhere(leaf) if isinstance(leaf, Tensor) else leaf, outputs)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if on_device else wrapped


def at_home(leaf: Any) -> Any:
    if isinstance(leaf, Elsewhere):
        return leaf.values
    return HOST if isinstance(leaf, torch.device) and leaf.type == DEVICE.type else leaf
