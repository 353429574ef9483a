"""Entmax attention equals the package ``entmax`` for whole matrices of scores (arXiv:1909.00015)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import entmax
import pytest
import torch
from torch import Tensor, nn

from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import EntmaxConfig

DIM, HEADS, HEAD_DIM, LENGTH = 8, 2, 4, 150
SOLVERS: dict[float | str, Callable[[Tensor], Tensor]] = {
    1.0: lambda scores: scores.softmax(dim=-1),
    1.3: lambda scores: entmax.entmax_bisect(scores, 1.3, dim=-1),
    1.5: lambda scores: entmax.entmax15(scores, dim=-1),
    2.0: lambda scores: entmax.sparsemax(scores, dim=-1),
}


@pytest.mark.parametrize("alpha", SOLVERS)
@pytest.mark.parametrize("causal", [True, False])
def test_outputs_and_gradients_are_those_of_the_package(alpha: Any, causal: bool) -> None:
    torch.manual_seed(0)
    layer = EntmaxConfig(alpha=alpha).build(Shape(DIM, HEADS, LENGTH)).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    x = torch.randn(LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    q, k, v = (
        linear(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1) for linear in (layer.query, layer.key, layer.value)
    )
    scores = q @ k.mT / HEAD_DIM**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e4)
    expected = layer.merge((SOLVERS[alpha](scores) @ v).transpose(0, 1).flatten(1))
    y = layer(x[None], Context(torch.arange(LENGTH)[None], causal)).y[0]
    torch.testing.assert_close(y, expected, atol=1e-7, rtol=1e-7)
    leaves, probe = [x, *layer.parameters()], torch.randn_like(y)
    for gradient, expected_gradient in zip(
        *(torch.autograd.grad((z * probe).sum(), leaves) for z in (y, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-6)
