"""Speculative decoding: texts of the large model for any draft, and states that go back where drafts fail."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from contract_cases import Case, mixers
from torch import Tensor

from lit_transformers.config import ConfigError, Memory
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig, SampledConfig, decode
from lit_transformers.decoding.generate import sample
from lit_transformers.decoding.sampling import SamplingConfig, distribution
from lit_transformers.decoding.speculative import Acceptance, Draws, decode_with_drafts, speculate
from lit_transformers.gates.miniature import probe_data
from lit_transformers.models.capabilities import CausalNetwork
from lit_transformers.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig

GREEDY = SamplingConfig(temperature=0.0)
PROMPT = torch.tensor([1, 4, 2, 7, 3])
VOCABULARY = 11


def build(mixer: Any = None, seed: int = 0, like: LanguageModel | None = None, **changes: object) -> LanguageModel:
    """A model with strong opinions, in double precision. like: one of the same size whose opinions it nearly shares."""
    torch.manual_seed(seed)
    fields = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 2, "initial_std": 0.4}
    fields |= {"tokens": {"kind": "full", "tied": False}, "mixer": mixer or {"kind": "attention", "memory": 64}}
    model = LanguageModelConfig.from_dict(fields | changes).build(probe_data(VOCABULARY, 96)).eval().double()
    if like is not None:
        for own, other in zip(model.parameters(), like.parameters(), strict=True):
            own.data = other.data + 0.05 * torch.randn_like(other)
    return model


def slow(
    model: CausalNetwork, draft: CausalNetwork, length: int, config: SamplingConfig, several: int, forbidden: int | None
) -> tuple[list[int], Acceptance]:
    """The algorithm of the paper for one symbol after another, which reads the whole text again for each of them."""
    draws, counts, text = Draws(config.generator(PROMPT.device)), Acceptance(), PROMPT.tolist()

    @cache
    def after(network: CausalNetwork, *symbols: int) -> Tensor:
        with torch.no_grad():
            logits = network.tokens.log_probabilities(network(torch.tensor([symbols])).hidden[:, -1])
        if forbidden is not None:
            logits[:, forbidden] = float("-inf")
        return distribution(logits, config)[0]

    while len(text) < len(PROMPT) + length:
        drafts: list[int] = []
        for _ in range(min(several, len(PROMPT) + length - len(text) - 1)):
            drafts.append(int(draws.symbol(after(draft, *text, *drafts))))
        tops = [after(model, *text, *drafts[:number])[symbol] for number, symbol in enumerate(drafts)]
        bottoms = [after(draft, *text, *drafts[:number])[symbol] for number, symbol in enumerate(drafts)]
        accepted = draws.accepted(torch.stack(tops) / torch.stack(bottoms)) if drafts else 0
        text += drafts[:accepted]
        rest = after(model, *text)
        if accepted < len(drafts):
            rest = (rest - after(draft, *text)).clamp(min=0)
        text.append(int(draws.symbol(rest / rest.sum())))
        counts = Acceptance(counts.passes + 1, counts.drafted + len(drafts), counts.accepted + accepted)
    return text[len(PROMPT) :], counts


class Branches(Draws):
    """Takes the branches of a script one after another, and the first ones beyond it, of those that are possible.

    taken, sizes: the branch of each choice, and how many it had. probability: the product of those of all choices.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.taken, self.sizes, self.probability = script, list[int](), list[int](), 1.0

    def branch(self, probabilities: Sequence[float]) -> int:
        place = len(self.taken)
        possible = [number for number, probability in enumerate(probabilities) if probability]
        self.taken.append(self.script[place] if place < len(self.script) else 0)
        self.sizes.append(len(possible))
        self.probability *= probabilities[possible[self.taken[-1]]]
        return possible[self.taken[-1]]

    def symbol(self, probabilities: Tensor) -> Tensor:
        assert probabilities.sum() == pytest.approx(1)
        return torch.tensor([self.branch(probabilities.tolist())])

    def accepted(self, chances: Tensor) -> int:
        certain = chances.clamp(max=1).tolist()
        before = [1.0, *itertools.accumulate(certain, lambda first, second: first * second)]
        return self.branch([*(own * (1 - chance) for own, chance in zip(before, certain, strict=False)), before[-1]])


