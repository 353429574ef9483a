"""What an encoder-decoder says: the searches find what they claim to, whatever stands beside a row in its batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lit_transformers.choosing import SamplingConfig, choose
from lit_transformers.config import ConfigError
from lit_transformers.decoding import (
    DECODINGS,
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampledConfig,
    Search,
    decode,
)
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder

SIZE, BOUNDARY = 7, 0


def build(seed: int = 0, symbols: int = SIZE, **fields: object) -> EncoderDecoder:
    """A network that has learned nothing but has strong opinions, which differ from source to source."""
    plain = {"dim": 16, "heads": 2, "depth": 2, "initial_std": 0.6, "tokens": {"kind": "full", "tied": False}}
    torch.manual_seed(seed)
    config = EncoderDecoderConfig.from_dict(plain | {"positions": "sinusoidal", **fields})
    return config.build(symbols, 16).double().eval()


def sources(rows: int = 6, symbols: int = SIZE) -> tuple[Tensor, Tensor]:
    """Sources of 1 to 8 symbols."""
    random = torch.Generator().manual_seed(3)
    keep = torch.arange(8) < 1 + torch.randperm(8, generator=random)[:rows, None]
    return torch.randint(1, symbols, keep.shape, generator=random).masked_fill(~keep, 0), keep


def at_most(length: int, config: DecodingConfig) -> DecodingConfig:
    """Every row says no more than so many symbols."""
    return config.override({"ratio": 0.0, "extra": length})


def log_probability(network: EncoderDecoder, source: Tensor, said: list[int]) -> float:
    """Of one output, with what ends it, read anew."""
    symbols = torch.tensor([[BOUNDARY, *said]])
    with torch.no_grad():
        likely = network.tokens.log_probabilities(network(source[None], symbols[:, :-1]).hidden)
    return float(likely.gather(2, symbols[:, 1:, None]).sum())


WAYS = [
    GreedyConfig(),
    BeamConfig(beams=3),
    BeamConfig(beams=4, until="full", coverage=0.3),
    BeamConfig(beams=2, length_penalty=1.0, lengths="power"),
]


@pytest.mark.parametrize("config", WAYS, ids=lambda config: config.kind)
@pytest.mark.parametrize("stack", ["sequential", "universal", "shared", "reversible"])
def test_a_state_changes_nothing_of_what_is_said(config: DecodingConfig, stack: str) -> None:
    network, (source, keep) = build(stack=stack), sources()
    with_state = decode(network, source, keep, config, BOUNDARY)
    without = decode(network, source, keep, config.override({"cache": False}), BOUNDARY)
    assert with_state.symbols == without.symbols
    torch.testing.assert_close(with_state.scores, without.scores, atol=1e-10, rtol=0)
    assert len({tuple(row) for row in with_state.symbols}) > 2


@pytest.mark.parametrize("config", WAYS, ids=lambda config: config.kind)
@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_decoded_as_if_it_were_alone(config: DecodingConfig, seed: int) -> None:
    """Rows end at different steps, and leave; their padding is not read."""
    network, (source, keep) = build(seed), sources()
    together = decode(network, source, keep, config.override({"extra": 6}), BOUNDARY)
    assert len({len(row) for row in together.symbols}) > 2
    for row in range(len(source)):
        alone = decode(network, source[row : row + 1, keep[row]], None, config.override({"extra": 6}), BOUNDARY)
        assert alone.symbols == [together.symbols[row]]
        torch.testing.assert_close(alone.scores[0], together.scores[row], atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("penalty", "lengths"), [(0.0, "gnmt"), (0.6, "gnmt"), (2.0, "gnmt"), (1.0, "power"), (0.5, "power")]
)
def test_with_beams_enough_it_finds_the_best_output_of_all(seed: int, penalty: float, lengths: str) -> None:
    symbols, longest = 3, 4
    network, (source, keep) = build(seed, symbols), sources(symbols=symbols)
    config = BeamConfig.from_dict({"beams": symbols**longest, "length_penalty": penalty, "lengths": lengths})
    found = decode(network, source, keep, at_most(longest, config), BOUNDARY)
    for row, said, score in zip(range(len(source)), found.symbols, found.scores.tolist(), strict=True):
        worth = {}
        for length in range(longest + 1):
            for text in itertools.product(range(1, symbols), repeat=length):
                whole = [*text, BOUNDARY][:longest]
                total = log_probability(network, source[row, keep[row]], whole)
                size = len(whole)
                worth[text] = total / ((5 + size) / 6 if lengths == "gnmt" else size) ** penalty
        best = max(worth, key=lambda text: worth[text])
        assert tuple(said) == best
        assert score == pytest.approx(worth[best], abs=1e-9)


def test_the_penalty_decides_how_long_outputs_are() -> None:
    """The best of all falls short where nothing is divided by a length."""
    network, (source, keep) = build(2), sources()
    short, long = (
        decode(network, source, keep, at_most(8, BeamConfig(beams=20, length_penalty=alpha)), BOUNDARY).symbols
        for alpha in (0.0, 3.0)
    )
    assert sum(map(len, short)) < sum(map(len, long))


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_without_penalties_is_greedy_and_more_are_no_worse(seed: int) -> None:
    network, (source, keep) = build(seed), sources()
    plain = BeamConfig(beams=1, length_penalty=0.0, until="full")
    greedy, one = (decode(network, source, keep, config, BOUNDARY) for config in (GreedyConfig(), plain))
    assert greedy.symbols == one.symbols
    torch.testing.assert_close(greedy.scores, one.scores, atol=1e-10, rtol=0)
    more = decode(network, source, keep, BeamConfig(beams=8, length_penalty=0.0), BOUNDARY)
    assert bool((more.scores >= greedy.scores - 1e-9).all()) and not torch.equal(more.scores, greedy.scores)


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig(length_penalty=0.0), SampledConfig()])
def test_a_score_is_the_log_probability_of_what_was_said_with_its_end(config: DecodingConfig) -> None:
    network, (source, keep) = build(), sources()
    found = decode(network, source, keep, at_most(6, config), BOUNDARY)
    for row, said in enumerate(found.symbols):
        whole = [*said, BOUNDARY][:6]
        expected = log_probability(network, source[row, keep[row]], whole)
        assert float(found.scores[row]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", DECODINGS)
def test_an_output_is_as_long_as_its_source_allows(kind: str) -> None:
    """Of a network that never ends by itself."""
    network, (source, keep) = build(), sources()
    with torch.no_grad():
        network.tokens.logits.bias[BOUNDARY] = -1e4  # type: ignore[union-attr, index]
    config = DecodingConfig.from_dict({"kind": kind, "ratio": 1.5, "extra": 2})
    found = decode(network, source, keep, config, BOUNDARY).symbols
    assert [len(row) for row in found] == [math.floor(1.5 * real) + 2 for real in keep.sum(dim=1).tolist()]


def test_a_batch_without_rows_and_a_row_without_symbols_are_decoded() -> None:
    network, (source, keep) = build(), sources()
    assert decode(network, source[:0], keep[:0], BeamConfig(), BOUNDARY).symbols == []
    keep[0] = False
    found = decode(network, source, keep, BeamConfig(extra=3), BOUNDARY)
    assert len(found.symbols[0]) <= 3 and bool(found.scores.isfinite().all())


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig()])
@pytest.mark.parametrize("decoder", ["synthesizer", {"kind": "local", "block": 4}, {"kind": "sparse", "block": 4}])
def test_a_decoder_that_does_not_stream_reads_all_again_or_is_refused(config: DecodingConfig, decoder: object) -> None:
    network, (source, keep) = build(decoder_mixer=decoder), sources()
    with pytest.raises(ConfigError, match=r"cannot be read symbol by symbol; set task\.decoding\.cache=false"):
        decode(network, source, keep, config, BOUNDARY)
    found = decode(network, source, keep, at_most(6, config.override({"cache": False})), BOUNDARY)
    assert len({tuple(row) for row in found.symbols}) > 1


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig(length_penalty=0.0)])
@pytest.mark.parametrize(
    "fields", [{"decoder_mixer": "synthesizer"}, {"positions": "learned"}], ids=["synthesizer", "learned"]
)
def test_an_output_ends_where_the_weights_of_the_decoder_reach_no_further(
    config: DecodingConfig, fields: dict[str, object]
) -> None:
    network, (source, keep) = build(**fields), sources()
    config = config.override({"cache": network.streams, "extra": 40})
    with torch.no_grad():
        network.tokens.logits.bias[BOUNDARY] = -1e4  # type: ignore[union-attr, index]
    found = decode(network, source, keep, config, BOUNDARY)
    assert [len(row) for row in found.symbols] == [16] * len(source), "for so many positions it was built"
    shorter = decode(network, source, keep, at_most(16, config), BOUNDARY)
    assert found.symbols == shorter.symbols
    torch.testing.assert_close(found.scores, shorter.scores)


def test_a_seed_repeats_and_another_does_not() -> None:
    network, (source, keep) = build(), sources()
    first, again, other = (
        decode(network, source, keep, SampledConfig(sampling=SamplingConfig(seed=seed)), BOUNDARY).symbols
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_one_candidate_is_the_likeliest_of_each_row() -> None:
    network, (source, keep) = build(), sources()
    greedy = decode(network, source, keep, GreedyConfig(), BOUNDARY).symbols
    for settings in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 0.0}):
        sampling = SamplingConfig.from_dict({"temperature": 1.0, **settings})
        assert decode(network, source, keep, SampledConfig(sampling=sampling), BOUNDARY).symbols == greedy


def test_each_row_draws_among_its_own_candidates() -> None:
    likely = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]).log()
    random = torch.Generator().manual_seed(0)
    config = SamplingConfig(temperature=1.0, top_p=0.7)
    drawn = torch.stack([choose(likely, config, random) for _ in range(400)])
    for row, among in ((0, [0, 1]), (1, [2, 3])):
        counts = drawn[:, row].bincount(minlength=4)
        assert counts.nonzero().flatten().tolist() == among
        assert counts.max() / 400 == pytest.approx(0.5 / 0.8, abs=0.1)


def weights_of_attention(network: EncoderDecoder, source: Tensor, said: list[int]) -> Tensor:
    """The mean over heads of the last layer's attention (t, s), from its projections."""
    mixer, given = network.crossings()[-1], []
    assert isinstance(mixer, QKVMixer)
    handle = mixer.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
    with torch.no_grad():
        network(source[None], torch.tensor([[BOUNDARY, *said]]))
        handle.remove()
        x, ctx, _ = given[0]
        q, k = (
            linear(part)[0].unflatten(-1, (2, 8)).transpose(0, 1)
            for linear, part in ((mixer.query, x), (mixer.key, ctx.source))
        )
        return (q @ k.mT / 8**0.5).softmax(dim=-1).mean(dim=0)


