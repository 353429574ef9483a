"""Memory that the blocks of one pass use one after another: otherwise the system would have to map new memory for each
block, page by page."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class Workspace(threading.local):
    """The memory of the pass that this thread computes; of none outside a pass."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] | None = None
        self.used = 0


WORKSPACE = Workspace()


@contextmanager
def workspace() -> Iterator[None]:
    """A context in which ``empty`` returns memory that is used again after ``next_block``."""
    before = WORKSPACE.buffers, WORKSPACE.used
    WORKSPACE.buffers, WORKSPACE.used = [], 0
    try:
        yield
    finally:
        WORKSPACE.buffers, WORKSPACE.used = before


def next_block() -> None:
    """Lets the tensors of ``empty`` be overwritten: nothing may read those of the block before any longer."""
    WORKSPACE.used = 0


def empty(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialized tensor of a shape, of the type and on the device of another one; within a ``workspace``
    in memory that no other tensor of the same block has."""
    if WORKSPACE.buffers is None:
        return like.new_empty(shape)
    count, place = math.prod(shape), WORKSPACE.used
    WORKSPACE.used += 1
    if place == len(WORKSPACE.buffers):
        WORKSPACE.buffers.append(like.new_empty(count))
    buffer = WORKSPACE.buffers[place]
    if buffer.numel() < count or buffer.dtype != like.dtype:
        buffer = WORKSPACE.buffers[place] = like.new_empty(count)
    return buffer[:count].view(shape)
