"""Reversible layers equal their equations, and their backward pass gives the gradients of autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from allocations import Allocations, Kept, Products
from forked import Forked
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import LearnedConfig, PositionsConfig, SinusoidalConfig
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape, decide, state_tensors
from lit_transformers.mixers import AttentionConfig
from lit_transformers.stacks import ReversibleConfig, StackInput, StackOutput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig, SeparableConvolutionConfig, TransitionConfig
from lit_transformers.stacks.reversible import Reversible

DIM, HEADS, LENGTH = 8, 2, 6
EXACT = 1e-9


class Draws(Mixer):
    """Reads the sequence in a random order that it draws for each pass, adds noise, and has its own loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.into = nn.Linear(shape.dim, shape.dim)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        order = decide(ctx, lambda: torch.rand(x.size(1)).argsort())
        y = self.into(x)
        self.seen.append(y.dtype)
        return MixerOutput(y[:, order] + torch.randn_like(y) * y, None, {"size": y.float().square().mean()})

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 0


class DrawsConfig(MixerConfig, kind="draws"):
    def promises(self) -> Promises:
        return Promises(("causal",))

    def build(self, shape: Shape) -> Draws:
        return Draws(shape)


def stack_of(
    mixer: MixerConfig | None = None,
    *,
    recompute: bool = True,
    depth: int = 3,
    dropout: float = 0.0,
    feedforward: TransitionConfig | None = None,
    positions: PositionsConfig | None = None,
    cross: MixerConfig | None = None,
    dim: int = DIM,
) -> Reversible:
    torch.manual_seed(0)
    config = BlockConfig(
        mixer=mixer or AttentionConfig(), feedforward=feedforward or FeedForwardConfig(), dropout=dropout
    )
    shape = Shape(dim, HEADS, LENGTH, 0, depth, shared={})

    def make(layer: int, depth: int) -> Block:
        return config.build_block(shape._replace(layer=layer, depth=depth), "causal", cross)

    entry = StackInput(positions.build(shape) if positions else None, dropout)
    return ReversibleConfig(recompute=recompute).build(shape, make, entry).double()


def context(rows: int = 2, length: int = LENGTH) -> Context:
    return Context(torch.arange(length).expand(rows, length), causal=True)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def gradients(stack: Reversible, x: Tensor, ctx: Context, loss: Any, state: Any = None) -> dict[str, Tensor]:
    """The loss, and its gradient with respect to everything, from one pass that begins with a given random seed."""
    leaves = {"x": x.clone().requires_grad_()}
    if ctx.source is not None:
        leaves["source"] = ctx.source.clone().requires_grad_()
        ctx = ctx._replace(source=leaves["source"])
    stack.zero_grad()
    torch.manual_seed(5)
    total = loss(stack(leaves["x"], ctx, state, True))
    total.backward()
    learned = {name: p.grad for name, p in stack.named_parameters() if p.grad is not None}
    return {"loss": total.detach()} | {name: leaf.grad for name, leaf in leaves.items()} | learned  # type: ignore[dict-item]


def total_loss(output: StackOutput) -> Tensor:
    """A loss that all that a stack returns has a part in."""
    total = (output.y * torch.arange(output.y.numel()).view_as(output.y).cos()).sum()
    for step, hidden in enumerate(output.hidden, start=2):
        total = total + (hidden * torch.arange(hidden.numel()).view_as(hidden).div(step).sin()).sum()
    return sum(output.aux.values(), start=total)


def same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = EXACT) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: n + m
        )


def test_a_layer_computes_the_equations_of_the_paper() -> None:
    """y1 = x1 + mix(norm(x2)), y2 = x2 + feed(norm(y1)), from two copies of x, to the mean of both."""
    stack, x, ctx = stack_of(depth=2), noise(2, LENGTH, DIM), context()
    x1, x2 = x, x
    for block in stack.steps():
        y1 = x1 + block.mixer(block.mixer_norm(x2), ctx).y
        y2 = x2 + block.feedforward(block.feedforward_norm(y1), ctx).y
        x1, x2 = y1, y2
    for recompute in (True, False):
        stack.recompute = recompute
        torch.testing.assert_close(stack(x, ctx).y, (x1 + x2) / 2, atol=1e-12, rtol=1e-12)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"mixer": AttentionConfig(dropout=0.3), "dropout": 0.4, "feedforward": FeedForwardConfig(dropout=0.2)},
    "memory and distances": {"mixer": AttentionConfig(memory=4, encoding=XLConfig()), "dropout": 0.1},
    "random choices and a loss": {"mixer": DrawsConfig(), "dropout": 0.2},
    "convolution": {"feedforward": SeparableConvolutionConfig(dropout=0.3)},
    "chunks": {"feedforward": FeedForwardConfig(chunks=3, dropout=0.3)},
    "positions": {"positions": SinusoidalConfig(per_layer=True)},
    "learned positions": {"positions": LearnedConfig(per_layer=True), "dropout": 0.1},
    "source": {"cross": AttentionConfig(dropout=0.1), "dropout": 0.1},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_backward_pass_finds_what_autograd_finds_where_all_is_kept(case: dict[str, Any]) -> None:
    stack, x, ctx = stack_of(**case), noise(2, LENGTH, DIM), context()
    if "cross" in case:
        padding_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        ctx = ctx._replace(source=noise(2, 5, DIM), source_padding_mask=padding_mask)
    result = gradients(stack, x, ctx, total_loss)
    stack.recompute = False
    same(result, gradients(stack, x, ctx, total_loss))
    assert {name for name, _ in stack.named_parameters()} <= result.keys()


