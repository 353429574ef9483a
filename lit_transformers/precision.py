"""The precision in which a part of a network is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["autocast_of", "full_precision", "has_bfloat16_recurrence", "no_autocast", "tf32"]


def full_precision(x: Tensor) -> Tensor:
    """Returns x in float32 or finer, for sums and exponentials that are inaccurate in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast_of(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a function that makes a context with the current autocast settings of the device."""
    if device.type == "meta":
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return partial(torch.autocast, device.type, dtype, enabled)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context without autocast; the meta device has none to switch off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def has_bfloat16_recurrence() -> bool:
    """Whether this processor runs recurrent networks in bfloat16: on an x86 without AVX-512, oneDNN has no kernel for
    them."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2")


@contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    """Sets within the block whether CUDA devices round the factors of float32 products, convolutions and LSTMs to the
    10 bits of TF32. By default torch does in convolutions and LSTMs, and does not in products.

    ``allow_tf32`` is read by Lightning and by torch.compile, which raise once ``fp32_precision`` was set.
    """
    products: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = products.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    products.allow_tf32 = cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        products.allow_tf32, cudnn.allow_tf32 = before
