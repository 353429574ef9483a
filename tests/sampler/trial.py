"""Tries one drawn run: holds every promise that is made of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from sampler.open_faults import open_fault
from sampler.promises import PROMISES, Case

from lit_transformers.runs import RunConfig

EVERY = 8
"""A promise that starts processes is checked for one run in this number."""
SHOWN = 1_500
"""Characters of an error that are shown."""


class Outcome(NamedTuple):
    """How a promise did: held, broken, or broken by a fault that is known and open. reason: where and why."""

    promise: str
    verdict: Literal["held", "broken", "open"] = "held"
    reason: str = ""


def try_run(config: RunConfig, folder: Path, number: int, chosen: str = "") -> Iterator[Outcome]:
    """Yields the outcome of each promise that applies and whose name contains ``chosen``.

    Where the run itself does not end as it should, nothing is left that the others could compare.
    """
    case = Case(config, folder, number)
    for name, each in PROMISES.items():
        is_due = not each.costly or bool(chosen) or number % EVERY == 0
        if chosen not in name or not is_due or not each.applies(config):
            continue
        case.random.seed(number)  # so that a promise that is tried alone draws the same numbers as among others
        try:
            each.held(case)
        except Exception as error:
            yield Outcome(name, "open" if open_fault(name, config) else "broken", shown(error))
            if name == next(iter(PROMISES)):
                return
        else:
            yield Outcome(name)


def shown(error: Exception) -> str:
    """The last line of the suite that an error passed, and the error's message."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    places = [line.strip() for line in lines if "lit_transformers/" in line or "datamodules/" in line]
    return "\n  ".join([*places[-1:], f"{type(error).__name__}: {str(error)[:SHOWN]}"])
