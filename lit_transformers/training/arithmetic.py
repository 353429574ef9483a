"""The arithmetic of a run on its device: TF32, and the kernel of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lit_transformers.attention.kernels import KernelName, attention_kernel
from lit_transformers.precision import tf32

__all__ = ["ArithmeticConfig", "arithmetic"]


class ArithmeticConfig(Protocol):
    """The fields of ``TrainingConfig`` that set TF32 and the kernel of attention."""

    @property
    def tf32(self) -> bool: ...

    @property
    def attention_kernel(self) -> KernelName: ...


@contextmanager
def arithmetic(training: ArithmeticConfig) -> Iterator[None]:
    """Sets TF32 and the kernel of attention within the block, and restores the earlier settings after it."""
    with tf32(training.tf32), attention_kernel(training.attention_kernel):
        yield
