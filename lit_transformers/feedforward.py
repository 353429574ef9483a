"""The sublayer that follows the mixing: a feed-forward for each position alone, or a separable convolution.

It is called as a mixer is, for what looks at neighbours has padding to leave out, a future to hide and a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_transformers.config import Config, Fraction, Positive, table
from lit_transformers.mixer import Context, Mixed, OutputProjection, Shape

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "identity"]


class TransitionConfig(Config):
    """Base of every config of this sublayer; the table FEEDFORWARDS lists the kinds.

    width: of the hidden layer (None for 4 dim); activation; dropout: after the activation; bias: of the linear maps.
    """

    width: Positive | None = None
    activation: Activation = "relu"
    dropout: Fraction = 0.0
    bias: bool = True

    def build(self, shape: Shape) -> Transition:
        raise NotImplementedError


class Transition(nn.Module, ABC):
    """The transition function of arXiv:1807.03819, section 2.1, which every other Transformer calls feed-forward."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        """x (b, t, d) to y (b, t, d). ``state`` is what the previous segment returned, or None at the start."""

    @abstractmethod
    def flops(self, queries: int) -> int:
        """Forward FLOPs for one sequence."""


class FeedForwardConfig(TransitionConfig, kind="dense"):
    """gated: act(W x) times a second map V x of the same width (arXiv:2002.05202, equation 6: GLU with sigmoid,
    Bilinear with identity, ReGLU, GEGLU, SwiGLU with silu). Its three matrices then hold what two of 4 dim do unless
    a width is given: 8/3 dim (section 2).
    chunks: pieces along time that are computed one after another, and again in the backward pass, so that one piece of
    the hidden layer is held at a time (arXiv:2001.04451, section 3); more than there are positions are as many.
    """

    gated: bool = False
    chunks: Positive = 1

    def build(self, shape: Shape) -> FeedForward:
        return FeedForward(self, shape)


class FeedForward(Transition):
    """W_2 act(W_1 x), for each position alone (Vaswani et al. 2017, arXiv:1706.03762, equation 2)."""

    def __init__(self, config: FeedForwardConfig, shape: Shape) -> None:
        super().__init__()
        self.dim = shape.dim
        self.width = config.width or (8 * shape.dim // 3 if config.gated else 4 * shape.dim)
        self.chunks = config.chunks
        self.widen = nn.Linear(self.dim, self.width, bias=config.bias)
        self.gate = nn.Linear(self.dim, self.width, bias=config.bias) if config.gated else None
        self.activation = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.narrow = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        if self.chunks == 1:
            return Mixed(self._compute(x))
        pieces = [self._once_more(piece) for piece in x.chunk(self.chunks, dim=1)]
        return Mixed(torch.cat(pieces, dim=1))

    def _compute(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        hidden = self.activation(self.widen(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        y: Tensor = self.narrow(self.dropout(hidden))
        return y

    def _once_more(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """The same, and in the backward pass the same again. The paper chunks its backward pass too."""
        if not torch.is_grad_enabled():
            return self._compute(x)
        y: Tensor = checkpoint(self._compute, x, use_reentrant=False)
        return y

    def flops(self, queries: int) -> int:
        return (4 if self.gate is None else 6) * queries * self.dim * self.width


class SeparableConvolutionConfig(TransitionConfig, kind="separable_convolution"):
    """kernels: positions that the first and the second convolution look at."""

    kernels: tuple[Positive, Positive] = (3, 5)

    def build(self, shape: Shape) -> SeparableConvolution:
        return SeparableConvolution(self, shape)


class SeparableConvolution(Transition):
    """Two depthwise-separable convolutions (arXiv:1610.02357) with an activation between them: the other transition
    function of the Universal Transformer (arXiv:1807.03819, section 2.1).

    The paper gives no kernels; 3 and 5 are those of its authors' code. Causal, a convolution looks back alone, and the
    state is what the next segment looks back on; else it looks both ways, at one more ahead than back where its kernel
    is even. Padding is zeroed before either, where that code does so before the first alone, so that a padded row says
    what a shorter one says.
    """

    def __init__(self, config: SeparableConvolutionConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.width, self.kernels = shape.dim, config.width or 4 * shape.dim, config.kernels
        first, second = config.kernels
        self.first = nn.Conv1d(self.dim, self.dim, first, groups=self.dim, bias=False)
        self.widen = nn.Linear(self.dim, self.width, bias=config.bias)
        self.activation = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.second = nn.Conv1d(self.width, self.width, second, groups=self.width, bias=False)
        self.narrow = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        before = state or {"input": None, "hidden": None}
        y, kept = convolve(self.first, x, ctx, before["input"])
        hidden = self.dropout(self.activation(self.widen(y)))
        y, kept_hidden = convolve(self.second, hidden, ctx, before["hidden"])
        return Mixed(self.narrow(y), {"input": kept, "hidden": kept_hidden} if ctx.causal else None)

    def flops(self, queries: int) -> int:
        first, second = self.kernels
        return 2 * queries * (self.dim * first + self.width * second + 2 * self.dim * self.width)


def convolve(
    convolution: nn.Conv1d, x: Float[Tensor, "b t d"], ctx: Context, before: Float[Tensor, "b k d"] | None
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b k d"]]:
    """A convolution along time, and the inputs that the next segment's reaches back to; ``before`` are those so far."""
    if ctx.keep is not None:
        x = x * ctx.keep[..., None].to(x.dtype)
    reach = convolution.kernel_size[0] - 1
    if not ctx.causal:
        x = F.pad(x, (0, 0, reach // 2, reach - reach // 2))
    elif before is None:
        x = F.pad(x, (0, 0, reach, 0))
    else:
        x = torch.cat([before.to(x.dtype), x], dim=1)
    y: Tensor = convolution(x.transpose(1, 2)).transpose(1, 2)
    return y, x[:, x.size(1) - reach :]


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
        case "sigmoid":
            return nn.Sigmoid()
        case "identity":
            return nn.Identity()


FEEDFORWARDS = table(TransitionConfig, FeedForwardConfig, SeparableConvolutionConfig)
