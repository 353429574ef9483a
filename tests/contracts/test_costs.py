"""FLOPs by formula equal FLOPs counted, below and above the length of a block, with and without memory."""

from __future__ import annotations

import pytest
import torch
from contract_cases import (
    DIM,
    FEEDFORWARD_CASES,
    HEADS,
    KINDS,
    LONG,
    STACK_CASES,
    TOKEN_CASES,
    Case,
    context,
    mixers,
    name,
    promises,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.attention.patterns import BLOCK
from lit_transformers.batch import PairDescription, SpelledNumbers, Vocabulary
from lit_transformers.checks.network_parts import count_flops
from lit_transformers.encodings import XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.mixers import AttentionConfig, LSRAConfig, LSTMConfig, TopKConfig, WindowConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.cost import cost
from lit_transformers.models.tokens import TokenEmbeddingConfig
from lit_transformers.stacks import SequentialConfig, StackConfig
from lit_transformers.stacks.block import BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig, TransitionConfig

TOLERANCE = 0.02


@mixers("causal")
def test_the_flops_of_a_mixer_are_those_counted(case: Case) -> None:
    blocks = [(1, 280), (BLOCK, 0), (LONG - 20, 20)] if case in KINDS.values() else [(LONG - 20, 20)]
    for queries, remembered in [(1, 0), (7, 5), *(blocks if case.lengths() else [])]:
        mixer = case.build(memory=remembered) if case.remembers else case.build()
        past = remembered if case.config.promises().streams else 0
        state = mixer(torch.randn(1, past, DIM).double(), context(1, past)).state if past else None
        counted = count_flops(mixer, torch.randn(1, queries, DIM).double(), context(1, queries, start=past), state)
        assert mixer.flops(queries, past) == pytest.approx(counted, rel=TOLERANCE), (queries, past)


@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(encoding=XLConfig()),
        WindowConfig(window=20, global_tokens="first"),
        TopKConfig(kept=4),
        LSRAConfig(branches="attention"),
    ],
    ids=name,
)
def test_evaluation_spends_less_than_training_by_the_projections_of_memory(config: MixerConfig) -> None:
    queries, remembered = 30, 100
    mixer = Case(config).build("causal", memory=remembered)
    with torch.no_grad():
        state = mixer(torch.randn(1, remembered, DIM).double(), context(1, remembered)).state
        measured = count_flops(
            mixer, torch.randn(1, queries, DIM).double(), context(1, queries, start=remembered), state
        )
    key_value_flops = 2 * 2 * DIM * DIM * remembered
    assert mixer.flops(queries, remembered) - measured == pytest.approx(key_value_flops, rel=TOLERANCE)


@mixers("bidirectional")
def test_the_flops_of_a_mixer_that_sees_both_ways_are_those_counted(case: Case) -> None:
    mixer = case.build("bidirectional")
    for queries in (1, 7, *case.lengths()):
        counted = count_flops(mixer, torch.randn(1, queries, DIM).double(), context(1, queries, causal=False))
        assert mixer.flops(queries, 0, causal=False) == pytest.approx(counted, rel=TOLERANCE), queries


@pytest.mark.parametrize("case", [Case(AttentionConfig(bias=bias)) for bias in (False, True)])
def test_a_window_of_the_same_length_costs_what_is_counted(case: Case) -> None:
    mixer = case.build(memory=40, same_length=True)
    state = mixer(torch.randn(1, 60, DIM).double(), context(1, 60)).state
    expected = count_flops(mixer, torch.randn(1, 600, DIM).double(), context(1, 600), state)
    assert mixer.flops(600, 60) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("width", [None, 20])
def test_the_flops_of_a_block_are_those_counted(width: int | None) -> None:
    config = BlockConfig(mixer=AttentionConfig(memory=16), feedforward=FeedForwardConfig(width=width))
    block = config.build_block(Shape(DIM, HEADS, 64), "causal")
    expected = count_flops(block, torch.randn(1, 9, DIM), Context(torch.arange(9)[None], causal=True))
    assert block.flops(9, 0) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("config", FEEDFORWARD_CASES, ids=name)
@pytest.mark.parametrize("causal", [True, False])
def test_the_flops_of_a_feed_forward_are_those_counted(config: TransitionConfig, causal: bool) -> None:
    layer = config.build(Shape(DIM, HEADS, 64))
    expected = count_flops(layer, torch.randn(1, 9, DIM), context(1, 9, causal))
    assert layer.flops(9) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("stack", STACK_CASES, ids=name)
