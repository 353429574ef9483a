"""Our encoder layer equals BERT's, with relative positions as transformers 4.35.2 had them and without."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from copying import EAGER, affine, close, copy, fixture, randomise
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from lit_transformers.encodings import EncodingConfig, HuangConfig, ShawConfig
from lit_transformers.encodings.clipped import DistanceVectors
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS, WIDTH = 16, 2, 24
LONGEST = 11
"""The largest distance of the fixture's tables, which do not clip."""

ENCODINGS = {
    "relative_key": ShawConfig(distance=LONGEST, values=False),
    "relative_key_query": HuangConfig(distance=LONGEST),
}


def our_layer(encoding: EncodingConfig | None, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Block:
    config = BlockConfig(
        mixer=AttentionConfig(encoding=encoding, bias=True),
        feedforward=FeedForwardConfig(width=WIDTH, activation="gelu"),
        norm="post",
    )
    block = config.build_block(Shape(DIM, HEADS, LONGEST), "bidirectional").to(dtype)
    for name in ("query", "key", "value"):
        copy(block.mixer.get_submodule(name), **affine(weights, f"attention.self.{name}"))
    copy(block.mixer.get_submodule("merge"), **affine(weights, "attention.output.dense"))
    copy(block.feedforward.widen, **affine(weights, "intermediate.dense"))
    copy(block.feedforward.narrow, **affine(weights, "output.dense"))
    for norm, name in ((block.mixer_norm, "attention.output"), (block.feedforward_norm, "output")):
        copy(norm, **affine(weights, f"{name}.LayerNorm"))
        norm.eps = 1e-12
    for table in block.modules():
        if isinstance(table, DistanceVectors):
            copy(table, **affine(weights, "attention.self.distance_embedding"))
    return block


def context(padding_mask: Tensor) -> Context:
    return Context(torch.arange(padding_mask.size(1)).expand_as(padding_mask), causal=False, padding_mask=padding_mask)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_shaw_and_huang_equal_relative_key_and_relative_key_query(kind: str) -> None:
    """The reference adds the lowest float to hidden scores, so its padded rows mean something else; real ones agree."""
    reference = fixture("bert_relative.npz", kind)
    block = our_layer(ENCODINGS[kind], reference, torch.float64)
    x, padding_mask = reference["x"].requires_grad_(), reference["keep"]
    y = block(x, context(padding_mask)).y
    close(y[padding_mask], reference["y"][padding_mask], 1e-11)
    (gradient,) = torch.autograd.grad((y * reference["direction"]).sum(), x)
    close(gradient, reference["gradient"], 1e-10)


def test_an_encoder_layer_equals_that_of_the_current_bert() -> None:
    config = BertConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        intermediate_size=WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **EAGER,
    )
    theirs = BertLayer(config).double().eval()  # type: ignore[no-untyped-call]
    block = our_layer(None, randomise(theirs), torch.float64)
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    padding_mask = torch.arange(9) < torch.tensor([[9], [4]])
    expected = theirs(x, attention_mask=padding_mask[:, None, None, :].double().log().clamp(min=-1e300))
    close(block(x, context(padding_mask)).y[padding_mask], expected[padding_mask], 1e-10)
