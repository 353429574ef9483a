"""Lightweight and dynamic convolution (Wu et al. 2019, arXiv:1901.10430)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import ConfigError, Fraction, Positive
from lit_transformers.mixer import Context, Layered, Mixed, Mixer, MixerConfig, Mode, OutputProjection, Shape, at_layer


class ConvolutionConfig(MixerConfig, kind="convolution"):
    """kernel: how many positions a token reads, its own included, also one for each layer (arXiv:2004.11886 uses 3, 7,
    15, 31, 31, 31); dynamic: weights are a function of the token, not the same everywhere; heads: runs of channels with
    weights of their own (None for the model's); softmax: over the kernel; glu: a gate before the convolution;
    dropout: of the weights (DropConnect, section 3); bias: of the two linear maps."""

    kernel: Layered = 7
    dynamic: bool = False
    heads: Positive | None = None
    softmax: bool = True
    glu: bool = True
    dropout: Fraction = 0.0
    bias: bool = True

    def build(self, shape: Shape) -> Convolution:
        return Convolution(self, shape)


class Convolution(Mixer):
    """Linear, gate, depthwise convolution, linear: figure 2 of the paper.

    Equation 1: channels of a head share their weights; equation 3: weights are normalised; section 4: or made from the
    token. A causal kernel ends at the token. One that sees both ways has its middle there, a longer half behind where
    it is even. Padding is zero to the convolution, as what lies beyond the ends is. State holds the last kernel - 1
    inputs of the convolution, zeros at the start.
    """

    causal = bidirectional = streams = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "cross": "it reads the neighbours of a position, and no position of another sequence has a neighbour"
    }

    def __init__(self, config: ConvolutionConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.heads = shape.dim, config.heads or shape.heads
        if self.dim % self.heads:
            raise ConfigError(f"{self.dim} channels are not divisible by {self.heads} heads", "mixer.heads")
        self.kernel = at_layer(config.kernel, shape, "mixer.kernel")
        self.glu, self.softmax, self.dropout = config.glu, config.softmax, config.dropout
        self.before = nn.Linear(self.dim, 2 * self.dim if config.glu else self.dim, bias=config.bias)
        taps = self.heads * self.kernel
        self.dynamic = nn.Linear(self.dim, taps, bias=False) if config.dynamic else None
        self.weight = None if config.dynamic else nn.Parameter(torch.empty(self.heads, self.kernel))
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        self.after = OutputProjection(self.dim, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        x = self.before(x)
        if self.glu:
            x = F.glu(x, dim=-1)
        if ctx.keep is not None:
            x = x * ctx.keep[..., None]
        if ctx.causal:
            past = x.new_zeros(x.size(0), self.kernel - 1, self.dim) if state is None else state["past"].to(x.dtype)
            read = torch.cat([past, x], dim=1)
            kept = {"past": read[:, read.size(1) - self.kernel + 1 :]}
        else:
            ahead = (self.kernel - 1) // 2
            read, kept = F.pad(x, (0, 0, self.kernel - 1 - ahead, ahead)), None
        y = self._light(read) if self.dynamic is None else self._dynamic(x, read)
        return Mixed(self.after(y), kept)

    def _light(self, read: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """The same weights everywhere."""
        assert self.weight is not None
        weights = self._weights(self.weight).repeat_interleave(self.dim // self.heads, dim=0)
        return F.conv1d(read.mT, weights[:, None].to(read.dtype), groups=self.dim).mT

    def _dynamic(self, x: Float[Tensor, "b t d"], read: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """Weights that each token makes for itself."""
        assert self.dynamic is not None
        weights = self._weights(self.dynamic(x).unflatten(-1, (self.heads, self.kernel)))
        windows = read.unfold(1, self.kernel, 1).unflatten(2, (self.heads, -1))  # (b, t, heads, d / heads, kernel)
        return (windows @ weights[..., None].to(read.dtype)).flatten(2)

    def _weights(self, logits: Float[Tensor, "*h k"]) -> Float[Tensor, "*h k"]:
        weights = logits.softmax(dim=-1) if self.softmax else logits
        return F.dropout(weights, self.dropout, self.training)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        linear = self.dim * (2 * self.dim if self.glu else self.dim) + self.dim * self.dim
        made = 0 if self.dynamic is None else self.dim * self.heads * self.kernel
        return 2 * queries * (linear + made + self.dim * self.kernel)
