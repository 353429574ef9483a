"""Heads of mixers that are not softmax attention over all keys: their width, and splitting channels into heads."""

from __future__ import annotations

from abc import ABC
from typing import Annotated

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import ConfigError, HeadWidth, Positive
from lit_transformers.mixer import MixerConfig, Shape


class HeadsConfig(MixerConfig, ABC):
    """head_dim: channels of a head (None for dim / heads); bias: whether the projections to heads and back have one."""

    head_dim: Annotated[Positive | None, HeadWidth] = None
    bias: bool = False


def channels_of_a_head(head_dim: int | None, shape: Shape) -> int:
    """Returns ``head_dim``, or dim / heads where it is None. Raises ConfigError where heads do not divide dim."""
    if head_dim is None and shape.dim % shape.heads:
        raise ConfigError(f"dim {shape.dim} is not divisible by {shape.heads} heads; set head_dim", "mixer.head_dim")
    return head_dim or shape.dim // shape.heads


def split(x: Float[Tensor, "b t w"], heads: int) -> Float[Tensor, "b h t k"]:
    """Splits channels (b, t, w) into heads (b, h, t, k)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(y: Float[Tensor, "b h t k"]) -> Float[Tensor, "b t w"]:
    """Joins heads (b, h, t, k) to channels (b, t, w)."""
    return y.transpose(1, 2).flatten(2)


def learn(module: nn.Module, name: str, value: Tensor, fixed: bool = False) -> None:
    """Registers a parameter with the initial ``value`` in the module, or, if ``fixed``, a buffer that keeps it."""
    if fixed:
        module.register_buffer(name, value)
    else:
        module.register_parameter(name, nn.Parameter(value))
