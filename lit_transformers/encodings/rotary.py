"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Fraction, PositiveFloat
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.mixer import Shape


class RotaryConfig(EncodingConfig, kind="rotary"):
    """base: the slowest wavelength is 2 pi base; unrotated: the share of each head's channels that is not rotated."""

    base: PositiveFloat = 10_000.0
    unrotated: Fraction = 0.0

    def build(self, shape: Shape, head_dim: int) -> Rotary:
        return Rotary(self, head_dim)


class Rotary(nn.Module):
    """Rotates each pair of channels (c, c + half) by an angle proportional to the position.

    The product of a rotated query and a rotated key depends on their distance alone, so positions may start anywhere.
    """

    inverse_wavelengths: Tensor

    def __init__(self, config: RotaryConfig, head_dim: int) -> None:
        super().__init__()
        self.rotated = int(head_dim * (1 - config.unrotated)) // 2 * 2
        if self.rotated == 0:
            raise ConfigError(f"no pair of the {head_dim} channels of a head is left to rotate", "encoding.unrotated")
        exponents = torch.arange(0, self.rotated, 2) / self.rotated
        self.register_buffer("inverse_wavelengths", config.base**-exponents, persistent=False)

    def rotate(self, x: Float[Tensor, "b h t k"], positions: Int[Tensor, " t"]) -> Float[Tensor, "b h t k"]:
        angles = positions[:, None].float() * self.inverse_wavelengths
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        rotated, unrotated = x[..., : self.rotated], x[..., self.rotated :]
        first, second = rotated.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, unrotated], dim=-1)
