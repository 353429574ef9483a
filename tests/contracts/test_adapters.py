"""Adapters in every family, stack and mixer: they start as nothing, all of them learn, costs count them, and networks
without a place for one are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_cases import ADAPTER_CASES, DIM, KINDS, MIXER_CASES, SHAPE, STACK_CASES, context, name, randomised
from test_costs import TOLERANCE
from torch import Tensor, nn

from lit_transformers.adapters import (
    Adapter,
    AdapterConfig,
    BottleneckConfig,
    DoRAConfig,
    IA3Config,
    LowRankConfig,
    ParallelAdapterConfig,
    VeRAConfig,
    adapter_names,
)
from lit_transformers.adapters.adapted_maps import MapsConfig
from lit_transformers.checks.network_parts import adapt_maps, count_flops
from lit_transformers.config import ConfigError, field_types
from lit_transformers.encodings import XLConfig
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import probe_data
from lit_transformers.maps import LinearMap, MapRole
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape
from lit_transformers.mixers import (
    AttentionConfig,
    CompressiveConfig,
    LinearConfig,
    LSHConfig,
    LSTMConfig,
    StarConfig,
    SynthesizerConfig,
    WindowConfig,
)
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.capabilities import PairNetwork
from lit_transformers.models.cost import cost
from lit_transformers.stacks.feedforward import FeedForwardConfig

SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 2}
DATA = probe_data(11, 6)
SYMBOLS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])
ALL_MAPS = LowRankConfig(rank=3, maps=("query", "key", "value", "output", "up", "down"))
EVERY: tuple[MapRole, ...] = ALL_MAPS.maps
MERGED: list[MapsConfig] = [
    LowRankConfig(rank=3, alpha=5.0, maps=EVERY),
    DoRAConfig(rank=3, alpha=5.0, maps=EVERY),
    VeRAConfig(rank=5, maps=EVERY),
    IA3Config(maps=EVERY),
]
ADAPTERS = [BottleneckConfig(width=4), ParallelAdapterConfig(width=4, sublayers="both"), ALL_MAPS, *MERGED[1:]]
FAMILIES: list[ModelConfig] = [
    *(LanguageModelConfig(**SIZES, stack=stack, mixer=AttentionConfig(memory=8)) for stack in STACK_CASES),
    EncoderConfig(**SIZES, norm="post"),
    EncoderDecoderConfig(**SIZES),
    EncoderDecoderConfig(**SIZES, shared_stacks=True),
]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.kind}-{name(family.stack)}")
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)


def hidden(network: nn.Module) -> Tensor:
    is_paired = isinstance(network, PairNetwork)
    vectors: Tensor = network(*((SYMBOLS.flip(0), SYMBOLS) if is_paired else (SYMBOLS,))).hidden
    return vectors


@each_family
@each_adapter
def test_adapters_change_no_bit_of_a_network_at_their_start(adapter: AdapterConfig, family: ModelConfig) -> None:
    torch.manual_seed(0)
    adapted = family.override({"adapter": adapter}).build(DATA).eval()
    torch.manual_seed(0)
    plain = family.build(DATA).eval()
    own, state = adapter_names(adapted), adapted.state_dict()
    assert own and state.keys() - own == plain.state_dict().keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in plain.state_dict().items())
    assert torch.equal(hidden(adapted), hidden(plain))
    for key in own:
        state[key].normal_()
    assert not torch.allclose(hidden(adapted), hidden(plain))


@each_family
@each_adapter
def test_all_weights_of_adapters_learn_where_the_network_is_frozen(adapter: AdapterConfig, family: ModelConfig) -> None:
    network = randomised(family.override({"adapter": adapter}).build(DATA)).requires_grad_(False)
    own = adapter_names(network)
    weights = {key: weight for key, weight in network.named_parameters() if key in own}
    for weight in weights.values():
        weight.requires_grad_(True)
    (hidden(network) * torch.randn(2, 6, 16)).sum().backward()
    assert weights and not [key for key, weight in weights.items() if weight.grad is None or not weight.grad.any()]


@pytest.mark.parametrize("adapter", ADAPTER_CASES, ids=name)
@pytest.mark.parametrize("family", FAMILIES[-3:-1], ids=lambda family: family.kind)
def test_a_family_with_adapters_passes_its_gates(adapter: AdapterConfig, family: ModelConfig) -> None:
    results = gates.check(family.override({"adapter": adapter}))
    assert [f"{gate.name}: {gate.detail}" for gate in results if not gate.passed] == []


def test_parameters_count_adapters() -> None:
    def added(adapter: AdapterConfig, family: ModelConfig) -> int:
        return cost(family.override({"adapter": adapter}), DATA, 6).parameters - cost(family, DATA, 6).parameters

    pair, row = EncoderDecoderConfig(**SIZES), EncoderConfig(**SIZES)
    bottleneck = 2 * 16 * 4 + 4 + 16
    assert added(BottleneckConfig(width=4), row) == 2 * 2 * bottleneck
    assert added(BottleneckConfig(width=4), pair) == 2 * 5 * bottleneck
    assert added(BottleneckConfig(width=4, after="mixer"), pair) == 2 * 3 * bottleneck
    assert added(BottleneckConfig(width=4, after="feedforward"), pair) == 2 * 2 * bottleneck
    assert added(LowRankConfig(rank=3), pair) == 2 * 3 * 2 * 3 * (16 + 16)
    assert added(LowRankConfig(rank=3, maps=("up", "down")), pair) == 2 * 2 * 2 * 3 * (16 + 64)


def adaptable() -> list[MixerConfig]:
    """The first case of every kind of mixer that has maps with roles, and some others whose maps are read in their own
    ways."""
    cases = [case.config for case in KINDS.values()]
    cases += [case for case in MIXER_CASES if isinstance(case, WindowConfig | SynthesizerConfig | CompressiveConfig)]
    return [case for case in dict.fromkeys(cases) if not isinstance(case, StarConfig)]


@pytest.mark.parametrize("config", adaptable(), ids=name)
def test_the_flops_of_a_mixer_count_adapters_beside_its_maps(config: MixerConfig) -> None:
    modes = config.promises().modes
    memories = {"memory": 5} if "memory" in field_types(type(config)) and "causal" in modes else {}
    is_causal, past = "causal" in modes, 5 if memories else 0
    mixer = config.override(memories).build(SHAPE._replace(shared={}))
    assert adapt_maps(mixer)
    mixer = mixer.double()
    state = mixer(torch.randn(1, past, DIM).double(), context(1, past)).state if past else None
    ctx = context(1, 7, is_causal, start=past)
    counted = count_flops(mixer, torch.randn(1, 7, DIM).double(), ctx, state)
    assert mixer.flops(7, past, causal=is_causal) == pytest.approx(counted, rel=TOLERANCE)


@pytest.mark.parametrize("config", [AttentionConfig(bias=True), LinearConfig()], ids=name)
def test_the_flops_of_a_cross_mixer_count_adapters_beside_its_maps(config: MixerConfig) -> None:
    mixer = config.build(SHAPE)
    adapt_maps(mixer)
    ctx = Context(torch.arange(4)[None], False, source=torch.randn(1, 9, DIM))
    assert mixer.cross_flops(4, 9) == pytest.approx(count_flops(mixer, torch.randn(1, 4, DIM), ctx), rel=TOLERANCE)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
@pytest.mark.parametrize("gated", [False, True])
def test_the_flops_of_a_network_count_adapters(adapter: AdapterConfig, gated: bool) -> None:
    """Of rows, of a second stream of queries, and of pairs of unequal lengths."""
    sizes = SIZES | {"adapter": adapter, "feedforward": FeedForwardConfig(gated=gated)}
    pairs = EncoderDecoderConfig(**sizes).build(DATA)
    counted = count_flops(pairs, SYMBOLS[:1], SYMBOLS[:1, :4])
    assert pairs.flops(4, source=6) - pairs.tokens.flops(4) == pytest.approx(counted, rel=TOLERANCE)
    row = EncoderConfig(**sizes, query_stream="learned", mixer=AttentionConfig(encoding=XLConfig())).build(DATA)
    rows = gates.in_order(SYMBOLS[:1], gates.random_places(SYMBOLS[:1]))
    counted = count_flops(row.read_in_order, rows)
    assert row.flops(6) + row.in_order_flops(6, 6) == pytest.approx(counted, rel=TOLERANCE)


REFUSED: list[tuple[ModelConfig, tuple[str, ...], str]] = [
    (
        EncoderConfig(**SIZES, mixer=StarConfig()),
        ("query",),
        "Star, has no query map but no map with a role",
    ),
    (
        EncoderConfig(**SIZES, mixer=SynthesizerConfig()),
        ("value", "query"),
        "has no query map but value, output",
    ),
    (LanguageModelConfig(**SIZES, mixer=LSTMConfig()), ("value",), "LSTM, has no value map but output"),
    (LanguageModelConfig(**SIZES, mixer=LSHConfig()), ("key",), "LSH, has no key map but query, value, output"),
    (LanguageModelConfig(**SIZES), ("query", "gate"), "the feed-forward, FeedForward, has no gate map but up, down"),
]


@pytest.mark.parametrize(("family", "maps", "message"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_maps_that_a_sublayer_lacks_are_refused_by_name(
    family: ModelConfig, maps: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^adapter\.maps: .*{message}"):
        family.override({"adapter": {"kind": "low_rank", "maps": maps}}).build(DATA)


@pytest.mark.parametrize("kind", ["low_rank", "dora"])
def test_a_rank_above_the_smaller_side_of_a_map_is_refused_with_the_highest_rank(kind: str) -> None:
    family = EncoderConfig(**SIZES, mixer=AttentionConfig(head_dim=4))
    message = r"^adapter\.rank: is 9, but the query map has 16 inputs and 8 outputs; set it to at most 8$"
    with pytest.raises(ConfigError, match=message):
        family.override({"adapter": {"kind": kind, "maps": ["query", "key"], "rank": 9}}).build(DATA)
    family.override({"adapter": {"kind": kind, "maps": ["query", "key"], "rank": 8}}).build(DATA)
    family.override({"adapter": {"kind": "vera", "maps": ["key"], "rank": 40}}).build(DATA)


@pytest.mark.parametrize("kind", ["low_rank", "dora"])
def test_gates_of_a_network_with_a_high_rank_lower_it_with_the_width(kind: str) -> None:
    family = EncoderConfig(dim=64, heads=1, depth=2, mixer=AttentionConfig(head_dim=64))
    results = gates.check(family.override({"adapter": {"kind": kind, "maps": ["key"], "rank": 32}}))
    assert results and not [f"{gate.name}: {gate.detail}" for gate in results if not gate.passed]


class UnnamedConfig(MixerConfig, kind="unnamed"):
    """Its map says no role."""

    def promises(self) -> Promises:
        return Promises(("causal", "cross"))

    def build(self, shape: Shape) -> Mixer:
        return Unnamed(shape)


class Unnamed(Mixer):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.query = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        return MixerOutput(self.query(x))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 2 * queries * self.query.weight.numel()


def test_low_rank_beside_maps_of_a_plug_in_without_roles_is_refused_and_a_bottleneck_is_not() -> None:
    cross = EncoderDecoderConfig(**SIZES, cross_mixer=UnnamedConfig())
    with pytest.raises(ConfigError, match="the cross mixer, Unnamed, has no query map but no map with a role; name"):
        cross.override({"adapter": LowRankConfig()}).build(DATA)
    cross.override({"adapter": LowRankConfig(maps=("up",))}).build(DATA)
    cross.override({"adapter": BottleneckConfig()}).build(DATA)


@pytest.mark.parametrize(
    "maps", [(), ("query", "query"), ("query", "keys")], ids=["none", "one twice", "one that does not exist"]
)
def test_a_list_of_maps_names_each_once_and_some(maps: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"no map is adapted|name one twice|'query', 'key'"):
        LowRankConfig.from_dict({"maps": maps})


@each_family
@pytest.mark.parametrize("adapter", MERGED, ids=lambda adapter: adapter.kind)
def test_a_network_with_merged_adapters_computes_the_same(adapter: AdapterConfig, family: ModelConfig) -> None:
    adapted = randomised(family.override({"adapter": adapter}).build(DATA).double()).eval()
    plain = family.build(DATA).double().eval()
    plain.load_state_dict(adapter.merged(adapted.state_dict()))
    torch.testing.assert_close(hidden(plain), hidden(adapted), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("adapter", MERGED, ids=lambda adapter: adapter.kind)
@pytest.mark.parametrize("config", adaptable(), ids=name)
def test_a_mixer_with_merged_adapters_computes_the_same(config: MixerConfig, adapter: MapsConfig) -> None:
    """However it reads its maps."""
    shape = SHAPE._replace(shared={})
    plain, adapted = config.build(shape).double().eval(), config.build(shape).double().eval()
    for linear in (module for module in adapted.modules() if isinstance(module, LinearMap)):
        linear.adapter = adapter.adapter_of(linear, shape).double()
    tensors = randomised(adapted).state_dict()
    plain.load_state_dict(adapter.merged(tensors))
    x, ctx = torch.randn(2, 7, DIM).double(), context(2, 7, "causal" in config.promises().modes)
    torch.manual_seed(0)
    expected = plain(x, ctx).y
    torch.manual_seed(0)
    torch.testing.assert_close(adapted(x, ctx).y, expected, atol=1e-9, rtol=1e-9)
    adapted.load_state_dict(tensors | {name: 2 * tensor for name, tensor in tensors.items() if ".adapter." in name})
    assert not torch.allclose(adapted(x, ctx).y, expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_parallel_adapter_reads_what_the_feed_forward_reads(norm: Any) -> None:
    """By equation 5 of arXiv:2110.04366, h = FFN(x) + s (W_up relu(W_down x + b) + c), within the residual branch."""
    adapter = ParallelAdapterConfig(width=4, scale=3.0)
    network = randomised(EncoderConfig(**SIZES, norm=norm, adapter=adapter).build(DATA).double()).eval()
    block, ctx = network.stack.steps()[0], Context(torch.arange(6).expand(2, 6), causal=False)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    _, branch = block.branches()
    part, read = block.feedforward_adapter, block.feedforward_norm(x) if norm == "pre" else x
    added = 3.0 * ((read @ part.down.mT + part.down_bias).relu() @ part.up.mT + part.up_bias)
    expected = block.feedforward(read, ctx).y + added
    torch.testing.assert_close(block.compute(branch, x, ctx, None).y, expected, atol=1e-12, rtol=1e-12)
    assert block.mixer_adapter is None


def test_layers_that_share_a_mixer_share_the_adapters_of_its_maps_and_have_bottlenecks_of_their_own() -> None:
    shared = LanguageModelConfig(**SIZES, stack={"kind": "shared", "share": "mixer"})
    low_rank = shared.override({"adapter": ALL_MAPS}).build(DATA).stack.steps()
    assert low_rank[0].mixer.query.adapter is low_rank[1].mixer.query.adapter
    assert low_rank[0].feedforward.widen.adapter is not low_rank[1].feedforward.widen.adapter
    bottlenecks = shared.override({"adapter": BottleneckConfig()}).build(DATA).stack.steps()
    assert bottlenecks[0].mixer_adapter is not bottlenecks[1].mixer_adapter
    pair = EncoderDecoderConfig(**SIZES, shared_stacks=True, adapter=ALL_MAPS).build(DATA)
    encoder, decoder = (stack.steps()[0].mixer.query.adapter for stack in (pair.encoder, pair.decoder))
    assert encoder.down is decoder.down and encoder.up is decoder.up


def test_the_auxiliary_loss_of_a_compression_reads_adapted_maps_and_trains_none() -> None:
    config = CompressiveConfig(memory=3, compressed_memory=2, rate=2)
    mixer = randomised(config.build(SHAPE._replace(shared={}))).train()
    adapt_maps(mixer)
    losses = []
    for change in (0.0, 1.0):
        for adapter in (module for module in mixer.modules() if isinstance(module, Adapter)):
            nn.init.constant_(adapter.up, change)
        torch.manual_seed(0)
        first = mixer(torch.randn(1, 6, DIM), context(1, 6))
        losses.append(mixer(torch.randn(1, 6, DIM), context(1, 6, start=6), first.state).aux["compression"])
    assert not torch.isclose(*losses)
    losses[1].backward()
    assert not [key for key, weight in mixer.named_parameters() if weight.grad is not None and "adapter" in key]


class UpperConfig(LanguageModelConfig, kind="upper"):
    """Has an adapter of any kind in its last layer alone."""

    def build_adapter(self, name: Any, sublayer: nn.Module, shape: Shape) -> Adapter | None:
        return super().build_adapter(name, sublayer, shape) if shape.layer == shape.depth - 1 else None


@each_adapter
def test_a_family_chooses_which_sublayers_are_adapted(adapter: AdapterConfig) -> None:
    network = UpperConfig(**SIZES, adapter=adapter).build(DATA)
    assert {key.split(".")[2] for key in adapter_names(network)} == {"1"}


def test_dropout_of_what_low_rank_reads_is_of_training_alone() -> None:
    linear = LinearMap(8, 8, "query")
    LowRankConfig(dropout=0.5).build("mixer", nn.ModuleList([linear, LinearMap(8, 8, "value")]), SHAPE)
    assert linear.adapter is not None
    randomised(linear)
    x = torch.randn(3, 8)
    linear.train()
    assert not torch.equal(linear(x), linear(x))
    linear.eval()
    assert torch.equal(linear(x), linear(x))


def test_the_matrices_of_vera_follow_its_seed_whatever_the_seed_of_a_run_and_are_in_its_checkpoint() -> None:
    def tensors(run: int, seed: int) -> dict[str, Tensor]:
        torch.manual_seed(run)
        network = EncoderConfig(**SIZES, adapter=VeRAConfig(rank=5, seed=seed)).build(DATA)
        return {key: tensor for key, tensor in network.state_dict().items() if "projections" in key}

    first, other_run, other_seed = tensors(0, 0), tensors(1, 0), tensors(0, 1)
    assert {key.rpartition(".")[2]: tensor.shape for key, tensor in first.items()} == {"down": (5, 16), "up": (16, 5)}
    assert len({tensor.data_ptr() for tensor in first.values()}) == 2
    assert all(torch.equal(tensor, other_run[key]) for key, tensor in first.items())
    assert not any(torch.equal(tensor, other_seed[key]) for key, tensor in first.items())


def test_the_names_of_adapters_are_those_of_shared_ones_too() -> None:
    network = LanguageModelConfig(**SIZES, stack="shared", adapter=BottleneckConfig(width=4)).build(DATA)
    prefixes = {f"stack.blocks.{layer}.{sublayer}_adapter" for layer in (0, 1) for sublayer in ("mixer", "feedforward")}
    weights = ("down", "up", "down_bias", "up_bias")
    assert adapter_names(network) == {f"{prefix}.{weight}" for prefix in prefixes for weight in weights}
