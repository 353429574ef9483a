"""Heads, for mixers that are not softmax attention over all keys: their width, and how channels become heads."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Positive
from lit_transformers.mixer import MixerConfig, Shape


class HeadsConfig(MixerConfig):
    """head_dim: channels of a head (None for dim / heads); bias: on the projections to heads and back."""

    head_dim: Positive | None = None
    bias: bool = False


def channels_of_a_head(head_dim: int | None, shape: Shape) -> int:
    """``head_dim``, or what divides dim among the heads. Raises ConfigError where nothing does."""
    if head_dim is None and shape.dim % shape.heads:
        raise ConfigError(f"dim {shape.dim} is not divisible by {shape.heads} heads; set head_dim", "mixer.head_dim")
    return head_dim or shape.dim // shape.heads


def split(x: Float[Tensor, "b t w"], heads: int) -> Float[Tensor, "b h t k"]:
    """Channels to heads."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(y: Float[Tensor, "b h t k"]) -> Float[Tensor, "b t w"]:
    """Heads to channels."""
    return y.transpose(1, 2).flatten(2)


def learn(module: nn.Module, name: str, value: Tensor, fixed: bool = False) -> None:
    """Gives the module a parameter that starts from ``value``, or a buffer that keeps it."""
    if fixed:
        module.register_buffer(name, value)
    else:
        module.register_parameter(name, nn.Parameter(value))
