"""Blocks and stacks keep the promises of mixers: decoder blocks do not leak, stacks thread one state for each step."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from contract_cases import (
    DIM,
    FEEDFORWARD_CASES,
    HEADS,
    KINDS,
    MIXER_CASES,
    POSITION_CASES,
    SHAPE,
    STACK_CASES,
    Case,
    context,
    name,
    noise,
    randomised,
)
from numerics import bound, placed, same, same_gradients, unmoved
from torch import Tensor, nn

from lit_transformers.config import ConfigError, field_types
from lit_transformers.encodings import RotaryConfig, XLConfig
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.gates.gates import check
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Mode, OutputProjection, Shape, empty_rows, state_tensors
from lit_transformers.mixers import AttentionConfig, StarConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.stacks import ReversibleConfig, SharedConfig, Stack, StackConfig, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig, SeparableConvolutionConfig, TransitionConfig

pytestmark = pytest.mark.any_device
DEPTH = 4
Norm = Literal["pre", "post"]
norms = pytest.mark.parametrize("norm", ["pre", "post"])
stacks = pytest.mark.parametrize("config", STACK_CASES, ids=name)
normed_stacks = pytest.mark.parametrize(
    ("config", "norm"),
    [
        (c, norm)
        for c in STACK_CASES
        for norm in ("pre", "post")
        if norm == "pre" or not isinstance(c, ReversibleConfig)
    ],
    ids=lambda given: given if isinstance(given, str) else name(given),
)
positioned = pytest.mark.parametrize("positions", [None, *POSITION_CASES], ids=lambda p: name(p) if p else "none")
stacked_feedforwards = pytest.mark.parametrize(
    ("config", "feedforward"),
    [
        (stack, feedforward)
        for stack in STACK_CASES
        for feedforward in FEEDFORWARD_CASES
        if stack == STACK_CASES[0] or feedforward in (FeedForwardConfig(), SeparableConvolutionConfig())
    ],
    ids=name,
)
"""Every stack with a feed-forward without a state and with one, and the first stack with all of them: a stack knows of
them no more than whether they have a state."""


def decoder_block(norm: Norm) -> Block:
    config = BlockConfig(mixer=AttentionConfig(encoding=XLConfig(), memory=16), norm=norm)
    return placed(randomised(config.build_block(Shape(DIM, HEADS, 16), "causal", AttentionConfig()).double()))


def stack_of(
    config: StackConfig,
    positions: PositionsConfig | None = None,
    norm: Norm = "pre",
    memory: int = 16,
    feedforward: TransitionConfig | None = None,
    mode: Mode = "causal",
) -> Stack:
    mixer = AttentionConfig(encoding=RotaryConfig(), memory=memory)
    block = BlockConfig(mixer=mixer, norm=norm, feedforward=feedforward or FeedForwardConfig())
    shape = Shape(DIM, HEADS, 16, 0, DEPTH, shared={})
    entry = StackInput(positions.build(shape) if positions else None)

    def make(layer: int, depth: int) -> Block:
        return block.build_block(shape._replace(layer=layer, depth=depth), mode)

    return placed(randomised(config.build(shape, make, entry).double()))


@norms
def test_a_decoder_block_sees_all_of_its_source_and_none_of_its_future(norm: Norm) -> None:
    x, source = noise(1, 6, DIM).requires_grad_(), noise(1, 5, DIM).requires_grad_()
    y = decoder_block(norm)(x, context(1, 6)._replace(source=source)).y
    x_gradient, source_gradient = torch.autograd.grad((y[:, 2] * noise(DIM)).sum(), [x, source])
    assert not x_gradient[:, 3:].any() and x_gradient[:, :3].abs().amax(-1).min() > 0
    assert source_gradient.abs().amax(-1).min() > 0


@norms
def test_a_decoder_block_ignores_padding_on_both_sides(norm: Norm) -> None:
    block, x, source = decoder_block(norm), noise(2, 6, DIM), noise(2, 5, DIM)
    padding_mask, source_padding_mask = (
        torch.arange(6) < torch.tensor([[6], [4]]),
        torch.arange(5) < torch.tensor([[2], [5]]),
    )

    def run_block(x: Tensor, source: Tensor) -> Tensor:
        y: Tensor = block(
            x, context(2, 6, padding_mask=padding_mask)._replace(source=source, source_padding_mask=source_padding_mask)
        ).y
        return y[padding_mask]

    overwritten = torch.where(padding_mask[..., None], x, 9.0), torch.where(source_padding_mask[..., None], source, 9.0)
    unmoved(run_block(x, source), run_block(*overwritten))


@norms
def test_every_parameter_of_a_decoder_block_has_a_gradient(norm: Norm) -> None:
    block = decoder_block(norm)
    y = block(noise(2, 6, DIM), context(2, 6)._replace(source=noise(2, 5, DIM))).y
    (y * noise(*y.shape)).sum().backward()
    assert [key for key, p in block.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_pre_norm_adds_to_what_it_was_given_and_post_norm_ends_normalised() -> None:
    x = noise(2, 6, DIM) * 100
    pre, post = (randomised_but_for_norms(norm)(x, context(2, 6)).y for norm in ("pre", "post"))
    assert (pre - x).abs().mean() < x.abs().mean() / 2
    assert post.mean(-1).abs().max() < bound(1e-9)
    torch.testing.assert_close(post.var(-1, correction=0), torch.ones_like(post[..., 0]), atol=1e-4, rtol=0)


def randomised_but_for_norms(norm: str) -> Block:
    block = randomised(BlockConfig.from_dict({"norm": norm}).build_block(Shape(DIM, HEADS, 16), "causal").double())
    for part in (block.mixer_norm, block.feedforward_norm):
        nn.init.ones_(part.weight)
        nn.init.zeros_(part.bias)
    return placed(block)


def test_a_cross_mixer_with_distances_is_refused() -> None:
    with pytest.raises(ConfigError, match="distances between two sequences mean nothing"):
        BlockConfig().build_block(Shape(DIM, HEADS, 16), "causal", AttentionConfig(encoding=XLConfig()))


@normed_stacks
@positioned
def test_no_stack_leaks_and_none_has_an_idle_parameter(
    config: StackConfig, norm: Norm, positions: PositionsConfig | None
) -> None:
    stack, x = stack_of(config, positions, norm), noise(1, 16, DIM).requires_grad_()
    output = stack(x, context(1, 16))
    (gradient,) = torch.autograd.grad((output.y[:, 9] * noise(DIM)).sum(), x, retain_graph=True)
    assert not gradient[:, 10:].any() and gradient[:, :10].abs().amax(-1).min() > 0
    loss = (output.y * noise(*output.y.shape)).sum()
    sum(output.aux.values(), start=loss).backward()
    assert idle_parameters(stack) == []


def idle_parameters(network: nn.Module) -> list[str]:
    """Parameters without a gradient."""
    return [key for key, p in network.named_parameters() if p.grad is None or not p.grad.any()]


@stacks
@positioned
def test_a_stack_in_segments_equals_one_pass(config: StackConfig, positions: PositionsConfig | None) -> None:
    check_segments_equal_one_pass(stack_of(config, positions))


@stacked_feedforwards
def test_every_feed_forward_streams_in_every_stack(config: StackConfig, feedforward: TransitionConfig) -> None:
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            check_segments_equal_one_pass(stack_of(config, feedforward=feedforward))


def check_segments_equal_one_pass(stack: Stack) -> None:
    """Cut where a convolution reaches over several segments."""
    x, state, outputs = noise(2, 14, DIM), None, []
    expected = stack(x, context(2, 14)).y
    for start, stop in ((0, 3), (3, 4), (4, 14)):
        output = stack(x[:, start:stop], context(2, stop - start, start=start), state)
        state = output.state
        outputs.append(output.y)
    same(torch.cat(outputs, dim=1), expected)


@stacked_feedforwards
@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
def test_padding_changes_nothing_at_real_positions(
    config: StackConfig, feedforward: TransitionConfig, mode: Mode
) -> None:
    memory = 16 if mode == "causal" else 0
    stack = stack_of(config, feedforward=feedforward, memory=memory, mode=mode)
    x, padding_mask, causal = noise(2, 9, DIM), torch.arange(9) < torch.tensor([[9], [5]]), mode == "causal"
    output = stack(x, context(2, 9, causal, padding_mask))
    overwritten = stack(torch.where(padding_mask[..., None], x, 9.0), context(2, 9, causal, padding_mask))
    unpadded = stack(x[1:, :5], context(1, 5, causal)).y
    unmoved(output.y[padding_mask], overwritten.y[padding_mask])
    same(output.y[1:, :5], unpadded)
    assert output.aux.keys() == overwritten.aux.keys()
    for key in output.aux:
        unmoved(output.aux[key], overwritten.aux[key])


@stacked_feedforwards
def test_an_emptied_lane_of_a_stack_starts_anew(config: StackConfig, feedforward: TransitionConfig) -> None:
    stack = stack_of(config, feedforward=feedforward)
    first, second = noise(2, 5, DIM), noise(2, 4, DIM)
    state = stack(first, context(2, 5)).state
    emptied_state = empty_rows(state, torch.tensor([True, False]))
    y = stack(second, context(2, 4), emptied_state).y
    same(y[:1], stack(second[:1], context(1, 4)).y)
    same(y[1:], stack(second, context(2, 4), state).y[1:])


@stacks
def test_without_causality_a_stack_sees_both_ways(config: StackConfig) -> None:
    stack, x = stack_of(config, memory=0, mode="bidirectional"), noise(1, 6, DIM).requires_grad_()
    y = stack(x, context(1, 6, causal=False)).y
    (gradient,) = torch.autograd.grad((y[:, 2] * noise(DIM)).sum(), x)
    assert gradient.abs().amax(-1).min() > 0


@pytest.mark.slow
@stacked_feedforwards
def test_a_model_of_every_stack_and_feed_forward_passes_every_gate(
    config: StackConfig, feedforward: TransitionConfig
) -> None:
    mixer = AttentionConfig(encoding=XLConfig(), memory=4)
    model = LanguageModelConfig(dim=8, heads=2, depth=2, mixer=mixer, stack=config, feedforward=feedforward)
    assert [gate for gate in check(model) if not gate.passed] == []


@stacked_feedforwards
def test_every_parameter_of_a_translator_learns(config: StackConfig, feedforward: TransitionConfig) -> None:
    model = EncoderDecoderConfig(dim=8, heads=2, depth=2, stack=config, feedforward=feedforward)
    network = placed(randomised(model.build(probe_data(11, 9)).double()))
    output = network(torch.arange(7).expand(2, -1), torch.arange(9).expand(2, -1))
    loss = (output.hidden * noise(2, 9, 8)).sum()
    sum(output.aux.values(), start=loss).backward()
    embedding = ["tokens.logits.bias"]  # of the softmax, which is not asked here
    assert idle_parameters(network) == embedding


@stacks
def test_every_step_of_a_stack_has_a_state_and_an_output_of_its_own(config: StackConfig) -> None:
    stack, x = stack_of(config), noise(1, 5, DIM)
    output = stack(x, context(1, 5), keep_hidden=True)
    assert len(output.state) == DEPTH and len(output.hidden) == DEPTH - 1
    memories = [next(state_tensors(layer)) for layer in output.state]
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
    ids=lambda value: name(value) if isinstance(value, SharedConfig) else "",
)
def test_layers_share_what_they_are_told_to_share(config: SharedConfig, distinct: dict[str, int]) -> None:
    blocks = [block for block in stack_of(config).modules() if isinstance(block, Block)]
    for part, count in distinct.items():
        part_ids = {id(block.get_submodule(part)) for block in blocks}
        norm_ids = {id(block.get_submodule(f"{part}_norm")) for block in blocks}
        assert len(part_ids) == len(norm_ids) == count


def test_layers_that_share_weights_are_neighbours() -> None:
    layers = stack_of(SharedConfig(groups=2)).steps()
    assert [layer is layers[0] for layer in layers] == [number < DEPTH // 2 for number in range(DEPTH)]


@norms
def test_a_norm_after_the_sum_is_refused_where_layers_are_reversed(norm: Norm) -> None:
    if norm == "pre":
        assert stack_of(ReversibleConfig(), norm=norm)
    else:
        with pytest.raises(ConfigError, match=r"norm: a norm after the residual sum cannot be undone; set norm: pre"):
            stack_of(ReversibleConfig(), norm=norm)


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_every_mixer_is_reversed_to_the_gradients_of_kept_activations(case: Case) -> None:
    """With dropout and the mixer's own losses, from one random seed."""
    dropout = {"dropout": 0.3} if "dropout" in field_types(type(case.config)) else {}
    block, shape = BlockConfig(mixer=case.config.override(dropout), dropout=0.2), SHAPE._replace(depth=3, shared={})
    x, ctx = noise(2, 11, DIM), context(2, 11, case.mode == "causal")

    def gradients(recompute: bool) -> list[Tensor]:
        torch.manual_seed(0)

        def build_layer(layer: int, depth: int) -> Block:
            return block.build_block(shape._replace(layer=layer, depth=depth), case.mode)

        stack = ReversibleConfig(recompute=recompute).build(shape._replace(shared={}), build_layer, StackInput())
        stack = placed(randomised(stack.double()))
        torch.manual_seed(3)
        output = stack(x, ctx)
        loss = sum(output.aux.values(), start=output.y.sin().sum())
        return [loss.detach(), *torch.autograd.grad(loss, list(stack.parameters()), allow_unused=True)]

    same_gradients(gradients(True), gradients(False), exact=1e-8)


