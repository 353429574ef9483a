"""Positions that are added to the input of the network or of each layer (arXiv:1706.03762, section 3.5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError, NonNegative, Positive, TableLength, table
from lit_transformers.mixer import Shape

Restart = Literal["segment", "document"]


def sinusoids(positions: Int[Tensor, "*n"], dim: int, dtype: torch.dtype) -> Float[Tensor, "*n d"]:
    """All sines, then all cosines, of wavelengths 2 pi to 20000 pi (arXiv:1706.03762, section 3.5).

    The paper interleaves them; a fixed order of channels does not affect learning. Transformer-XL uses this order.
    """
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim
    angles = positions[..., None].double() * 10_000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype)


class PositionsConfig(Config):
    """Base of every config of added positions; the table POSITIONS lists the kinds.

    restart: "segment" counts from zero in every training segment (the naive way with recurrence, arXiv:1901.02860
    section 3.3), for calls of any length; "document" counts on through the document.
    offset: in training every row counts from a separate random number between 0 and this one, so that positions beyond
    the longest row are learned too (arXiv:1807.03819, section 3.2). It is meant for rows that are whole sequences.
    """

    restart: Restart = "segment"
    offset: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        if self.offset and self.restart == "segment":
            yield "positions that restart with each segment leave no room for an offset: set restart: document"

    def build(self, shape: Shape) -> Positions:
        raise NotImplementedError


class Positions(nn.Module, ABC):
    """A vector for each position, added to the input of a layer."""

    def __init__(self, config: PositionsConfig, shape: Shape) -> None:
        super().__init__()
        self.period = shape.max_length if config.restart == "segment" else None
        self.offset = config.offset

    def offsets(self, positions: Int[Tensor, "b t"]) -> Int[Tensor, " b"] | None:
        """Draws the first position of each row of one training pass; returns None where rows count from zero."""
        if not (self.training and self.offset):
            return None
        return torch.randint(self.offset + 1, (positions.size(0),), device=positions.device)

    def forward(
        self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], layer: int, last: int | None = None
    ) -> Float[Tensor, "b t d"]:
        """Returns x with the vectors of its positions added, where this layer adds any. last: as in ``vectors``."""
        vectors = self.vectors(layer, positions, x.dtype, last)
        return x if vectors is None else x + vectors

    def vectors(
        self, layer: int, positions: Int[Tensor, "b t"], dtype: torch.dtype, last: int | None = None
    ) -> Float[Tensor, "b t d"] | None:
        """Returns the vectors that layer ``layer`` adds, or None. last: a number that no position is above; None where
        the host would have to read them."""
        if self.period is not None:
            return self.at(layer, positions % self.period, dtype)
        self.require_reach(layer, positions, last)
        return self.at(layer, positions, dtype)

    def require_reach(self, layer: int, positions: Int[Tensor, "b t"], last: int | None) -> None:
        """Hook: raises PositionError where a layer has no vector for a position. By default it has one for each.
        Arguments are those of ``vectors``."""

    @abstractmethod
    def at(self, layer: int, positions: Int[Tensor, "b t"], dtype: torch.dtype) -> Float[Tensor, "b t d"] | None:
        """Returns the vectors that a layer adds, or None; positions already start from zero where they restart."""


class SinusoidalConfig(PositionsConfig, kind="sinusoidal"):
    """Fixed sines and cosines (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    per_layer: every layer adds them, as the Universal Transformer does at each step (arXiv:1807.03819, equations 6 and
    7; its other summand is ``stack.timestep``), not the first alone.
    """

    per_layer: bool = False

    def build(self, shape: Shape) -> Sinusoidal:
        if shape.dim % 2:
            raise ConfigError(f"sinusoids come in pairs, so dim must be even, not {shape.dim}", "dim")
        return Sinusoidal(self, shape)


class Sinusoidal(Positions):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same."""

    def __init__(self, config: SinusoidalConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.dim, self.per_layer = shape.dim, config.per_layer

    def at(self, layer: int, positions: Int[Tensor, "b t"], dtype: torch.dtype) -> Float[Tensor, "b t d"] | None:
        return sinusoids(positions, self.dim, dtype) if layer == 0 or self.per_layer else None


class LearnedConfig(PositionsConfig, kind="learned"):
    """A learned vector for each position (Devlin et al. 2019, arXiv:1810.04805, section 3).

    per_layer: every layer has its own table (Al-Rfou et al. 2018, arXiv:1808.04444, section 3.3), not the first
    alone. max_length: size of a table; None for the length of a training segment.
    """

    per_layer: bool = False
    max_length: Annotated[Positive | None, TableLength] = None

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.max_length is not None and self.restart == "segment":
            yield "a table that restarts with each segment is as long as one: drop max_length, or set restart: document"

    def build(self, shape: Shape) -> Learned:
        return Learned(self, shape)


class Learned(Positions):
    """One table of position vectors for the first layer, or one for each layer."""

    position_tables: ClassVar[Mapping[str, int]] = {"weight": 1}
    """Its tables of positions, with their dimension of positions: it may be longer than in a network it starts from."""

    def __init__(self, config: LearnedConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.max_length = config.max_length or shape.max_length
        self.weight = nn.Parameter(torch.empty(shape.depth if config.per_layer else 1, self.max_length, shape.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def at(self, layer: int, positions: Int[Tensor, "b t"], dtype: torch.dtype) -> Float[Tensor, "b t d"] | None:
        return self.weight[layer][positions].to(dtype) if layer < self.weight.size(0) else None

    def require_reach(self, layer: int, positions: Int[Tensor, "b t"], last: int | None) -> None:
        is_known = last is not None and last < self.max_length
        if is_known or layer >= self.weight.size(0) or torch.compiler.is_compiling():  # whose graph would end here
            return
        last = int(positions.max())
        if last >= self.max_length:
            raise PositionError(
                f"position {last} lies beyond the {self.max_length} learned positions: set model.positions.max_length "
                f"to {last + 1} or more, model.positions.restart to segment, or use sinusoidal or relative positions"
            )


class PositionError(ValueError):
    """A position lies beyond the table of learned positions."""


POSITIONS = table(PositionsConfig, SinusoidalConfig, LearnedConfig)