def test_the_flops_of_a_model_are_those_counted(stack: StackConfig) -> None:
    config = LanguageModelConfig(dim=DIM, heads=HEADS, depth=4, stack=stack, mixer=AttentionConfig(memory=12))
    network = config.build(probe_data(11, 16))
    symbols = torch.zeros(1, 16, dtype=torch.long)
    state = network(symbols).state
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network.tokens.log_probabilities(network(symbols, state).hidden)
    assert network.flops(16, 12) == pytest.approx(counter.get_total_flops(), rel=TOLERANCE)


def test_the_flops_of_an_encoder_are_those_counted_without_a_softmax() -> None:
    config = EncoderConfig(dim=DIM, heads=HEADS, depth=2)
    expected = count_flops(config.build(probe_data(11, 16)), torch.zeros(1, 16, dtype=torch.long))
    assert cost(config, probe_data(11, 16), 16).flops_per_token == pytest.approx(expected / 16, rel=TOLERANCE)
    assert cost(config, probe_data(11, 16), 16).state_bytes == 0


def test_rows_that_do_not_continue_each_other_cost_no_memory() -> None:
    config = LanguageModelConfig(dim=DIM, heads=HEADS, depth=2, mixer=AttentionConfig(memory=32))
    separate, continued = cost(config, probe_data(11, 16), 16, continued=False), cost(config, probe_data(11, 16), 16)
    assert separate.flops_per_token == config.build(probe_data(11, 16)).flops(16, 0) / 16 < continued.flops_per_token
    assert (separate.state_bytes, separate.parameters) == (0, continued.parameters)


@pytest.mark.parametrize("config", TOKEN_CASES, ids=name)
def test_the_flops_of_a_softmax_are_those_counted_where_all_symbols_are_frequent(config: TokenEmbeddingConfig) -> None:
    tokens = config.build(11, DIM)
    with FlopCounterMode(display=False) as counter:
        tokens.nll(torch.randn(1, 9, DIM), torch.zeros(1, 9, dtype=torch.long))
    assert tokens.flops(9) == pytest.approx(counter.get_total_flops(), rel=TOLERANCE)


@mixers("cross")
def test_the_flops_of_a_cross_mixer_are_those_counted(case: Case) -> None:
    mixer = case.build("cross")
    for queries, source in ((1, 1), (7, 5), (3, LONG), (LONG, 9)):
        ctx: Context = context(1, queries)._replace(source=torch.randn(1, source, DIM).double())
        counted = count_flops(mixer, torch.randn(1, queries, DIM).double(), ctx)
        assert mixer.cross_flops(queries, source) == pytest.approx(counted, rel=TOLERANCE), (queries, source)


@pytest.mark.parametrize(
    ("stack", "source", "target"),
    [*((stack, 9, 30) for stack in STACK_CASES), (SequentialConfig(), 300, 5)],
    ids=lambda value: name(value) if isinstance(value, StackConfig) else str(value),
)
def test_the_flops_of_a_network_for_pairs_are_those_counted(stack: StackConfig, source: int, target: int) -> None:
    config = EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=4, decoder_depth=2, stack=stack, shared_tokens=False)
    vocabulary = Vocabulary(size=11, boundary=0, unit="byte", byte_lengths=None)
    data = PairDescription(
        vocabulary=vocabulary, length=target, source=vocabulary, source_length=source, detokenize=SpelledNumbers()
    )
    network = config.build(data)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = network(torch.zeros(1, source, dtype=torch.long), torch.zeros(1, target, dtype=torch.long))
        network.tokens.log_probabilities(output.hidden)
    pair_cost = cost(config, data, target, source, continued=False)
    assert pair_cost.flops_per_token == pytest.approx(counter.get_total_flops() / target, rel=TOLERANCE)
    assert pair_cost.parameters == sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert (pair_cost.embedding_parameters, pair_cost.state_bytes) == (2 * 11 * DIM + 11, 0)


@pytest.mark.parametrize(
    "case", [case for case in KINDS.values() if promises(case, "streams")], ids=lambda case: case.config.kind
)
def test_a_cost_is_told_without_memory_or_numbers(case: Case) -> None:
    """On the meta device, at a length of several blocks, of which an LSTM knows none."""
    length = 20 if isinstance(case.config, LSTMConfig) else LONG
    config = LanguageModelConfig(dim=DIM, heads=HEADS, depth=1, mixer=case.config)
    if case.remembers:
        config = config.override({"mixer.memory": 3})
    model_cost = cost(config, probe_data(11, length), length)
    assert model_cost.flops_per_token > 0 and model_cost.parameters > 0
