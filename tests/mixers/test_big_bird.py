"""BigBird sees its random, window and global blocks, each once, by a graph that a row's own length decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_patterns import (
    DIM,
    HEADS,
    Sees,
    agree,
    build,
    context,
    heads_output,
    leaves,
    merged,
    noise,
    same,
    uniform_weights,
    weights,
)
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.encodings import EncodingConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig, BigBirdConfig
from lit_transformers.mixers.big_bird import of_full_rows

CASES: dict[str, BigBirdConfig] = {
    "window": BigBirdConfig(block=2, random=0, global_blocks="none"),
    "wide window": BigBirdConfig(block=2, random=0, window=5, global_blocks="none"),
    "random": BigBirdConfig(block=2, random=2, window=0, global_blocks="none"),
    "random and window": BigBirdConfig(block=2, random=1, global_blocks="none"),
    "all": BigBirdConfig(block=2, random=2),
    "all, one graph": BigBirdConfig(block=3, random=1, graph_per_head=False),
    "first": BigBirdConfig(block=2, random=1, window=1, global_blocks="first"),
    "random and ends": BigBirdConfig(block=2, random=1, window=0),
}
every_case = pytest.mark.parametrize("name", CASES)


def graph(config: BigBirdConfig, length: int, layer: int = 0, heads: int = HEADS) -> Tensor:
    """(h, n, n): the blocks that blocks see in a row of this length."""
    mixer = config.build(Shape(3 * heads, heads, 64, layer, 4))
    return mixer.drawing.edges(torch.tensor([length]), length)[0].expand(heads, -1, -1)


def fixed_blocks(config: BigBirdConfig, blocks: int) -> Tensor:
    """The blocks that are not random: section 2, "window" and "global"."""
    i, j = torch.arange(blocks)[:, None], torch.arange(blocks)
    visible = ((i - j).abs() <= config.window // 2) & (config.window > 0)
    if config.global_blocks != "none":
        visible = visible | (i == 0) | (j == 0)
    if config.global_blocks == "ends":
        visible = visible | (i == blocks - 1) | (j == blocks - 1)
    return visible


def sees(config: BigBirdConfig, length: int) -> Sees:
    edges = graph(config, length)
    return lambda h, i, j: bool(edges[h, i // config.block, j // config.block])


@every_case
@pytest.mark.parametrize("length", [1, 6, 13])
def test_a_query_sees_the_blocks_of_its_graph_and_counts_none_twice(name: str, length: int) -> None:
    config = CASES[name]
    same(weights(config, length, False), uniform_weights(sees(config, length), length, length))


@every_case
def test_outputs_and_gradients_are_those_of_attention_over_the_graph(name: str) -> None:
    config = CASES[name].override({"bias": True, "encoding": ShawConfig(distance=3)})
    mixer, x = build(config), noise(1, 13, DIM).requires_grad_()
    agree(
        mixer(x, context(13, False)).y[0], merged(mixer, heads_output(mixer, x[0], sees(config, 13))), leaves(mixer, x)
    )


@every_case
@pytest.mark.parametrize("blocks", [1, 2, 5, 12])
def test_random_blocks_are_as_many_as_asked_and_avoid_all_others(name: str, blocks: int) -> None:
    """T-BB4: the first and the last block, which see everything, have none; their neighbours as many as any."""
    config = CASES[name]
    fixed_edges, edges = fixed_blocks(config, blocks), graph(config, blocks * config.block)
    assert edges[:, fixed_edges].all()
    other_blocks = (~fixed_edges).sum(-1)
    assert torch.equal((edges & ~fixed_edges).sum(-1), other_blocks.clamp(max=config.random).expand(HEADS, -1))


def test_every_block_is_seen_by_chance_about_as_often() -> None:
    """T-BB3: the released code draws from the first 1,024 tokens at some lengths, among them this one, 4,096."""
    config = BigBirdConfig()
    random_edges = graph(config, 4096, heads=8) & ~fixed_blocks(config, 64)
    counts = random_edges.sum(dim=(0, 1))[1:-1].double()
    mean = 8 * 62 * 3 / 62
    assert counts.min() > mean / 3 and counts.max() < 2 * mean
    assert (counts - mean).square().mean().sqrt() < 2 * mean**0.5


def test_the_defaults_are_those_of_the_paper() -> None:
    """T-BB5: blocks of 64, three around the query's own, three by chance, and two, the first and the last, global."""
    inner = graph(BigBirdConfig(), 64 * 20)[:, 5]
    assert BigBirdConfig().block == 64
    assert torch.equal(inner.sum(-1), torch.full((HEADS,), 3 + 3 + 2))


