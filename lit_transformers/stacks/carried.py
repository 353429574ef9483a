"""The state that a stack carries from segment to segment: whether there is any, how many tokens fill it, its size."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lit_transformers.mixer import Context, detach, state_tensors
from lit_transformers.stacks.stack import Stack

LARGEST_PROBE = 64
"""Segments that are read before a state that still grows is assumed to grow without limit."""


class Carried(NamedTuple):
    """A full state: how many tokens fill it, and the bytes of one lane, in the precision of the weights."""

    tokens: int
    state_bytes: int


def read_until_full(stack: Stack, dim: int, segment_length: int) -> Carried:
    """Returns how many tokens fill the state of a causal stack of width ``dim``, and its size in bytes when full, by
    reading random vectors."""
    state, size, tokens_read = None, -1, 0
    device = next(stack.parameters()).device
    for _ in range(LARGEST_PROBE):
        x = torch.randn(1, segment_length, dim, device=device)
        positions = torch.arange(tokens_read, tokens_read + segment_length, device=device)[None]
        with device:
            state = detach(stack(x, Context(positions, causal=True, unbroken=tokens_read), state).state)
        new_size = sum(part.numel() * part.element_size() for part in state_tensors(state))
        if new_size == size:
            break
        size, tokens_read = new_size, tokens_read + segment_length
    return Carried(tokens_read if size else 0, size)


def leaves_state(stack: Stack, dim: int) -> bool:
    """Whether a forward pass of a causal stack of width ``dim`` leaves any state, determined by reading one zero
    vector."""
    device = next(stack.parameters()).device
    with torch.no_grad(), torch.random.fork_rng():
        x, positions = torch.zeros(1, 1, dim, device=device), torch.zeros(1, 1, dtype=torch.long, device=device)
        state = stack(x, Context(positions, causal=True)).state
    return any(part.numel() for part in state_tensors(state))
