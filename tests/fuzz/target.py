"""Fuzz targets: the places where bytes of a user come in, the inputs to try there, and how one input is judged."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from lit_transformers.cli.commands import message_of

__all__ = ["TARGETS", "Target", "judge", "target"]

SECONDS = 30.0
"""How long one input may take, of a machine that others share."""


class Target(NamedTuple):
    """A place where an input goes, and the inputs to try.

    inputs: the values to draw, by the names of arguments of ``enter``. enter: raises the project's own error where an
    input is refused, and AssertionError where one that is taken has changed. cases: inputs that are tried first.
    """

    inputs: Mapping[str, st.SearchStrategy[Any]]
    enter: Callable[..., object]
    cases: Sequence[Mapping[str, Any]] = ()


TARGETS: dict[str, Target] = {}
"""All targets, by the option that is typed or the file that is read there."""


def target(
    name: str, /, *cases: Mapping[str, Any], **inputs: st.SearchStrategy[Any]
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Enters a function into the table."""

    def add(enter: Callable[..., object]) -> Callable[..., object]:
        TARGETS[name] = Target(inputs, enter, cases)
        return enter

    return add


def judge(name: str, values: Mapping[str, Any]) -> Literal["taken", "refused"]:
    """Puts an input in. Raises every error that is not one of this project in one line, and AssertionError where a
    promise is broken or the input took too long."""
    with limited() as is_late:
        try:
            TARGETS[name].enter(**values)
            outcome: Literal["taken", "refused"] = "taken"
        except (ValueError, OSError) as error:
            message, outcome = message_of(error), "refused"
            if message is None or (isinstance(error, OSError) and not error.filename):
                raise
            assert message.strip() and "\n" not in message, f"no line: {message!r}"
    assert not is_late(), f"took more than {SECONDS:.0f} seconds"
    return outcome


class Late(Exception):
    """An input takes too long."""


@contextmanager
def limited() -> Iterator[Callable[[], bool]]:
    """Interrupts an input that takes too long. Yields a function that says whether it did, since code may take the
    interruption for another error."""
    was_late = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal was_late
        was_late = True
        raise Late(f"took more than {SECONDS:.0f} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield lambda: was_late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
