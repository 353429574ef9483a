"""Computes the cost of a model (parameters, FLOPs, state) from its definition; allocates weights only where needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import ConfigError
from lit_transformers.machine.cores import machine_memory
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.printing.amounts import memory
from lit_transformers.stacks.carried import LARGEST_PROBE, Carried

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
MOST_LAYERS = 10_000
"""The most layers of a stack that is built."""
LENGTHS = (1, 2, 4, 8)
"""Costs are reported at these multiples of the training length."""


class ModelCost(NamedTuple):
    """The cost of one network.

    flops_per_token: forward FLOPs (2 for a multiply-add) of one token in a training row, with memory full where rows
    continue each other; training takes three times as many. Where memory holds inputs, every row projects them again;
    evaluation keeps their keys and values instead and saves these projections. state_bytes: the size of the state that
    one lane carries from segment to segment, in float32; 0 for a model whose rows do not continue each other.
    decoding_state: the most numbers that all mixers together hold of a row that is read token by token; None where that
    is not known.
    """

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    state_bytes: int
    decoding_state: int | None = None


def cost(
    config: ModelConfig, data: DataDescription, length: int, source: int = 0, *, continued: bool = True
) -> ModelCost:
    """Returns the cost of the network that ``config`` builds for the data, trained on rows of ``length`` tokens.

    source: the tokens of a row's source, in a family that reads pairs; ``length`` are then those of its target, and the
    FLOPs of the source are shared out among them. continued: each row continues where the one before it ended, in a
    family whose rows may. Raises ConfigError where the network cannot be built.
    """
    require_fitting(config)
    network, (carried, flops) = shapes_or_values(
        lambda: config.build(data), lambda network: spent(network, length, source, continued)
    )
    unused = {id(p) for p in network.unused()}
    counts = {id(p): p.numel() for p in network.parameters() if id(p) not in unused}
    embedded = {id(p) for embedding in network.embeddings() for p in embedding.parameters()}
    embedding_parameters = sum(count for parameter, count in counts.items() if parameter in embedded)
    decoding_state = network.decoding_state(length)
    return ModelCost(sum(counts.values()), embedding_parameters, flops / length, carried.state_bytes, decoding_state)


def require_fitting(config: ModelConfig) -> None:
    """Raises ConfigError for a network with more layers than any has."""
    deepest = max(config.depths().values(), default=0)
    if deepest > MOST_LAYERS:
        raise ConfigError(f"{deepest:,} layers, and no network has more than {MOST_LAYERS:,}", "model")


def shapes_or_values(build: Callable[[], M], measure: Callable[[M], R]) -> tuple[M, R]:
    """Returns a module and its measurement: of the shapes of its weights alone, which takes no memory, or, where it
    depends on values (a learned span, a marked token), of the module itself. Raises ConfigError for weights that are
    larger than any module has, or than this machine holds."""
    module = None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            module = build()
        return module, measure(module)
    except (RuntimeError, TypeError) as error:
        if module is None and "verflow" in str(error):
            reason = "one of its weights has more numbers than can be counted; set dim or another size lower"
            raise ConfigError(reason, "model") from None
        if not isinstance(error, RuntimeError):
            raise
    require_held(sum(p.numel() for p in module.parameters()) if module else 0, machine_memory())
    with torch.random.fork_rng(devices=[]):
        module = build()
        return module, measure(module.eval())


def require_held(parameters: int, room: float) -> None:
    """Raises ConfigError where ``room`` bytes cannot hold the parameters."""
    if parameters * 4 > room:
        reason = f"its {parameters:,} weights alone take {memory(parameters * 4)}, and there are {memory(room)}"
        raise ConfigError(f"{reason}; set dim, depth or another size lower", "model")


def spent(network: Network, length: int, source: int, continued: bool) -> tuple[Carried, int]:
    """Returns the size of the state that a row leaves to the next, and the forward FLOPs of one row after it."""
    carried = network.carried(length) if continued else Carried(0, 0)
    return carried, network.flops(length, carried.tokens, source)


def flops_by_length(network: Network, length: int, continued: bool, source: int = 0) -> list[tuple[int, float]]:
    """Returns pairs of a row's length and its forward FLOPs per token in training, at 1, 2, 4 and 8 times ``length``.

    continued: each row continues where the one before it ended, with memory full. source: in a family that reads
    pairs, the tokens of the source of a row of ``length`` tokens; it grows with the row.
    """
    results = []
    for factor in LENGTHS:
        row_length = length * factor
        remembered = LARGEST_PROBE * row_length if continued and network.carries() else 0
        flops = network.flops(row_length, remembered, source * factor)
        results.append((row_length, flops / row_length))
    return results
