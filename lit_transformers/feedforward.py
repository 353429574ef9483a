"""The feed-forward sublayer."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import Config, Fraction, Positive
from lit_transformers.mixer import Shape

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


class FeedForwardConfig(Config):
    """width: of the hidden layer (None for 4 dim); activation; dropout: after the activation."""

    width: Positive | None = None
    activation: Activation = "relu"
    dropout: Fraction = 0.0
    bias: bool = True

    def build(self, shape: Shape) -> FeedForward:
        return FeedForward(self, shape)


class FeedForward(nn.Module):
    """W_2 act(W_1 x), for each position alone (Vaswani et al. 2017, arXiv:1706.03762, equation 2)."""

    def __init__(self, config: FeedForwardConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.width = shape.dim, config.width or 4 * shape.dim
        self.widen = nn.Linear(self.dim, self.width, bias=config.bias)
        self.activation = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.narrow = nn.Linear(self.width, self.dim, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        y: Tensor = self.narrow(self.dropout(self.activation(self.widen(x))))
        return y

    def flops(self, queries: int) -> int:
        """Forward FLOPs for one sequence."""
        return 4 * queries * self.dim * self.width


def activation(name: Activation) -> nn.Module:
    """The activation of that name."""
    match name:
        case "relu":
            return nn.ReLU()
        case "gelu":
            return nn.GELU()
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "silu":
            return nn.SiLU()
