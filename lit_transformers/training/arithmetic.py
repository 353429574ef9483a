"""How the numbers of a run are computed on its device, within a block: TF32, and the kernel of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lit_transformers.attention.kernels import KernelName, attention_kernel
from lit_transformers.precision import tf32

__all__ = ["ArithmeticConfig", "arithmetic"]


class ArithmeticConfig(Protocol):
    """The fields of the config of training that decide it."""

    @property
    def tf32(self) -> bool: ...

    @property
    def attention_kernel(self) -> KernelName: ...


@contextmanager
def arithmetic(training: ArithmeticConfig) -> Iterator[None]:
    """Computes within the block as the config says. What was set before is set again afterwards."""
    with tf32(training.tf32), attention_kernel(training.attention_kernel):
        yield