@pytest.mark.parametrize("seed", range(3))
def test_coverage_is_that_of_the_attention_of_the_last_layer(seed: int) -> None:
    network, (source, keep) = build(seed), sources()
    config = BeamConfig(length_penalty=0.0, coverage=0.4, extra=4)
    found = decode(network, source, keep, config, BOUNDARY)
    for row, said in enumerate(found.symbols):
        real = source[row, keep[row]]
        limit = len(real) + 4
        whole = [*said, BOUNDARY][:limit]
        attention = weights_of_attention(network, real, whole[:-1])
        coverage = 0.4 * attention.sum(dim=0).clamp(max=1).log().sum()
        expected = log_probability(network, real, whole) + float(coverage)
        assert float(found.scores[row]) == pytest.approx(expected, abs=1e-9)
    plain = decode(network, source, keep, config.override({"coverage": 0.0}), BOUNDARY)
    assert plain.symbols != found.symbols or not torch.allclose(plain.scores, found.scores)


def test_coverage_is_refused_where_nothing_is_weighed() -> None:
    network, (source, keep) = build(cross_mixer="linear"), sources()
    with pytest.raises(ConfigError, match=r"task\.decoding\.coverage: Linear weighs no symbol of the source"):
        decode(network, source, keep, BeamConfig(coverage=0.1), BOUNDARY)


