"""Rotary attention, pre-norm blocks and T5's biases equal those of current Hugging Face models."""

from __future__ import annotations

import pytest
import torch
from copying import EAGER, affine, close, copy, randomise
from torch import Tensor
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, T5Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from lit_transformers.encodings import LearnedRelativeConfig, RotaryConfig
from lit_transformers.encodings.learned_relative import LearnedRelative
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.stacks.block import BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS, LENGTH = 32, 2, 11
TOLERANCE = 2e-5


def context(causal: bool = True) -> Context:
    return Context(torch.arange(LENGTH)[None], causal)


def hidden_future() -> Tensor:
    return torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]


def test_rotary_attention_equals_that_of_llama() -> None:
    config = LlamaConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        **EAGER,
    )
    theirs = LlamaAttention(config, layer_idx=0).eval()
    weights = randomise(theirs)
    layer = AttentionConfig(encoding=RotaryConfig(base=500.0)).build(Shape(DIM, HEADS, LENGTH))
    for ours, name in ((layer.query, "q"), (layer.key, "k"), (layer.value, "v"), (layer.merge, "o")):
        copy(ours, **affine(weights, f"{name}_proj"))
    x = torch.randn(1, LENGTH, DIM)
    rotations = LlamaRotaryEmbedding(config)(x, torch.arange(LENGTH)[None])
    expected, _ = theirs(x, position_embeddings=rotations, attention_mask=hidden_future())
    close(layer(x, context()).y, expected, TOLERANCE)


@pytest.mark.parametrize("rotated", [0.25, 0.5, 1.0])
def test_partly_rotary_attention_equals_that_of_gpt_neox(rotated: float) -> None:
    config = GPTNeoXConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": rotated},
        attention_dropout=0.0,
        **EAGER,
    )
    theirs = GPTNeoXAttention(config, layer_idx=0).eval()  # type: ignore[no-untyped-call]
    weights = randomise(theirs)
    layer = AttentionConfig(encoding=RotaryConfig(unrotated=1 - rotated), bias=True).build(Shape(DIM, HEADS, LENGTH))
    fused = {name: part.unflatten(0, (HEADS, 3, -1)) for name, part in affine(weights, "query_key_value").items()}
    for index, linear in enumerate((layer.query, layer.key, layer.value)):
        copy(linear, **{name: part[:, index].flatten(0, 1) for name, part in fused.items()})
    copy(layer.merge, **affine(weights, "dense"))
    x = torch.randn(1, LENGTH, DIM)
    rotations = GPTNeoXRotaryEmbedding(config)(x, torch.arange(LENGTH)[None])
    expected, _ = theirs(x, hidden_future(), position_embeddings=rotations)
    close(layer(x, context()).y, expected, TOLERANCE)


def test_a_pre_norm_block_equals_that_of_gpt2() -> None:
    config = GPT2Config(n_embd=DIM, n_head=HEADS, n_inner=24, resid_pdrop=0.0, attn_pdrop=0.0, **EAGER)
    theirs = GPT2Block(config, layer_idx=0).double().eval()  # type: ignore[no-untyped-call]
    weights = randomise(theirs, 0.2)
    ours = BlockConfig(
        mixer=AttentionConfig(bias=True), feedforward=FeedForwardConfig(width=24, activation="gelu_tanh"), norm="pre"
    )
    block = ours.build_block(Shape(DIM, HEADS, LENGTH), "causal").double()
    fused = affine(weights, "attn.c_attn", transpose=True)
    for index, name in enumerate(("query", "key", "value")):
        copy(block.mixer.get_submodule(name), **{key: part.chunk(3)[index] for key, part in fused.items()})
    copy(block.mixer.get_submodule("merge"), **affine(weights, "attn.c_proj", transpose=True))
    copy(block.feedforward.widen, **affine(weights, "mlp.c_fc", transpose=True))
    copy(block.feedforward.narrow, **affine(weights, "mlp.c_proj", transpose=True))
    copy(block.mixer_norm, **affine(weights, "ln_1"))
    copy(block.feedforward_norm, **affine(weights, "ln_2"))
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    close(block(x, context()).y, theirs(x, attention_mask=hidden_future().double()), 1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (4, 3)])
def test_buckets_are_those_of_t5(causal: bool, buckets: int, max_distance: int) -> None:
    ours = LearnedRelativeConfig(buckets=buckets, max_distance=max_distance).build(Shape(DIM, HEADS, LENGTH), 16)
    distances = torch.arange(700, -700 if not causal else -1, -1)
    theirs = T5Attention._relative_position_bucket(-distances, not causal, buckets, max_distance)  # type: ignore[no-untyped-call]
    assert torch.equal(ours.bucket(distances, causal), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_learned_biases_equals_that_of_t5(causal: bool) -> None:
    config = T5Config(
        d_model=DIM,
        num_heads=HEADS,
        d_kv=7,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=9,
        dropout_rate=0.0,
        is_decoder=causal,
        **EAGER,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    weights = randomise(theirs, 0.2)
    encoding = LearnedRelativeConfig(buckets=8, max_distance=9)
    layer = AttentionConfig(encoding=encoding, head_dim=7, scaled=False).build(Shape(DIM, HEADS, LENGTH))
    for linear, name in ((layer.query, "q"), (layer.key, "k"), (layer.value, "v"), (layer.merge, "o")):
        copy(linear, **affine(weights, name))
    assert isinstance(layer.relative, LearnedRelative)
    copy(layer.relative.bias, **affine(weights, "relative_attention_bias"))
    x = torch.randn(1, LENGTH, DIM)
    (expected, *_) = theirs(x, mask=hidden_future() if causal else None)
    close(layer(x, context(causal)).y, expected, TOLERANCE)
