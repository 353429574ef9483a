"""Generates text from a language model by sampling or beam search. Loops over model(x, state) without a cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.config import Positive
from lit_transformers.decoding.sampling import Best, SamplingConfig, best, choose
from lit_transformers.mixer import take_rows
from lit_transformers.models.capabilities import CausalNetwork


@torch.no_grad()
def sample(
    model: CausalNetwork,
    prompt: Int[Tensor, " t"],
    length: int,
    config: SamplingConfig,
    forbidden: int | None = None,
) -> Iterator[int]:
    """Yields ``length`` symbols after the prompt. ``forbidden`` is never generated (the boundary of documents)."""
    generator = config.generator(prompt.device)
    output = model(prompt[None])
    for _ in range(length):
        logits = _allowed(model.tokens.log_probabilities(output.hidden[:, -1]), forbidden)
        symbol = choose(logits, config, generator)
        yield int(symbol)
        output = model(symbol.view(1, 1), output.state)


def _allowed(logits: Float[Tensor, "*n v"], forbidden: int | None) -> Float[Tensor, "*n v"]:
    if forbidden is None:
        return logits
    return logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), float("-inf"))


@torch.no_grad()
def beam_search(
    model: CausalNetwork, prompt: Int[Tensor, " t"], length: int, beams: Positive, forbidden: int | None = None
) -> tuple[list[int], float]:
    """Returns the likeliest ``length`` symbols after the prompt, by ``beams`` hypotheses, and their log-probability."""
    output = model(prompt.expand(1, -1))
    scores = torch.zeros(1, 1, device=prompt.device)
    hypotheses = prompt.new_zeros(1, 0)
    state = output.state
    hidden = output.hidden[:, -1]
    for _ in range(length):
        continuations = best(scores, _allowed(model.tokens.log_probabilities(hidden), forbidden)[None], beams)
        continuations = Best(*(part[:, : int(continuations.scores.isfinite().sum())] for part in continuations))
        scores, parents, symbols = continuations.scores, continuations.parents[0], continuations.symbols[0]
        hypotheses = torch.cat([hypotheses[parents], symbols[:, None]], dim=1)
        output = model(symbols[:, None], take_rows(state, parents))
        state, hidden = output.state, output.hidden[:, -1]
    return hypotheses[0].tolist(), float(scores[0, 0])
