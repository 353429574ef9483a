"""LSRA and its convolution equal their equations, and a branch computes the same as alone (T-LT1 to T-LT7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Context, Mixer, MixerConfig, Shape
from lit_transformers.mixers import AttentionConfig, ConvolutionConfig, LSRAConfig, WindowConfig
from lit_transformers.mixers.convolution import Convolution
from lit_transformers.mixers.lsra import LSRA
from lit_transformers.stacks.block import BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS = 8, 2
CONVOLUTIONS = {
    "light": ConvolutionConfig(kernel=3),
    "even": ConvolutionConfig(kernel=4),
    "wide": ConvolutionConfig(kernel=11, heads=4),
    "dynamic": ConvolutionConfig(kernel=3, dynamic=True),
    "dynamic, even": ConvolutionConfig(kernel=4, dynamic=True, heads=8),
    "bare": ConvolutionConfig(kernel=3, softmax=False, glu=False, bias=False),
    "point": ConvolutionConfig(kernel=1, softmax=False),
}


def build(config: MixerConfig, **shape: Any) -> Mixer:
    torch.manual_seed(0)
    mixer = config.build(Shape(DIM, HEADS, 16)._replace(**shape)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def convolution(config: ConvolutionConfig) -> Convolution:
    mixer = build(config)
    assert isinstance(mixer, Convolution)
    return mixer


def lsra(config: LSRAConfig) -> LSRA:
    mixer = build(config)
    assert isinstance(mixer, LSRA)
    return mixer


def context(x: Tensor, causal: bool = True, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(x.size(1)).expand(x.size(0), -1), causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def oracle(mixer: Convolution, config: ConvolutionConfig, x: Tensor, padding_mask: list[bool], causal: bool) -> Tensor:
    """One sequence, one channel at a time (arXiv:1901.10430, equations 1, 3 and section 4)."""
    inputs = mixer.before(x)
    if config.glu:
        inputs = inputs[:, :DIM] * inputs[:, DIM:].sigmoid()
    inputs = inputs * torch.tensor(padding_mask)[:, None]
    heads = config.heads or HEADS
    ahead = 0 if causal else (mixer.kernel - 1) // 2
    rows = []
    for i in range(len(x)):
        weights = mixer.weight if mixer.dynamic is None else mixer.dynamic(inputs[i]).view(heads, mixer.kernel)
        assert weights is not None
        weights = weights.softmax(dim=-1) if config.softmax else weights
        row = []
        for channel in range(DIM):
            taps = weights[channel * heads // DIM]
            positions = [i + ahead - mixer.kernel + 1 + tap for tap in range(mixer.kernel)]
            terms = [tap * inputs[j, channel] for tap, j in zip(taps, positions, strict=True) if 0 <= j < len(x)]
            row.append(torch.stack(terms).sum())
        rows.append(torch.stack(row))
    return mixer.after(torch.stack(rows))


@pytest.mark.parametrize("config", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kept", [[True] * 7, [True, True, False, True, True, False, False], [True]], ids=str)
def test_a_convolution_equals_its_sum_over_taps(config: ConvolutionConfig, causal: bool, kept: list[bool]) -> None:
    """Forward and gradients; padding is zero to it (T-LT2)."""
    mixer, x = convolution(config), noise(1, len(kept), DIM).requires_grad_()
    ours = mixer(x, context(x, causal, torch.tensor([kept]))).y[0]
    expected = oracle(mixer, config, x[0], kept, causal)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-11)
    direction, leaves = noise(*ours.shape), [x, *mixer.parameters()]
    gradients, expected_gradients = (
        torch.autograd.grad((y * direction).sum(), leaves, retain_graph=True, materialize_grads=True)
        for y in (ours, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "causal", "seen"), [(3, True, [3, 4, 5]), (3, False, [4, 5, 6]), (4, False, [3, 4, 5, 6])]
)
def test_a_causal_kernel_ends_at_the_token_and_another_has_it_in_its_middle(
    kernel: int, causal: bool, seen: list[int]
) -> None:
    x = noise(1, 9, DIM).requires_grad_()
    y = convolution(ConvolutionConfig(kernel=kernel))(x, context(x, causal)).y
    (gradient,) = torch.autograd.grad(y[0, 5].sum(), x)
    assert gradient[0].abs().amax(-1).nonzero()[:, 0].tolist() == seen


def test_dropout_drops_whole_connections_of_the_kernel() -> None:
    """DropConnect, T-LT4: a light kernel of one tap is, in each channel, dropped everywhere or nowhere."""
    mixer = convolution(ConvolutionConfig(kernel=1, heads=DIM, glu=False, bias=False, dropout=0.5))
    for linear in (mixer.before, mixer.after):
        linear.weight.data.copy_(torch.eye(DIM))
    x = noise(2, 5, DIM)
    torch.testing.assert_close(mixer.eval()(x, context(x)).y, x)
    ratio = mixer.train()(x, context(x)).y / x
    torch.testing.assert_close(ratio, ratio[:1, :1].expand_as(ratio))
    assert set(ratio[0, 0].round().tolist()) == {0.0, 2.0}


def test_a_schedule_gives_each_layer_its_kernel() -> None:
    config = LSRAConfig(convolution=ConvolutionConfig(kernel=(3, 7, 15)))
    kernels = []
    for index in range(3):
        branch = config.build(Shape(DIM, HEADS, 16, index, 3)).convolution
        assert isinstance(branch, Convolution)
        kernels.append(branch.kernel)
    assert kernels == [3, 7, 15]
    with pytest.raises(ConfigError, match=r"mixer\.convolution\.kernel: 3 values do not divide 4 layers"):
        config.build(Shape(DIM, HEADS, 16, 0, 4))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("fraction", [None, 0.25, 0.75])
def test_a_branch_says_of_its_channels_what_it_would_say_alone(causal: bool, fraction: float | None) -> None:
    """T-LT3: channels are split before any projection and concatenated after."""
    mixer, x = lsra(LSRAConfig(fraction=fraction, convolution=ConvolutionConfig(dynamic=True))), noise(2, 6, DIM)
    split = round(DIM * (fraction or 0.5))
    assert mixer.attention is not None and mixer.convolution is not None
    assert mixer.attention.query.weight.shape == (split, split)
    assert mixer.convolution.after.weight.shape == (DIM - split, DIM - split)
    ctx = context(x, causal)
    y = mixer(x, ctx).y
    assert torch.equal(y[..., :split], mixer.attention(x[..., :split], ctx).y)
    assert torch.equal(y[..., split:], mixer.convolution(x[..., split:], ctx).y)


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({"branches": "attention", "bias": True}, AttentionConfig(bias=True)),
        ({"branches": "attention", "window": 2}, WindowConfig(window=2)),
        ({"branches": "convolution"}, ConvolutionConfig()),
    ],
    ids=str,
)
def test_one_branch_with_all_the_channels_is_the_plain_mixer(fields: dict[str, Any], alone: MixerConfig) -> None:
    config, branches = LSRAConfig.from_dict(fields), fields["branches"]
    mixer, expected_mixer, x = lsra(config), build(alone), noise(2, 6, DIM)
    expected_mixer.load_state_dict(
        {name.removeprefix(f"{branches}."): value for name, value in mixer.state_dict().items()}
    )
    assert torch.equal(mixer(x, context(x)).y, expected_mixer(x, context(x)).y)
    assert mixer.flops(6, 0) == expected_mixer.flops(6, 0)


def test_heads_are_counted_for_each_branch() -> None:
    mixer = lsra(LSRAConfig(attention_heads=4, convolution=ConvolutionConfig(heads=1)))
    assert mixer.attention is not None and mixer.convolution is not None
    assert (mixer.attention.heads, mixer.convolution.heads) == (4, 1)


@pytest.mark.parametrize("branches", ["both", "convolution"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_token_by_token_says_what_one_pass_says(branches: str, dynamic: bool) -> None:
    fields: dict[str, Any] = {"branches": branches, "convolution": {"kernel": 4, "dynamic": dynamic}}
    if branches == "both":
        fields |= {"memory": 12, "encoding": "xl"}
    mixer, x, state, parts = lsra(LSRAConfig.from_dict(fields)), noise(2, 9, DIM), None, []
    with torch.no_grad():
        for token in x.split(1, dim=1):
            mixed = mixer(token, context(token), state)
            state = mixed.state
            parts.append(mixed.y)
        torch.testing.assert_close(torch.cat(parts, dim=1), mixer(x, context(x)).y, atol=1e-12, rtol=1e-12)
    assert state["convolution"]["past"].shape == (2, 3, DIM if branches == "convolution" else DIM // 2)


def test_with_a_window_twice_the_length_costs_twice_as_much() -> None:
    windowed, whole = (LSRAConfig(window=window).build(Shape(64, 4, 8192)) for window in (64, None))
    assert windowed.flops(8192, 0) / windowed.flops(4096, 0) == pytest.approx(2, rel=0.05)
    assert whole.flops(8192, 0) / whole.flops(4096, 0) > 3.5


def test_cross_mixing_has_no_convolution() -> None:
    with pytest.raises(ConfigError, match="LSRA cannot be cross: its convolution reads neighbours"):
        LSRAConfig().require("cross")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"branches": "attention", "fraction": 0.5}, "branches: attention has all the channels; drop fraction"),
        ({"branches": "attention", "convolution": {"kernel": 3}}, "has no convolution to configure"),
        ({"branches": "convolution", "memory": 4}, "has no attention, so memory does nothing"),
        ({"branches": "convolution", "encoding": "xl"}, "has no attention, so encoding does nothing"),
        ({"branches": "convolution", "window": 4}, "has no attention, so window does nothing"),
        ({"branches": "convolution", "window": 4}, "has no attention, so window does nothing"),
        ({"branches": "convolution", "attention_heads": 2}, "has no attention, so attention_heads does nothing"),
        ({"fraction": 1.0}, "fraction: input should be less than 1"),
    ],
)
def test_a_knob_of_a_branch_that_is_not_there_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LSRAConfig.from_dict(fields)


def test_channels_that_do_not_divide_are_refused_by_the_name_of_their_branch() -> None:
    with pytest.raises(ConfigError, match=r"mixer\.convolution\.heads: 4 channels are not divisible by 3 heads"):
        lsra(LSRAConfig(convolution=ConvolutionConfig(heads=3)))
    with pytest.raises(ConfigError, match=r"mixer\.fraction: 0.01 of 8 channels leaves a branch none"):
        lsra(LSRAConfig(fraction=0.01))


def test_two_halves_cost_less_than_attention_alone() -> None:
    """The abstract's point: at 30 tokens (T-LT5 wants the length said), flat feed-forward and half the attention."""
    shape = Shape(64, 4, 30)
    flat = BlockConfig(mixer=LSRAConfig(), feedforward=FeedForwardConfig(width=64)).build_block(shape, "causal")
    attention = BlockConfig(mixer=AttentionConfig()).build_block(shape, "causal")
    assert flat.flops(30, 0) < 0.5 * attention.flops(30, 0)


def test_the_gate_is_a_gated_linear_unit() -> None:
    mixer, x = convolution(ConvolutionConfig(kernel=1)), noise(1, 3, DIM)
    torch.testing.assert_close(mixer(x, context(x)).y, mixer.after(F.glu(mixer.before(x), dim=-1)))


def test_layers_share_the_biases_of_xl_over_the_channels_of_attention() -> None:
    shared: dict[str, nn.Module] = {}
    for index in range(2):
        LSRAConfig(encoding=XLConfig()).build(Shape(DIM, HEADS, 16, index, 2, shared))
    assert set(shared) == {"xl.u", "xl.v"}
