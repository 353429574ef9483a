"""Some of the inputs of ``python -m tests.fuzz``: each is taken as it is, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.chunk import Chunk, try_chunk
from fuzz.target import TARGETS, Target, judge
from hypothesis import strategies as st

from lit_transformers.config import ConfigError

INPUTS = 120
"""For each target: this many inputs miss a fault of one input in a hundred three times out of ten; the inputs of the
command never do."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_input_is_taken_as_it_is_or_refused_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    outcome = try_chunk(Chunk(name, 0, 0, INPUTS))
    assert not outcome.fault, outcome.fault
    assert outcome.counts["taken"], "a target that takes no input proves nothing"


def fails_at_seven(number: int) -> None:
    if number == 7:
        raise KeyError(number)
    if number % 2:
        raise ConfigError("an odd number")


def test_a_fault_is_shown_with_its_smallest_input_and_inputs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "numbers", Target({"number": st.integers(0, 7)}, fails_at_seven))
    assert "KeyError: 7" in try_chunk(Chunk("numbers", 0, 0, 200)).fault
    monkeypatch.setitem(TARGETS, "numbers", Target({"number": st.integers(0, 6)}, fails_at_seven))
    assert try_chunk(Chunk("numbers", 0, 0, 200)).counts == {"taken": 4, "refused": 3}


def test_an_input_that_takes_too_long_is_a_fault_even_where_its_interruption_is_taken_for_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hangs() -> None:
        try:
            while True:
                pass
        except Exception:
            raise ConfigError("something is wrong with the file") from None

    monkeypatch.setattr("fuzz.target.SECONDS", 0.05)
    monkeypatch.setitem(TARGETS, "hangs", Target({}, hangs))
    with pytest.raises(AssertionError, match="took more than"):
        judge("hangs", {})