def test_heads_layers_and_seeds_have_graphs_of_their_own_and_one_is_asked_for_by_name() -> None:
    config, length = BigBirdConfig(block=1, random=2, global_blocks="none"), 20
    edges = graph(config, length)
    assert not torch.equal(edges[0], edges[1])
    assert not torch.equal(edges, graph(config, length, layer=1))
    assert not torch.equal(edges, graph(config.override({"seed": 1}), length))
    shared_edges = graph(config.override({"graph_per_head": False}), length)
    assert torch.equal(shared_edges[0], shared_edges[1])


def test_the_graph_is_the_same_in_every_pass_in_training_and_in_evaluation() -> None:
    """T-BB1: transformers' is drawn anew in training, and shows the first block alone in evaluation."""
    mixer, x, ctx = build(CASES["all"]), noise(1, 13, DIM), context(13, False)
    outputs = [mixer.train(training)(x, ctx).y for training in (True, True, False)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    state = torch.get_rng_state()
    mixer.train()(x, ctx)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_short_sequence_is_not_silently_dense() -> None:
    """T-BB2: transformers turns to full attention up to (5 + 2 r) b tokens."""
    config = BigBirdConfig(block=2, random=1)
    visible = weights(config, 2 * (5 + 2), False) > 0
    assert not visible[:, 4:-4].all(-1).any()


@every_case
def test_rows_of_a_batch_have_the_graphs_of_their_own_lengths(name: str) -> None:
    mixer, x, lengths = build(CASES[name]), noise(5, 13, DIM), [13, 5, 1, 0, 8]
    padding_mask = torch.arange(13) < torch.tensor(lengths)[:, None]
    y = mixer(x, context(13, False, rows=5, padding_mask=padding_mask)).y
    assert y.isfinite().all()
    for row, length in enumerate(lengths):
        if length:
            expected = mixer(x[row : row + 1, :length], context(length, False)).y
            same(y[row, :length], expected[0])


def test_padding_is_not_seen_whatever_the_scores() -> None:
    """T-BB6: added to scores of -70,000, the -10,000 of other code would leave padding the largest of all."""
    mixer = build(BigBirdConfig(block=2, random=1))
    for linear, size in ((mixer.query, 1.0), (mixer.key, -1.0), (mixer.value, 1.0)):
        linear.weight.data = size * torch.eye(DIM, dtype=torch.float64)
    x, padding_mask = 200 + noise(1, 13, DIM), torch.arange(13)[None] < 9
    x[:, 9:] = 0
    y = mixer(x, context(13, False, padding_mask=padding_mask)).y
    same(y[:, :9], mixer(x[:, :9], context(9, False)).y)


def test_it_is_refused_as_a_language_model() -> None:
    """T-BB7."""
    with pytest.raises(ConfigError, match="the paper defines it for encoders"):
        BigBirdConfig().require("causal")


@pytest.mark.parametrize("encoding", [None, RotaryConfig(), XLConfig(), ShawConfig(distance=2)], ids=str)
@pytest.mark.parametrize(
    "knobs",
    [
        {"block": 2, "window": 11, "random": 0, "global_blocks": "none"},
        {"block": 2, "window": 1, "random": 6, "global_blocks": "none"},
        {"block": 11, "random": 0, "window": 1},
    ],
    ids=str,
)
def test_with_all_blocks_on_it_is_dense_attention(encoding: EncodingConfig | None, knobs: dict[str, Any]) -> None:
    ours, dense = build(BigBirdConfig(encoding=encoding, **knobs)), build(AttentionConfig(encoding=encoding))
    dense.load_state_dict(ours.state_dict())
    x, ctx = noise(2, 11, DIM), context(11, False, rows=2, padding_mask=torch.arange(11) < torch.tensor([[11], [6]]))
    padding_mask = ctx.padding_mask
    assert padding_mask is not None
    same(ours(x, ctx).y[padding_mask], dense(x, ctx).y[padding_mask])


def test_twice_the_length_costs_twice_as_much() -> None:
    """In the FLOPs that are counted: the graph itself, a few numbers for each pair of blocks, is not among them."""
    mixer = build(BigBirdConfig(block=16))
    assert mixer.flops(4096, 0) / mixer.flops(2048, 0) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [({"window": 2}, "it is odd, not 2"), ({"window": 0, "random": 0}, "neither random nor window")],
)
def test_what_would_see_nothing_is_refused(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        BigBirdConfig(**knobs)


def test_the_graph_of_full_rows_is_drawn_once_and_trains_though_a_measurement_drew_it() -> None:
    mixer = BigBirdConfig(block=2, random=1).build(Shape(DIM, HEADS, 26, layer=7))
    ctx, x = Context(torch.arange(26)[None], causal=False), torch.randn(1, 26, DIM)
    with torch.inference_mode():
        measured = mixer(x, ctx).y.clone()
    full_row_graph = of_full_rows(mixer.drawing, 26, x.device)
    y = mixer(x.requires_grad_(), ctx).y
    torch.testing.assert_close(y.detach(), measured)
    y.square().sum().backward()
    assert x.grad is not None and x.grad.any()
    assert of_full_rows(mixer.drawing, 26, x.device) is full_row_graph
