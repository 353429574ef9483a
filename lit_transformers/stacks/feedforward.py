"""The sublayer that follows the mixer: a position-wise feed-forward, or a separable convolution.

It has the signature of a mixer, because a convolution must ignore padding, hide the future and keep a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_transformers.activations import Activation, activation
from lit_transformers.config import Config, ConfigError, Dropout, Fraction, Length, Positive, Width, table
from lit_transformers.maps import LinearMap, products
from lit_transformers.mixer import Context, MixerOutput, Mode, OutputProjection, Shape


class TransitionConfig(Config):
    """Base of every config of this sublayer; the table FEEDFORWARDS lists the kinds.

    width: of the hidden layer (None for 4 dim); activation; dropout: after the activation; bias: of the linear maps.
    """

    width: Annotated[Positive | None, Width] = None
    activation: Activation = "relu"
    dropout: Annotated[Fraction, Dropout] = 0.0
    bias: bool = True

    def build(self, shape: Shape) -> Transition:
        raise NotImplementedError

    def require(self, mode: Mode) -> None:
        """Hook: raises ConfigError where the sublayer cannot be used in the mode. By default every mode is allowed."""


class Transition(nn.Module, ABC):
    """The transition function of arXiv:1807.03819, section 2.1, which every other Transformer calls feed-forward."""

    @property
    def reads_groups(self) -> bool:
        """Hook: as in ``Mixer``."""
        return False

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        """x (b, t, d) to y (b, t, d). ``state`` comes from the previous segment; None at the start."""

    @abstractmethod
    def flops(self, queries: int) -> int:
        """Forward FLOPs for one sequence."""


class FeedForwardConfig(TransitionConfig, kind="dense"):
    """gated: act(W x) times a second map V x of the same width (arXiv:2002.05202, equation 6: GLU with sigmoid,
    Bilinear with identity, ReGLU, GEGLU, SwiGLU with silu). Without a given width its three matrices have 8/3 dim,
    as many weights as two of 4 dim (section 2).
    chunks: pieces along time that are computed one after another, and again in the backward pass, so that one piece of
    the hidden layer is held at a time (arXiv:2001.04451, section 3); more than there are positions are as many.
    """

    gated: bool = False
    chunks: Positive = 1

    def build(self, shape: Shape) -> FeedForward:
        return FeedForward(self, shape)


class FeedForward(Transition):
    """W_2 act(W_1 x), for each position independently (Vaswani et al. 2017, arXiv:1706.03762, equation 2)."""

    def __init__(self, config: FeedForwardConfig, shape: Shape) -> None:
        super().__init__()
        self.dim = shape.dim
        self.width = config.width or (8 * shape.dim // 3 if config.gated else 4 * shape.dim)
        self.chunks = config.chunks
        self.widen = LinearMap(self.dim, self.width, "up", bias=config.bias)
        self.gate = LinearMap(self.dim, self.width, "gate", bias=config.bias) if config.gated else None
        self.activation = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.narrow = OutputProjection(self.width, shape, "down", bias=config.bias)

    @property
    def reads_groups(self) -> bool:
        return True

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        if self.chunks == 1:
            return MixerOutput(self._compute(x))
        pieces = [self._checkpointed(piece) for piece in x.chunk(self.chunks, dim=1)]
        return MixerOutput(torch.cat(pieces, dim=1))

    def _compute(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if self.gate is None:
            hidden = self.activation(self.widen(x))
        else:
            widened, gates = products(x, (self.widen, self.gate))
            hidden = self.activation(widened) * gates
        y: Tensor = self.narrow(self.dropout(hidden))
        return y

    def _checkpointed(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Computes the output, and computes it again in the backward pass. The paper chunks its backward pass too."""
        if not torch.is_grad_enabled():
            return self._compute(x)
        y: Tensor = checkpoint(self._compute, x, use_reentrant=False)
        return y

    def flops(self, queries: int) -> int:
        gate = 0 if self.gate is None else self.gate.flops(queries)
        return self.widen.flops(queries) + gate + self.narrow.flops(queries)


class SeparableConvolutionConfig(TransitionConfig, kind="separable_convolution"):
    """kernels: the kernel sizes of the first and the second convolution, in positions."""

    kernels: Annotated[tuple[Positive, Positive], Length] = (3, 5)

    def build(self, shape: Shape) -> SeparableConvolution:
        return SeparableConvolution(self, shape)

    def require(self, mode: Mode) -> None:
        if mode == "permuted":
            raise ConfigError("a convolution reads neighbours and ignores the order; set it to dense", "feedforward")


class SeparableConvolution(Transition):
    """Two depthwise-separable convolutions (arXiv:1610.02357) with an activation between them: the other transition
    function of the Universal Transformer (arXiv:1807.03819, section 2.1).

    The paper gives no kernel sizes; 3 and 5 are those of its authors' code. A causal convolution covers earlier
    positions only, and the state holds the inputs that the next segment needs; otherwise it covers both sides, one
    position more ahead than back where its kernel is even. Padding is zeroed before both convolutions (the authors'
    code does so before the first alone), so that a padded row has the outputs of a shorter one.
    """

    def __init__(self, config: SeparableConvolutionConfig, shape: Shape) -> None:
        super().__init__()
        self.dim, self.width, self.kernels = shape.dim, config.width or 4 * shape.dim, config.kernels
        first, second = config.kernels
        self.first = nn.Conv1d(self.dim, self.dim, first, groups=self.dim, bias=False)
        self.widen = LinearMap(self.dim, self.width, "up", bias=config.bias)
        self.activation = activation(config.activation)
        self.dropout = nn.Dropout(config.dropout)
        self.second = nn.Conv1d(self.width, self.width, second, groups=self.width, bias=False)
        self.narrow = OutputProjection(self.width, shape, "down", bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        previous = state or {"input": None, "hidden": None}
        y, input_state = convolve(self.first, x, ctx, previous["input"])
        hidden = self.dropout(self.activation(self.widen(y)))
        y, hidden_state = convolve(self.second, hidden, ctx, previous["hidden"])
        return MixerOutput(self.narrow(y), {"input": input_state, "hidden": hidden_state} if ctx.causal else None)

    def flops(self, queries: int) -> int:
        first, second = self.kernels
        convolutions = 2 * queries * (self.dim * first + self.width * second)
        return convolutions + self.widen.flops(queries) + self.narrow.flops(queries)


def convolve(
    convolution: nn.Conv1d, x: Float[Tensor, "b t d"], ctx: Context, previous: Float[Tensor, "b k d"] | None
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b k d"]]:
    """Convolves along time. Returns the outputs and the last inputs, which the next segment takes as ``previous``."""
    if ctx.padding_mask is not None:
        x = x * ctx.padding_mask[..., None].to(x.dtype)
    reach = convolution.kernel_size[0] - 1
    if not ctx.causal:
        x = F.pad(x, (0, 0, reach // 2, reach - reach // 2))
    elif previous is None:
        x = F.pad(x, (0, 0, reach, 0))
    else:
        x = torch.cat([previous.to(x.dtype), x], dim=1)
    y: Tensor = convolution(x.transpose(1, 2)).transpose(1, 2)
    return y, x[:, x.size(1) - reach :]


FEEDFORWARDS = table(TransitionConfig, FeedForwardConfig, SeparableConvolutionConfig)
