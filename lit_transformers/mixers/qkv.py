"""What every mixer of queries, keys and values shares: projections, memory, encoding, merging."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Fraction, NonNegative, Positive
from lit_transformers.encodings import EncodingConfig
from lit_transformers.encodings.relative import Relative
from lit_transformers.encodings.rotary import Rotary
from lit_transformers.mixer import Context, Mixed, Mixer, MixerConfig, Shape
from lit_transformers.patterns import Inputs, with_tables


class QKVConfig(MixerConfig):
    """encoding: positions in the scores; memory: how many past inputs of this layer stay visible; head_dim: channels
    of a head (None for dim / heads); bias: on the four projections; dropout: of the attention weights; scaled:
    whether scores are divided by sqrt(head_dim)."""

    encoding: EncodingConfig | None = None
    memory: NonNegative = 0
    head_dim: Positive | None = None
    bias: bool = False
    dropout: Fraction = 0.0
    scaled: bool = True


def some_key(keep: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b s"] | None:
    """A source that is all padding is seen whole, for a softmax over nothing is no number; none reads its result."""
    return None if keep is None else keep | ~keep.any(dim=1, keepdim=True)


class QKVMixer(Mixer):
    """Projects to heads, remembers, applies the encoding, lets ``attend`` do its work, and merges the heads.

    Memory holds this layer's inputs of earlier segments, without gradient (arXiv:1901.02860, section 3.2: the input of
    layer n, not its output). They are projected anew in every segment while gradients are on, because W_k and W_v learn
    from them; without gradients the projections themselves are kept, which gives the same numbers and costs less.
    """

    def __init__(self, config: QKVConfig, shape: Shape) -> None:
        super().__init__()
        if config.head_dim is None and shape.dim % shape.heads:
            raise ConfigError(
                f"dim {shape.dim} is not divisible by {shape.heads} heads; set head_dim", "mixer.head_dim"
            )
        self.heads = shape.heads
        self.head_dim = config.head_dim or shape.dim // shape.heads
        self.width = self.heads * self.head_dim
        self.dim = shape.dim
        self.memory = config.memory
        self.scale = self.head_dim**-0.5 if config.scaled else 1.0
        self.dropout = config.dropout
        self.query, self.key, self.value = (nn.Linear(shape.dim, self.width, bias=config.bias) for _ in range(3))
        self.merge = nn.Linear(self.width, shape.dim, bias=config.bias)
        encoding = config.encoding.build(shape, self.head_dim) if config.encoding else None
        self.rotary = encoding if isinstance(encoding, Rotary) else None
        self.relative = encoding if isinstance(encoding, Relative) else None

    @abstractmethod
    def attend(self, inputs: Inputs, ctx: Context) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        """The heads' outputs and named losses. The queries are the last of the keys unless ``ctx.source`` is read."""

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        q = self._split(self.query(x))
        if ctx.source is not None:
            k, v = self._split(self.key(ctx.source)), self._split(self.value(ctx.source))
            inputs, state = Inputs(q, k, v, some_key(ctx.source_keep), crossed=True), None
        else:
            inputs, state = self._remember(q, x, ctx, state)
        if self.rotary is not None:
            positions = torch.arange(inputs.k.size(-2), device=x.device)
            q, k = self.rotary.rotate(inputs.q, positions[-x.size(1) :]), self.rotary.rotate(inputs.k, positions)
            inputs = inputs._replace(q=q, k=k)
        if self.relative is not None:
            inputs = with_tables(self.relative, inputs, ctx.causal)
        y, aux = self.attend(inputs, ctx)
        return Mixed(self.merge(y.transpose(1, 2).flatten(2)), state, aux)

    def require(self, mode: Any) -> None:
        super().require(mode)
        if mode == "cross" and (self.rotary is not None or self.relative is not None):
            raise ConfigError("distances between two sequences mean nothing: cross mixers take no encoding", "encoding")
        if mode != "causal" and self.memory:
            raise ConfigError(f"memory is of the past, so a {mode} mixer has none; set memory: 0", "mixer.memory")

    def _split(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b h t k"]:
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def _remember(
        self, q: Float[Tensor, "b h t k"], x: Float[Tensor, "b t d"], ctx: Context, state: Any
    ) -> tuple[Inputs, dict[str, Tensor] | None]:
        """Keys and values of memory and segment, and the state after the segment.

        Raises ValueError where gradients are on and the state was made without: W_k and W_v could not learn from it.
        """
        if self.memory == 0:
            return Inputs(q, self._split(self.key(x)), self._split(self.value(x)), ctx.keep), None
        seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.keep is None else ctx.keep
        if state is not None:
            seen = torch.cat([state["seen"], seen], dim=1)
        if torch.is_grad_enabled() if state is None else "hidden" in state:
            hidden = x if state is None else torch.cat([state["hidden"].to(x.dtype), x], dim=1)
            k, v = self._split(self.key(hidden)), self._split(self.value(hidden))
            kept = {"hidden": hidden[:, -self.memory :].detach()}
        else:
            if torch.is_grad_enabled():
                raise ValueError("this state was made without gradients: start anew, or read on under torch.no_grad()")
            k, v = self._split(self.key(x)), self._split(self.value(x))
            if state is not None:
                k, v = torch.cat([state["keys"], k], dim=2), torch.cat([state["values"], v], dim=2)
            kept = {"keys": k[:, :, -self.memory :], "values": v[:, :, -self.memory :]}
        return Inputs(q, k, v, seen), kept | {"seen": seen[:, -self.memory :]}

    def projection_flops(self, queries: int, keys: int) -> int:
        """FLOPs of the four projections for one sequence."""
        return 2 * self.dim * self.width * (2 * queries + 2 * keys)