def test_what_was_made_of_a_source_is_one_for_all_its_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And rows leave once a good part of them has ended."""
    network, (source, keep) = build(), sources()
    sizes: list[tuple[int, int]] = []
    go_on = Search.go_on

    def noted(search: Search, parents: Tensor, step: int) -> None:
        state = search.reader.state["layers"][0]
        sizes.append((len(state["cross"]["keys"]), len(state["mixer"]["keys"])))
        go_on(search, parents, step)

    monkeypatch.setattr(Search, "go_on", noted)
    decode(network, source, keep, BeamConfig(beams=3, extra=6), BOUNDARY)
    rows = [cross for cross, _ in sizes]
    assert all(own == 3 * cross for cross, own in sizes)
    assert rows[0] == len(source) and rows == sorted(rows, reverse=True) and rows[-1] < rows[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("beams", 1), ("length_penalty", 0.0), ("lengths", "power"), ("coverage", 2.0), ("until", "full"), ("ratio", 0.1)],
)
def test_every_field_of_a_beam_search_changes_what_is_found(field: str, value: object) -> None:
    """Of one network or another."""
    source, keep = sources()
    base = BeamConfig(extra=4, length_penalty=1.5, beams=2)
    found = [
        [decode(build(seed), source, keep, config, BOUNDARY) for config in (base, base.override({field: value}))]
        for seed in range(8)
    ]
    assert any(one.symbols != other.symbols for one, other in found)
