"""Text from a trained model: greedy, sampling, and beam search. Loops over model(x, state); knows no cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.choosing import Best, SamplingConfig, best, choose
from lit_transformers.config import Positive
from lit_transformers.mixer import take_rows
from lit_transformers.models.language_model import LanguageModel


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, " t"],
    length: int,
    config: SamplingConfig,
    forbidden: int | None = None,
) -> Iterator[int]:
    """``length`` symbols after the prompt, one at a time. ``forbidden`` is never said (the boundary of documents)."""
    generator = config.generator(prompt.device)
    read = model(prompt[None])
    for _ in range(length):
        logits = _allowed(model.tokens.log_probabilities(read.hidden[:, -1]), forbidden)
        symbol = choose(logits, config, generator)
        yield int(symbol)
        read = model(symbol.view(1, 1), read.state)


def _allowed(logits: Float[Tensor, "*n v"], forbidden: int | None) -> Float[Tensor, "*n v"]:
    if forbidden is None:
        return logits
    return logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), float("-inf"))


@torch.no_grad()
def beam_search(
    model: LanguageModel, prompt: Int[Tensor, " t"], length: int, beams: Positive, forbidden: int | None = None
) -> tuple[list[int], float]:
    """The likeliest ``length`` symbols that ``beams`` hypotheses find after the prompt, and their log-probability."""
    read = model(prompt.expand(1, -1))
    scores = torch.zeros(1, 1, device=prompt.device)
    said = prompt.new_zeros(1, 0)
    state = read.state
    hidden = read.hidden[:, -1]
    for _ in range(length):
        found = best(scores, _allowed(model.tokens.log_probabilities(hidden), forbidden)[None], beams)
        found = Best(*(part[:, : int(found.scores.isfinite().sum())] for part in found))
        scores, parents, symbols = found.scores, found.parents[0], found.symbols[0]
        said = torch.cat([said[parents], symbols[:, None]], dim=1)
        read = model(symbols[:, None], take_rows(state, parents))
        state, hidden = read.state, read.hidden[:, -1]
    return said[0].tolist(), float(scores[0, 0])
