"""Copies the weights of other people's layers into ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

EAGER: dict[str, Any] = {"attn_implementation": "eager"}
"""The reference's own arithmetic, no fused kernel."""
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def fixture(file: str, case: str) -> dict[str, Tensor]:
    """The tensors of one case of a fixture, by name."""
    with np.load(FIXTURES / file) as arrays:
        prefix = f"{case}/"
        return {name.removeprefix(prefix): torch.from_numpy(arrays[name]) for name in arrays if name.startswith(prefix)}


def copy(module: nn.Module, **tensors: Tensor) -> None:
    """Sets every parameter of ``module``: a name that it lacks, or one left out, is an error."""
    module.load_state_dict(tensors)


def affine(weights: Mapping[str, Tensor], name: str, transpose: bool = False) -> dict[str, Tensor]:
    """Weight, and bias where there is one, of the linear layer or norm of that name."""
    weight = weights[f"{name}.weight"]
    parameters = {"weight": weight.T if transpose else weight}
    return parameters | ({"bias": weights[f"{name}.bias"]} if f"{name}.bias" in weights else {})


def randomise(module: nn.Module, std: float = 0.3) -> dict[str, Tensor]:
    """Weights large enough to show a difference; returns them by name."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def close(ours: Tensor, theirs: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