def every_path(model: CausalNetwork, draft: CausalNetwork, length: int, config: SamplingConfig) -> dict[Any, float]:
    """The probability of each text over all ways to draft, to accept and to replace."""
    found: dict[Any, float] = defaultdict(float)
    script: list[int] | None = []
    while script is not None:
        draws = Branches(script)
        text = tuple(speculate(model, draft, torch.tensor([0]), length, config, 2, draws=draws))
        found[text] += draws.probability
        taken, sizes = draws.taken, draws.sizes
        while taken and taken[-1] + 1 == sizes[-1]:
            taken, sizes = taken[:-1], sizes[:-1]
        script = [*taken[:-1], taken[-1] + 1] if taken else None
    return found


def of_table(seed: int, symbols: int) -> CausalNetwork:
    """A network that answers by a random table of all prefixes. Its state is the text, which it does not cut."""
    table: dict[Any, Tensor] = {}
    generator = torch.Generator().manual_seed(seed)

    def read(text: Tensor, state: Any = None, unbroken: int = 0) -> Any:
        before = () if state is None else state
        assert len(before) == unbroken
        rows, text_before = [], tuple(before)
        for symbol in text[0].tolist():
            text_before += (symbol,)
            if text_before not in table:
                table[text_before] = 2 * torch.randn(symbols, generator=generator, dtype=torch.float64)
            rows.append(table[text_before])
        return SimpleNamespace(hidden=torch.stack(rows)[None], state=text_before)

    read.tokens = SimpleNamespace(log_probabilities=lambda hidden: hidden.log_softmax(dim=-1))  # type: ignore[attr-defined]
    read.first_symbols = lambda state, read, kept: None  # type: ignore[attr-defined]
    return cast("CausalNetwork", read)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.6, top_k=2),
        SamplingConfig(temperature=1.5, top_p=0.8),
        GREEDY,
    ],
    ids=["all", "top_k", "top_p", "greedy"],
)
def test_every_text_has_exactly_the_probability_that_the_large_model_gives_it(config: SamplingConfig) -> None:
    symbols, length = 3, 3
    model, draft = of_table(1, symbols), of_table(2, symbols)
    expected: dict[Any, float] = {}
    for text in itertools.product(range(symbols), repeat=length):
        probability = 1.0
        for place, symbol in enumerate(text):
            logits = model.tokens.log_probabilities(model(torch.tensor([[0, *text[:place]]])).hidden[:, -1])
            probability *= float(distribution(logits, config)[0, symbol])
        if probability:
            expected[text] = probability
    assert every_path(model, draft, length, config) == pytest.approx(expected, abs=1e-12)


def covering(case: Case) -> Any:
    return case.config.override({path: 64 for path, _ in case.config.leaves_with(Memory)})


@mixers("causal", "streams")
def test_it_writes_what_it_writes_when_it_reads_all_again(case: Case) -> None:
    mixer = case.config if case.config.promises().constant_reach else covering(case)
    equals_slow_decoding(mixer.to_dict(), {"kind": "linear"})


def test_what_memory_has_forgotten_is_read_again() -> None:
    mixer = {"kind": "attention", "memory": 6, "same_length": True}
    equals_slow_decoding(mixer, mixer)


def equals_slow_decoding(mixer: Any, other: Any) -> None:
    """Compares texts and counts with those of ``slow``, for drafts that agree with the model and that do not."""
    model, length, shares = build(mixer), 28, []
    for draft in (build(mixer, like=model), build(other, seed=3)):
        for config, forbidden in ((GREEDY, None), (SamplingConfig(temperature=0.7, top_k=6, seed=1), 2)):
            acceptance = Acceptance()
            symbols = [*speculate(model, draft, PROMPT, length, config, 3, forbidden, acceptance)]
            expected, counts = slow(model, draft, length, config, 3, forbidden)
            assert (symbols, acceptance) == (expected, counts)
            shares.append(counts.accepted / counts.drafted)
            if config is GREEDY:
                assert symbols == [*sample(model, PROMPT, length, GREEDY)]
    assert any(0 < share < 1 for share in shares), "drafts were always accepted, or never"


