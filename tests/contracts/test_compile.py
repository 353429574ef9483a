"""Under ``torch.compile`` every mixer gives the numbers that it gives without, forward and backward.

On a CPU the graphs that are caught run operation by operation: the suite determines which operations are caught, and
where a graph breaks off. Of one network, cut into pieces, the graph of the backward pass is caught as well. Generated
code for all would take ten minutes: on a CPU a run proves it (``test_a_compiled_network_computes_the_same``), on CUDA
all kinds do. None is left out: an LSTM, which is one kernel, breaks the graph in two, and the operations around it are
compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from contract_cases import DIM, KINDS, Case, context, noise
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Context, Mixer
from lit_transformers.mixers import AttentionConfig

IN_PIECES = AttentionConfig(encoding=XLConfig())
"""Its blocks of queries are computed again in the backward pass, which breaks the graph."""


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def run(called: Any, mixer: Mixer, x: Tensor, ctx: Context) -> list[Tensor]:
    """Outputs, and gradients of the input and of every weight, named losses included."""
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    mixed = called(x, ctx)
    loss = mixed.y.square().sum() + sum(mixed.aux.values())
    gradients = torch.autograd.grad(loss, [x, *mixer.parameters()], materialize_grads=True, allow_unused=True)
    return [mixed.y, *gradients]


def agree(case: Case, backend: Any, length: int, device: str = "cpu") -> None:
    mixer, x = case.build().to(device), noise(2, length, DIM).to(device)
    padding_mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    ctx = context(2, length, case.mode == "causal")
    ctx = ctx._replace(positions=ctx.positions.to(device), padding_mask=padding_mask.to(device))
    expected, outputs = run(mixer, mixer, x, ctx), run(torch.compile(mixer, backend=backend), mixer, x, ctx)
    for output, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, reference, atol=1e-9, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_caught_computes_what_is_written(kind: str) -> None:
    backend = CompileCounterWithBackend("eager")
    agree(Case(KINDS[kind].config), backend, 9)
    assert backend.op_count > 0


@pytest.mark.slow
def test_what_is_caught_around_pieces_that_are_computed_twice_computes_what_is_written() -> None:
    agree(Case(IN_PIECES), "aot_eager", 300)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_cuda_generated_code_of_every_kind_computes_what_is_written(kind: str) -> None:
    agree(KINDS[kind], "inductor", 9, "cuda")
