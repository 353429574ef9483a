"""Shrinks a model's config to a size that takes milliseconds, with rows long enough for all its lengths to act.

Few channels, two layers, a tiny vocabulary, float64, and every other knob as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, PairDescription, Vocabulary
from lit_transformers.config import (
    ConfigError,
    Cycle,
    Dropout,
    Groups,
    HeadWidth,
    Length,
    LowerLayers,
    Memory,
    Rank,
    TableLength,
    Width,
)
from lit_transformers.maps import AdapterWeights
from lit_transformers.models.model import ModelConfig

VOCABULARY = 23
SMALL, LARGE = 0.02, 0.2
"""The standard deviation of a probe's initial weights, in place of the one in its config, and the one that it is
enlarged to."""
SHORTEST, LONGEST = 24, 256
"""The shortest and the longest rows of a probe, in tokens."""
ROUND = 64
"""Memories are cut to multiples of this number, so that a mixer can divide its memory evenly."""

N = TypeVar("N", bound=nn.Module)


class Probe(NamedTuple):
    """The config of a small model, and the length of the rows that it reads."""

    config: ModelConfig
    length: int

    @property
    def vocabulary(self) -> int:
        """A number of symbols that suffices for a row without repetitions."""
        return max(VOCABULARY, self.length + 1)

    @property
    def data(self) -> DataDescription:
        return probe_data(self.vocabulary, self.length)

    def symbols(self, rows: int = 2) -> Tensor:
        """Returns random rows without repeated symbols: a top-k mixer's choice among equal keys would be arbitrary."""
        return torch.stack([1 + torch.randperm(self.vocabulary - 1)[: self.length] for _ in range(rows)])


def probe_data(symbols: int, length: int) -> DataDescription:
    """Describes data for which every family can be built: pairs with the same vocabulary and length on both sides."""
    vocabulary = Vocabulary(size=symbols, boundary=0, unit="byte", byte_lengths=None)
    return PairDescription.for_probe(vocabulary, length)


def probe_length(config: ModelConfig) -> int:
    """Returns a little more than twice the longest length that the config names (a window, a block, a rank).

    It is at most LONGEST and at most half a table of positions. Memories do not count, because they are shortened.
    """
    lengths = [number for _, value in config.leaves_with(Length) for number in whole(value)]
    tables = [size for _, value in config.leaves_with(TableLength) for size in whole(value)]
    length = max(SHORTEST, min(LONGEST, 2 * max(lengths, default=0) + 3))
    return min([length, *(size // 2 for size in tables)])


def whole(value: Any) -> list[int]:
    """Returns the integers that a field holds."""
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if type(number) is int]


def keeps_depth(config: ModelConfig) -> bool:
    """Whether some field has a value for each layer, so that the number of layers cannot change."""
    depths = config.depths().values()
    return any(isinstance(value, tuple) and len(value) in depths and len(value) > 1 for _, value in config.leaves())


def miniature(config: ModelConfig, length: int) -> ModelConfig:
    """Returns the config of the same model at a size that takes milliseconds; no mechanism is switched off.

    Lengths that a mixer names stay; layers and memories become fewer where the model can be built so.
    """
    narrow: dict[str, Any] = {"initial_std": SMALL}
    narrow |= {path: 0.0 for path, _ in config.leaves_with(Dropout)}
    narrow |= {path: min(value, 16) for path, value in config.leaves_with(Width) if value}
    narrow |= {path: 8 for path, value in config.leaves_with(HeadWidth) if value}
    narrow |= {path: min(value, 4) for path, value in config.leaves_with(Rank)}
    for path, embedding in config.token_embeddings().items():
        narrow |= {f"{path}.{name}": value for name, value in embedding.shrunk(VOCABULARY).items()}
    return shrink(config, length, narrow, depth=2, shorten=lambda memory: min(memory, covering(length)))


def shrink(
    config: ModelConfig, length: int, changes: Mapping[str, Any], *, depth: int, shorten: Callable[[int], int]
) -> ModelConfig:
    """Returns the config of the same model with few channels and with the given changes, and where it can be built so
    for rows of ``length`` tokens, with at most ``depth`` layers, or as many as show a cycle of them, and with memories
    shortened."""
    narrow = config.widths() | dict(changes)
    short = {path: shorten(value) for path, value in config.leaves_with(Memory) if value}
    shallow: dict[str, int] = {}
    cycles = [value for _, value in config.leaves_with(Cycle) if value]
    depth = max(depth, 1 + max(cycles, default=0))
    if not keeps_depth(config):
        shallow = {path: min(layers, depth) for path, layers in config.depths().items()}
        shallow |= {path: min(value, depth) for path, value in config.leaves_with(Groups)}
        deepest = max(config.depths().values(), default=0)
        shallow |= {path: min(lower, depth - (lower < deepest)) for path, lower in config.leaves_with(LowerLayers)}
    return first_that_builds(config, [narrow | short | shallow, narrow | short, narrow | shallow, narrow], length)


def covering(length: int) -> int:
    """Returns the smallest multiple of ROUND that is at least ``length``."""
    return math.ceil(length / ROUND) * ROUND


def first_that_builds(config: ModelConfig, attempts: Sequence[Mapping[str, Any]], length: int) -> ModelConfig:
    """Returns the config with the first of these changes that it can be built with, or the last where none can."""
    *attempts, fallback = attempts
    for changes in attempts:
        try:
            candidate = config.override(changes)
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                candidate.build(probe_data(max(VOCABULARY, candidate.fewest_symbols()), length))
        except ConfigError:
            continue
        return candidate
    return config.override(fallback)


@contextmanager
def seeded() -> Iterator[None]:
    """Seeds the random numbers within the block, and leaves the caller's generators untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def enlarged(network: N) -> N:
    """Returns the network in float64 and in eval mode, with its small weights made large enough to matter, and with
    weights of its adapters that are drawn, for at their start these add nothing."""
    network = network.double().eval()
    adapters = [module for module in network.modules() if isinstance(module, AdapterWeights)]
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(LARGE / SMALL)
        for parameter in (parameter for adapter in adapters for parameter in adapter.parameters()):
            nn.init.normal_(parameter, std=LARGE)
    return network
