"""Attention over a pattern, one query, one key, one head at a time; and the keys that a mixer sees, from gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_transformers.encodings.shaw import Shaw
from lit_transformers.mixer import Context, Mixer, MixerConfig, Shape, map_state
from lit_transformers.mixers.qkv import QKVMixer

DIM, HEADS, HEAD_DIM = 6, 2, 3

Sees = Callable[[int, int, int], bool]
"""Whether, in a head, a query sees a key; both count keys, memory included."""


def build(config: MixerConfig, layer: int = 0, depth: int = 1, heads: int = HEADS) -> Any:
    """The mixer in float64, with weights large enough to show a difference."""
    torch.manual_seed(0)
    mixer = config.build(Shape(DIM, heads, 64, layer, depth, shared={})).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def context(
    length: int,
    causal: bool = True,
    rows: int = 1,
    padding_mask: Tensor | None = None,
    start: int = 0,
    marked: Tensor | None = None,
) -> Context:
    return Context((torch.arange(length) + start).expand(rows, length), causal, padding_mask, marked=marked)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def same(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=1e-9)


def agree(ours: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    """Forward, and in the gradient of every leaf."""
    same(ours, expected)
    direction = torch.randn_like(ours)
    gradients, expected_gradients = (
        torch.autograd.grad((y * direction).sum(), leaves, materialize_grads=True, retain_graph=True)
        for y in (ours, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-8)


def weights(
    config: MixerConfig,
    length: int,
    causal: bool,
    layer: int = 0,
    depth: int = 1,
    before: int = 0,
    padding_mask: Tensor | None = None,
    marked: Tensor | None = None,
) -> Tensor:
    """(h, t, s), keys of memory first: the weight of each value for each query where all visible keys score alike.

    before: the length of a segment that was read before; its marks come first.
    """
    mixer = config.build(Shape(DIM, HEADS, 64, layer, depth, shared={})).double()
    x, state, leaves = noise(1, length, DIM).requires_grad_(), None, []
    for linear in (module for module in mixer.modules() if isinstance(module, nn.Linear)):
        nn.init.eye_(linear.weight)
    for query in (mixer.query, *list(getattr(mixer, "global_maps", ()))[:1]):
        nn.init.zeros_(query.weight)
    if before:
        earlier = None if marked is None else marked[:, :before]
        state = mixer(noise(1, before, DIM), context(before, causal, marked=earlier)).state
        state = map_state(lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor, state)
        leaves = [state["hidden"]]
    later = None if marked is None else marked[:, before:]
    y = mixer(x, context(length, causal, padding_mask=padding_mask, start=before, marked=later), state).y
    return torch.stack(
        [torch.stack([row(y[0, i, h * HEAD_DIM], [*leaves, x], h) for i in range(length)]) for h in range(HEADS)]
    )


def row(output: Tensor, leaves: Sequence[Tensor], head: int) -> Tensor:
    """How a channel of an output depends on the same channel of every input."""
    gradients = torch.autograd.grad(output, leaves, retain_graph=True, materialize_grads=True)
    return torch.cat([gradient[0, :, head * HEAD_DIM] for gradient in gradients])


def uniform_weights(sees: Sees, queries: int, keys: int, heads: int = HEADS) -> Tensor:
    """(h, t, s): one share for each key that is seen."""
    offset = keys - queries
    visible = torch.tensor(
        [[[sees(h, i + offset, j) for j in range(keys)] for i in range(queries)] for h in range(heads)]
    )
    return visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)


def heads_output(mixer: QKVMixer, x: Tensor, sees: Sees, queries: int | None = None) -> Tensor:
    """The last ``queries`` of x (s, d), by softmax over the keys they see, before the heads are merged: (t, w)."""
    first = 0 if queries is None else len(x) - queries
    return torch.stack([joined(mixer, x, i, sees) for i in range(first, len(x))])


def joined(mixer: QKVMixer, x: Tensor, i: int, sees: Sees) -> Tensor:
    linears = (mixer.query, mixer.key, mixer.value)
    return torch.cat(
        [head_output(mixer, linears, x, h, i, [j for j in range(len(x)) if sees(h, i, j)]) for h in range(mixer.heads)]
    )


def head_output(
    mixer: QKVMixer, linears: Sequence[nn.Linear], x: Tensor, head: int, i: int, visible_keys: list[int]
) -> Tensor:
    """The output of query i in one head over its visible keys; zeros where it sees none."""
    rows = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)

    def through(linear: nn.Linear, x: Tensor) -> Tensor:
        y = linear.weight[rows] @ x
        return y if linear.bias is None else y + linear.bias[rows]

    query, key, value = linears
    if not visible_keys:
        return torch.zeros(mixer.head_dim, dtype=x.dtype)
    q = through(query, x[i])
    scores = [q @ (through(key, x[j]) + added(mixer, "keys", i - j)) / math.sqrt(mixer.head_dim) for j in visible_keys]
    attention_weights = torch.stack(scores).softmax(dim=0)
    values = torch.stack([through(value, x[j]) + added(mixer, "added", i - j) for j in visible_keys])
    return attention_weights @ values


def added(mixer: QKVMixer, name: str, distance: int) -> Tensor | float:
    """a^K or a^V of arXiv:1803.02155 at this very distance, clipped."""
    if not isinstance(mixer.relative, Shaw):
        return 0.0
    table: Tensor = getattr(mixer.relative, name).weight
    limit = len(table) // 2
    return table[limit + max(-limit, min(limit, distance))]


def merged(mixer: QKVMixer, heads: Tensor) -> Tensor:
    y: Tensor = mixer.merge(heads)
    return y


def leaves(mixer: Mixer, *inputs: Tensor) -> list[Tensor]:
    return [*inputs, *mixer.parameters()]
