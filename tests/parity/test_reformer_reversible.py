"""Against the reversible layers of reformer-pytorch: outputs and gradients, with branches that are ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.encodings import RotaryConfig
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.stacks import ReversibleConfig, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.reversible import Reversible

reversible = pytest.importorskip("reformer_pytorch.reversible")
DIM, DEPTH, LENGTH = 8, 3, 7
CONTEXT = Context(torch.arange(LENGTH).expand(2, -1), causal=True)


class Call(nn.Module):
    """One of our branches, called with a tensor alone."""

    def __init__(self, block: Block, number: int) -> None:
        super().__init__()
        self.block, self.number = block, number

    def forward(self, x: Tensor) -> Tensor:
        return self.block.compute(list(self.block.branches())[self.number], x, CONTEXT, None).y


def ours() -> Reversible:
    torch.manual_seed(0)
    config = BlockConfig(mixer=AttentionConfig(encoding=RotaryConfig(), dropout=0.2), dropout=0.1)
    shape = Shape(DIM, 2, LENGTH, 0, DEPTH, shared={})

    def make(layer: int, depth: int) -> Block:
        return config.build_block(shape._replace(layer=layer, depth=depth), "causal")

    return ReversibleConfig().build(shape, make, StackInput()).double()


def test_outputs_and_gradients_are_those_of_reformer_pytorch() -> None:
    """Its sequence takes both streams side by side and leaves them so; dropout draws in the same order."""
    stack = ours()
    theirs = reversible.ReversibleSequence([(Call(block, 0), Call(block, 1)) for block in stack.steps()])
    x, direction = torch.randn(2, LENGTH, DIM).double(), torch.randn(2, LENGTH, DIM).double()

    def gradients(run: Any) -> list[Tensor]:
        stack.zero_grad()
        leaf = x.clone().requires_grad_()
        torch.manual_seed(1)
        y = run(leaf)
        (y * direction).sum().backward()
        return [y.detach(), leaf.grad, *(p.grad for p in stack.parameters())]  # type: ignore[list-item]

    def run_theirs(x: Tensor) -> Tensor:
        first, second = theirs(torch.cat([x, x], dim=-1), arg_route=(False, False)).chunk(2, dim=-1)
        return (first + second) / 2

    results = gradients(lambda x: stack(x, CONTEXT).y), gradients(run_theirs)
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, atol=1e-10, rtol=1e-10)
