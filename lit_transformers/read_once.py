"""Reads the inputs that many runs share once for all of them, while the runs are planned: files do not change then."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["read_once", "reads_shared"]

T = TypeVar("T")

_shared: list[dict[Hashable, Any]] = []
"""The results of the reads in each open block of ``reads_shared``, by key."""


@contextmanager
def reads_shared() -> Iterator[None]:
    """Inside, ``read_once`` reads once for equal keys; nothing of it outlives the block."""
    _shared.append({})
    try:
        yield
    finally:
        _shared.pop()


def read_once(key: Hashable, read: Callable[[], T]) -> T:
    """Returns the result of ``read``; within a block of ``reads_shared``, its earlier result for an equal key."""
    if not _shared:
        return read()
    if key not in _shared[-1]:
        _shared[-1][key] = read()
    result: T = _shared[-1][key]
    return result
