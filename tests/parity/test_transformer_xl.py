"""Three segments through two layers equal Transformer-XL of transformers 4.35.2, and XLNet's two-sided attention."""

from __future__ import annotations

import pytest
import torch
from copying import affine, close, copy, fixture, randomise
from torch import Tensor, nn
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.xl import XL, HeadBias
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.mixers.attention import Attention
from lit_transformers.stacks import SequentialConfig, Stack, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS, HEAD_DIM, DEPTH, LENGTH, MEMORY = 12, 2, 5, 2, 4, 6
TOLERANCE = 3e-5
"""The reference computes in single precision."""

EQUAL = {
    "plain": BlockConfig(mixer=AttentionConfig(encoding=XLConfig(), memory=MEMORY, head_dim=HEAD_DIM), norm="post"),
    "clamped": BlockConfig(
        mixer=AttentionConfig(encoding=XLConfig(clamp_length=3), memory=MEMORY, head_dim=HEAD_DIM), norm="post"
    ),
    # The reference counts the query itself among the keys of same_length, we do not.
    "same_length": BlockConfig(
        mixer=AttentionConfig(encoding=XLConfig(), memory=MEMORY - 1, head_dim=HEAD_DIM, same_length=True), norm="post"
    ),
    "untied": BlockConfig(
        mixer=AttentionConfig(encoding=XLConfig(biases="per_layer"), memory=MEMORY, head_dim=HEAD_DIM), norm="post"
    ),
    "pre_norm": BlockConfig(mixer=AttentionConfig(encoding=XLConfig(), memory=MEMORY, head_dim=HEAD_DIM), norm="pre"),
}


def two_layers(config: BlockConfig, weights: dict[str, Tensor]) -> Stack:
    config = config.override({"feedforward": FeedForwardConfig(width=10)})
    shape = Shape(DIM, HEADS, LENGTH, 0, DEPTH, shared={})
    stack = SequentialConfig().build(
        shape, lambda n, _: config.build_block(shape._replace(layer=n), "causal"), StackInput()
    )
    for layer, block in enumerate(part for part in stack.modules() if isinstance(part, Block)):
        copy_layer(block, weights, f"layers.{layer}")
    return stack


def copy_layer(block: Block, weights: dict[str, Tensor], name: str) -> None:
    mixer = block.mixer
    assert isinstance(mixer, Attention) and isinstance(mixer.relative, XL)
    projections = weights[f"{name}.dec_attn.qkv_net.weight"].chunk(3)
    for linear, weight in zip((mixer.query, mixer.key, mixer.value), projections, strict=True):
        copy(linear, weight=weight)
    copy(mixer.merge, **affine(weights, f"{name}.dec_attn.o_net"))
    copy(mixer.relative.project, **affine(weights, f"{name}.dec_attn.r_net"))
    for bias, key in ((mixer.relative.content, "r_w_bias"), (mixer.relative.position, "r_r_bias")):
        layer_key = f"{name}.dec_attn.{key}"
        set_bias(bias, weights[layer_key if layer_key in weights else key])
    copy(block.mixer_norm, **affine(weights, f"{name}.dec_attn.layer_norm"))
    copy(block.feedforward_norm, **affine(weights, f"{name}.pos_ff.layer_norm"))
    copy(block.feedforward.widen, **affine(weights, f"{name}.pos_ff.CoreNet.0"))
    copy(block.feedforward.narrow, **affine(weights, f"{name}.pos_ff.CoreNet.3"))


def set_bias(bias: nn.Module | None, weight: Tensor) -> None:
    assert isinstance(bias, HeadBias)
    copy(bias, weight=weight[:, None, :])


@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("grad", [True, False])
def test_segments_with_memory_equal_the_reference(case: str, grad: bool) -> None:
    reference = fixture("transfo_xl.npz", case)
    stack = two_layers(EQUAL[case], reference)
    x, state, outputs = reference["x"].requires_grad_(), None, []
    with torch.set_grad_enabled(grad):
        for segment in x.split(LENGTH, dim=1):
            output = stack(segment, Context(torch.arange(LENGTH).expand(2, LENGTH), causal=True), state)
            state = output.state
            outputs.append(output.y)
    close(torch.cat(outputs, dim=1), reference["y"], TOLERANCE)
    if grad:
        (gradient,) = torch.autograd.grad((outputs[-1] * reference["direction"]).sum(), x)
        close(gradient, reference["gradient"], TOLERANCE * 10)
        assert not gradient[:, : 2 * LENGTH].any()


def test_two_sided_attention_equals_that_of_xlnet() -> None:
    config = XLNetConfig(d_model=DIM, n_head=HEADS, d_inner=8, n_layer=1, dropout=0.0, vocab_size=4)
    theirs = XLNetRelativeAttention(config).double()  # type: ignore[no-untyped-call]
    weights = randomise(theirs)
    layer = AttentionConfig(encoding=XLConfig()).build(Shape(DIM, HEADS, 7)).double()
    assert isinstance(layer.relative, XL)
    for linear, name in ((layer.query, "q"), (layer.key, "k"), (layer.value, "v"), (layer.relative.project, "r")):
        copy(linear, weight=weights[name].flatten(1).T)
    copy(layer.merge, weight=weights["o"].flatten(1))
    set_bias(layer.relative.content, weights["r_w_bias"])
    set_bias(layer.relative.position, weights["r_r_bias"])

    x = torch.randn(2, 7, DIM, dtype=torch.float64)
    h = x.transpose(0, 1)
    waves = XLNetModel(config).relative_positional_encoding(7, 7, bsz=2).double()  # type: ignore[no-untyped-call]
    (expected, *_) = theirs(h, None, None, None, waves, None)
    y = layer(x, Context(torch.arange(7).expand(2, 7), causal=False)).y
    close(theirs.layer_norm(x + y), expected.transpose(0, 1), 1e-5)