def translator(mixer: Any, positions: Any = None, like: EncoderDecoder | None = None, seed: int = 0) -> EncoderDecoder:
    """An encoder-decoder with strong opinions, in double precision. like: one whose opinions it nearly shares."""
    torch.manual_seed(seed)
    fields = {"dim": 16, "heads": 2, "depth": 2, "initial_std": 0.4, "tokens": {"kind": "full", "tied": False}}
    config = EncoderDecoderConfig.from_dict(
        {"kind": "encoder_decoder", **fields, "decoder_mixer": mixer, "positions": positions}
    )
    network = config.build(probe_data(VOCABULARY, 12)).eval().double()
    if like is not None:
        for own, other in zip(network.parameters(), like.parameters(), strict=True):
            own.data = other.data + 0.03 * torch.randn_like(other)
    return network


SOURCES = torch.tensor([[1, 4, 2, 7, 3, 0], [6, 5, 0, 0, 0, 0], [9, 9, 8, 1, 0, 0]])
SOURCE_MASK = torch.arange(6) < torch.tensor([[5], [2], [4]])


@pytest.mark.parametrize("mixer", ["attention", "linear", "lstm"])
def test_a_drafted_translation_is_that_of_greedy_decoding(mixer: str) -> None:
    model, counts, config = translator({"kind": mixer}), Acceptance(), GreedyConfig(ratio=2.0, extra=9)
    expected = decode(model, SOURCES, SOURCE_MASK, config, 0).symbols
    assert len({len(symbols) for symbols in expected}) > 1, "no output ended before its limit"
    for draft in (translator({"kind": mixer}, like=model), translator({"kind": "linear"}, seed=3)):
        assert decode_with_drafts(model, draft, SOURCES, SOURCE_MASK, config, 0, 3, counts) == expected
    assert 0 < counts.accepted < counts.drafted


def test_nothing_is_drafted_after_the_end_of_an_output() -> None:
    model, counts = translator({"kind": "attention"}), Acceptance()
    config = GreedyConfig(ratio=0.0, extra=40)
    outputs = decode_with_drafts(model, model, SOURCES, SOURCE_MASK, config, 0, 64, counts)
    assert outputs == decode(model, SOURCES, SOURCE_MASK, config, 0).symbols
    assert counts.drafted == sum(min(len(symbols) + 1, 39) for symbols in outputs) < 3 * 39


def test_a_draft_reads_no_further_than_the_weights_of_both_networks_reach() -> None:
    """The model reaches 12 symbols and the draft 8, then the other way round."""
    learned = [{"kind": "learned", "restart": "document", "max_length": length} for length in (12, 8)]
    config = GreedyConfig(ratio=0.0, extra=20)
    for own, other in (learned, learned[::-1]):
        model, draft = translator({"kind": "attention"}, own), translator({"kind": "attention"}, other)
        for network in (model, draft):
            network.tokens.logits.bias.data[0] = -100.0  # no output ends
        expected = decode(model, SOURCES, SOURCE_MASK, config, 0).symbols
        assert max(map(len, expected)) == own["max_length"]
        assert decode_with_drafts(model, draft, SOURCES, SOURCE_MASK, config, 0, 4) == expected


def test_sampled_translations_are_drafted_and_beams_are_refused() -> None:
    model = translator({"kind": "attention"})
    config: DecodingConfig = SampledConfig(ratio=1.0, extra=4, sampling=SamplingConfig(temperature=1.5, seed=4))
    first, again = (decode_with_drafts(model, model, SOURCES, SOURCE_MASK, config, 0) for _ in range(2))
    assert first == again != decode(model, SOURCES, SOURCE_MASK, GreedyConfig(ratio=1.0, extra=4), 0).symbols
    with pytest.raises(ConfigError, match="--draft: a draft serves greedy decoding and sampling, not a beam search"):
        decode_with_drafts(model, model, SOURCES, SOURCE_MASK, BeamConfig(), 0)


def test_a_draft_is_accepted_as_often_as_its_chance_and_nothing_after_one_that_is_not() -> None:
    draws, count = Draws(torch.Generator().manual_seed(0)), 4000
    accepted = torch.tensor([draws.accepted(torch.tensor([1.5, 0.6, 0.5])) for _ in range(count)])
    expected = torch.tensor([0.0, 0.4, 0.3, 0.3])
    frequencies = torch.bincount(accepted, minlength=4) / count
    assert ((frequencies - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()
