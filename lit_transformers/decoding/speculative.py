"""Speculative decoding: a small network drafts symbols, and a large one reads them in one pass and accepts or replaces
them, so that texts have the distribution of the large one (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen
et al. 2023, arXiv:2302.01318). Both are language models, or encoder-decoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.config import ConfigError, Positive
from lit_transformers.decoding.decode import (
    DecodingConfig,
    GreedyConfig,
    SampledConfig,
    lengths_of,
)
from lit_transformers.decoding.generate import allowed
from lit_transformers.decoding.sampling import SamplingConfig, distribution
from lit_transformers.encodings.positions import PositionError
from lit_transformers.mixer import LengthError
from lit_transformers.models.capabilities import PairNetwork
from lit_transformers.models.tokens import TokenEmbedding

AGAIN = 16
"""The most symbols of a text that are read again together with new drafts, where a state cannot be cut."""
BEYOND_REACH = (LengthError, PositionError)
"""The errors of networks for texts that are longer than their weights reach."""


@dataclass
class Acceptance:
    """Counts of the passes of the large model, and of the symbols that were drafted and accepted. Each pass adds one
    symbol of the large model to the accepted ones."""

    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def message(self) -> str:
        """Returns a sentence with the share of accepted symbols and the symbols of a pass."""
        share = 100 * self.accepted / max(1, self.drafted)
        a_pass = (self.accepted + self.passes) / max(1, self.passes)
        return f"accepted {self.accepted:,} of {self.drafted:,} drafted symbols ({share:.0f} %), {a_pass:.2f} a pass"


class Draws:
    """The random choices of speculative decoding."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def symbol(self, probabilities: Float[Tensor, " v"]) -> Int[Tensor, " 1"]:
        """Draws a symbol."""
        return torch.multinomial(probabilities, 1, generator=self.generator)

    def accepted(self, chances: Float[Tensor, " k"]) -> int:
        """Returns how many drafted symbols are accepted before the first one that is not, each by its chance; a chance
        of 1 or more is certain."""
        uniform = torch.rand(chances.shape, generator=self.generator, dtype=chances.dtype, device=chances.device)
        return int((uniform < chances).cumprod(dim=0).sum())


class TextNetwork(Protocol):
    """Reads the symbols of a text (1, t) after a state, as a language model does (``CausalNetwork``)."""

    @property
    def tokens(self) -> TokenEmbedding: ...

    def __call__(self, symbols: Tensor, state: Any = None, *, unbroken: int = 0) -> Any: ...

    def first_symbols(self, state: Any, read: int, kept: int) -> Any: ...


class AfterSource(NamedTuple):
    """The decoder of an encoder-decoder as a network of texts: it reads targets of the encoded source (1, s, d)."""

    network: PairNetwork
    source: Float[Tensor, "1 s d"]

    @property
    def tokens(self) -> TokenEmbedding:
        return self.network.tokens

    def __call__(self, symbols: Int[Tensor, "1 t"], state: Any = None, *, unbroken: int = 0) -> Any:
        return self.network.decode(symbols, self.source, None, state, unbroken=unbroken)

    def first_symbols(self, state: Any, read: int, kept: int) -> Any:
        return self.network.first_symbols(state, read, kept)


class TextStates:
    """Reads a text with a network as it grows, and goes back where the text changes.

    ``states`` holds states by the number of symbols that were read. ``keep`` cuts a state of keys and values, and
    returns from any other to the last one before, so that later symbols are read again.
    """

    def __init__(self, model: TextNetwork, forbidden: int | None = None) -> None:
        self.model, self.forbidden = model, forbidden
        self.states: dict[int, Any] = {0: None}

    def log_probabilities(self, text: Int[Tensor, " t"], count: int) -> Float[Tensor, "n v"]:
        """Returns log-probabilities of the symbols after the last ``count`` symbols of a text."""
        if len(text) - count - self.last() > AGAIN:
            self.read(text[:-count])
        hidden = self.read(text)[0, -count:]
        return allowed(self.model.tokens.log_probabilities(hidden), self.forbidden)

    def log_probabilities_in_reach(self, text: Int[Tensor, " t"], count: int) -> Float[Tensor, "n v"]:
        """Returns the result of ``log_probabilities``, without the last symbols if the text is longer than the weights
        reach. Raises LengthError or PositionError if the first of the ``count`` symbols is out of reach too."""
        try:
            return self.log_probabilities(text, count)
        except BEYOND_REACH:
            if count == 1:
                raise
            return self.log_probabilities_in_reach(text[:-1], count - 1)

    def read(self, text: Int[Tensor, " t"]) -> Float[Tensor, "1 n d"]:
        """Reads the symbols of a text after those that were read, and returns the vectors of these."""
        start = self.last()
        output = self.model(text[None, start:], self.states[start], unbroken=start)
        self.states[len(text)] = output.state
        return output.hidden

    def last(self) -> int:
        """Returns how many symbols the last state has read."""
        return max(self.states)

    def keep(self, length: int) -> None:
        """Forgets all but the first ``length`` symbols, as far as they were read."""
        after, before = self.last(), max(read for read in self.states if read <= length)
        kept = self.states[before]
        if before < length < after:
            cut = self.model.first_symbols(self.states[after], after, length)
            before, kept = (before, kept) if cut is None else (length, cut)
        self.states = {before: kept}


