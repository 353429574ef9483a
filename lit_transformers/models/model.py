"""The base of every model's config: sizes, the block that layers repeat, positions, stack, and token embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, Initial, Positive, PositiveFloat, Rounding, field_types
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.mixer import MixerConfig, Mode, Shape
from lit_transformers.models.initialisation import initialise_normal, initialise_scaled
from lit_transformers.models.roles import Roles, layers_of, network_roles
from lit_transformers.models.tokens import FullTokenEmbeddingConfig, TokenEmbedding, TokenEmbeddingConfig
from lit_transformers.named_tuples import with_fields
from lit_transformers.space import Interval, Space
from lit_transformers.stacks import SequentialConfig, Stack, StackConfig, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.carried import Carried
from lit_transformers.stacks.unpadded import require_unpadded


class ModelConfig(BlockConfig):
    """Base of every model's config; the table MODELS lists the kinds. Each is a family: one file, and one line there.

    The capabilities that objectives need of a family are bases in ``lit_transformers/models/capabilities.py``.
    ``gates`` names the family's gates, a mapping from their names to functions of a probe, as "module:attribute". It is
    read where gates are run, so that the code of gates is no part of the code that a run depends on.
    unpadded: whether layers read rows without their padding: linear maps read the real tokens of all rows at once, and
        mixers rows of equal length together. Outputs are the same but for rounding; dropout draws other numbers.
    initial_std: standard deviation of the normal distribution that all linear and embedding weights start from; None
        for one that depends on where a weight is in the network (``lit_transformers/models/initialisation.py``).
    """

    space: ClassVar[Space] = {"dropout": Interval(0.0, 0.3)}
    gates: ClassVar[str] = ""

    dim: Positive = 512
    heads: Positive = 8
    depth: Positive = 6
    positions: PositionsConfig | None = None
    stack: StackConfig = SequentialConfig()
    tokens: TokenEmbeddingConfig = FullTokenEmbeddingConfig()
    unpadded: Annotated[bool, Rounding] = False
    initial_std: Annotated[PositiveFloat | None, Initial] = None

    def build(self, data: DataDescription) -> Network:
        """Builds the network that is trained on such data. Raises ConfigError where that is impossible."""
        raise NotImplementedError

    def depths(self) -> dict[str, int]:
        """Hook: returns the numbers of layers of the stacks, by the paths of their fields. By default ``depth`` alone.

        A probe has fewer layers, and two runs of which one has more are never taken for equal.
        """
        return {"depth": self.depth}

    def widths(self) -> dict[str, int]:
        """Hook: returns how many channels a probe has, by the paths of their fields. By default 8 for each head.

        Two runs of which one is wider are never taken for equal.
        """
        return {"dim": 8 * self.heads}

    def origin(self) -> ModelConfig:
        """Hook: returns the config of the network whose weights fit this one, and from which it may start. By default
        its own."""
        return self

    def beyond_origin(self) -> str:
        """Hook: returns a clause that says how its network differs from all networks of its ``origin``, "" where the
        outputs are equal. By default they are."""
        return ""

    def token_embeddings(self) -> dict[str, TokenEmbeddingConfig]:
        """Returns the configs of all token embeddings by their paths, those of networks within this one included."""
        return dict(_token_embeddings(self))

    def fewest_symbols(self) -> int:
        """Returns the size of the smallest vocabulary that the network can be built for."""
        return max(embedding.fewest_symbols() for embedding in self.token_embeddings().values())

    def passage_bytes(self, tokens: int) -> int | None:
        """Hook: returns the bytes, as the command ``encode`` writes them, of the states of a passage of ``tokens``
        tokens that are computed before its question. By default None: every layer reads both."""
        return None

    def build_stack(self, mode: Mode, max_length: int, cross: MixerConfig | None = None) -> Stack:
        """Builds the stack of this model's blocks in the given mode, with cross mixers if ``cross`` is given.

        Raises ConfigError where a mixer or a feed-forward does not support the mode.
        """
        shape = Shape(self.dim, self.heads, max_length, 0, self.depth, shared={})
        if self.unpadded and cross is None:
            require_unpadded(self.mixer, self.positions, mode)

        def make_block(layer: int, depth: int) -> Block:
            return self.build_block(with_fields(shape, layer=layer, depth=depth), mode, cross)

        return self.stack.build(shape, make_block, self.build_input(shape))

    def build_input(self, shape: Shape) -> StackInput:
        """Hook: builds the module before the first layer. By default it adds positions, with dropout."""
        return StackInput(self.positions.build(shape) if self.positions else None, self.dropout)

    def final_norm(self) -> nn.Module:
        """Returns the norm after the stack: pre-norm leaves the residual sum unnormalised; post-norm needs none."""
        return self.build_norm(self.dim) if self.norm == "pre" else nn.Identity()

    def initialise(self, network: nn.Module, tokens: TokenEmbedding) -> None:
        """Initialises the weights of a built network, from streams of random numbers named like its modules.

        A network that was built for its shapes alone, on the meta device, has no numbers to initialise.
        """
        if all(parameter.is_meta for parameter in network.parameters()):
            return
        if self.initial_std is None:
            initialise_scaled(network, self.dim, tokens.factor)
        else:
            initialise_normal(network, self.initial_std, tokens.factor)


def _token_embeddings(config: Config, prefix: str = "") -> Iterator[tuple[str, TokenEmbeddingConfig]]:
    for name in field_types(type(config)):
        value = getattr(config, name)
        if isinstance(value, TokenEmbeddingConfig):
            yield f"{prefix}{name}", value
        elif isinstance(value, Config):
            yield from _token_embeddings(value, f"{prefix}{name}.")


class Network(nn.Module, ABC):
    """Base of every family's network. ``tokens`` embeds its symbols, and those that it predicts."""

    tokens: TokenEmbedding

    @abstractmethod
    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """Forward FLOPs of training for one row of ``length`` tokens. ``remembered``: the tokens before it, in a family
        whose rows continue each other; ``source``: the tokens of its source, in a family that reads pairs."""

    def softmax_flops(self, length: int) -> int:
        """Hook: returns the part of ``flops`` that predicts symbols, which is counted with the head that predicts them.
        By default that of the softmax of ``tokens`` at every position."""
        return self.tokens.flops(length)

    def embeddings(self) -> list[TokenEmbedding]:
        """Hook: returns the embeddings of symbols. By default ``tokens`` alone."""
        return [self.tokens]

    def layers(self) -> Mapping[str, Sequence[nn.Module]]:
        """Hook: returns the layers of each of its stacks by the stack's name, the lowest first. One that is applied
        several times stands there several times. By default those of the stacks that it holds."""
        return layers_of(self)

    def roles(self) -> Roles:
        """Hook: returns its parameters by role, as ``training.groups`` name them. By default the roles follow from its
        modules (``lit_transformers/models/roles.py``)."""
        return network_roles(self)

    def unused(self) -> list[nn.Parameter]:
        """Hook: returns the parameters that no output depends on, which no cost counts. None by default."""
        return []

    def carried(self, length: int) -> Carried:
        """Hook: returns the state size that a row of ``length`` tokens leaves to the next such row. Zero by default."""
        return Carried(0, 0)

    def decoding_state(self, length: int) -> int | None:
        """Hook: returns the most numbers that its mixers have to hold of a row of ``length`` tokens while it is read
        token by token (``Mixer.decoding_state``); None, the default, where that is not known."""
        return None

    def carries(self) -> bool:
        """Hook: returns whether a row leaves any state to the next. By default it leaves none."""
        return False


class ModelOutput(NamedTuple):
    """A network's output for a segment. ``aux`` holds named losses, each a mean over its tokens; ``layers`` has the
    outputs of all layers but the last, if requested. ``source_aux`` holds those that are means over the tokens of a
    source. ``embedded`` is the input of the first layer, of networks that read rows."""

    hidden: Float[Tensor, "b t d"]
    state: Any
    aux: dict[str, Tensor]
    layers: tuple[Float[Tensor, "b t d"], ...] = ()
    source_aux: Mapping[str, Tensor] = MappingProxyType({})
    embedded: Float[Tensor, "b t d"] | None = None


def positions_of(
    symbols: Int[Tensor, "b t"], start: Int[Tensor, " b"] | None
) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Returns the positions of a segment whose rows begin at ``start`` (zero if None), and ``start``."""
    if start is None:
        start = torch.zeros(symbols.size(0), dtype=torch.long, device=symbols.device)
    return start[:, None] + torch.arange(symbols.size(1), device=symbols.device), start
