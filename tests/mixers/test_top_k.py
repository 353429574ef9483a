"""Explicit top-k attention equals its definition, written row by row, and plain attention where all keys are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig, TopKConfig
from lit_transformers.mixers.top_k import TopK

DIM, HEADS, HEAD_DIM = 6, 2, 3
SHAPE = Shape(DIM, HEADS, 32)
LONG = 300


def build(shape: Shape = SHAPE, **knobs: Any) -> TopK:
    torch.manual_seed(0)
    layer = TopKConfig(**knobs).build(shape).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def context(
    length: int, causal: bool = True, padding_mask: Tensor | None = None, source: Tensor | None = None
) -> Context:
    rows = 1 if padding_mask is None else len(padding_mask)
    return Context(torch.arange(length).expand(rows, length), causal, padding_mask, source)


def oracle(layer: TopK, x: Tensor, source: Tensor, sees: Any) -> Tensor:
    """x (t, d) and source (s, d) to y (t, d): for each head and query the scores, the k-th of them, the softmax."""
    outputs = []
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        q, k, v = (linear.weight[rows] for linear in (layer.query, layer.key, layer.value))
        head_outputs = []
        for i in range(len(x)):
            keys = [j for j in range(len(source)) if sees(i, j)]
            scores = torch.stack([(q @ x[i]) @ (k @ source[j]) * HEAD_DIM**-0.5 for j in keys])
            best = scores.detach().sort(descending=True).values
            is_kept = scores.detach() >= best[min(layer.kept, len(keys)) - 1]
            scale = (scores[is_kept] if layer.when == "before" else scores).exp().sum()
            values = torch.stack([v @ source[j] for j in keys])
            head_outputs.append((scores.exp() / scale * is_kept) @ values)
        outputs.append(torch.stack(head_outputs))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


def same(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kept", [1, 3, 9, 50])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("causal", [True, False])
def test_outputs_and_gradients_are_those_of_the_definition(kept: int, when: str, causal: bool) -> None:
    layer, x = build(kept=kept, when=when), noise(9, DIM).requires_grad_()
    expected = oracle(layer, x, x, lambda i, j: j <= i or not causal)
    y = layer(x[None], context(9, causal)).y[0]
    same(y, expected)
    probe, leaves = noise(9, DIM), [x, *layer.parameters()]
    for gradient, expected_gradient in zip(
        torch.autograd.grad((y * probe).sum(), leaves),
        torch.autograd.grad((expected * probe).sum(), leaves),
        strict=True,
    ):
        same(gradient, expected_gradient)


@pytest.mark.parametrize("when", ["before", "after"])
def test_across_two_sequences_the_best_of_the_source_are_kept(when: str) -> None:
    layer, x, source = build(kept=2, when=when), noise(5, DIM), noise(7, DIM)
    y = layer(x[None], context(5, source=source[None])).y[0]
    same(y, oracle(layer, x, source, lambda i, j: True))


def test_padding_is_hidden_before_the_best_are_chosen() -> None:
    layer, x = build(kept=3), noise(8, DIM)
    padding_mask = torch.tensor([[True, False, True, True, False, True, True, False]])
    y = layer(x[None], context(8, padding_mask=padding_mask)).y[0]
    expected = oracle(layer, x, x, lambda i, j: j <= i and (bool(padding_mask[0, j]) or i == j))
    same(y[padding_mask[0]], expected[padding_mask[0]])


def test_memory_competes_with_the_segment() -> None:
    layer, x = build(kept=2, memory=12), noise(12, DIM)
    state, parts = None, []
    for segment in x[None].split([5, 3, 4], dim=1):
        mixed = layer(segment, context(segment.size(1)), state)
        state = mixed.state
        parts.append(mixed.y[0])
    same(torch.cat(parts), oracle(layer, x, x, lambda i, j: j <= i))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("causal", [True, False])
def test_keeping_every_key_is_plain_attention(when: str, causal: bool) -> None:
    layer, attention = build(kept=LONG, when=when), AttentionConfig().build(SHAPE).double()
    attention.load_state_dict(layer.state_dict())
    x, ctx = noise(1, LONG, DIM), context(LONG, causal)
    same(layer(x, ctx).y, attention(x, ctx).y)


def test_keys_that_tie_with_the_last_one_kept_are_kept_too() -> None:
    logits = torch.tensor([[[[2.0, 1.0, 0.0, 1.0, 1.0]]]], dtype=torch.float64)
    weights = build(kept=2).weights(logits, torch.tensor([[4]]), torch.arange(5))
    assert (weights > 0).tolist() == [[[[True, True, False, True, True]]]]
    same(weights.sum(), torch.ones_like(weights.sum()))


def test_a_row_with_fewer_keys_than_are_kept_keeps_all_of_them() -> None:
    logits = torch.tensor([[[[0.3, 0.1, -torch.inf, -torch.inf]]]])
    weights = build(kept=3).weights(logits.clone(), torch.tensor([[1]]), torch.arange(4))
    same(weights, logits.softmax(dim=-1))


def test_each_head_and_row_chooses_for_itself() -> None:
    torch.manual_seed(1)
    is_kept = build(kept=4).weights(noise(2, 3, 5, 11), torch.arange(5)[:, None], torch.arange(11)) > 0
    assert (is_kept.sum(-1) == 4).all()
    assert len({tuple(row.tolist()) for row in is_kept.flatten(0, 2)}) > 20


def test_weights_after_the_softmax_are_those_of_plain_attention_and_sum_to_less_than_one() -> None:
    torch.manual_seed(1)
    logits, i, j = noise(1, 1, 3, 9), torch.arange(3)[:, None], torch.arange(9)
    after = build(kept=4, when="after").weights(logits.clone(), i, j)
    same(after[after > 0], logits.softmax(dim=-1)[after > 0])
    assert (after.sum(-1) < 1).all()


def test_weights_after_the_softmax_divided_by_their_sum_are_those_before_it_to_the_gradient() -> None:
    torch.manual_seed(1)
    logits, probe = noise(1, 1, 3, 9).requires_grad_(), noise(1, 1, 3, 9)
    i, j = torch.arange(3)[:, None], torch.arange(9)
    before = build(kept=4).weights(logits.clone(), i, j)
    after = build(kept=4, when="after").weights(logits.clone(), i, j)
    normalised = after / after.sum(-1, keepdim=True)
    same(before, normalised)
    same(*(torch.autograd.grad((weights * probe).sum(), logits)[0] for weights in (before, normalised)))


def test_scores_that_are_not_kept_get_no_gradient() -> None:
    torch.manual_seed(1)
    logits = noise(1, 1, 3, 9).requires_grad_()
    weights = build(kept=4).weights(logits.clone(), torch.arange(3)[:, None], torch.arange(9))
    (gradient,) = torch.autograd.grad((weights * noise(1, 1, 3, 9)).sum(), logits)
    assert torch.equal(gradient != 0, weights > 0)


def test_blocks_of_queries_choose_as_the_whole_does() -> None:
    layer, x = build(kept=5), noise(LONG, DIM)
    q, k, v = (
        linear(x).view(LONG, HEADS, HEAD_DIM).transpose(0, 1) for linear in (layer.query, layer.key, layer.value)
    )
    scores = (q @ k.mT * HEAD_DIM**-0.5).masked_fill(torch.ones(LONG, LONG).triu(1).bool(), -torch.inf)
    threshold = scores.sort(dim=-1, descending=True).values[..., 4:5]
    weights = scores.masked_fill(scores < threshold, -torch.inf).softmax(dim=-1)
    same(layer(x[None], context(LONG)).y[0], layer.merge((weights @ v).transpose(0, 1).flatten(1)))


def test_each_layer_may_keep_its_own_number() -> None:
    kept_counts = [build(SHAPE._replace(layer=layer, depth=3), kept=(2, 4, 800)).kept for layer in range(3)]
    assert kept_counts == [2, 4, 800]
    with pytest.raises(ConfigError, match=r"mixer\.kept: 2 values"):
        build(SHAPE._replace(depth=3), kept=(2, 4))
