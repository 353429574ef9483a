"""The Universal Transformer against its equations, written as loops over positions, and against Graves' and its own
way to combine steps."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import PositionsConfig, SinusoidalConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.stacks import HaltingConfig, SharedConfig, StackConfig, StackInput, UniversalConfig
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.universal import Halting, HaltingState, Universal

DIM, DEPTH, LENGTH = 4, 5, 3
Combine = Literal["sum", "interpolation"]
combined = pytest.mark.parametrize("combine", ["sum", "interpolation"])


def built(
    config: StackConfig, positions: PositionsConfig | None = None, depth: int = DEPTH, dim: int = DIM, **block: Any
) -> Any:
    torch.manual_seed(0)
    block_config = BlockConfig(**{"norm": "post"} | block)
    shape = Shape(dim, 1, LENGTH, 0, depth, shared={})

    def build_layer(layer: int, depth: int) -> Block:
        return block_config.build_block(shape._replace(layer=layer, depth=depth), "causal")

    stack = config.build(shape, build_layer, StackInput(positions.build(shape) if positions else None)).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.7)
    return stack


def context(length: int = LENGTH, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length)[None], causal=True, padding_mask=padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sinusoid(position: int, dim: int) -> Tensor:
    """Sines, then cosines."""
    angles = [position / 10_000 ** (2 * j / dim) for j in range(dim // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


def one_step(block: Block, h: list[Tensor]) -> list[Tensor]:
    """A = LN(h + attention(h)), LN(A + W_2 relu(W_1 A + b_1) + b_2), for one head, position by position."""
    mixer, feed = block.mixer, block.feedforward
    query, key, value = ([getattr(mixer, name).weight @ state for state in h] for name in ("query", "key", "value"))
    outputs = []
    for i, state in enumerate(h):
        scores = torch.stack([query[i] @ key[j] / DIM**0.5 for j in range(i + 1)])
        weights = scores.exp() / scores.exp().sum()
        mixed = sum(weights[j] * value[j] for j in range(i + 1))
        a = normalised(block.mixer_norm, state + mixer.merge.weight @ mixed)  # type: ignore[operator, union-attr]
        hidden = (feed.widen.weight @ a + feed.widen.bias).clamp(min=0)  # type: ignore[operator, union-attr]
        b = a + feed.narrow.weight @ hidden + feed.narrow.bias  # type: ignore[operator, union-attr]
        outputs.append(normalised(block.feedforward_norm, b))
    return outputs


def oracle(stack: Universal, x: Tensor, combine: Combine | None, threshold: float = 0.99) -> tuple[Tensor, Tensor]:
    """The output of one row, and the ponder cost of each position, from the equations alone."""
    h = list(x)
    steps, halted_at = [], [0] * len(h)
    p: list[list[Tensor]] = [[] for _ in h]
    for step in range(DEPTH):
        h = [state + sinusoid(i, DIM) + sinusoid(step + 1, DIM) for i, state in enumerate(h)]
        if stack.halting is not None:
            for i, state in enumerate(h):
                logit = stack.halting.unit.weight[0] @ state + stack.halting.bias[0]
                p[i].append(1 / (1 + (-logit).exp()))
        h = one_step(stack.block, h)
        steps.append(h)
    if combine is None:
        return torch.stack(h), torch.zeros(len(h))
    outputs, costs = [], []
    for i in range(len(h)):
        running, weights = torch.zeros(()), []
        for step in range(DEPTH):
            ends = running + p[i][step] > threshold or (combine == "sum" and step == DEPTH - 1)
            weights.append(1 - running if ends else p[i][step])
            if ends:
                halted_at[i] = step + 1
                break
            running = running + p[i][step]
        y = torch.zeros(DIM)
        for weight, step in zip(weights, steps, strict=False):
            y = y + weight * step[i] if combine == "sum" else y * (1 - weight) + weight * step[i]
        outputs.append(y)
        costs.append(len(weights) + (weights[-1] if halted_at[i] else torch.zeros(())))
    return torch.stack(outputs), torch.stack(costs)


@pytest.mark.parametrize("combine", [None, "sum", "interpolation"])
def test_the_stack_is_the_equations(combine: Combine | None) -> None:
    """Output, loss and all gradients, in float64."""
    halting = None if combine is None else HaltingConfig(combine=combine, ponder=0.3)
    stack = built(UniversalConfig(halting=halting), SinusoidalConfig(per_layer=True))
    x = noise(1, LENGTH, DIM)
    output = stack(x, context())
    y, costs = oracle(stack, x[0], combine)
    torch.testing.assert_close(output.y[0], y, atol=1e-10, rtol=1e-10)
    objective, expected_objective = output.y.sin().sum(), y.sin().sum()
    if combine is not None:
        torch.testing.assert_close(output.aux["ponder"], 0.3 * costs.mean(), atol=1e-10, rtol=1e-10)
        assert 1 < costs.floor().min() < costs.floor().max(), "positions that halt at different steps"
        objective, expected_objective = objective + output.aux["ponder"], expected_objective + 0.3 * costs.mean()
    parameters = list(stack.parameters())
    for gradient, expected in zip(
        torch.autograd.grad(objective, parameters), torch.autograd.grad(expected_objective, parameters), strict=True
    ):
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=1e-9)


def halting_of(combine: Combine, probabilities: list[float], **fields: Any) -> tuple[Halting, list[Tensor]]:
    """A halting unit and states (1, 1, 2) that make it say these probabilities."""
    unit = Halting(HaltingConfig(combine=combine, bias=0.0, **fields), 2).double()
    with torch.no_grad():
        unit.unit.weight.copy_(torch.tensor([[1.0, 0.0]]))
    return unit, [torch.tensor([[[math.log(p / (1 - p)), 1.0]]], dtype=torch.float64) for p in probabilities]


def coefficients(combine: Combine, probabilities: list[float]) -> list[float]:
    """The factor of each step's state in the output."""
    unit, states = halting_of(combine, probabilities)
    steps = torch.eye(len(states), dtype=torch.float64)[:, None, None]
    halted = HaltingState.nowhere(steps[0])
    for step, (before, after) in enumerate(zip(states, steps, strict=True)):
        halted = unit(before, after, halted, step == len(states) - 1)
    return halted.y.flatten().tolist()


