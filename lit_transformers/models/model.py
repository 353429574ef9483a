"""The base of every model's config: sizes, the block that layers repeat, positions, stack, and token embeddings."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.block import Block, BlockConfig
from lit_transformers.config import Positive, PositiveFloat
from lit_transformers.initialisation import initialise_normal, initialise_scaled
from lit_transformers.mixer import MixerConfig, Mode, Shape
from lit_transformers.models.tokens import FullTokenEmbeddingConfig, TokenEmbedding, TokenEmbeddingConfig
from lit_transformers.positions import PositionsConfig
from lit_transformers.space import Interval, Space
from lit_transformers.stacks import SequentialConfig, Stack, StackConfig, StackInput


class ModelConfig(BlockConfig):
    """Base of every model's config; the table MODELS lists the kinds.

    initial_std: standard deviation of the normal distribution that all linear and embedding weights start from; None
        for one that depends on where a weight is in the network (``lit_transformers/initialisation.py``).
    """

    space: ClassVar[Space] = {"dropout": Interval(0.0, 0.3)}

    dim: Positive = 512
    heads: Positive = 8
    depth: Positive = 6
    positions: PositionsConfig | None = None
    stack: StackConfig = SequentialConfig()
    tokens: TokenEmbeddingConfig = FullTokenEmbeddingConfig()
    initial_std: PositiveFloat | None = None

    def build(self, vocabulary: int, max_length: int) -> nn.Module:
        """Builds a network for ``vocabulary`` symbols that is trained on segments of ``max_length`` tokens."""
        raise NotImplementedError

    def build_stack(self, mode: Mode, max_length: int, cross: MixerConfig | None = None) -> Stack:
        """Builds the stack of this model's blocks in the given mode, with cross mixers if ``cross`` is given."""
        shape = Shape(self.dim, self.heads, max_length, 0, self.depth, shared={})

        def make_block(layer: int, depth: int) -> Block:
            return self.build_block(shape._replace(layer=layer, depth=depth), mode, cross)

        positions = self.positions.build(shape) if self.positions else None
        return self.stack.build(shape, make_block, StackInput(positions, self.dropout))

    def final_norm(self) -> nn.Module:
        """Returns the norm after the stack: pre-norm leaves the residual sum unnormalised; post-norm needs none."""
        return nn.LayerNorm(self.dim) if self.norm == "pre" else nn.Identity()

    def initialise(self, network: nn.Module, tokens: TokenEmbedding) -> None:
        """Initialises the weights of a built network, independently of the order in which its parts were built."""
        if self.initial_std is None:
            initialise_scaled(network, self.dim, tokens.factor)
        else:
            initialise_normal(network, self.initial_std, tokens.factor)


class ModelOutput(NamedTuple):
    """A network's output for a segment. ``layers`` has the outputs of all layers but the last, if requested."""

    hidden: Float[Tensor, "b t d"]
    state: Any
    aux: dict[str, Tensor]
    layers: tuple[Float[Tensor, "b t d"], ...] = ()


def positions_of(
    symbols: Int[Tensor, "b t"], start: Int[Tensor, " b"] | None
) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Returns the positions of a segment whose rows begin at ``start`` (zero if None), and ``start``."""
    if start is None:
        start = torch.zeros(symbols.size(0), dtype=torch.long, device=symbols.device)
    return start[:, None] + torch.arange(symbols.size(1), device=symbols.device), start
