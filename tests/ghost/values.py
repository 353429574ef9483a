"""Right numbers on a device that computes nothing.

The memory of the ghost is memory of this process. So each operation runs twice: first as torch runs it on CUDA, with
all that is to be watched (devices, dtypes, choices of kernels, waits) and no numbers; then on the same memory as
tensors of the CPU, which fills in the numbers. Results that a CPU cannot compute, those of fused attention above all,
remain zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from itertools import starmap
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

aten = torch.ops.aten
NUMBERLESS = {
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided),
    *(aten.record_stream, aten.is_pinned, aten._pin_memory, aten._fused_sdp_choice, aten.set_, aten.resize_),
}
"""Operations that have no numbers to compute."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""Operations that on CUDA turn a mask into indices, whose number they read at once."""
SOFTMAX = {aten._softmax, aten._log_softmax}
SOFTMAX_GRADIENTS = {aten._softmax_backward_data, aten._log_softmax_backward_data}


class Values(TorchDispatchMode):
    """The context in which operations on the device yield numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0).get_state()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether Dynamo compiles functions within the context."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func.overloadpacket in NUMBERLESS:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(map(on_device, tensors)):
            with self:
                args, kwargs = read_first(func, args, kwargs)
        written = [as_host(tensor) for tensor in written_by(func, args, kwargs) if on_device(tensor)]
        before = [tensor.clone() for tensor in written]  # some operations on CUDA are copies, which are real
        outputs = func(*args, **kwargs)
        for tensor, number in zip(written, before, strict=True):
            tensor.copy_(number)
        produced = tree_leaves(outputs)
        concerned = any(map(on_device, [*tensors, *produced]))
        if not concerned or not all(map(is_plain, tensors)):
            return outputs
        with self.of_device() if torch.Tag.nondeterministic_seeded in func.tags else nullcontext():
            return filled(func, args, kwargs, outputs)

    @contextmanager
    def of_device(self) -> Iterator[None]:
        """Draws random numbers that are the device's, and leaves those of the CPU as they are."""
        state = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.get_rng_state()
            torch.set_rng_state(state)


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with no waits counted: its operations stand for a kernel, in which there are none."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        level = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return function(*arguments, **keywords)
        finally:
            torch.cuda.set_sync_debug_mode(level)

    return call


def within(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of FlexAttention's dense form, whose operations yield numbers."""

    def call(mode: Values, *arguments: Any, **keywords: Any) -> Any:
        with mode:
            return unwatched(function)(*arguments, **keywords)

    return call


flex_attention.py_impl(Values)(within(sdpa_dense))
flex_attention_backward.py_impl(Values)(within(sdpa_dense_backward))


def filled(func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> Any:
    """The outputs of an operation on CUDA, with the numbers that a CPU computes. An output whose shape depends on
    numbers has another one there, and is built anew."""
    here = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    try:
        computed = func(*widened(func, tree_map(host_of, args)), **tree_map(host_of, here))
    except (NotImplementedError, RuntimeError) as error:
        if not isinstance(error, NotImplementedError) and "not implemented for" not in str(error):
            raise
        return outputs
    leaves, form = tree_flatten(outputs)
    return tree_unflatten(list(starmap(with_numbers, zip(leaves, tree_leaves(computed), strict=True))), form)


def widened(func: Any, args: Any) -> Any:
    """The arguments of an operation for a CPU, whose softmax does not turn half precision into float32, nor back."""
    if func.overloadpacket in SOFTMAX and args[2]:
        return args[0].float(), args[1], False
    if func.overloadpacket in SOFTMAX_GRADIENTS:
        return *args[:3], args[0].dtype
    return args


def with_numbers(output: Any, computed: Any) -> Any:
    if not on_device(output):
        return computed
    if output.shape != computed.shape:
        output = torch.empty(computed.shape, dtype=output.dtype, device=output.device)
    as_host(output).copy_(computed)
    return output


def on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda and is_plain(value)


def is_plain(tensor: Tensor) -> bool:
    """Whether it has memory: tensors that stand for others while a graph is traced have none."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and not torch._is_functional_tensor(tensor)


def as_host(tensor: Tensor) -> Tensor:
    """The memory of a tensor of the device as a tensor of the CPU."""
    if not on_device(tensor):
        return tensor
    size = tensor.untyped_storage().nbytes()
    if not size:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = (ctypes.c_char * size).from_address(tensor.untyped_storage().data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=size // tensor.element_size())
    host = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return host.conj() if tensor.is_conj() else host


def host_of(value: Any) -> Any:
    """The substitute of an argument on the CPU: the memory of a tensor, the CPU where an operation names the device,
    and none of the device's generators."""
    if isinstance(value, Tensor):
        return as_host(value)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value


def read_first(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of an operation that reads numbers within itself, where the ghost has none yet, and stops on them:
    these numbers are read here, by the same operations, and handed to it."""
    if func.overloadpacket in INDEXING:
        indices: list[Any] = []
        for part in args[1]:
            is_mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
            indices += part.nonzero().unbind(1) if is_mask else [part]
        return (args[0], indices, *args[2:]), kwargs
    if func == aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        total = args[0].cumsum(0)[-1].item()
        assert (args[0] >= 0).all().item()
        return args, {**kwargs, "output_size": total}
    return args, kwargs


def written_by(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments of an operation that it writes to."""
    writes = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(args[number] if number < len(args) else kwargs.get(argument.name))
    return [leaf for leaf in tree_leaves(writes) if isinstance(leaf, Tensor)]
