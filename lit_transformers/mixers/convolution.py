"""Lightweight and dynamic convolution (Wu et al. 2019, arXiv:1901.10430)."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import ConfigError, Dropout, Fraction, Heads, Length, Positive
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import (
    Context,
    Layered,
    Mixer,
    MixerConfig,
    MixerOutput,
    OutputProjection,
    Promises,
    Shape,
    at_layer,
)


@final
class ConvolutionConfig(MixerConfig, kind="convolution"):
    """kernel: the positions that a token reads, its own included, one number or one per layer (arXiv:2004.11886 uses 3,
    7, 15, 31, 31, 31); dynamic: whether weights are a function of the token; heads: groups of channels that share
    weights (None for the model's); softmax: whether weights are normalised over the kernel; glu: whether there is a
    gate before the convolution; dropout: of the weights (DropConnect, section 3); bias: of the two linear maps."""

    kernel: Annotated[Layered, Length] = 7
    dynamic: bool = False
    heads: Annotated[Positive | None, Heads] = None
    softmax: bool = True
    glu: bool = True
    dropout: Annotated[Fraction, Dropout] = 0.0
    bias: bool = True

    def promises(self) -> Promises:
        return Promises(
            ("causal", "bidirectional"),
            streams=True,
            refusals={
                "cross": "it reads the neighbours of a position, and no position of another sequence has a neighbour"
            },
        )

    def build(self, shape: Shape) -> Convolution:
        return Convolution(self, shape)


@final
class Convolution(Mixer):
    """Linear, gate, depthwise convolution, linear: figure 2 of the paper.

    Channels of a head share their weights (equation 1), which are normalised (equation 3), and may be computed from the
    token (section 4). A causal kernel ends at the token. A bidirectional one is centred on it, with the longer half
    before it if the kernel is even. Padding counts as zero, as do positions beyond the ends. State holds the last
    kernel - 1 inputs of the convolution, zeros at the start.
    """

    def __init__(self, config: ConvolutionConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.heads = shape.dim, config.heads or shape.heads
        if self.dim % self.heads:
            raise ConfigError(f"{self.dim} channels are not divisible by {self.heads} heads", "mixer.heads")
        self.kernel = at_layer(config.kernel, shape, "mixer.kernel")
        self.glu, self.softmax, self.dropout = config.glu, config.softmax, config.dropout
        self.before = LinearMap(self.dim, 2 * self.dim if config.glu else self.dim, "value", bias=config.bias)
        taps = self.heads * self.kernel
        self.dynamic = nn.Linear(self.dim, taps, bias=False) if config.dynamic else None
        self.weight = None if config.dynamic else nn.Parameter(torch.empty(self.heads, self.kernel))
        self.after = OutputProjection(self.dim, shape, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        x = self.before(x)
        if self.glu:
            x = F.glu(x, dim=-1)
        if ctx.padding_mask is not None:
            x = x * ctx.padding_mask[..., None]
        if ctx.causal:
            past = x.new_zeros(x.size(0), self.kernel - 1, self.dim) if state is None else state["past"].to(x.dtype)
            inputs = torch.cat([past, x], dim=1)
            new_state = {"past": inputs[:, inputs.size(1) - self.kernel + 1 :]}
        else:
            ahead = (self.kernel - 1) // 2
            inputs, new_state = F.pad(x, (0, 0, self.kernel - 1 - ahead, ahead)), None
        y = self._light(inputs) if self.dynamic is None else self._dynamic(x, inputs)
        return MixerOutput(self.after(y), new_state)

    def _light(self, inputs: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """Returns the convolution with the same weights at every position."""
        assert self.weight is not None
        weights = self._weights(self.weight).repeat_interleave(self.dim // self.heads, dim=0)
        return F.conv1d(inputs.mT, weights[:, None].to(inputs.dtype), groups=self.dim).mT

    def _dynamic(self, x: Float[Tensor, "b t d"], inputs: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """Returns the convolution with weights that are computed from each token."""
        assert self.dynamic is not None
        weights = self._weights(self.dynamic(x).unflatten(-1, (self.heads, self.kernel)))
        windows = inputs.unfold(1, self.kernel, 1).unflatten(2, (self.heads, -1))  # (b, t, heads, d / heads, kernel)
        return (windows @ weights[..., None].to(inputs.dtype)).flatten(2)

    def _weights(self, logits: Float[Tensor, "*h k"]) -> Float[Tensor, "*h k"]:
        weights = logits.softmax(dim=-1) if self.softmax else logits
        return F.dropout(weights, self.dropout, self.training)

    def decoding_state(self, length: int) -> int:
        return self.dim * min(length, self.kernel - 1)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        dynamic = 0 if self.dynamic is None else self.dim * self.heads * self.kernel
        convolution = 2 * queries * (dynamic + self.dim * self.kernel)
        return self.before.flops(queries) + self.after.flops(queries) + convolution
