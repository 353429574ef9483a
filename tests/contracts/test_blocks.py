"""Blocks and stacks keep what mixers promise: decoder blocks do not leak, stacks thread one state for each step."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from contract_cases import DIM, HEADS, POSITION_CASES, STACK_CASES, context, name, noise, randomised
from torch import Tensor, nn

from lit_transformers.block import Block, BlockConfig
from lit_transformers.config import ConfigError
from lit_transformers.encodings import RotaryConfig, XLConfig
from lit_transformers.mixer import Context, Shape, state_tensors
from lit_transformers.mixers import AttentionConfig
from lit_transformers.positions import PositionsConfig
from lit_transformers.stacks import Entry, SharedConfig, Stack, StackConfig

DEPTH = 4
norms = pytest.mark.parametrize("norm", ["pre", "post"])
stacks = pytest.mark.parametrize("config", STACK_CASES, ids=name)


def decoder_block(norm: Literal["pre", "post"]) -> Block:
    config = BlockConfig(mixer=AttentionConfig(encoding=XLConfig(), memory=16), norm=norm)
    return randomised(config.build_block(Shape(DIM, HEADS, 16), "causal", AttentionConfig()).double())


def stack_of(
    config: StackConfig,
    positions: PositionsConfig | None = None,
    norm: Literal["pre", "post"] = "pre",
    memory: int = 16,
) -> Stack:
    block = BlockConfig(mixer=AttentionConfig(encoding=RotaryConfig(), memory=memory), norm=norm)
    shape = Shape(DIM, HEADS, 16, 0, DEPTH, shared={})
    entry = Entry(positions.build(shape) if positions else None)
    built = config.build(DEPTH, lambda n: block.build_block(shape._replace(layer=n), "causal"), entry)
    return randomised(built.double())


@norms
def test_a_decoder_block_sees_all_of_its_source_and_none_of_its_future(norm: Literal["pre", "post"]) -> None:
    x, source = noise(1, 6, DIM).requires_grad_(), noise(1, 5, DIM).requires_grad_()
    y = decoder_block(norm)(x, context(1, 6)._replace(source=source)).y
    to_x, to_source = torch.autograd.grad((y[:, 2] * noise(DIM)).sum(), [x, source])
    assert not to_x[:, 3:].any() and to_x[:, :3].abs().amax(-1).min() > 0
    assert to_source.abs().amax(-1).min() > 0


@norms
def test_a_decoder_block_ignores_padding_on_both_sides(norm: Literal["pre", "post"]) -> None:
    block, x, source = decoder_block(norm), noise(2, 6, DIM), noise(2, 5, DIM)
    keep, source_keep = torch.arange(6) < torch.tensor([[6], [4]]), torch.arange(5) < torch.tensor([[2], [5]])

    def say(x: Tensor, source: Tensor) -> Tensor:
        y: Tensor = block(x, context(2, 6, keep=keep)._replace(source=source, source_keep=source_keep)).y
        return y[keep]

    other = torch.where(keep[..., None], x, 9.0), torch.where(source_keep[..., None], source, 9.0)
    torch.testing.assert_close(say(x, source), say(*other), atol=1e-10, rtol=1e-10)


@norms
def test_every_parameter_of_a_decoder_block_has_a_gradient(norm: Literal["pre", "post"]) -> None:
    block = decoder_block(norm)
    y = block(noise(2, 6, DIM), context(2, 6)._replace(source=noise(2, 5, DIM))).y
    (y * noise(*y.shape)).sum().backward()
    assert [key for key, p in block.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_pre_norm_adds_to_what_it_was_given_and_post_norm_ends_normalised() -> None:
    x = noise(2, 6, DIM) * 100
    pre, post = (randomised_but_for_norms(norm)(x, context(2, 6)).y for norm in ("pre", "post"))
    assert (pre - x).abs().mean() < x.abs().mean()
    torch.testing.assert_close(post.mean(-1), torch.zeros_like(post[..., 0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(post.var(-1, correction=0), torch.ones_like(post[..., 0]), atol=1e-4, rtol=0)


def randomised_but_for_norms(norm: str) -> Block:
    block = randomised(BlockConfig.from_dict({"norm": norm}).build_block(Shape(DIM, HEADS, 16), "causal").double())
    for part in (block.mixer_norm, block.feedforward_norm):
        nn.init.ones_(part.weight)
        nn.init.zeros_(part.bias)
    return block


def test_a_cross_mixer_with_distances_is_refused() -> None:
    with pytest.raises(ConfigError, match="distances between two sequences mean nothing"):
        BlockConfig().build_block(Shape(DIM, HEADS, 16), "causal", AttentionConfig(encoding=XLConfig()))


@stacks
@pytest.mark.parametrize("positions", [None, *POSITION_CASES], ids=lambda p: name(p) if p else "none")
@norms
def test_a_stack_does_not_leak_and_has_no_idle_parameter(
    config: StackConfig, positions: PositionsConfig | None, norm: Literal["pre", "post"]
) -> None:
    stack, x = stack_of(config, positions, norm), noise(1, 16, DIM).requires_grad_()
    y = stack(x, context(1, 16)).y
    (gradient,) = torch.autograd.grad((y[:, 9] * noise(DIM)).sum(), x, retain_graph=True)
    assert not gradient[:, 10:].any() and gradient[:, :10].abs().amax(-1).min() > 0
    (y * noise(*y.shape)).sum().backward()
    assert [key for key, p in stack.named_parameters() if p.grad is None or not p.grad.any()] == []


@stacks
@pytest.mark.parametrize("positions", [None, *POSITION_CASES], ids=lambda p: name(p) if p else "none")
def test_a_stack_in_segments_equals_one_pass(config: StackConfig, positions: PositionsConfig | None) -> None:
    stack, x, state, parts = stack_of(config, positions), noise(2, 14, DIM), None, []
    whole = stack(x, context(2, 14)).y
    for start, stop in ((0, 3), (3, 4), (4, 14)):
        read = stack(x[:, start:stop], context(2, stop - start, start=start), state)
        state = read.state
        parts.append(read.y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-10, rtol=1e-10)


@stacks
def test_every_step_of_a_stack_has_a_state_and_an_output_of_its_own(config: StackConfig) -> None:
    stack, x = stack_of(config), noise(1, 5, DIM)
    read = stack(x, context(1, 5), keep_hidden=True)
    assert len(read.state) == DEPTH and len(read.hidden) == DEPTH - 1
    memories = [next(state_tensors(layer)) for layer in read.state]
    assert all(not torch.equal(a, b) for n, a in enumerate(memories) for b in memories[:n])
    assert stack(x, context(1, 5)).hidden == ()


@pytest.mark.parametrize(
    ("config", "distinct"),
    [
        (SharedConfig(), {"mixer": 1, "feedforward": 1}),
        (SharedConfig(groups=2), {"mixer": 2, "feedforward": 2}),
        (SharedConfig(share="mixer"), {"mixer": 1, "feedforward": DEPTH}),
        (SharedConfig(share="feedforward", groups=2), {"mixer": DEPTH, "feedforward": 2}),
    ],
    ids=lambda given: name(given) if isinstance(given, SharedConfig) else "",
)
def test_layers_share_what_they_are_told_to_share(config: SharedConfig, distinct: dict[str, int]) -> None:
    blocks = [block for block in stack_of(config).modules() if isinstance(block, Block)]
    for part, count in distinct.items():
        found = {id(block.get_submodule(part)) for block in blocks}
        norms_found = {id(block.get_submodule(f"{part}_norm")) for block in blocks}
        assert len(found) == len(norms_found) == count


def test_groups_that_do_not_divide_the_depth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"stack\.groups: depth 4 does not divide into 3 groups"):
        stack_of(SharedConfig(groups=3))


def test_a_cross_mixer_is_not_a_self_mixer() -> None:
    """The block's own mixer never reads the source, though the context carries it for the cross mixer."""
    block = BlockConfig(mixer=AttentionConfig()).build_block(Shape(DIM, HEADS, 16), "causal").double()
    x, ctx = noise(1, 4, DIM), context(1, 4)
    with_source: Context = ctx._replace(source=noise(1, 3, DIM))
    assert torch.equal(block(x, ctx).y, block(x, with_source).y)