def test_groups_that_do_not_divide_the_depth_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"stack\.groups: depth 4 does not divide into 3 groups"):
        stack_of(SharedConfig(groups=3))


def test_the_first_norm_alone_is_left_out_and_no_norm_has_a_bias() -> None:
    """arXiv:2412.13663, section 2.1.1: the first mixer then reads the input of the stack as it is."""
    config = EncoderConfig(dim=DIM, heads=HEADS, depth=3, first_norm=False, norm_bias=False, embedding_norm=True)
    network = config.build(probe_data(11, 6))
    norms = {name for name, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
    blocks = (f"stack.blocks.{layer}.{part}" for layer in range(3) for part in ("mixer_norm", "feedforward_norm"))
    assert norms == {"norm", "stack.entry.norm", *blocks} - {"stack.blocks.0.mixer_norm"}
    assert all(network.get_submodule(name).bias is None for name in norms)
    first, x = network.get_submodule("stack.blocks.0"), noise(1, 6, DIM)
    assert isinstance(first, Block)
    assert torch.equal(first.before(next(first.branches()), x), x)
    with pytest.raises(ConfigError, match="norm: post has none there"):
        config.override({"norm": "post"})


def test_a_cross_mixer_is_not_a_self_mixer() -> None:
    """The block's own mixer never reads the source, though the context carries it for the cross mixer."""
    block = BlockConfig(mixer=AttentionConfig()).build_block(Shape(DIM, HEADS, 16), "causal")
    block = placed(block.double())
    x, ctx = noise(1, 4, DIM), context(1, 4)
    with_source: Context = ctx._replace(source=noise(1, 3, DIM))
    assert torch.equal(block(x, ctx).y, block(x, with_source).y)


def test_what_a_sublayer_adds_comes_through_an_output_projection() -> None:
    """Its weights start smaller in a deeper network. A star has none: its output is normalised."""
    for config in (*MIXER_CASES, *FEEDFORWARD_CASES):
        projections = [module for module in config.build(SHAPE).modules() if isinstance(module, OutputProjection)]
        assert bool(projections) != isinstance(config, StarConfig), name(config)
