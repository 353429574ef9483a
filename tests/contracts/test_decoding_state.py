"""The numbers that a decoder has to hold according to its mixer are those that later outputs depend on, and those in
the mixer's own state."""

from __future__ import annotations

import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, Case, context, name, promises

from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import MixerConfig, state_tensors
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    AttentionConfig,
    ConvolutionConfig,
    DietConfig,
    EntmaxConfig,
    LinearConfig,
    LocalConfig,
    LSRAConfig,
    LSTMConfig,
    SparseConfig,
    WindowConfig,
)
from lit_transformers.models import EncoderConfig, LanguageModelConfig
from lit_transformers.models.cost import cost
from lit_transformers.stacks import ReversibleConfig, UniversalConfig

LENGTH, LATER = 9, 15


@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(),
        WindowConfig(window=3),
        WindowConfig(window=2, dilation=3),
        WindowConfig(window=2, global_tokens="first", global_count=2),
        WindowConfig(window=2, global_tokens="periodic", global_count=4),
        LocalConfig(block=4),
        DietConfig(pattern="cascade", window=3),
        DietConfig(taps=4),
        AdaptiveSpanConfig(span=8, ramp=2, penalty=0.0, learns="fixed", initial=0.25),
        SparseConfig(block=4),
        SparseConfig(block=4, pattern="fixed", summary=1),
        SparseConfig(block=4, pattern="fixed", summary=2, heads="layers"),
    ],
    ids=name,
)
def test_keys_and_values_are_held_of_tokens_on_which_later_ones_depend(config: MixerConfig) -> None:
    mixer, total = Case(config).build("causal"), LENGTH + LATER
    x = torch.randn(1, total, DIM, dtype=torch.float64, requires_grad=True)
    y = mixer(x, context(1, total)).y.sum(dim=(0, 2))
    gradients = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in y]
    depends = torch.stack([gradient[0].abs().sum(dim=1) > 0 for gradient in gradients])
    held = [int(depends[count:, :count].any(dim=0).sum()) for count in range(LENGTH + 1)]
    assert mixer.decoding_state(LENGTH) == 2 * DIM * max(held)


@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(memory=LENGTH),
        AttentionConfig(memory=4),
        EntmaxConfig(memory=LENGTH),
        LinearConfig(features="polynomial"),
        ConvolutionConfig(kernel=4),
        LSRAConfig(memory=LENGTH, convolution=ConvolutionConfig(kernel=4)),
        LSTMConfig(width=5),
    ],
    ids=name,
)
def test_a_mixer_that_streams_holds_its_state(config: MixerConfig) -> None:
    mixer, state = Case(config).build("causal"), None
    with torch.no_grad():
        for place in range(LENGTH):
            state = mixer(torch.randn(1, 1, DIM).double(), context(1, 1, start=place), state).state
    assert mixer.decoding_state(LENGTH) == sum(
        part.numel() for part in state_tensors(state) if part.dtype != torch.bool
    )


def test_dilated_heads_alone_hold_more() -> None:
    mixer = Case(WindowConfig(window=2, dilation=3, dilated_heads=1)).build("causal")
    assert mixer.decoding_state(LENGTH) == 2 * DIM // HEADS * (2 * (HEADS - 1) + 6)


def test_every_causal_mixer_says_what_it_holds_and_a_network_adds_up_its_steps() -> None:
    silent = [kind for kind, case in KINDS.items() if promises(case, "causal") and not case.build().decoding_state(9)]
    assert silent == []
    data = probe_data(11, 16)
    for stack in (UniversalConfig(), ReversibleConfig(), None):
        changes = {"stack": stack} if stack else {}
        model = LanguageModelConfig(dim=DIM, heads=HEADS, depth=3, mixer=AttentionConfig(), norm="pre").override(
            changes
        )
        assert cost(model, data, 16).decoding_state == 3 * 2 * DIM * 16
    assert cost(EncoderConfig(dim=DIM, heads=HEADS, depth=2), data, 16).decoding_state is None
