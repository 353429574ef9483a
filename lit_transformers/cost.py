"""What a model costs: parameters, FLOPs and state, from its definition; allocated only where values decide a cost."""

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
"""Segments read before a state that still grows is taken to grow for ever."""

LENGTHS = (1, 2, 4, 8)
"""Times the length of training at which costs are told."""


class Cost(NamedTuple):
    """Of one network.

    flops_per_token: forward FLOPs (2 for a multiply-add) of one token in a training row, with memory full where rows
    continue each other; training takes three times as many. Where memory holds inputs they are projected anew in every
    row, which evaluation does not do: it keeps keys and values, and costs less by their projections. state_bytes: what
    one lane carries from segment to segment, in float32; of a model whose rows do not continue each other, nothing.
    """

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    state_bytes: int


def cost(config: ModelConfig, vocabulary: int, length: int, *, continued: bool = True) -> Cost:
    """The cost of the network that ``config`` builds, trained on rows of ``length`` tokens.

    continued: each row goes on where the one before it ended. An encoder's rows never do, and its FLOPs are without a
    softmax. Raises TypeError for other networks.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = config.build(vocabulary, length)
        flops, state_bytes = spent(network, config, length, continued)
    except RuntimeError:  # a span that is learned, a token that is marked: numbers are needed
        with torch.random.fork_rng(devices=[]):
            network = config.build(vocabulary, length)
            flops, state_bytes = spent(network.eval(), config, length, continued)
    assert isinstance(network, LanguageModel | Encoder)
    own = {id(p): p.numel() for p in network.parameters()}
    embedding = {id(p): p.numel() for p in network.tokens.parameters()}
    return Cost(sum(own.values()), sum(embedding.values()), flops / length, state_bytes)


def cost_of_pairs(config: EncoderDecoderConfig, data: DataDescription, source: int, target: int) -> Cost:
    """The same of a network for pairs: FLOPs of one token of the target, the encoder's among them, where both sides
    have so many tokens. Rows do not continue each other. Raises ConfigError where the network cannot be built."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = config.build_pairs(data)
        flops = network.flops(source, target)
    except RuntimeError:  # as above
        with torch.random.fork_rng(devices=[]):
            network = config.build_pairs(data)
            flops = network.eval().flops(source, target)
    own = {id(p): p.numel() for p in network.parameters()}
    embedding = {id(p): p.numel() for p in network.tokens.parameters()}
    if network.source_tokens is not None:
        idle = {id(p) for p in network.source_tokens.softmax_only()}
        embedding |= {id(p): p.numel() for p in network.source_tokens.parameters() if id(p) not in idle}
        own = {name: count for name, count in own.items() if name not in idle}
    return Cost(sum(own.values()), sum(embedding.values()), flops / target, 0)


def spent(network: nn.Module, config: ModelConfig, length: int, continued: bool) -> tuple[int, int]:
    """Forward FLOPs of one row, and the bytes of a lane's state."""
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
    """How many tokens fill the state, and its bytes then, found by reading segments of no content."""
    state, size, read = None, -1, 0
    device = next(network.parameters()).device
    for _ in range(LARGEST_PROBE):
        x = torch.randn(1, segment_length, dim, device=device)
        positions = torch.arange(read, read + segment_length, device=device)[None]
        with device:
            state = detach(network.stack(x, Context(positions, causal=True), state).state)
        now = sum(part.numel() * part.element_size() for part in state_tensors(state))
        if now == size:
            break
        size, read = now, read + segment_length
    return (read if size else 0), size


def remembers(network: nn.Module) -> bool:
    """Whether some mixer says that it carries anything from one segment to the next."""
    return any(module.streams for module in network.modules() if isinstance(module, Mixer))


def flops_by_length(
    network: nn.Module, dim: int, length: int, continued: bool, source: int = 0
) -> list[tuple[int, float]]:
    """Forward FLOPs in training of one token in rows of ``length`` tokens, and of twice, four and eight times as many.

    continued: each row goes on where the one before it ended, with memory full. source: the tokens of what rows of
    ``length`` are made of, where a network makes one sequence of another; longer ones are made of longer ones.
    """
    found = []
    for factor in LENGTHS:
        rows = length * factor
        match network:
            case LanguageModel():
                flops = network.flops(rows, LARGEST_PROBE * rows if continued and carries(network, dim) else 0)
            case Encoder():
                flops = network.flops(rows)
            case EncoderDecoder():
                flops = network.flops(source * factor, rows)
            case _:
                raise TypeError(f"no cost is defined of a {type(network).__name__}")
        found.append((rows, flops / rows))
    return found


def carries(network: LanguageModel, dim: int) -> bool:
    """Whether a pass leaves any state, found by reading a token of no content."""
    device = next(network.parameters()).device
    with torch.no_grad(), torch.random.fork_rng():
        x, positions = torch.zeros(1, 1, dim, device=device), torch.zeros(1, 1, dtype=torch.long, device=device)
        state = network.stack(x, Context(positions, causal=True)).state
    return any(part.numel() for part in state_tensors(state))
