"""The activations of networks, by the names that configs have for them."""

from __future__ import annotations

from typing import Literal

from torch import nn

__all__ = ["Activation", "activation"]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "identity"]


def activation(name: Activation) -> nn.Module:
    """Returns the activation of that name."""
    match name:
        case "relu":
            return nn.ReLU()
        case "gelu":
            return nn.GELU()
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "silu":
            return nn.SiLU()
        case "sigmoid":
            return nn.Sigmoid()
        case "tanh":
            return nn.Tanh()
        case "identity":
            return nn.Identity()