def test_the_sum_is_graves_and_the_interpolation_is_the_listings() -> None:
    """Trap T-UT1: probabilities of 0.3 and 0.3, and a remainder of 0.4."""
    assert coefficients("sum", [0.3, 0.3, 0.9]) == pytest.approx([0.3, 0.3, 0.4])
    weights = coefficients("interpolation", [0.3, 0.3, 0.9])
    assert weights == pytest.approx([0.126, 0.18, 0.4])
    assert sum(weights) == pytest.approx(0.706)


def test_what_never_halts_has_a_remainder_in_the_sum_alone() -> None:
    """Trap T-UT3."""
    assert coefficients("sum", [0.2, 0.2, 0.2]) == pytest.approx([0.2, 0.2, 0.6])
    weights = coefficients("interpolation", [0.2, 0.2, 0.2])
    assert weights == pytest.approx([0.2 * 0.8 * 0.8, 0.2 * 0.8, 0.2])


@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=8))
@settings(max_examples=60)
def test_weights_of_the_sum_sum_to_one(probabilities: list[float]) -> None:
    weights = coefficients("sum", probabilities)
    assert sum(weights) == pytest.approx(1, abs=1e-12) and min(weights) >= 0


@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=8))
@settings(max_examples=60)
def test_masks_are_those_of_the_listing(probabilities: list[float]) -> None:
    """Trap T-UT4: masks as numbers, with < 1 and <= threshold; its loop ends where ours adds nothing."""
    assume(all(abs(total - 0.99) > 1e-9 for total in accumulate(probabilities)))  # a tie falls as rounding has it
    halting, remainder, updates, output = 0.0, 0.0, 0, 0.0
    for step, p in enumerate(probabilities):
        running = float(halting < 1)
        halts_now = float(halting + p * running > 0.99) * running
        running = float(halting + p * running <= 0.99) * running
        halting += p * running
        remainder += halts_now * (1 - halting)
        halting += halts_now * remainder
        updates += int(running + halts_now)
        weight = p * running + halts_now * remainder
        output = (step + 1) * weight + output * (1 - weight)
    unit, states = halting_of("interpolation", probabilities)
    halted = HaltingState.nowhere(torch.zeros(1, 1, 1, dtype=torch.float64))
    for step, before in enumerate(states):
        after = torch.full((1, 1, 1), step + 1.0, dtype=torch.float64)
        halted = unit(before, after, halted, step == len(states) - 1)
    assert halted.y.item() == pytest.approx(output, rel=1e-9)
    assert halted.steps.item() == updates
    assert halted.remainder.item() == pytest.approx(remainder, abs=1e-9)


@combined
def test_a_position_that_has_halted_is_still_transformed_and_seen(combine: Combine) -> None:
    """Trap T-UT2: the paper's text copies its state; the listing, which gave the numbers, continues to transform it."""
    stack = built(UniversalConfig(halting=HaltingConfig(combine=combine)))
    with torch.no_grad():
        stack.halting.unit.weight.zero_()
        stack.halting.bias.fill_(20.0)  # every position halts at the first step
    states: list[Tensor] = []
    stack.block.register_forward_hook(lambda _, inputs, output: states.append(output.y))
    y = stack(noise(1, LENGTH, DIM), context()).y
    torch.testing.assert_close(y, states[0])
    assert len(states) == DEPTH and all(not torch.allclose(a, b) for a, b in pairwise(states))


