"""Gates pass sound models and name the faults of broken ones."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch
from short_models import short
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Dropout, Fraction, Length, Memory, NonNegative, Positive, Rounds
from lit_transformers.encodings import ENCODINGS, ShawConfig, XLConfig
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates import gates, miniature
from lit_transformers.gates.inert_fields import memories
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape
from lit_transformers.mixers import MIXERS, AttentionConfig, WindowConfig
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig


class BrokenConfig(MixerConfig):
    """A mixer with one fault."""

    fault: str = "none"

    def promises(self) -> Promises:
        return Promises(("causal",), streams=True)

    def build(self, shape: Shape) -> Mixer:
        return BrokenMixer(self, shape)


class BrokenMixer(Mixer):
    """A running mean of the past, which its fault may change."""

    def __init__(self, config: BrokenConfig, shape: Shape) -> None:
        super().__init__()
        self.fault, self.ghost = config.fault, torch.zeros(())
        self.linear = nn.Linear(shape.dim, shape.dim)
        self.idle = nn.Linear(2, 2) if config.fault == "idle" else None

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        if ctx.padding_mask is not None and self.fault != "padding":
            x = x * ctx.padding_mask[..., None]
        total, count = x.cumsum(1), torch.arange(1, x.size(1) + 1, dtype=x.dtype)[:, None].expand(x.size(0), -1, 1)
        if state is not None and self.fault != "state_ignored":
            total, count = total + state["total"][:, None], count + state["count"][:, None]
        if self.fault == "haunted":
            total, self.ghost = total + (self.ghost if state is not None else 0), x.abs().mean().detach()
        if self.fault == "leak":
            total = total + 1e-3 * x.sum(1, keepdim=True)
        if self.fault == "padding":
            total = total + x.flip(1).cumsum(1).flip(1) * 0 + x.roll(5, 1) * (torch.arange(x.size(1)) < 5)[:, None]
        if self.fault == "undefined":
            total = total * torch.nan
        if self.fault == "steep":
            total = total + (x - x).sqrt()  # zero, with a gradient that is no number
        state = {"total": total[:, -1].detach(), "count": count[:, -1].detach()}
        return MixerOutput(self.linear(total / count), state)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 0


class TwoWayConfig(MixerConfig):
    """A mixer that sees both ways, with one fault."""

    fault: str = "none"

    def promises(self) -> Promises:
        return Promises(("bidirectional",))

    def build(self, shape: Shape) -> Mixer:
        return TwoWay(self, shape)


class TwoWay(Mixer):
    """The mean of all tokens, which its fault may change."""

    def __init__(self, config: TwoWayConfig, shape: Shape) -> None:
        super().__init__()
        self.fault = config.fault
        self.linear = nn.Linear(shape.dim, shape.dim)
        self.idle = nn.Linear(2, 2) if config.fault == "idle" else None

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        padding_mask = (
            torch.ones(x.shape[:2], dtype=x.dtype) if ctx.padding_mask is None else ctx.padding_mask.to(x.dtype)
        )
        if self.fault == "padding":
            padding_mask = torch.ones_like(padding_mask)
        mean = (x * padding_mask[..., None]).sum(1, keepdim=True) / padding_mask.sum(1)[:, None, None]
        if self.fault == "length":
            mean = mean * x.size(1)
        return MixerOutput(self.linear(x + mean))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 2 * queries * self.linear.in_features**2


def failed_gates(fault: str) -> set[str]:
    config = LanguageModelConfig(dim=16, heads=2, depth=2, mixer=BrokenConfig(fault=fault))
    return {gate.name for gate in gates.check(config) if not gate.passed}


def failed_encoder_gates(fault: str) -> set[str]:
    config = EncoderConfig(dim=16, heads=2, depth=2, mixer=TwoWayConfig(fault=fault))
    return {gate.name for gate in gates.check(config) if not gate.passed}


@pytest.mark.parametrize(("kind", "memory"), [(None, 0), *((kind, 16) for kind in (None, *ENCODINGS))])
def test_attention_passes_with_every_encoding(kind: str | None, memory: int) -> None:
    encoding = ENCODINGS[kind]() if kind else None
    config = LanguageModelConfig(mixer=AttentionConfig(encoding=encoding, memory=memory))
    assert [gate for gate in gates.check(short(config)) if not gate.passed] == []


@pytest.mark.parametrize(
    "config",
    [
        LanguageModelConfig(norm="post", mixer=AttentionConfig(encoding=XLConfig(), memory=64, same_length=True)),
        LanguageModelConfig(positions=LearnedConfig(per_layer=True), dropout=0.1),
        LanguageModelConfig(tokens=AdaptiveTokenEmbeddingConfig()),
        LanguageModelConfig(mixer=AttentionConfig(encoding=ShawConfig(share_layers=True), head_dim=64)),
    ],
)
def test_real_models_pass(config: LanguageModelConfig) -> None:
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_a_sound_mixer_of_another_kind_passes() -> None:
    assert failed_gates("none") == set()


@pytest.mark.parametrize(
    ("fault", "gates_that_fail"),
    [
        ("leak", {"no future (change)", "no future (gradient)"}),
        ("padding", {"padding changes nothing"}),
        ("state_ignored", {"segments equal one pass"}),
        ("haunted", {"emptied lanes start anew"}),
        ("idle", {"every parameter learns"}),
        ("steep", {"no future (gradient)", "every parameter learns"}),
        ("undefined", {*gates.CAUSAL}),
    ],
)
def test_each_fault_is_found_by_its_gate(fault: str, gates_that_fail: set[str]) -> None:
    assert failed_gates(fault) >= gates_that_fail


@pytest.mark.parametrize(
    ("fault", "gates_that_fail"),
    [
        ("none", set()),
        ("padding", {"padding changes nothing"}),
        ("length", {"padding changes nothing"}),
        ("idle", {"every parameter learns"}),
    ],
)
def test_each_fault_of_an_encoder_is_found_by_its_gate(fault: str, gates_that_fail: set[str]) -> None:
    assert failed_encoder_gates(fault) == gates_that_fail


@pytest.mark.parametrize("encoding", [None, *ENCODINGS])
def test_real_encoders_pass(encoding: str | None) -> None:
    config = EncoderConfig().override({"mixer.encoding": encoding})
    results = gates.check(short(config))
    assert results and [gate for gate in results if not gate.passed] == []


def failed_pair_gates(**mixers: MixerConfig) -> set[str]:
    config = EncoderDecoderConfig(dim=16, heads=2, depth=2, **mixers)  # type: ignore[arg-type]
    return {gate.name for gate in gates.check(config) if not gate.passed}


@pytest.mark.parametrize(
    ("fault", "gates_that_fail"),
    [
        ("none", set()),
        ("leak", {"no future (change)", "no future (gradient)"}),
        ("padding", {"padding of targets changes nothing"}),
        ("state_ignored", {"decoding equals one pass"}),
        ("idle", {"every parameter learns"}),
        ("undefined", {*gates.PAIRED} - {"padding of sources changes nothing"}),
    ],
)
def test_each_fault_of_a_decoder_is_found_by_its_gate(fault: str, gates_that_fail: set[str]) -> None:
    failed = failed_pair_gates(decoder_mixer=BrokenConfig(fault=fault))
    assert failed >= gates_that_fail and (failed == set()) == (fault == "none")


@pytest.mark.parametrize(
    ("fault", "gate"), [("padding", "padding of sources changes nothing"), ("idle", "every parameter learns")]
)
def test_each_fault_of_an_encoder_before_a_decoder_is_found_by_its_gate(fault: str, gate: str) -> None:
    assert failed_pair_gates(mixer=TwoWayConfig(fault=fault)) == {gate}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "norm", "shared"),
    [
        *((stack, "pre", True) for stack in ("sequential", "shared", "universal", "reversible")),
        *((stack, "post", False) for stack in ("sequential", "shared", "universal")),
    ],
)
def test_real_networks_for_pairs_pass(stack: str, norm: str, shared: bool) -> None:
    """Symbols may be shared in any stack and with any norm alike, so that half of the combinations do."""
    config = EncoderDecoderConfig.from_dict(
        {
            "stack": stack,
            "norm": norm,
            "shared_tokens": shared,
            "positions": "sinusoidal",
            "decoder_depth": 3,
            "dropout": 0.1,
        }
    )
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_rows_of_a_probe_are_long_enough_for_what_the_mixer_names_to_act() -> None:
    base = LanguageModelConfig(mixer=AttentionConfig(memory=4096))
    assert miniature.probe_length(base) == miniature.SHORTEST
    assert miniature.probe_length(base.override({"mixer": WindowConfig(window=100)})) > 200
    assert miniature.probe_length(base.override({"mixer": WindowConfig(window=(8, 100) * 3)})) > 200
    assert miniature.probe_length(base.override({"mixer": WindowConfig(window=9000)})) == miniature.LONGEST
    table = {"mixer": WindowConfig(window=100), "positions": LearnedConfig(restart="document", max_length=64)}
    assert miniature.probe_length(base.override(table)) == 32, "two segments fit the table"


def test_a_small_model_keeps_the_lengths_of_its_mixer_and_a_layer_for_each_value() -> None:
    config = LanguageModelConfig(depth=5, dropout=0.3, mixer=WindowConfig(window=(4, 8, 16, 32, 64)))
    small = miniature.miniature(config, 131)
    assert (small.dim, small.depth, small.dropout, small.mixer) == (64, 5, 0.0, config.mixer)
    narrow = config.override({"mixer.window": 50})
    assert miniature.miniature(narrow, 103).depth == 2
    assert miniature.miniature(narrow.override({"mixer.full_every": 3}), 103).depth == 4, "a cycle, and its next layer"


class UnusualConfig(BrokenConfig):
    """A sound mixer from outside of the library, whose fields have roles that their names do not betray."""

    horizon: Annotated[Positive | tuple[Positive, ...], Length] = 8
    past: Annotated[NonNegative, Memory] = 0
    lapse: Annotated[Fraction, Dropout] = 0.0
    memory: Annotated[Positive, Rounds] = 1


def test_a_miniature_goes_by_the_roles_of_fields_and_not_by_their_names() -> None:
    mixer = UnusualConfig(horizon=(3, 90), past=4096, lapse=0.5, memory=100)
    config = LanguageModelConfig(mixer=mixer)
    assert miniature.probe_length(config) == 2 * 90 + 3, "neither the past nor the number of rounds is a length"
    assert miniature.miniature(config, 183).mixer == mixer.override({"past": 192, "lapse": 0.0})
    assert memories(config) == {"mixer.past": 4096}
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_a_decoder_without_a_memory_forgets_nothing_whatever_the_field_is_called() -> None:
    _, decoder = EncoderDecoderConfig(decoder_mixer=UnusualConfig()).sides()
    assert decoder.mixer == UnusualConfig(past=EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIXERS)
def test_every_mixer_passes_at_all_places_of_a_network_for_pairs_that_it_promises_to_serve(kind: str) -> None:
    modes = {"mixer": "bidirectional", "decoder_mixer": "causal", "cross_mixer": "cross"}
    network = EncoderDecoderConfig(depth=2).override(dict.fromkeys(modes, kind))
    if kind != "compressive":  # a short target leaves nothing to compress
        network = short(network)
    served = [place for place, mode in modes.items() if mode in network.get(place).promises().modes]
    for place in set(modes) - set(served):
        with pytest.raises(ConfigError):
            EncoderDecoderConfig(depth=2).override({place: kind}).build(miniature.probe_data(11, 64))
    config = EncoderDecoderConfig(depth=2).override({place: network.get(place) for place in served})
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_a_small_network_for_pairs_has_few_layers_on_both_sides() -> None:
    config = EncoderDecoderConfig(depth=6, decoder_depth=5, decoder_mixer=WindowConfig(window=100))
    small = miniature.miniature(config, 131)
    assert isinstance(small, EncoderDecoderConfig)
    assert (small.depth, small.decoder_depth, small.decoder_mixer) == (2, 2, config.decoder_mixer)
    assert miniature.probe_length(config) > 200
    each = config.override({"decoder_mixer.window": (4, 8, 16, 32, 64)})
    assert miniature.miniature(each, 131).get("decoder_depth") == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIXERS)
def test_every_mixer_passes_in_a_language_model_if_it_promises_to_be_causal(kind: str) -> None:
    config = short(LanguageModelConfig(depth=2).override({"mixer": kind}))
    if "causal" not in config.mixer.promises().modes:
        with pytest.raises(ConfigError):
            config.build(miniature.probe_data(11, 64))
        return
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_gates_leave_the_random_numbers_of_the_caller_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    gates.check(LanguageModelConfig())
    assert torch.equal(torch.rand(4), expected)
