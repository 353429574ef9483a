"""Faults that are known and not yet mended: promises that are broken for some runs, and why.

A run of the sampler counts them apart. ``test_sampler`` holds that each still shows, so that whoever mends one removes
its entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lit_transformers.runs import RunConfig


class OpenFault(NamedTuple):
    """promise: the broken one. shows: the number and the objective of a run that shows it. of: the runs that may."""

    promise: str
    reason: str
    shows: tuple[int, str]
    of: Callable[[RunConfig], bool]


OPEN: Sequence[OpenFault] = ()


def open_fault(promise: str, config: RunConfig) -> OpenFault | None:
    """The known fault that breaks a promise for a run, or None."""
    return next((fault for fault in OPEN if fault.promise == promise and fault.of(config)), None)
