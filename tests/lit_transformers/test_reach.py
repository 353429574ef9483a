"""How far back the arms of a study see follows from the roles of their fields."""

from __future__ import annotations

from typing import Any

import pytest

from ablations.baselines import CHARACTERS, SUMS, TRANSFORMER_XL
from lit_transformers.mixers import AttentionConfig, WindowConfig
from lit_transformers.runs import RunConfig
from lit_transformers.runs.reach import smallest_reach

WINDOWS = CHARACTERS.override({"model.mixer": WindowConfig(window=16)})


@pytest.mark.parametrize(
    ("baseline", "arm", "expected"),
    [
        (TRANSFORMER_XL, {"model.mixer.memory": 0}, 16),
        (TRANSFORMER_XL, {"model.mixer.memory": 0, "data.evaluation.segment_length": 8}, 4),
        (TRANSFORMER_XL, {"task.evaluation": {"mixer.memory": 64}}, 48),
        (TRANSFORMER_XL, {"model.mixer.encoding.clamp_length": 8}, None),
        (WINDOWS, {"model.mixer.window": (8, 32)}, 8),
        (WINDOWS, {"model.mixer.dilation": 4}, 16),
        (WINDOWS, {"model.mixer": AttentionConfig()}, None),
        (SUMS, {"model.mixer": WindowConfig()}, None),
    ],
    ids=["memory", "short rows", "memory when measured", "distance", "window", "dilation", "another mixer", "no text"],
)
def test_the_smallest_reach_is_that_of_the_fields_that_vary(
    baseline: RunConfig, arm: dict[str, Any], expected: int | None
) -> None:
    assert smallest_reach([baseline, baseline.override(arm)]) == expected