@pytest.mark.parametrize("name", ["memory and distances", "convolution"])
def test_a_second_segment_learns_from_what_the_first_left(name: str) -> None:
    """And leaves the first one's graph alone, whether or not that is there."""
    stack, first, second = stack_of(**CASES[name]), noise(2, LENGTH, DIM), noise(2, LENGTH, DIM)
    torch.manual_seed(1)
    state = stack(first, context()).state
    assert next(state_tensors(state)).any() and not any(part.requires_grad for part in state_tensors(state))
    result = gradients(stack, second, context(), total_loss, state)
    stack.recompute = False
    torch.manual_seed(1)
    same(result, gradients(stack, second, context(), total_loss, stack(first, context()).state))


def test_without_gradients_the_numbers_are_the_same() -> None:
    stack, x = stack_of(AttentionConfig(memory=4)), noise(2, LENGTH, DIM)
    with torch.no_grad():
        y = stack(x, context()).y
    torch.testing.assert_close(y, stack(x, context()).y, atol=1e-12, rtol=1e-12)


def test_other_passes_choose_anew() -> None:
    """The tape is of one pass: choices that are stored for its second computation are not stored for the next pass."""
    stack, x = stack_of(DrawsConfig()), noise(2, LENGTH, DIM)
    assert not torch.allclose(stack(x, context()).y, stack(x, context()).y)


def test_the_backward_pass_draws_no_random_numbers_of_the_callers() -> None:
    """Seeding the generators anew in it would make every step's dropout the same (trap T-RF8)."""
    stack, x = stack_of(AttentionConfig(dropout=0.3), dropout=0.4), noise(2, LENGTH, DIM)
    torch.manual_seed(1)
    y = stack(x, context()).y
    before = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(before, torch.get_rng_state())
    stack.recompute = False
    torch.manual_seed(1)
    stack(x, context())
    assert torch.equal(before, torch.get_rng_state()), "and the forward pass draws as many as any other"


def test_a_pass_can_be_reversed_twice() -> None:
    stack, x = stack_of(DrawsConfig(), dropout=0.3), noise(2, LENGTH, DIM).requires_grad_()
    y = stack(x, context()).y.sum()
    (first_gradient,) = torch.autograd.grad(y, x, retain_graph=True)
    (second_gradient,) = torch.autograd.grad(y, x)
    assert torch.equal(first_gradient, second_gradient)


def test_what_is_given_is_left_as_it_was() -> None:
    """Trap T-RF10: no leaf is made of a tensor of the caller's."""
    stack, source = stack_of(cross=AttentionConfig()), noise(2, 5, DIM)
    x = noise(2, LENGTH, DIM)
    ctx = context()._replace(source=source)
    before = x.clone(), source.clone()
    stack(x, ctx).y.sum().backward()
    assert not x.requires_grad and not source.requires_grad and x.grad is None and source.grad is None
    assert torch.equal(x, before[0]) and torch.equal(source, before[1])
    assert all(p.grad is not None for p in stack.parameters())


def test_parameters_that_are_frozen_stay_without_a_gradient() -> None:
    stack, x = stack_of(), noise(2, LENGTH, DIM).requires_grad_()
    frozen_mixer = stack.steps()[1].mixer.requires_grad_(False)
    (stack(x, context()).y * noise(2, LENGTH, DIM)).sum().backward()
    assert all(p.grad is None for p in frozen_mixer.parameters()) and x.grad is not None and x.grad.any()
    assert all(p.grad is not None for p in stack.parameters() if p.requires_grad)


def test_weights_changed_before_the_backward_pass_are_noticed() -> None:
    stack, x = stack_of(), noise(2, LENGTH, DIM)
    y = stack(x, context()).y.sum()
    with torch.no_grad():
        next(iter(stack.parameters())).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_both_computations_are_of_the_same_precision() -> None:
    """Trap T-RF9: the backward pass runs outside of autocast."""
    stack, x = stack_of(DrawsConfig()).float(), noise(2, LENGTH, DIM).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = stack(x, context()).y
    assert y.dtype == torch.float32, "the streams are not halved"
    y.sum().backward()
    for block in stack.steps():
        assert isinstance(block.mixer, Draws) and block.mixer.seen == [torch.bfloat16] * 2


