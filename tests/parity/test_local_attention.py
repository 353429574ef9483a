"""Our patterns of neighbourhood equal those of the ``local-attention`` package.

Its ``window_size`` is a block. It looks at whole blocks around the query's own, or, with ``exact_windowsize``, at as
many keys on each side as these blocks have.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from copying import close
from local_attention import LocalAttention

from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.mixers import BigBirdConfig, LocalConfig, WindowConfig
from lit_transformers.mixers.qkv import QKVMixer

DIM, HEADS, BLOCK, LENGTH = 8, 2, 3, 12

CASES: dict[str, tuple[MixerConfig, dict[str, Any], bool]] = {
    "own block": (LocalConfig(block=BLOCK), {"look_backward": 0}, True),
    "own block, both ways": (LocalConfig(block=BLOCK), {"look_backward": 0, "look_forward": 0}, False),
    "window": (WindowConfig(window=BLOCK), {"exact_windowsize": True}, True),
    "window, both ways": (WindowConfig(window=BLOCK), {"exact_windowsize": True}, False),
    "wider window": (WindowConfig(window=2 * BLOCK), {"exact_windowsize": True, "look_backward": 2}, True),
    "neighbouring blocks": (
        BigBirdConfig(block=BLOCK, window=3, random=0, global_blocks="none"),
        {"look_backward": 1, "look_forward": 1},
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [LENGTH, 10, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_equal_those_of_the_package(name: str, length: int, padded: bool) -> None:
    config, knobs, causal = CASES[name]
    torch.manual_seed(0)
    ours = config.build(Shape(DIM, HEADS, LENGTH)).double()
    assert isinstance(ours, QKVMixer)
    theirs = LocalAttention(BLOCK, causal=causal, autopad=True, use_rotary_pos_emb=False, **knobs)
    padding_mask = torch.arange(length) < torch.tensor([[length], [max(1, length - 4)]]) if padded else None
    x = torch.randn(2, length, DIM, dtype=torch.float64, requires_grad=True)
    y = ours(x, Context(torch.arange(length).expand(2, -1), causal, padding_mask)).y
    q, k, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (ours.query, ours.key, ours.value))
    is_real = torch.ones(2, length, dtype=torch.bool) if padding_mask is None else padding_mask
    expected = ours.merge(theirs(q, k, v, mask=is_real).transpose(1, 2).flatten(2))
    close(y[is_real], expected[is_real], 1e-10)
    direction = torch.randn_like(y) * is_real[..., None]
    gradients = (torch.autograd.grad((output * direction).sum(), x)[0] for output in (y, expected))
    gradient, expected_gradient = gradients
    close(gradient, expected_gradient, 1e-10)
