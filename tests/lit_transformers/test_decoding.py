"""Outputs of an encoder-decoder: each search finds the output that it promises, with any other rows in its batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.decoding.decode import (
    DECODINGS,
    BeamConfig,
    BeamSearch,
    DecodingConfig,
    GreedyConfig,
    SampledConfig,
    decode,
)
from lit_transformers.decoding.sampling import SamplingConfig, choose
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder

SIZE, BOUNDARY = 7, 0


def build(seed: int = 0, symbols: int = SIZE, **fields: object) -> EncoderDecoder:
    """A network that has learned nothing but has strong opinions, which differ from source to source."""
    defaults = {"dim": 16, "heads": 2, "depth": 2, "initial_std": 0.6, "tokens": {"kind": "full", "tied": False}}
    torch.manual_seed(seed)
    config = EncoderDecoderConfig.from_dict(defaults | {"positions": "sinusoidal", **fields})
    return config.build(probe_data(symbols, 16)).double().eval()


def sources(rows: int = 6, symbols: int = SIZE) -> tuple[Tensor, Tensor]:
    """Sources of 1 to 8 symbols."""
    random = torch.Generator().manual_seed(3)
    padding_mask = torch.arange(8) < 1 + torch.randperm(8, generator=random)[:rows, None]
    return torch.randint(1, symbols, padding_mask.shape, generator=random).masked_fill(~padding_mask, 0), padding_mask


def at_most(length: int, config: DecodingConfig) -> DecodingConfig:
    """Limits every output to ``length`` symbols."""
    return config.override({"ratio": 0.0, "extra": length})


def log_probabilities(network: EncoderDecoder, source: Tensor, outputs: list[list[int]]) -> Tensor:
    """The log-probability of each output of one source, with the symbol that ends it, computed anew."""
    rows = [torch.tensor([BOUNDARY, *output]) for output in outputs]
    symbols = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    inputs = symbols[:, :-1].clamp(min=0)
    with torch.no_grad():
        each = network.tokens.log_probabilities(network(source.expand(len(rows), -1), inputs).hidden)
    return (each.gather(2, symbols[:, 1:, None].clamp(min=0))[..., 0] * (symbols[:, 1:] >= 0)).sum(dim=1)


def log_probability(network: EncoderDecoder, source: Tensor, output: list[int]) -> float:
    return float(log_probabilities(network, source, [output]))


WAYS = [
    GreedyConfig(extra=6),
    BeamConfig(extra=6, beams=3),
    BeamConfig(extra=6, beams=4, until="full", coverage=0.3),
    BeamConfig(extra=6, beams=2, length_penalty=1.0, lengths="power"),
]


@pytest.mark.parametrize(
    ("config", "stack"),
    [
        *((config, "sequential") for config in WAYS),
        *((WAYS[1], stack) for stack in ("universal", "shared", "reversible")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_state_changes_nothing_of_what_is_said(config: DecodingConfig, stack: str) -> None:
    """Every search with one stack, and every stack with one search: a search takes rows of any state."""
    network, (source, padding_mask) = build(stack=stack), sources()
    cached = decode(network, source, padding_mask, config, BOUNDARY)
    uncached = decode(network, source, padding_mask, config.override({"cache": False}), BOUNDARY)
    assert cached.symbols == uncached.symbols
    torch.testing.assert_close(cached.scores, uncached.scores, atol=1e-10, rtol=0)
    assert len({tuple(row) for row in cached.symbols}) > 2


@pytest.mark.parametrize("config", WAYS, ids=lambda config: config.kind)
@pytest.mark.parametrize("seed", range(2))
def test_a_row_is_decoded_as_if_it_were_alone(config: DecodingConfig, seed: int) -> None:
    """Rows end at different steps, and leave; their padding is not read."""
    network, (source, padding_mask) = build(seed), sources()
    batched = decode(network, source, padding_mask, config, BOUNDARY)
    assert len({len(row) for row in batched.symbols}) > 2
    for row in range(len(source)):
        single = decode(network, source[row : row + 1, padding_mask[row]], None, config, BOUNDARY)
        assert single.symbols == [batched.symbols[row]]
        torch.testing.assert_close(single.scores[0], batched.scores[row], atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_with_beams_enough_it_finds_the_best_output_of_all(seed: int) -> None:
    symbols, longest = 3, 4
    network, (source, padding_mask) = build(seed, symbols), sources(symbols=symbols)
    outputs = [
        output for length in range(longest + 1) for output in itertools.product(range(1, symbols), repeat=length)
    ]
    ended = [[*output, BOUNDARY][:longest] for output in outputs]
    sizes = torch.tensor([len(output) for output in ended]).double()
    totals = [log_probabilities(network, source[row, real], ended) for row, real in enumerate(padding_mask)]
    for penalty, lengths in ((0.0, "gnmt"), (0.6, "gnmt"), (2.0, "gnmt"), (1.0, "power"), (0.5, "power")):
        config = BeamConfig.from_dict({"beams": symbols**longest, "length_penalty": penalty, "lengths": lengths})
        decoded = decode(network, source, padding_mask, at_most(longest, config), BOUNDARY)
        for total, output, score in zip(totals, decoded.symbols, decoded.scores.tolist(), strict=True):
            scores = total / ((5 + sizes) / 6 if lengths == "gnmt" else sizes) ** penalty
            assert tuple(output) == outputs[int(scores.argmax())], config
            assert score == pytest.approx(float(scores.max()), abs=1e-9)


def test_the_penalty_decides_how_long_outputs_are() -> None:
    """The best of all falls short where nothing is divided by a length."""
    network, (source, padding_mask) = build(2), sources()
    short_outputs, long_outputs = (
        decode(network, source, padding_mask, at_most(8, BeamConfig(beams=20, length_penalty=alpha)), BOUNDARY).symbols
        for alpha in (0.0, 3.0)
    )
    assert sum(map(len, short_outputs)) < sum(map(len, long_outputs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_beam_without_penalties_is_greedy_and_more_are_no_worse(seed: int) -> None:
    network, (source, padding_mask) = build(seed), sources()
    one_beam_config = BeamConfig(beams=1, length_penalty=0.0, until="full")
    greedy, one_beam = (
        decode(network, source, padding_mask, config, BOUNDARY) for config in (GreedyConfig(), one_beam_config)
    )
    assert greedy.symbols == one_beam.symbols
    torch.testing.assert_close(greedy.scores, one_beam.scores, atol=1e-10, rtol=0)
    more_beams = decode(network, source, padding_mask, BeamConfig(beams=8, length_penalty=0.0), BOUNDARY)
    assert bool((more_beams.scores >= greedy.scores - 1e-9).all()) and not torch.equal(more_beams.scores, greedy.scores)


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig(length_penalty=0.0), SampledConfig()])
def test_a_score_is_the_log_probability_of_what_was_said_with_its_end(config: DecodingConfig) -> None:
    network, (source, padding_mask) = build(2), sources()
    decoded = decode(network, source, padding_mask, at_most(6, config), BOUNDARY)
    assert {6} < {len(row) for row in decoded.symbols}, "some end by themselves, others at the limit"
    for row, output in enumerate(decoded.symbols):
        symbols_with_end = [*output, BOUNDARY][:6]
        expected = log_probability(network, source[row, padding_mask[row]], symbols_with_end)
        assert float(decoded.scores[row]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", DECODINGS)
def test_an_output_is_as_long_as_its_source_allows(kind: str) -> None:
    """Of a network that never ends by itself."""
    network, (source, padding_mask) = build(), sources()
    with torch.no_grad():
        network.tokens.logits.bias[BOUNDARY] = -1e4  # type: ignore[union-attr, index]
    config = DecodingConfig.from_dict({"kind": kind, "ratio": 1.5, "extra": 2})
    outputs = decode(network, source, padding_mask, config, BOUNDARY).symbols
    assert [len(row) for row in outputs] == [
        math.floor(1.5 * source_length) + 2 for source_length in padding_mask.sum(dim=1).tolist()
    ]


def test_a_batch_without_rows_and_a_row_without_symbols_are_decoded() -> None:
    network, (source, padding_mask) = build(), sources()
    assert decode(network, source[:0], padding_mask[:0], BeamConfig(), BOUNDARY).symbols == []
    padding_mask[0] = False
    decoded = decode(network, source, padding_mask, BeamConfig(extra=3), BOUNDARY)
    assert len(decoded.symbols[0]) <= 3 and bool(decoded.scores.isfinite().all())


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig()])
@pytest.mark.parametrize("decoder", ["synthesizer", {"kind": "local", "block": 4}, {"kind": "sparse", "block": 4}])
def test_a_decoder_that_does_not_stream_reads_all_again_or_is_refused(config: DecodingConfig, decoder: object) -> None:
    network, (source, padding_mask) = build(decoder_mixer=decoder), sources()
    with pytest.raises(ConfigError, match=r"cannot be read symbol by symbol; set task\.decoding\.cache=false"):
        decode(network, source, padding_mask, config, BOUNDARY)
    decoded = decode(network, source, padding_mask, at_most(6, config.override({"cache": False})), BOUNDARY)
    assert len({tuple(row) for row in decoded.symbols}) > 1


@pytest.mark.parametrize("config", [GreedyConfig(), BeamConfig(length_penalty=0.0)])
@pytest.mark.parametrize(
    "fields", [{"decoder_mixer": "synthesizer"}, {"positions": "learned"}], ids=["synthesizer", "learned"]
)
def test_an_output_ends_where_the_weights_of_the_decoder_reach_no_further(
    config: DecodingConfig, fields: dict[str, object]
) -> None:
    network, (source, padding_mask) = build(**fields), sources()
    config = config.override({"cache": not network.unreadable, "extra": 40})
    with torch.no_grad():
        network.tokens.logits.bias[BOUNDARY] = -1e4  # type: ignore[union-attr, index]
    decoded = decode(network, source, padding_mask, config, BOUNDARY)
    assert [len(row) for row in decoded.symbols] == [16] * len(source), "it was built for 16 positions"
    limited = decode(network, source, padding_mask, at_most(16, config), BOUNDARY)
    assert decoded.symbols == limited.symbols
    torch.testing.assert_close(decoded.scores, limited.scores)


@pytest.mark.slow
def test_a_seed_repeats_and_another_does_not() -> None:
    network, (source, padding_mask) = build(), sources()
    first, repeated, other_seed = (
        decode(network, source, padding_mask, SampledConfig(sampling=SamplingConfig(seed=seed)), BOUNDARY).symbols
        for seed in (0, 0, 1)
    )
    assert first == repeated != other_seed


def test_one_candidate_is_the_likeliest_of_each_row() -> None:
    network, (source, padding_mask) = build(), sources()
    greedy = decode(network, source, padding_mask, GreedyConfig(), BOUNDARY).symbols
    for settings in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 0.0}):
        sampling = SamplingConfig.from_dict({"temperature": 1.0, **settings})
        assert decode(network, source, padding_mask, SampledConfig(sampling=sampling), BOUNDARY).symbols == greedy


def test_each_row_draws_among_its_own_candidates() -> None:
    log_probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]).log()
    random = torch.Generator().manual_seed(0)
    config = SamplingConfig(temperature=1.0, top_p=0.7)
    samples = torch.stack([choose(log_probabilities, config, random) for _ in range(400)])
    for row, candidates in ((0, [0, 1]), (1, [2, 3])):
        counts = samples[:, row].bincount(minlength=4)
        assert counts.nonzero().flatten().tolist() == candidates
        assert counts.max() / 400 == pytest.approx(0.5 / 0.8, abs=0.1)


def weights_of_attention(network: EncoderDecoder, source: Tensor, output: list[int]) -> Tensor:
    """The mean over heads of the last layer's attention (t, s), from its projections."""
    mixer, mixer_inputs = network.crossings()[-1], []
    assert isinstance(mixer, QKVMixer)
    handle = mixer.register_forward_pre_hook(lambda _, inputs: mixer_inputs.append(inputs))
    with torch.no_grad():
        network(source[None], torch.tensor([[BOUNDARY, *output]]))
        handle.remove()
        x, ctx, _ = mixer_inputs[0]
        q, k = (
            linear(part)[0].unflatten(-1, (2, 8)).transpose(0, 1)
            for linear, part in ((mixer.query, x), (mixer.key, ctx.source))
        )
        return (q @ k.mT / 8**0.5).softmax(dim=-1).mean(dim=0)