@pytest.mark.parametrize("depth", [2, 12])
def test_in_half_precision_gradients_are_those_of_kept_activations(depth: int) -> None:
    """Streams of float32 are restored through twelve layers of bfloat16: errors are 1e-3 of the largest gradient, while
    branches err by 4e-3 of their values."""
    stack, x = stack_of(dropout=0.1, depth=depth).float(), noise(2, LENGTH, DIM).float()

    def current_gradients() -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return gradients(stack, x, context(), total_loss)

    recomputed = current_gradients()
    stack.recompute = False
    for name, expected in current_gradients().items():
        assert (recomputed[name] - expected).abs().max() <= 1e-3 * max(1.0, expected.abs().max().item()), name


def test_a_network_of_half_precision_gets_and_gives_half_precision() -> None:
    stack, x = stack_of().bfloat16(), noise(2, LENGTH, DIM).bfloat16()
    y = stack(x, context()).y
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in stack.parameters())


def kept_activations(depth: int, recompute: bool) -> int:
    """Bytes that the backward pass of a stack waits for."""
    stack, x = stack_of(depth=depth, recompute=recompute), noise(2, LENGTH, DIM).requires_grad_()
    with Kept() as storage:
        y = stack(x, context()).y
    kept_bytes = storage.bytes
    del y
    assert storage.bytes == 0
    return kept_bytes


@pytest.mark.slow
def test_what_is_kept_does_not_grow_with_depth() -> None:
    assert kept_activations(2, recompute=True) == kept_activations(12, recompute=True)
    assert kept_activations(12, recompute=False) == pytest.approx(6 * kept_activations(2, recompute=False), rel=0.1)


def peak(depth: int, recompute: bool) -> int:
    """Bytes at the peak of a forward and backward pass over a text long enough to outweigh parameters."""
    stack = stack_of(depth=depth, recompute=recompute, feedforward=FeedForwardConfig(width=DIM)).requires_grad_(False)
    x = noise(1, 2000, DIM).requires_grad_()
    with Allocations() as allocations:
        stack(x, context(1, 2000)).y.sum().backward()
    return allocations.peak


@pytest.mark.slow
def test_the_peak_of_a_training_step_does_not_grow_with_depth() -> None:
    assert peak(12, recompute=True) < 1.02 * peak(2, recompute=True)
    assert peak(12, recompute=False) > 4 * peak(2, recompute=False)


def test_the_backward_pass_costs_one_forward_pass_more() -> None:
    def pass_flops(recompute: bool) -> tuple[int, int]:
        stack, x = stack_of(recompute=recompute), noise(1, LENGTH, DIM).requires_grad_()
        with Products() as forward:
            y = stack(x, context(1)).y
        with Products() as backward:
            y.sum().backward()
        return forward.flops, backward.flops

    (forward, backward_of_kept), (_, backward) = pass_flops(False), pass_flops(True)
    assert backward == backward_of_kept + forward


@pytest.mark.slow
def test_compiled_around_it_the_numbers_are_the_same() -> None:
    stack, x = stack_of(), noise(2, LENGTH, DIM)
    expected = gradients(stack, x, context(), total_loss)
    torch._dynamo.reset()
    stack.compile(backend="aot_eager")
    same(gradients(stack, x, context(), total_loss), expected)


def network_and_rows() -> tuple[Reversible, Tensor]:
    stack = stack_of(AttentionConfig(encoding=XLConfig()), positions=LearnedConfig(per_layer=True))
    return stack, noise(4, LENGTH, DIM)


def rank_of_two(directory: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    stack, rows = network_and_rows()
    parallel = DistributedDataParallel(stack)
    for _ in range(2):  # the second pass fails where the first left a parameter without a gradient
        stack.zero_grad()
        parallel(rows[2 * rank : 2 * rank + 2], context()).y.square().mean().backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in stack.named_parameters()}, directory / "gradients.pt")
    # The parallel module is freed while both ranks run: freed after the group, it may wait for the other rank for ever.
    del parallel
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_find_the_gradients_of_one_process(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", rank_of_two, tmp_path, ranks=2).finish()
    stack, rows = network_and_rows()
    stack(rows, context(4)).y.square().mean().backward()
    gradients_of_ranks = torch.load(tmp_path / "gradients.pt", weights_only=True)
    same(gradients_of_ranks, {name: p.grad for name, p in stack.named_parameters() if p.grad is not None})
