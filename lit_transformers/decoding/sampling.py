"""Chooses the next symbol from a model's log-probabilities."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat


class SamplingConfig(Config):
    """temperature: 0 takes the likeliest symbol; top_k: sample among this many symbols (0 for all); top_p: sample among
    the fewest symbols whose probabilities sum to it (arXiv:1904.09751)."""

    temperature: NonNegativeFloat = 0.8
    top_k: NonNegative = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: NonNegative = 0

    def generator(self, device: torch.device) -> torch.Generator:
        """Returns a new random generator that starts from the seed."""
        return torch.Generator(device=device).manual_seed(self.seed)


def choose(
    log_probabilities: Float[Tensor, "n v"], config: SamplingConfig, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """Chooses a symbol for each row. Raises ConfigError where the probabilities are not numbers."""
    if config.temperature == 0:
        require_numbers(log_probabilities)
        return log_probabilities.argmax(dim=-1)
    return torch.multinomial(distribution(log_probabilities, config), 1, generator=generator).squeeze(1)


def require_numbers(log_probabilities: Float[Tensor, "n v"]) -> None:
    """Raises ConfigError where the probabilities are not numbers."""
    if log_probabilities.isnan().any():
        raise ConfigError("the network's probabilities are not numbers, so that it writes nothing; train it anew")


def distribution(log_probabilities: Float[Tensor, "n v"], config: SamplingConfig) -> Float[Tensor, "n v"]:
    """Returns the probabilities by which symbols are chosen; at temperature 0 the likeliest has all. Raises ConfigError
    where the network's are not numbers."""
    require_numbers(log_probabilities)
    if config.temperature == 0:
        return torch.zeros_like(log_probabilities).scatter(-1, log_probabilities.argmax(dim=-1, keepdim=True), 1.0)
    logits = log_probabilities / config.temperature
    if config.top_k:
        threshold = logits.topk(min(config.top_k, logits.size(-1)), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    if config.top_p < 1:
        sorted_logits, order = logits.sort(dim=-1, descending=True)
        probabilities = sorted_logits.softmax(dim=-1)
        is_outside = probabilities.cumsum(dim=-1) - probabilities >= config.top_p
        logits = logits.masked_fill(torch.zeros_like(is_outside).scatter(1, order, is_outside), float("-inf"))
    return logits.softmax(dim=-1)


class Best(NamedTuple):
    """Continuations of hypotheses, the best first: the sums of their log-probabilities, the index of the hypothesis
    that each extends, and the symbol that it adds."""

    scores: Float[Tensor, "b k"]
    parents: Int[Tensor, "b k"]
    symbols: Int[Tensor, "b k"]


def best(scores: Float[Tensor, "b n"], log_probabilities: Float[Tensor, "b n v"], count: int) -> Best:
    """Returns the ``count`` best continuations of the n hypotheses of each row, or all where there are fewer."""
    totals, vocabulary = (scores[..., None] + log_probabilities).flatten(1), log_probabilities.size(-1)
    top = totals.topk(min(count, totals.size(1)), dim=1)
    return Best(top.values, top.indices // vocabulary, top.indices % vocabulary)
