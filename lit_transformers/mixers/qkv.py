"""What every mixer of queries, keys and values shares: projections, memory, encoding, merging."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Fraction, NonNegative, Positive
from lit_transformers.encodings import EncodingConfig
from lit_transformers.encodings.relative import Relative
from lit_transformers.encodings.rotary import Rotary
from lit_transformers.executors import Inputs, with_tables
from lit_transformers.mixer import Context, Mixed, Mixer, MixerConfig, Shape
from lit_transformers.mixers.heads import channels_of_a_head


class ScoresConfig(MixerConfig):
    """encoding: positions in the scores; head_dim: channels of a head (None for dim / heads); bias: on the four
    projections; dropout: of the attention weights; scaled: whether scores are divided by sqrt(head_dim)."""

    encoding: EncodingConfig | None = None
    head_dim: Positive | None = None
    bias: bool = False
    dropout: Fraction = 0.0
    scaled: bool = True


class QKVConfig(ScoresConfig):
    """memory: how many past inputs of this layer stay visible. For mixers whose patterns do not depend on where a
    segment starts; the others take ScoresConfig."""

    memory: NonNegative = 0


def some_key(keep: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b s"] | None:
    """A source that is all padding is seen whole, for a softmax over nothing is no number; none reads its result."""
    return None if keep is None else keep | ~keep.any(dim=1, keepdim=True)


class Heard(NamedTuple):
    """What queries and keys were made of, for mixers that make more of it.

    x (b, t, d) the segment; hidden (b, s, d) memory and segment, for mixers that asked to keep it; marks (b, s) what
    the mixer marked of them.
    """

    x: Float[Tensor, "b t d"]
    hidden: Float[Tensor, "b s d"] | None = None
    marks: Bool[Tensor, "b s"] | None = None


class QKVMixer(Mixer):
    """Projects to heads, remembers, applies the encoding, lets ``attend`` do its work, and merges the heads.

    Memory holds this layer's inputs of earlier segments, without gradient (arXiv:1901.02860, section 3.2: the input of
    layer n, not its output). They are projected anew in every segment while gradients are on, because W_k and W_v learn
    from them; without gradients the projections themselves are kept, which gives the same numbers and costs less.

    mark: says of each token of a segment whether it is marked, which is remembered with it; keep_hidden: memory holds
    inputs without gradients too.
    """

    def __init__(
        self,
        config: ScoresConfig,
        shape: Shape,
        mark: Callable[[Context], Bool[Tensor, "b t"]] | None = None,
        keep_hidden: bool = False,
    ) -> None:
        super().__init__()
        self.mark, self.keep_hidden = mark, keep_hidden
        self.heads = shape.heads
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dim = shape.dim
        self.memory = config.memory if isinstance(config, QKVConfig) else 0
        self.scale = self.head_dim**-0.5 if config.scaled else 1.0
        self.dropout = config.dropout
        self.query, self.key, self.value = (nn.Linear(shape.dim, self.width, bias=config.bias) for _ in range(3))
        self.merge = nn.Linear(self.width, shape.dim, bias=config.bias)
        encoding = config.encoding.build(shape, self.head_dim) if config.encoding else None
        self.rotary = encoding if isinstance(encoding, Rotary) else None
        self.relative = encoding if isinstance(encoding, Relative) else None

    @abstractmethod
    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        """The heads' outputs and named losses. The queries are the last of the keys unless ``ctx.source`` is read."""

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        q = self._split(self.query(x))
        if ctx.source is not None:
            k, v = self._split(self.key(ctx.source)), self._split(self.value(ctx.source))
            inputs, state, heard = Inputs(q, k, v, some_key(ctx.source_keep), crossed=True), None, Heard(x)
        else:
            inputs, state, heard = self._remember(q, x, ctx, state)
        inputs = self._rotated(inputs)
        if self.relative is not None:
            inputs = with_tables(self.relative, inputs, ctx.causal)
        y, aux = self.attend(inputs, ctx, heard)
        return Mixed(self.merge(y.transpose(1, 2).flatten(2)), state, aux)

    def require(self, mode: Any) -> None:
        super().require(mode)
        if mode == "cross" and (self.rotary is not None or self.relative is not None):
            raise ConfigError("distances between two sequences mean nothing: cross mixers take no encoding", "encoding")
        if mode != "causal" and self.memory:
            raise ConfigError(f"memory is of the past, so a {mode} mixer has none; set memory: 0", "mixer.memory")

    def _split(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b h t k"]:
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def _rotated(self, inputs: Inputs) -> Inputs:
        if self.rotary is None:
            return inputs
        positions = torch.arange(inputs.k.size(-2), device=inputs.k.device)
        q = self.rotary.rotate(inputs.q, positions[-inputs.q.size(-2) :])
        return inputs._replace(q=q, k=self.rotary.rotate(inputs.k, positions))

    def _remember(
        self, q: Float[Tensor, "b h t k"], x: Float[Tensor, "b t d"], ctx: Context, state: Any
    ) -> tuple[Inputs, dict[str, Tensor] | None, Heard]:
        """Keys and values of memory and segment, the state after the segment, and what they were made of.

        Raises ValueError where gradients are on and the state was made without: W_k and W_v could not learn from it.
        """
        marks = None if self.mark is None else self.mark(ctx)
        if self.memory == 0:
            inputs = Inputs(q, self._split(self.key(x)), self._split(self.value(x)), ctx.keep)
            return inputs, None, Heard(x, x, marks)
        seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.keep is None else ctx.keep
        flags = {"seen": seen} | ({} if marks is None else {"marks": marks})
        if state is not None:
            flags = {name: torch.cat([state[name], flag], dim=1) for name, flag in flags.items()}
        hidden = None
        if torch.is_grad_enabled() or self.keep_hidden if state is None else "hidden" in state:
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
        kept |= {name: flag[:, -self.memory :] for name, flag in flags.items()}
        return Inputs(q, k, v, flags["seen"]), kept, Heard(x, hidden, flags.get("marks"))

    def projection_flops(self, queries: int, keys: int) -> int:
        """FLOPs of the four projections for one sequence."""
        return 2 * self.dim * self.width * (2 * queries + 2 * keys)
