"""Computes what a model costs (parameters, FLOPs, state) from its definition; allocates weights only where needed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from lit_transformers.batch import DataDescription
from lit_transformers.mixer import Context, Mixer, detach, state_tensors
from lit_transformers.models.encoder import Encoder
from lit_transformers.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.model import ModelConfig

LARGEST_PROBE = 64
"""Segments that are read before a state that still grows is assumed to grow without limit."""

LENGTHS = (1, 2, 4, 8)
"""Costs are reported at these multiples of the training length."""


class ModelCost(NamedTuple):
    """The cost of one network.

    flops_per_token: forward FLOPs (2 for a multiply-add) of one token in a training row, with memory full where rows
    continue each other; training takes three times as many. Where memory holds inputs, every row projects them again;
    evaluation keeps their keys and values instead and saves these projections. state_bytes: the size of the state that
    one lane carries from segment to segment, in float32; 0 for a model whose rows do not continue each other.
    """

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    state_bytes: int


def cost(config: ModelConfig, vocabulary: int, length: int, *, continued: bool = True) -> ModelCost:
    """Returns the cost of the network that ``config`` builds, trained on rows of ``length`` tokens.

    continued: each row continues where the one before it ended. An encoder's rows never do, and its FLOPs exclude the
    output softmax. Raises TypeError for networks that are neither a language model nor an encoder.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = config.build(vocabulary, length)
        flops, state_bytes = spent(network, config, length, continued)
    except RuntimeError:  # the cost depends on values: a learned span, a marked token
        with torch.random.fork_rng(devices=[]):
            network = config.build(vocabulary, length)
            flops, state_bytes = spent(network.eval(), config, length, continued)
    assert isinstance(network, LanguageModel | Encoder)
    counts = {id(p): p.numel() for p in network.parameters()}
    embedding_counts = {id(p): p.numel() for p in network.tokens.parameters()}
    return ModelCost(sum(counts.values()), sum(embedding_counts.values()), flops / length, state_bytes)


def cost_of_pairs(config: EncoderDecoderConfig, data: DataDescription, source: int, target: int) -> ModelCost:
    """Returns the cost of an encoder-decoder whose sources and targets have ``source`` and ``target`` tokens. The FLOPs
    are those of one target token and include the encoder's. Rows do not continue each other. Raises ConfigError where
    the network cannot be built."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = config.build_pairs(data)
        flops = network.flops(source, target)
    except RuntimeError:  # as above
        with torch.random.fork_rng(devices=[]):
            network = config.build_pairs(data)
            flops = network.eval().flops(source, target)
    counts = {id(p): p.numel() for p in network.parameters()}
    embedding_counts = {id(p): p.numel() for p in network.tokens.parameters()}
    if network.source_tokens is not None:
        unused = {id(p) for p in network.source_tokens.softmax_only()}
        embedding_counts |= {id(p): p.numel() for p in network.source_tokens.parameters() if id(p) not in unused}
        counts = {name: count for name, count in counts.items() if name not in unused}
    return ModelCost(sum(counts.values()), sum(embedding_counts.values()), flops / target, 0)


def spent(network: nn.Module, config: ModelConfig, length: int, continued: bool) -> tuple[int, int]:
    """Returns the forward FLOPs of one row, and the bytes of a lane's state."""
    match network:
        case LanguageModel():
            remembered, state_bytes = 0, 0
            if continued and remembers(network):
                remembered, state_bytes = read_until_full(network, config.dim, length)
            return network.flops(length, remembered), state_bytes
        case Encoder():
            return network.flops(length), 0
    raise TypeError(f"no cost is defined of a {config.kind} alone: it depends on two lengths")


def read_until_full(network: LanguageModel, dim: int, segment_length: int) -> tuple[int, int]:
    """Returns how many tokens fill the state, and its size in bytes when full, by reading random vectors."""
    state, size, tokens_read = None, -1, 0
    device = next(network.parameters()).device
    for _ in range(LARGEST_PROBE):
        x = torch.randn(1, segment_length, dim, device=device)
        positions = torch.arange(tokens_read, tokens_read + segment_length, device=device)[None]
        with device:
            state = detach(network.stack(x, Context(positions, causal=True), state).state)
        new_size = sum(part.numel() * part.element_size() for part in state_tensors(state))
        if new_size == size:
            break
        size, tokens_read = new_size, tokens_read + segment_length
    return (tokens_read if size else 0), size


def remembers(network: nn.Module) -> bool:
    """Whether any mixer declares that it carries state from one segment to the next."""
    return any(module.streams for module in network.modules() if isinstance(module, Mixer))


def flops_by_length(
    network: nn.Module, dim: int, length: int, continued: bool, source: int = 0
) -> list[tuple[int, float]]:
    """Returns pairs of a row's length and its forward FLOPs per token in training, at 1, 2, 4 and 8 times ``length``.

    continued: each row continues where the one before it ended, with memory full. source: for an encoder-decoder, the
    tokens of the source of a row of ``length`` tokens; it grows with the row.
    """
    results = []
    for factor in LENGTHS:
        row_length = length * factor
        match network:
            case LanguageModel():
                flops = network.flops(
                    row_length, LARGEST_PROBE * row_length if continued and carries(network, dim) else 0
                )
            case Encoder():
                flops = network.flops(row_length)
            case EncoderDecoder():
                flops = network.flops(source * factor, row_length)
            case _:
                raise TypeError(f"no cost is defined of a {type(network).__name__}")
        results.append((row_length, flops / row_length))
    return results


def carries(network: LanguageModel, dim: int) -> bool:
    """Whether a forward pass leaves any state, determined by reading one zero vector."""
    device = next(network.parameters()).device
    with torch.no_grad(), torch.random.fork_rng():
        x, positions = torch.zeros(1, 1, dim, device=device), torch.zeros(1, 1, dtype=torch.long, device=device)
        state = network.stack(x, Context(positions, causal=True)).state
    return any(part.numel() for part in state_tensors(state))
