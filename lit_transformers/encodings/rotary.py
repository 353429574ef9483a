"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Cycle, Fraction, Positive, PositiveFloat
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.mixer import Shape, in_cycle

LONG_BASE = 160_000.0
"""ModernBERT's base in the layers that see the whole row (arXiv:2412.13663, section 2.1.2)."""


class RotaryConfig(EncodingConfig, kind="rotary"):
    """base: the slowest wavelength is 2 pi base; unrotated: the share of each head's channels that is not rotated.
    long_every: one in ``long_every`` layers, from the first on, has the base ``long_base``, as the layers that see the
    whole row between layers with a window (arXiv:2412.13663, section 2.1.2: 3 and 160,000); None: all have the same."""

    base: PositiveFloat = 10_000.0
    unrotated: Fraction = 0.0
    long_every: Annotated[Positive | None, Cycle] = None
    long_base: PositiveFloat = LONG_BASE

    def conflicts(self) -> Iterator[str]:
        if self.long_base != LONG_BASE and self.long_every is None:
            yield "long_base is of one in long_every layers, and long_every is null"

    def build(self, shape: Shape, head_dim: int) -> Rotary:
        return Rotary(self, shape, head_dim)


class Rotary(nn.Module):
    """Rotates each pair of channels (c, c + half) by an angle proportional to the position.

    The product of a rotated query and a rotated key depends on their distance alone, so positions may start anywhere.
    """

    inverse_wavelengths: Tensor

    def __init__(self, config: RotaryConfig, shape: Shape, head_dim: int) -> None:
        super().__init__()
        self.rotated = int(head_dim * (1 - config.unrotated)) // 2 * 2
        if self.rotated == 0:
            raise ConfigError(f"no pair of the {head_dim} channels of a head is left to rotate", "encoding.unrotated")
        base = config.long_base if in_cycle(config.long_every, shape) else config.base
        exponents = torch.arange(0, self.rotated, 2) / self.rotated
        self.register_buffer("inverse_wavelengths", base**-exponents, persistent=False)

    def rotate(self, x: Float[Tensor, "b h t k"], positions: Int[Tensor, " t"]) -> Float[Tensor, "b h t k"]:
        angles = positions[:, None].float() * self.inverse_wavelengths
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        rotated, unrotated = x[..., : self.rotated], x[..., self.rotated :]
        first, second = rotated.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, unrotated], dim=-1)
