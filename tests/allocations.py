"""Counters of the costs of a network: memory saved for its backward pass, peak memory, and FLOPs."""

from __future__ import annotations

import weakref
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry


class Held:
    """A tensor that is saved for a backward pass."""

    def __init__(self, owner: Kept, tensor: Tensor) -> None:
        self.owner, self.tensor = owner, tensor.detach()  # the output of a node would hold the node that holds it
        self.owner.bytes += tensor.nbytes

    def __del__(self) -> None:
        self.owner.bytes -= self.tensor.nbytes


class Kept:
    """Counts the tensors that operations within it save for a backward pass: ``bytes`` now, without parameters."""

    def __init__(self) -> None:
        self.bytes = 0
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Tensor | Held:
        return tensor if isinstance(tensor, torch.nn.Parameter) else Held(self, tensor)

    @staticmethod
    def unpack(saved: Tensor | Held) -> Tensor:
        return saved.tensor if isinstance(saved, Held) else saved

    def __enter__(self) -> Self:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)


class Allocations(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, until they are freed: ``peak`` is the most at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for part in tree_iter(outputs):
            if isinstance(part, Tensor):
                self.count(part.untyped_storage())
        return outputs

    def count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.counted:
            return
        self.counted.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, key, size)

    def free(self, key: int, size: int) -> None:
        self.counted.discard(key)
        self.now -= size


class Products(TorchDispatchMode):
    """Counts FLOPs where torch's own counter cannot follow: in a backward pass that asks for gradients itself."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=outputs)
        return outputs
