"""Small runs that are drawn at random keep every promise, whatever is combined in them (``tests/sampler``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sampler.draws import FRAMES, drawn
from sampler.open_faults import OPEN, OpenFault
from sampler.promises import PROMISES, Case
from sampler.trial import try_run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("frame", FRAMES)
def test_a_run_keeps_every_promise(frame: str, tmp_path: Path) -> None:
    """One of each objective; ``python -m tests.sampler --minutes 60`` tries more."""
    run = drawn(0, frame)
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
