"""A chunk of inputs for one fuzz target: its number and the seed determine them, in any process."""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from typing import Any, NamedTuple

import fuzz.configs
import fuzz.data_files
import fuzz.options
import fuzz.requests
import fuzz.run_files  # noqa: F401
import hypothesis
from fuzz.target import TARGETS, judge
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st

__all__ = ["INPUTS", "Chunk", "Outcome", "try_chunk"]

INPUTS = 250
"""Inputs of a chunk."""


LONGEST = 3000
"""Characters of an input that is shown."""


class Chunk(NamedTuple):
    """The inputs of a target with this number. count: the largest number of inputs."""

    target: str
    number: int
    seed: int
    count: int = INPUTS


class Outcome(NamedTuple):
    """How many inputs were taken and how many refused; fault: the smallest input that broke the promise, and how."""

    chunk: Chunk
    counts: Counter[str]
    fault: str = ""


def try_chunk(chunk: Chunk) -> Outcome:
    """Draws the inputs of a chunk and puts each in. Files are written to the working folder."""
    counts: Counter[str] = Counter()

    def attempt(values: dict[str, Any]) -> None:
        counts[judge(chunk.target, values)] += 1

    name = f"{chunk.seed} {chunk.target} {chunk.number}"
    seeded = hypothesis.seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    settings = hypothesis.settings(
        max_examples=chunk.count,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal,
        print_blob=False,
    )
    test = hypothesis.given(values=st.fixed_dictionaries(dict(TARGETS[chunk.target].inputs)))(attempt)
    for case in TARGETS[chunk.target].cases if chunk.number == 0 else ():
        test = hypothesis.example(values=dict(case))(test)
    try:
        seeded(settings(test))()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Outcome(chunk, Counter(), "".join(_described(error)))
    return Outcome(chunk, counts)


def _described(error: BaseException) -> list[str]:
    """The end of each traceback, and the notes that hypothesis adds: the smallest input."""
    if isinstance(error, BaseExceptionGroup):
        return [line for inner in error.exceptions for line in _described(inner)]
    frames = traceback.format_tb(error.__traceback__)[-4:]
    return [
        *frames,
        f"{type(error).__name__}: {error}\n",
        *(f"{note[:LONGEST]}\n" for note in getattr(error, "__notes__", ())),
    ]
