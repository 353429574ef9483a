"""What a model costs: parameters, FLOPs and state, from its definition, without running or even allocating it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lit_transformers.mixer import Context, state_tensors
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.model import ModelConfig

LARGEST_PROBE = 64
"""Segments read before a state that still grows is taken to grow for ever."""


class Cost(NamedTuple):
    """Of one network.

    flops_per_token: forward FLOPs (2 for a multiply-add) of one token in a training segment with memory full; training
    takes three times as many. state_bytes: what one lane carries from segment to segment, in float32.
    """

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    state_bytes: int


def cost(config: ModelConfig, vocabulary: int, segment_length: int) -> Cost:
    """The cost of the language model that ``config`` builds, trained on segments of ``segment_length`` tokens."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        network = config.build(vocabulary, segment_length)
        if not isinstance(network, LanguageModel):
            raise TypeError(f"no cost is defined of a {config.kind} alone: it depends on two lengths")
        remembered, state_bytes = read_until_full(network, config.dim, segment_length)
        flops = network.flops(segment_length, remembered)
    own = {id(p): p.numel() for p in network.parameters()}
    embedding = {id(p): p.numel() for p in network.tokens.parameters()}
    return Cost(sum(own.values()), sum(embedding.values()), flops / segment_length, state_bytes)


def read_until_full(network: LanguageModel, dim: int, segment_length: int) -> tuple[int, int]:
    """How many tokens fill the state, and its bytes then, found by reading segments of no content."""
    state, size, read = None, -1, 0
    for _ in range(LARGEST_PROBE):
        x = torch.empty(1, segment_length, dim, device="meta")
        positions = torch.zeros(1, segment_length, dtype=torch.long, device="meta")
        state = network.stack(x, Context(positions, causal=True), state).state
        now = sum(part.numel() * part.element_size() for part in state_tensors(state))
        if now == size:
            break
        size, read = now, read + segment_length
    return (read if size else 0), size
