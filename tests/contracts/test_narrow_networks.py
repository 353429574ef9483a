"""A sublayer of some heads or channels of a wider one computes the same as the wider one with the others at zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_cases import (
    FEEDFORWARD_CASES,
    HEADS,
    MAX_LENGTH,
    Case,
    context,
    example,
    name,
    noise,
    randomised,
    variants,
)
from torch import nn

from lit_transformers.compression.importance import units_of
from lit_transformers.compression.narrow import Narrowing
from lit_transformers.config import ConfigError, field_types
from lit_transformers.mixer import Shape
from lit_transformers.stacks.feedforward import TransitionConfig

WIDE, DIM = 2 * HEADS, 12
REFUSED = {
    "linear": "Linear does not compute its heads one by one",
    "linformer": "Linformer does not compute its heads one by one",
    "synthesizer": "Synthesizer does not compute its heads one by one",
    "lsh": "LSH does not compute its heads one by one",
}
"""Mixers whose heads are not chosen from, with the reason."""
DIFFERENT = {
    "dilated_heads=1": "some heads are dilated",
    "heads=halves": "the halves of the heads have different patterns",
    "big_bird(block=2,random=1)": "each head has another random graph",
    "big_bird(block=800,random=1": "each head has another random graph",
}
"""Parts of the names of cases that are refused for their fields."""


def narrowed(wide: nn.Module, narrow: nn.Module, kept: list[int], heads_change: bool = True) -> None:
    """Gives the narrow sublayer the kept units of the wide one, whose other units become zero."""
    narrowing = Narrowing(wide, narrow, heads_change)
    ((sublayer, units),) = narrowing.units.items()
    scores = torch.zeros(units.number).index_fill(0, torch.tensor(kept), 1.0)
    narrow.load_state_dict(narrowing.narrowed(wide.state_dict(), {sublayer: scores}))
    zeroed = [unit for unit in range(units.number) if unit not in kept]
    units.projection.weight.data.unflatten(1, (units.number, units.size))[:, zeroed] = 0


WITH_HEADS = [
    example(case)
    for case in variants("with attention")
    if "head_dim" in field_types(type(case.config)) and case.config.kind != "lsra"
]


@pytest.mark.parametrize("case", WITH_HEADS)
@pytest.mark.parametrize("kept", [[0, 1], [1, 3]])
def test_a_mixer_of_some_heads_equals_the_mixer_with_the_other_heads_at_zero(case: Case, kept: list[int]) -> None:
    config = case.config.override({"head_dim": 4})
    wide, narrow = (
        nn.ModuleDict({"mixer": randomised(config.build(Shape(DIM, heads, MAX_LENGTH, shared={})).double())})
        for heads in (WIDE, len(kept))
    )
    reasons = [reason for part, reason in DIFFERENT.items() if part in name(case.config)]
    if case.config.kind in REFUSED or reasons:
        with pytest.raises(ConfigError) as refusal:
            Narrowing(wide, narrow, heads_change=True)
        assert (reasons or [REFUSED[case.config.kind]])[0] in str(refusal.value)
        return
    narrowed(wide, narrow, kept)
    x, ctx = noise(2, 24, DIM), context(2, 24, causal=case.mode == "causal")
    outputs = [network["mixer"].eval()(x.double(), ctx).y for network in (wide, narrow)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)


FEEDFORWARDS: list[Any] = [
    pytest.param(config.override({**fields, "width": 7}), id=f"{name(config)}-{activation}")
    for config in FEEDFORWARD_CASES
    for activation in ("gelu", "relu")
    for fields in [{"activation": activation}]
]


@pytest.mark.parametrize("config", FEEDFORWARDS)
def test_a_feed_forward_of_some_channels_equals_that_with_the_others_at_zero(config: TransitionConfig) -> None:
    shape, kept = Shape(DIM, HEADS, MAX_LENGTH), [0, 3, 5]
    wide, narrow = (
        nn.ModuleDict({"feedforward": randomised(config.override({"width": width}).build(shape).double())})
        for width in (7, len(kept))
    )
    narrowed(wide, narrow, kept, heads_change=False)
    x, ctx = noise(2, 9, DIM), context(2, 9)
    outputs = [network["feedforward"].eval()(x.double(), ctx).y for network in (wide, narrow)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)
    units = units_of(wide["feedforward"])
    assert units is not None and not units.are_heads
