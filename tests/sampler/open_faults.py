"""Faults that are known and not yet mended: promises that are broken for some runs, and why.

A run of the sampler counts them apart. ``test_sampler`` holds that each still shows, so that whoever mends one removes
its entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sampler.promises import has_added_losses

from lit_transformers.runs import RunConfig


class OpenFault(NamedTuple):
    """promise: what is broken. shows: the number and the objective of a run that shows it. of: the runs that may."""

    promise: str
    reason: str
    shows: tuple[int, str]
    of: Callable[[RunConfig], bool]


def has_further_heads(config: RunConfig) -> bool:
    """Whether a language model predicts more than the next symbol from its last layer."""
    plain = config.task.to_dict()
    return bool(plain.get("future") or plain.get("intermediate"))


OPEN: Sequence[OpenFault] = (
    OpenFault(
        "parameters equal the count",
        "the cost of causal_lm leaves out the heads of future targets",
        (7, "causal_lm"),
        has_further_heads,
    ),
    OpenFault(
        "what a run with shared weights leaves behind measures what its record says",
        "weights that are taken over keep the config of the run that trained them",
        (1, "strings"),
        lambda config: True,
    ),
    OpenFault(
        "batches that are accumulated equal their rows in one batch",
        "losses besides the main one are weighted by its targets",
        (222, "masked_lm"),
        has_added_losses,
    ),
)


def open_fault(promise: str, config: RunConfig) -> OpenFault | None:
    """The known fault that breaks a promise for a run, or None."""
    return next((fault for fault in OPEN if fault.promise == promise and fault.of(config)), None)
