"""Our window equals Longformer of transformers, alone and as the layers of a whole model, weights copied.

In single precision: its softmax is in single precision in any layer, where the number that hides a key in double
precision is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from copying import affine, close, copy, randomise
from torch import Tensor, nn
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerModel, LongformerSelfAttention

from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import WindowConfig
from lit_transformers.mixers.window import Window
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS, WIDTH = 16, 2, 24
WINDOWS = (2, 4)
"""On one side, of each layer; theirs counts both sides."""
TOLERANCE = 1e-5


def longformer() -> LongformerConfig:
    return LongformerConfig(
        attention_window=[2 * window for window in WINDOWS],
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_hidden_layers=len(WINDOWS),
        intermediate_size=WIDTH,
        vocab_size=11,
        max_position_embeddings=64,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def our_config() -> WindowConfig:
    return WindowConfig(window=WINDOWS, global_tokens="marked", global_projections="separate", bias=True)


def copy_projections(mixer: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    assert isinstance(mixer, Window)
    for index, kind in enumerate(("query", "key", "value")):
        copy(mixer.get_submodule(kind), **affine(weights, f"{name}{kind}"))
        copy(mixer.global_maps[index], **affine(weights, f"{name}{kind}_global"))


def context(padding_mask: Tensor, marked: Tensor) -> Context:
    return Context(
        torch.arange(padding_mask.size(1)).expand_as(padding_mask),
        causal=False,
        padding_mask=padding_mask,
        marked=marked,
    )


CASES = {
    "no global token": torch.zeros(2, 16, dtype=torch.bool),
    "the first": (torch.arange(16) < 1).expand(2, 16),
    "others in each row": torch.zeros(2, 16, dtype=torch.bool).index_put(
        (torch.tensor([0, 0, 0, 1]), torch.tensor([3, 4, 12, 7])), torch.tensor(True)
    ),
    "in one row alone": torch.zeros(2, 16, dtype=torch.bool).index_put(
        (torch.tensor([1]), torch.tensor([5])), torch.tensor(True)
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("lengths", [(16, 16), (16, 13)])
def test_outputs_and_gradients_equal_those_of_its_attention(name: str, layer: int, lengths: tuple[int, int]) -> None:
    theirs = LongformerSelfAttention(longformer(), layer)
    weights = randomise(theirs)
    ours = our_config().build(Shape(DIM, HEADS, 16, layer, len(WINDOWS)))
    copy_projections(ours, weights, "")
    copy(ours.merge, weight=torch.eye(DIM), bias=torch.zeros(DIM))
    marked, padding_mask = CASES[name], torch.arange(16) < torch.tensor(lengths)[:, None]
    x = torch.randn(2, 16, DIM, requires_grad=True)
    (expected,) = theirs(
        x,
        attention_mask=torch.where(padding_mask, 10000.0 * marked, -10000.0),
        is_index_masked=~padding_mask,
        is_index_global_attn=marked,
        is_global_attn=bool(marked.any()),
    )
    y = ours(x, context(padding_mask, marked)).y
    close(y[padding_mask], expected[padding_mask], TOLERANCE)
    direction = torch.randn_like(x) * padding_mask[..., None]
    gradients = (torch.autograd.grad((output * direction).sum(), x)[0] for output in (y, expected))
    gradient, expected_gradient = gradients
    close(gradient, expected_gradient, 10 * TOLERANCE)


def our_layer(layer: int, weights: Mapping[str, Tensor]) -> Block:
    feedforward = FeedForwardConfig(width=WIDTH, activation="gelu")
    config = BlockConfig(mixer=our_config(), feedforward=feedforward, norm="post")
    block = config.build_block(Shape(DIM, HEADS, 16, layer, len(WINDOWS)), "bidirectional")
    name = f"encoder.layer.{layer}"
    copy_projections(block.mixer, weights, f"{name}.attention.self.")
    copy(block.mixer.get_submodule("merge"), **affine(weights, f"{name}.attention.output.dense"))
    copy(block.feedforward.get_submodule("widen"), **affine(weights, f"{name}.intermediate.dense"))
    copy(block.feedforward.get_submodule("narrow"), **affine(weights, f"{name}.output.dense"))
    for norm, module_name in ((block.mixer_norm, "attention.output"), (block.feedforward_norm, "output")):
        copy(norm, **affine(weights, f"{name}.{module_name}.LayerNorm"))
        norm.eps = 1e-12
    return block


@pytest.mark.parametrize("lengths", [(16, 16), (16, 11), (13, 9)])
def test_a_model_of_two_layers_equals_its_model_whatever_it_is_padded_to(lengths: tuple[int, int]) -> None:
    """It pads to a multiple of its widest window; we do not."""
    theirs = LongformerModel(longformer(), add_pooling_layer=False).eval()
    weights, length = randomise(theirs), max(lengths)
    embedded: list[Any] = []
    theirs.embeddings.register_forward_hook(lambda *arguments: embedded.append(arguments[-1]))
    symbols = torch.randint(2, 11, (2, length))
    padding_mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    marked = CASES["others in each row"][:, :length] & padding_mask
    expected = theirs(
        symbols, attention_mask=padding_mask.long(), global_attention_mask=marked.long()
    ).last_hidden_state
    x = embedded[0][:, :length]
    for layer in range(len(WINDOWS)):
        x = our_layer(layer, weights)(x, context(padding_mask, marked)).y
    close(x[padding_mask], expected[padding_mask], TOLERANCE)
