"""Our Linformer equals that of the ``linformer`` package, weights copied."""

from __future__ import annotations

import pytest
import torch
from copying import affine, close, copy, randomise
from linformer.linformer import LinformerSelfAttention
from torch import Tensor

from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import LinformerConfig

DIM, HEADS, LENGTH, RANK = 16, 2, 12, 5


@pytest.mark.parametrize("length", [1, 7, LENGTH])
@pytest.mark.parametrize("head_dim", [None, 3])
def test_outputs_and_gradients_equal_those_of_the_package(length: int, head_dim: int | None) -> None:
    """There all heads share E and all share F, and the last projection alone has a bias."""
    theirs = LinformerSelfAttention(DIM, LENGTH, k=RANK, heads=HEADS, dim_head=head_dim).double()
    weights = randomise(theirs)
    ours = LinformerConfig(rank=RANK, sharing="heads", head_dim=head_dim, bias=True)
    layer = ours.build(Shape(DIM, HEADS, LENGTH)).double()
    width = HEADS * (head_dim or DIM // HEADS)
    for linear, name in ((layer.query, "to_q"), (layer.key, "to_k"), (layer.value, "to_v")):
        copy(linear, **affine(weights, name), bias=torch.zeros(width))
    copy(layer.merge, **affine(weights, "to_out"))
    copy(layer.keys, weight=weights["proj_k"].T[None])
    copy(layer.values, weight=weights["proj_v"].T[None])
    x = torch.randn(2, length, DIM, dtype=torch.float64, requires_grad=True)
    y: Tensor = layer(x, Context(torch.arange(length).expand(2, length), causal=False)).y
    expected, direction = theirs(x), torch.randn_like(y)
    close(y, expected, 1e-12)
    gradients = (torch.autograd.grad((output * direction).sum(), x)[0] for output in (y, expected))
    gradient, expected_gradient = gradients
    close(gradient, expected_gradient, 1e-11)
