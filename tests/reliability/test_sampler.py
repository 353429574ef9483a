"""Small runs that are drawn at random keep every promise, in every combination (``tests/sampler``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sampler.draws import FRAMES, drawn
from sampler.open_faults import OPEN, OpenFault
from sampler.promises import PROMISES, Case
from sampler.trial import try_run

pytestmark = pytest.mark.slow


COMBINED = {
    "batches of unequal numbers of targets accumulated": ("pairs", 6),
    "validations amid dropout": ("pairs", 30),
    "a stop amid dropout": ("pairs", 46),
    "a stop amid averaged updates": ("strings", 14),
    "a stop amid the patience of another": ("classification", 3935),
    "another noise in evaluation": ("denoising", 1),
    "a stop between the validation of the best weights and the end": (None, 77000339),
}
"""Runs by the features that meet in them. A fault where these meet shows in them (``tests/mutants``), and in few
others."""


@pytest.mark.parametrize(
    ("frame", "number"),
    [
        *(pytest.param(frame, 0, id=frame) for frame in FRAMES),
        *(pytest.param(*run, id=name) for name, run in COMBINED.items()),
    ],
)
def test_a_run_keeps_every_promise(frame: str | None, number: int, tmp_path: Path) -> None:
    """One of each objective and some more; ``python -m tests.sampler --minutes 60`` tries others."""
    run = drawn(number, frame)
    outcomes = [*try_run(run.config, tmp_path, run.number)]
    broken = [f"{outcome.promise}: {outcome.reason}" for outcome in outcomes if outcome.verdict == "broken"]
    assert not broken, "\n".join(broken)
    assert len(outcomes) > 5, "hardly anything was held"


@pytest.mark.parametrize("fault", OPEN, ids=lambda fault: fault.promise)
def test_a_fault_that_is_known_still_shows(fault: OpenFault, tmp_path: Path) -> None:
    """Whoever mends one removes its entry."""
    number, frame = fault.shows
    config = drawn(number, frame).config
    assert fault.of(config), "the run is not one of those that may show it"
    with pytest.raises(AssertionError):
        PROMISES[fault.promise].held(Case(config, tmp_path, number))
