"""Bottleneck adapters (Houlsby et al. 2019, arXiv:1902.00751, section 2.1)."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.activations import Activation, activation
from lit_transformers.adapters.adapter import AdapterConfig, Sublayer
from lit_transformers.config import Positive, Width
from lit_transformers.maps import Adapter
from lit_transformers.mixer import Shape

__all__ = ["Bottleneck", "BottleneckConfig"]


@final
class BottleneckConfig(AdapterConfig, kind="bottleneck"):
    """width: channels of the bottleneck; activation: of its hidden layer. after: the sublayers of each block that get
    an adapter. both: mixer, cross mixer and feed-forward (arXiv:1902.00751, figure 2); feedforward: one adapter in each
    block, at the place of arXiv:2005.00247, section 3.1. The adapter of that paper reads the normalised sum; this one
    reads the sublayer's output."""

    width: Annotated[Positive, Width] = 64
    activation: Activation = "relu"
    after: Literal["both", "mixer", "feedforward"] = "both"

    def build(self, name: Sublayer, sublayer: nn.Module, shape: Shape) -> Bottleneck | None:
        place = "feedforward" if name == "feedforward" else "mixer"
        return Bottleneck(self.width, self.activation, shape.dim) if self.after in ("both", place) else None


@final
class Bottleneck(Adapter):
    """Adds scale (W_up act(W_down y + b_down) + b_up) to the output of a sublayer. y is that output or, with
    ``reads_input``, the input of the sublayer.

    W_up and the biases start at zero, so that the adapter changes nothing at first; the paper draws all weights with a
    standard deviation of 0.01, with which it starts near that (section 3.6).
    """

    def __init__(self, width: int, name: Activation, dim: int, scale: float = 1.0, reads_input: bool = False) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.empty(width, dim)), nn.Parameter(torch.empty(dim, width))
        self.down_bias, self.up_bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(dim))
        self.activation, self.scale, self.reads_input = activation(name), scale, reads_input
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.size(1) ** -0.5)
        for parameter in (self.up, self.down_bias, self.up_bias):
            nn.init.zeros_(parameter)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        hidden = self.activation(F.linear(x, self.down, self.down_bias))
        added = F.linear(hidden, self.up, self.up_bias)
        return added if self.scale == 1.0 else self.scale * added

    def flops(self, vectors: int) -> int:
        return 4 * vectors * self.down.numel()