@pytest.mark.parametrize("seed", range(3))
def test_coverage_is_that_of_the_attention_of_the_last_layer(seed: int) -> None:
    network, (source, padding_mask) = build(seed), sources()
    config = BeamConfig(length_penalty=0.0, coverage=0.4, extra=4)
    decoded = decode(network, source, padding_mask, config, BOUNDARY)
    for row, output in enumerate(decoded.symbols):
        source_symbols = source[row, padding_mask[row]]
        limit = len(source_symbols) + 4
        symbols_with_end = [*output, BOUNDARY][:limit]
        attention = weights_of_attention(network, source_symbols, symbols_with_end[:-1])
        coverage = 0.4 * attention.sum(dim=0).clamp(max=1).log().sum()
        expected = log_probability(network, source_symbols, symbols_with_end) + float(coverage)
        assert float(decoded.scores[row]) == pytest.approx(expected, abs=1e-9)
    uncovered = decode(network, source, padding_mask, config.override({"coverage": 0.0}), BOUNDARY)
    assert uncovered.symbols != decoded.symbols or not torch.allclose(uncovered.scores, decoded.scores)


def test_coverage_is_refused_where_nothing_is_weighed() -> None:
    network, (source, padding_mask) = build(cross_mixer="linear"), sources()
    with pytest.raises(ConfigError, match=r"task\.decoding\.coverage: Linear weighs no symbol of the source"):
        decode(network, source, padding_mask, BeamConfig(coverage=0.1), BOUNDARY)


