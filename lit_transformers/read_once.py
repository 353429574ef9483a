"""What many runs read alike is read once for all of them, while they are planned: files do not change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["read_once", "reads_shared"]

T = TypeVar("T")

_shared: list[dict[Hashable, Any]] = []
"""What was read in each block of ``reads_shared`` that is open."""


@contextmanager
def reads_shared() -> Iterator[None]:
    """Inside, ``read_once`` reads once for equal keys; nothing of it outlives the block."""
    _shared.append({})
    try:
        yield
    finally:
        _shared.pop()


def read_once(key: Hashable, read: Callable[[], T]) -> T:
    """Returns what ``read`` returns; within a block of ``reads_shared``, what it returned for an equal key."""
    if not _shared:
        return read()
    if key not in _shared[-1]:
        _shared[-1][key] = read()
    result: T = _shared[-1][key]
    return result