def test_the_ponder_cost_is_of_real_tokens() -> None:
    """Trap T-UT5."""
    stack = built(UniversalConfig(halting=HaltingConfig()))
    x, padding_mask = noise(2, LENGTH, DIM), torch.tensor([[True] * LENGTH, [True] + [False] * (LENGTH - 1)])
    positions = torch.arange(LENGTH).expand(2, -1)
    ponder_cost = stack(x, Context(positions, True, padding_mask)).aux["ponder"]
    row_costs = [stack(x[:1], context()).aux["ponder"], stack(x[1:, :1], context(1)).aux["ponder"]]
    torch.testing.assert_close(
        ponder_cost, (LENGTH * row_costs[0] + row_costs[1]) / (LENGTH + 1), atol=1e-12, rtol=1e-12
    )
    padding_cost = stack(x, Context(positions, True, torch.zeros_like(padding_mask))).aux["ponder"]
    assert padding_cost == 0


def test_the_ponder_cost_has_a_gradient_through_the_remainder_alone() -> None:
    """Trap T-UT5: with n steps, R = 1 - p_1 - ... - p_{n-1}, and the number of steps is a constant."""
    unit, states = halting_of("sum", [0.3, 0.3, 0.9, 0.5], ponder=1.0)
    halted = HaltingState.nowhere(states[0])
    for step, before in enumerate(states):
        halted = unit(before, before, halted, step == 3)
    assert unit.cost(halted, None).item() == pytest.approx(3 + 0.4)
    unit.cost(halted, None).backward()
    assert unit.bias.grad is not None
    assert unit.bias.grad.item() == pytest.approx(-(0.3 * 0.7 + 0.3 * 0.7))


def test_the_step_and_the_position_are_added_before_every_step() -> None:
    """Trap T-UT6."""
    stack = built(UniversalConfig(), SinusoidalConfig(per_layer=True))
    block_inputs: list[Tensor] = []
    block_outputs: list[Tensor] = []
    stack.block.register_forward_hook(lambda _, x, mixed: (block_inputs.append(x[0]), block_outputs.append(mixed.y))[0])
    x = noise(1, LENGTH, DIM)
    stack(x, context())
    for step, (before, block_input) in enumerate(zip([x, *block_outputs[:-1]], block_inputs, strict=True)):
        for i in range(LENGTH):
            expected = before[0, i] + sinusoid(i, DIM) + sinusoid(step + 1, DIM)
            torch.testing.assert_close(block_input[0, i], expected, atol=1e-12, rtol=1e-12)


def test_without_steps_and_halting_it_is_one_block_that_all_layers_share() -> None:
    universal, shared = built(UniversalConfig(timestep=False)), built(SharedConfig())
    shared.blocks[0].load_state_dict(universal.block.state_dict())
    x = noise(1, LENGTH, DIM)
    assert torch.equal(universal(x, context()).y, shared(x, context()).y)


def test_weights_do_not_grow_with_steps() -> None:
    shallow, deep = (built(UniversalConfig(halting=HaltingConfig()), depth=depth) for depth in (2, 9))
    assert {n: p.shape for n, p in shallow.named_parameters()} == {n: p.shape for n, p in deep.named_parameters()}


def test_halting_costs_what_is_counted() -> None:
    def count_flops(stack: Universal) -> int:
        with FlopCounterMode(display=False) as counter:
            stack(noise(1, LENGTH, DIM), context())
        return counter.get_total_flops()

    halting, without_halting = built(UniversalConfig(halting=HaltingConfig())), built(UniversalConfig())
    difference = halting.flops(LENGTH, 0) - without_halting.flops(LENGTH, 0)
    assert difference == count_flops(halting) - count_flops(without_halting) == DEPTH * 2 * LENGTH * DIM


