"""Our BigBird equals the block-sparse attention of transformers, weights and graph copied.

In training mode, since in evaluation its graph is broken: every random block is the first one. The random blocks are
read where it gathers their keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from copying import affine, close, copy, randomise
from torch import Tensor
from transformers import BigBirdConfig as TheirConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import BigBirdConfig
from lit_transformers.mixers.big_bird import GraphSampler

DIM, HEADS, BLOCK = 16, 2, 4


def attention(random: int, training: bool) -> Any:
    config = TheirConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=random,
        max_position_embeddings=128,
        attention_probs_dropout_prob=0.0,
        use_bias=True,
    )
    return BigBirdBlockSparseAttention(config, seed=3).double().train(training)


def run(theirs: Any, x: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Its output, and its random blocks (h, n - 2, r) of all blocks but the first and the last."""
    gathered_indices: list[Tensor] = []
    gather = theirs.torch_gather_b2
    theirs.torch_gather_b2 = lambda params, indices: gathered_indices.append(indices) or gather(params, indices)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(padding_mask.double(), BLOCK)
    state = np.random.get_state()
    y, _ = theirs(x, band, rows, columns, blocked, blocked)
    np.random.set_state(state)
    return y, gathered_indices[0][0]


@pytest.mark.parametrize(("random", "blocks"), [(1, 8), (2, 10), (2, 12), (3, 20)])
@pytest.mark.parametrize("padding", [0, 3])
def test_outputs_and_gradients_equal_those_of_its_attention(
    random: int, blocks: int, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding stays within the last block: theirs is global wherever the text ends, ours is the last with text."""
    assert blocks > 5 + 2 * random or random == 2, "its own models are dense up to there"
    theirs, length = attention(random, training=True), blocks * BLOCK
    weights = randomise(theirs)
    ours = BigBirdConfig(block=BLOCK, random=random, bias=True).build(Shape(DIM, HEADS, length)).double()
    for name in ("query", "key", "value"):
        copy(ours.get_submodule(name), **affine(weights, name))
    copy(ours.merge, weight=torch.eye(DIM), bias=torch.zeros(DIM))
    x = torch.randn(2, length, DIM, dtype=torch.float64, requires_grad=True)
    padding_mask = torch.arange(length) < torch.tensor([[length], [length - padding]])
    expected, random_blocks = run(theirs, x, padding_mask)
    without_random = BigBirdConfig(block=BLOCK, random=0).build(Shape(DIM, HEADS, length))
    edges = without_random.drawing.edges(torch.tensor([length]), length)
    fixed_edges = edges.expand(1, HEADS, -1, -1)
    edges = fixed_edges.clone()
    edges[:, :, 1:-1].scatter_(-1, random_blocks[None], True)
    assert (edges & ~fixed_edges).sum() == HEADS * (blocks - 2) * random, "its graph counts no block twice"
    monkeypatch.setattr(GraphSampler, "edges", lambda drawing, length, padded: edges)
    y = ours(x, Context(torch.arange(length).expand(2, -1), causal=False, padding_mask=padding_mask)).y
    close(y[padding_mask], expected[padding_mask], 1e-10)
    direction = torch.randn_like(y) * padding_mask[..., None]
    gradients = (torch.autograd.grad((output * direction).sum(), x)[0] for output in (y, expected))
    gradient, expected_gradient = gradients
    close(gradient, expected_gradient, 1e-10)


def test_in_evaluation_every_random_block_of_theirs_is_the_first() -> None:
    """Why the test above trains: should this fail, evaluation may be compared too."""
    theirs = attention(2, training=False)
    _, random_blocks = run(theirs, torch.randn(1, 12 * BLOCK, DIM, dtype=torch.float64), torch.ones(1, 12 * BLOCK))
    assert not random_blocks.any()
