"""A few steps tell what a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.probing import measured_spending
from lit_transformers.runs import RunConfig


@pytest.mark.slow
def test_a_wider_model_takes_longer_and_twice_the_steps_twice_as_long(small_run: RunConfig, tmp_path: Path) -> None:
    seconds = measured_spending("seconds", RunConfig.runner, tmp_path)
    memory = measured_spending("memory", RunConfig.runner, tmp_path)
    wide = small_run.override({"model.dim": 512, "model.feedforward.width": 8192})
    assert seconds(wide) > 2 * seconds(small_run) > 0
    assert memory(wide) > memory(small_run) + 4 * 8192 * 512 * 2
    assert seconds(small_run.override({"training.steps": 60})) == 2 * seconds(small_run)
    assert len(list(tmp_path.glob("*.json"))) == 2