def language_model(**fields: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModelConfig(dim=8, heads=2, depth=3, **fields).build(probe_data(11, 6))


def test_a_model_starts_with_the_halting_bias_that_it_was_told() -> None:
    """Though a model's linear layers start with biases of zero."""
    for bias in (1.0, -2.5):
        network = language_model(stack=UniversalConfig(halting=HaltingConfig(bias=bias)))
        assert isinstance(network.stack, Universal) and network.stack.halting is not None
        assert network.stack.halting.bias.item() == bias
    assert HaltingConfig().bias == 1.0 and HaltingConfig().epsilon == 0.01  # trap T-UT9: not 0.1


def test_encoder_and_decoder_halt_apart() -> None:
    """Trap T-UT10."""
    config = EncoderDecoderConfig(dim=8, heads=2, depth=2, stack=UniversalConfig(halting=HaltingConfig()))
    network = config.build(probe_data(11, 6))
    assert isinstance(network, EncoderDecoder)
    units = [module for module in network.modules() if isinstance(module, Halting)]
    assert len(units) == 2 and units[0].unit.weight is not units[1].unit.weight
    source, target = torch.arange(5)[None], torch.arange(4)[None]
    encoded = network.encode(source)
    decoded = network.decode(target, encoded.hidden)
    output = network(source, target)
    torch.testing.assert_close(output.aux["ponder"], decoded.aux["ponder"])
    torch.testing.assert_close(output.source_aux["ponder"], encoded.aux["ponder"])


def test_offsets_are_drawn_for_each_row_once_a_pass_and_in_training_alone() -> None:
    """Trap T-UT7: positions beyond the longest row of training are learned too."""
    positions = SinusoidalConfig(per_layer=True, restart="document", offset=40)
    stack = built(UniversalConfig(), positions)
    positions_by_step: list[Tensor] = []
    stack.entry.positions.register_forward_hook(lambda _, inputs, __: positions_by_step.append(inputs[1]))
    x = noise(16, LENGTH, DIM)
    ctx = Context(torch.arange(LENGTH).expand(16, -1), causal=True)
    stack(x, ctx)
    assert len(positions_by_step) == DEPTH and all(
        torch.equal(step, positions_by_step[0]) for step in positions_by_step
    )
    starts = positions_by_step[0][:, 0]
    assert torch.equal(positions_by_step[0] - starts[:, None], ctx.positions)
    assert starts.unique().numel() > 8 and starts.min() >= 0 and starts.max() <= 40
    positions_by_step.clear()
    stack(x, ctx)
    assert not torch.equal(positions_by_step[0][:, 0], starts), "drawn anew"
    positions_by_step.clear()
    stack.eval()(x, ctx)
    assert all(torch.equal(step, ctx.positions) for step in positions_by_step)


def test_offsets_of_positions_that_restart_are_refused() -> None:
    with pytest.raises(ConfigError, match="no room for an offset: set restart: document"):
        SinusoidalConfig(offset=5)


@pytest.mark.slow
@combined
def test_no_shape_depends_on_the_data(combine: Combine) -> None:
    """Trap T-UT8: the whole stack is one graph, for any decisions of its positions."""
    stack = built(UniversalConfig(halting=HaltingConfig(combine=combine)))
    compiled = torch.compile(stack, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x = noise(1, LENGTH, DIM) * 3
        torch.testing.assert_close(compiled(x, context()).y, stack(x, context()).y, atol=1e-10, rtol=1e-10)


@combined
def test_halting_in_half_precision_is_halting(combine: Combine) -> None:
    stack = built(UniversalConfig(halting=HaltingConfig(combine=combine)), dim=8).float()
    with torch.autocast("cpu", torch.bfloat16):
        autocast_output = stack(noise(1, LENGTH, 8).float(), context())
    assert autocast_output.y.isfinite().all() and autocast_output.aux["ponder"].dtype == torch.float32
    bfloat16_output = stack.bfloat16()(noise(1, LENGTH, 8).bfloat16(), context())
    assert bfloat16_output.y.dtype == torch.bfloat16


def test_one_step_decides_nothing() -> None:
    with pytest.raises(ConfigError, match=r"stack\.halting: one step leaves nothing to decide; set depth: 2"):
        built(UniversalConfig(halting=HaltingConfig()), depth=1)


def test_an_odd_width_has_no_sinusoids_of_steps() -> None:
    with pytest.raises(ConfigError, match=r"stack\.timestep: .* must be even, not 5; or set timestep: false"):
        built(UniversalConfig(), dim=5)
    assert built(UniversalConfig(timestep=False), dim=5)


def test_layers_that_share_a_mixer_are_one_layer_to_it() -> None:
    """So a field with one value for each layer has as many as there are mixers, and none is ignored."""
    shapes: list[tuple[int, int]] = []

    def make(layer: int, depth: int) -> Block:
        shapes.append((layer, depth))
        return BlockConfig(mixer=AttentionConfig()).build_block(Shape(DIM, 1, LENGTH, layer, depth), "causal")

    shape = Shape(DIM, 1, LENGTH, 0, 4)
    for config, expected in (
        (UniversalConfig(), [(0, 1)]),
        (SharedConfig(), [(0, 1)]),
        (SharedConfig(groups=2), [(0, 2), (1, 2)]),
        (SharedConfig(share="mixer", groups=2), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        (SharedConfig(share="feedforward"), [(0, 4), (1, 4), (2, 4), (3, 4)]),
    ):
        shapes.clear()
        config.build(shape, make, StackInput())
        assert shapes == expected
