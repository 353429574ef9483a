"""Text from a trained model: greedy, sampling, and beam search. Loops over model(x, state); knows no cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from lit_transformers.config import Config, NonNegative, NonNegativeFloat, Positive
from lit_transformers.mixer import take_rows
from lit_transformers.models.language_model import LanguageModel


class SamplingConfig(Config):
    """temperature: 0 takes the likeliest symbol; top_k: sample among so many (0 for all); top_p: among the fewest whose
    probabilities reach it (arXiv:1904.09751)."""

    temperature: NonNegativeFloat = 0.8
    top_k: NonNegative = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: NonNegative = 0


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, " t"],
    length: int,
    config: SamplingConfig,
    forbidden: int | None = None,
) -> Iterator[int]:
    """``length`` symbols after the prompt, one at a time. ``forbidden`` is never said (the boundary of documents)."""
    generator = torch.Generator(device=prompt.device).manual_seed(config.seed)
    read = model(prompt[None])
    for _ in range(length):
        logits = _allowed(model.tokens.log_probabilities(read.hidden[0, -1]), forbidden)
        symbol = _choose(logits, config, generator)
        yield int(symbol)
        read = model(symbol.view(1, 1), read.state)


def _allowed(logits: Float[Tensor, "*n v"], forbidden: int | None) -> Float[Tensor, "*n v"]:
    if forbidden is None:
        return logits
    return logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), float("-inf"))


def _choose(logits: Float[Tensor, " v"], config: SamplingConfig, generator: torch.Generator) -> Int[Tensor, ""]:
    if config.temperature == 0:
        return logits.argmax()
    logits = logits / config.temperature
    if config.top_k:
        least = logits.topk(min(config.top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if config.top_p < 1:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(dim=-1)
        outside = probabilities.cumsum(dim=-1) - probabilities >= config.top_p
        logits = logits.index_fill(-1, order[outside], float("-inf"))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[0]


@torch.no_grad()
def beam_search(
    model: LanguageModel, prompt: Int[Tensor, " t"], length: int, beams: Positive, forbidden: int | None = None
) -> tuple[list[int], float]:
    """The likeliest ``length`` symbols that ``beams`` hypotheses find after the prompt, and their log-probability."""
    read = model(prompt.expand(1, -1))
    scores = torch.zeros(1, device=prompt.device)
    said = prompt.new_zeros(1, 0)
    state = read.state
    hidden = read.hidden[:, -1]
    for _ in range(length):
        total = scores[:, None] + _allowed(model.tokens.log_probabilities(hidden), forbidden)
        scores, best = total.flatten().topk(min(beams, int(total.isfinite().sum())))
        parents, symbols = best // total.size(1), best % total.size(1)
        said = torch.cat([said[parents], symbols[:, None]], dim=1)
        read = model(symbols[:, None], take_rows(state, parents))
        state, hidden = read.state, read.hidden[:, -1]
    return said[0].tolist(), float(scores[0])
