"""How the next symbol is chosen from what a model says of it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from lit_transformers.config import Config, NonNegative, NonNegativeFloat


class SamplingConfig(Config):
    """temperature: 0 takes the likeliest symbol; top_k: sample among so many (0 for all); top_p: among the fewest whose
    probabilities reach it (arXiv:1904.09751)."""

    temperature: NonNegativeFloat = 0.8
    top_k: NonNegative = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: NonNegative = 0

    def generator(self, device: torch.device) -> torch.Generator:
        """What random numbers are drawn from, from the seed on."""
        return torch.Generator(device=device).manual_seed(self.seed)


def choose(
    log_probabilities: Float[Tensor, "n v"], config: SamplingConfig, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """A symbol for each row."""
    if config.temperature == 0:
        return log_probabilities.argmax(dim=-1)
    logits = log_probabilities / config.temperature
    if config.top_k:
        least = logits.topk(min(config.top_k, logits.size(-1)), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if config.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        outside = probabilities.cumsum(dim=-1) - probabilities >= config.top_p
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), float("-inf"))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(1)


class Best(NamedTuple):
    """Continuations of hypotheses: the sum of their log-probabilities, which hypothesis each goes on from, and the
    symbol that it adds; the best first."""

    scores: Float[Tensor, "b k"]
    parents: Int[Tensor, "b k"]
    symbols: Int[Tensor, "b k"]


def best(scores: Float[Tensor, "b n"], log_probabilities: Float[Tensor, "b n v"], count: int) -> Best:
    """The ``count`` best continuations of the n hypotheses of each row, or all where there are fewer."""
    total, size = (scores[..., None] + log_probabilities).flatten(1), log_probabilities.size(-1)
    found = total.topk(min(count, total.size(1)), dim=1)
    return Best(found.values, found.indices // size, found.indices % size)
