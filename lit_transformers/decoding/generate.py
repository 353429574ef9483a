"""Generates text from a language model by sampling or beam search. Reads model(x, state) without a separate cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.config import Positive
from lit_transformers.decoding.decode import BeamConfig, BeamSearch, Reader
from lit_transformers.decoding.sampling import SamplingConfig, choose
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
    symbols, state = prompt, None
    for read in range(len(prompt), len(prompt) + length):
        output = model(symbols[None], state, unbroken=read - len(symbols))
        logits = allowed(model.tokens.log_probabilities(output.hidden[:, -1]), forbidden)
        symbols, state = choose(logits, config, generator), output.state
        yield int(symbols)


def allowed(logits: Float[Tensor, "*n v"], forbidden: int | None) -> Float[Tensor, "*n v"]:
    """Returns log-probabilities with minus infinity for the forbidden symbol."""
    if forbidden is None:
        return logits
    return logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), float("-inf"))


class TextReader(Reader):
    """Runs a language model on hypotheses of the text after a prompt, which is read once for all of them.

    A text has no symbol at its end: ``boundary`` is the forbidden symbol, or -1, which is no symbol of the vocabulary.
    """

    def __init__(
        self, model: CausalNetwork, prompt: Int[Tensor, " t"], hypotheses: int, forbidden: int | None = None
    ) -> None:
        self.model, self.forbidden, self.symbols_read = model, forbidden, len(prompt)
        self.boundary = -1 if forbidden is None else forbidden
        output = model(prompt[None])
        self.after_prompt = self.log_probabilities(output.hidden).expand(hypotheses, -1)
        self.dtype = self.after_prompt.dtype
        self.state = take_rows(output.state, prompt.new_zeros(hypotheses))

    def read(self, prefixes: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        if prefixes.size(1) == 1:
            return self.after_prompt
        output = self.model(prefixes[:, -1:], self.state, unbroken=self.symbols_read)
        self.state, self.symbols_read = output.state, self.symbols_read + 1
        return self.log_probabilities(output.hidden)

    def log_probabilities(self, hidden: Float[Tensor, "n t d"]) -> Float[Tensor, "n v"]:
        """Returns log-probabilities of the next symbol, minus infinity for the forbidden one."""
        return allowed(self.model.tokens.log_probabilities(hidden[:, -1]), self.forbidden)

    def take(self, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> None:
        self.state = take_rows(self.state, hypotheses)


@torch.no_grad()
def beam_search(
    model: CausalNetwork, prompt: Int[Tensor, " t"], length: int, beams: Positive, forbidden: int | None = None
) -> tuple[list[int], float]:
    """Returns the likeliest ``length`` symbols after the prompt, by ``beams`` hypotheses, and their log-probability."""
    config = BeamConfig(beams=beams, length_penalty=0.0)
    search = BeamSearch(config, TextReader(model, prompt, beams, forbidden), prompt.new_full((1,), length))
    (symbols,), scores = search.run()
    return symbols, float(scores)