def test_what_was_made_of_a_source_is_one_for_all_its_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And rows leave once a good part of them has ended."""
    network, (source, padding_mask) = build(), sources()
    sizes: list[tuple[int, int]] = []
    go_on = BeamSearch.go_on

    def record_sizes(search: BeamSearch, parents: Tensor, step: int) -> None:
        state = search.reader.state["layers"][0]
        sizes.append((len(state["cross"]["keys"]), len(state["mixer"]["keys"])))
        go_on(search, parents, step)

    monkeypatch.setattr(BeamSearch, "go_on", record_sizes)
    decode(network, source, padding_mask, BeamConfig(beams=3, extra=6), BOUNDARY)
    rows = [source_rows for source_rows, _ in sizes]
    assert all(hypotheses == 3 * source_rows for source_rows, hypotheses in sizes)
    assert rows[0] == len(source) and rows == sorted(rows, reverse=True) and rows[-1] < rows[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [("beams", 1), ("length_penalty", 0.0), ("lengths", "power"), ("coverage", 2.0), ("until", "full"), ("ratio", 0.1)],
)
def test_every_field_of_a_beam_search_changes_what_is_found(field: str, value: object) -> None:
    """Of one network or another."""
    source, padding_mask = sources()
    base = BeamConfig(extra=4, length_penalty=1.5, beams=2)
    changed = base.override({field: value})

    def differs(seed: int) -> bool:
        outputs = [decode(build(seed), source, padding_mask, config, BOUNDARY) for config in (base, changed)]
        return outputs[0].symbols != outputs[1].symbols

    assert any(map(differs, range(8)))
