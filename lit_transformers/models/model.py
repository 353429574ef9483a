"""What every model's config has: its sizes, the block its layers repeat, positions, stack, and symbols."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.block import Block, BlockConfig
from lit_transformers.config import Positive, PositiveFloat
from lit_transformers.initialisation import initialise_normal, initialise_scaled
from lit_transformers.mixer import MixerConfig, Mode, Shape
from lit_transformers.models.tokens import FullTokensConfig, Tokens, TokensConfig
from lit_transformers.positions import PositionsConfig
from lit_transformers.space import Interval, Space
from lit_transformers.stacks import Entry, SequentialConfig, Stack, StackConfig


class ModelConfig(BlockConfig):
    """Base of every model's config; the table MODELS lists the kinds.

    initial_std: standard deviation of the one normal distribution that all linear and embedding weights start from;
        None for one that each part's place asks for (``lit_transformers/initialisation.py``).
    """

    space: ClassVar[Space] = {"dropout": Interval(0.0, 0.3)}

    dim: Positive = 512
    heads: Positive = 8
    depth: Positive = 6
    positions: PositionsConfig | None = None
    stack: StackConfig = SequentialConfig()
    tokens: TokensConfig = FullTokensConfig()
    initial_std: PositiveFloat | None = None

    def build(self, vocabulary: int, max_length: int) -> nn.Module:
        """A network for ``vocabulary`` symbols, trained on segments of ``max_length`` tokens."""
        raise NotImplementedError

    def build_stack(self, mode: Mode, max_length: int, cross: MixerConfig | None = None) -> Stack:
        """The stack of this model's blocks in one mode."""
        shape = Shape(self.dim, self.heads, max_length, 0, self.depth, shared={})

        def make(layer: int, depth: int) -> Block:
            return self.build_block(shape._replace(layer=layer, depth=depth), mode, cross)

        positions = self.positions.build(shape) if self.positions else None
        return self.stack.build(shape, make, Entry(positions, self.dropout))

    def final_norm(self) -> nn.Module:
        """Pre-norm leaves the sum of its branches unnormalised, so a norm follows; post-norm must not have a second."""
        return nn.LayerNorm(self.dim) if self.norm == "pre" else nn.Identity()

    def initialise(self, network: nn.Module, tokens: Tokens) -> None:
        """Fills the weights of a network that is built, whatever order its parts were built in."""
        if self.initial_std is None:
            initialise_scaled(network, self.dim, tokens.factor)
        else:
            initialise_normal(network, self.initial_std, tokens.factor)


class Read(NamedTuple):
    """What a network made of a segment. ``layers`` has the outputs of all layers but the last, where asked for."""

    hidden: Float[Tensor, "b t d"]
    state: Any
    aux: dict[str, Tensor]
    layers: tuple[Float[Tensor, "b t d"], ...] = ()


def positions_of(
    symbols: Int[Tensor, "b t"], start: Int[Tensor, " b"] | None
) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Positions of a segment whose rows begin at ``start``, and where they begin."""
    if start is None:
        start = torch.zeros(symbols.size(0), dtype=torch.long, device=symbols.device)
    return start[:, None] + torch.arange(symbols.size(1), device=symbols.device), start