@torch.no_grad()
def speculate(
    model: TextNetwork,
    draft: TextNetwork,
    prompt: Int[Tensor, " t"],
    length: int,
    config: SamplingConfig,
    draft_symbols: Positive = 4,
    forbidden: int | None = None,
    acceptance: Acceptance | None = None,
    draws: Draws | None = None,
    boundary: int | None = None,
) -> Iterator[int]:
    """Yields ``length`` symbols after the prompt, with the distribution of ``sample`` for ``model``, independent of the
    draft. Both networks have the same vocabulary, and all settings of ``config`` apply to both.

    At temperature 0 these are the symbols of ``sample``, unless the two likeliest differ by less than rounding: a
    network that reads several symbols at once sums in another order. The model must stream, and its memory must hold
    all symbols before each.
    draft_symbols: the most symbols that are drafted for a pass. forbidden: never generated. acceptance: counts to add
    to. draws: the random choices; by default of the seed. boundary: a symbol after which nothing is drafted.
    Raises LengthError or PositionError where the text is longer than the weights of the model reach.
    """
    acceptance, draws = acceptance or Acceptance(), draws or Draws(config.generator(prompt.device))
    text = torch.cat([prompt, prompt.new_zeros(length)])
    target, drafter = TextStates(model, forbidden), TextStates(draft, forbidden)
    end = len(prompt)
    while end < len(text):
        drafted = list[Tensor]()
        with suppress(*BEYOND_REACH):  # then fewer symbols are drafted
            for place in range(end, min(end + draft_symbols, len(text) - 1)):
                drafted.append(distribution(drafter.log_probabilities(text[:place], 1), config)[0])
                text[place : place + 1] = draws.symbol(drafted[-1])
                if boundary is not None and int(text[place]) == boundary:
                    break
        logits = target.log_probabilities_in_reach(text[: end + len(drafted)], len(drafted) + 1)
        expected, drafted = distribution(logits, config), drafted[: len(logits) - 1]
        symbols = text[end : end + len(drafted)]
        accepted = draws.accepted(chances(expected, torch.stack(drafted), symbols)) if drafted else 0
        is_whole = accepted == len(drafted)
        rest = expected[accepted] if is_whole else residual(expected[accepted], drafted[accepted])
        text[end + accepted : end + accepted + 1] = draws.symbol(rest)
        acceptance.passes, acceptance.drafted = acceptance.passes + 1, acceptance.drafted + len(drafted)
        acceptance.accepted += accepted
        target.keep(end + accepted)
        drafter.keep(end + accepted)
        yield from text[end : end + accepted + 1].tolist()
        end += accepted + 1


@torch.no_grad()
def decode_with_drafts(
    network: PairNetwork,
    draft: PairNetwork,
    source: Int[Tensor, "b s"],
    source_padding_mask: Bool[Tensor, "b s"] | None,
    config: DecodingConfig,
    boundary: int,
    draft_symbols: Positive = 4,
    acceptance: Acceptance | None = None,
) -> list[list[int]]:
    """Returns the symbols that ``decode`` writes for each source, drafted by a smaller network, one source after
    another. Greedy outputs are the same; sampled ones have the same distribution (``speculate``).

    Both decoders can be read symbol by symbol, and remember all symbols. Raises ConfigError for beams.
    """
    sampling = sampling_of(config)
    draws, outputs = Draws(sampling.generator(source.device)), list[list[int]]()
    lengths = lengths_of(source, source_padding_mask)
    encoded = [own.encode(source, source_padding_mask).hidden for own in (network, draft)]
    for row, (length, limit) in enumerate(zip(lengths.tolist(), config.limits(lengths).tolist(), strict=True)):
        large, small = (
            AfterSource(own, hidden[row : row + 1, :length])
            for own, hidden in zip((network, draft), encoded, strict=True)
        )
        symbols = speculate(
            large,
            small,
            source.new_full((1,), boundary),
            limit,
            sampling,
            draft_symbols,
            acceptance=acceptance,
            draws=draws,
            boundary=boundary,
        )
        outputs.append([])
        with suppress(*BEYOND_REACH):
            outputs[-1].extend(takewhile(lambda symbol: symbol != boundary, symbols))
    return outputs


def sampling_of(config: DecodingConfig) -> SamplingConfig:
    """Returns how decoding chooses a symbol. Raises ConfigError for beams, which compare whole outputs."""
    if isinstance(config, SampledConfig):
        return config.sampling
    if isinstance(config, GreedyConfig):
        return SamplingConfig(temperature=0.0)
    raise ConfigError("a draft serves greedy decoding and sampling, not a beam search; add --beams 1", "--draft")


def chances(
    expected: Float[Tensor, "n v"], drafted: Float[Tensor, "k v"], symbols: Int[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Returns the chance p(x) / q(x) of each drafted symbol x, certain above 1 (arXiv:2211.17192, section 2.3).
    ``expected`` has further rows, which no drafted symbol belongs to."""
    p, q = (probabilities.gather(1, symbols[:, None]).squeeze(1) for probabilities in (expected[:-1], drafted))
    return p / q


def residual(expected: Float[Tensor, " v"], drafted: Float[Tensor, " v"]) -> Float[Tensor, " v"]:
    """Returns the distribution of the symbol that replaces one that is not accepted: max(0, p - q), normalised."""
    difference = (expected - drafted).clamp(min=0)
    rest = torch.where(difference.sum() > 0, difference, expected)  # equal but for rounding
    return rest / rest.sum()
