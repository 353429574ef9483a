"""The cases of the contract tests: a few small configs of every kind of every table.

A kind that has none fails ``test_every_kind_has_a_case``: add a line here with the kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
import torch
from numerics import placed, real
from torch import Tensor, nn

from lit_transformers.adapters import (
    ADAPTERS,
    AdapterConfig,
    BottleneckConfig,
    DoRAConfig,
    IA3Config,
    LowRankConfig,
    ParallelAdapterConfig,
    VeRAConfig,
)
from lit_transformers.config import Config, Dropout, Memory, field_types
from lit_transformers.encodings import (
    ENCODINGS,
    EncodingConfig,
    HuangConfig,
    LearnedRelativeConfig,
    RotaryConfig,
    ShawConfig,
    XLConfig,
)
from lit_transformers.encodings.positions import POSITIONS, LearnedConfig, SinusoidalConfig
from lit_transformers.mixer import Context, Mixer, MixerConfig, Mode, Shape
from lit_transformers.mixers import (
    MIXERS,
    AdaptiveSpanConfig,
    AttentionConfig,
    BigBirdConfig,
    BiLSTMConfig,
    CompressiveConfig,
    ConvolutionConfig,
    DietConfig,
    EntmaxConfig,
    LinearConfig,
    LinformerConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    LSTMConfig,
    SparseConfig,
    StarConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.models import MODELS, DeFormerConfig, EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.tokens import TOKENS, AdaptiveTokenEmbeddingConfig, FullTokenEmbeddingConfig
from lit_transformers.stacks import (
    STACKS,
    HaltingConfig,
    ReversibleConfig,
    SequentialConfig,
    SharedConfig,
    StackConfig,
    UniversalConfig,
)
from lit_transformers.stacks.feedforward import (
    FEEDFORWARDS,
    FeedForwardConfig,
    SeparableConvolutionConfig,
    TransitionConfig,
)

Network = TypeVar("Network", bound=nn.Module)

Promise = Mode | Literal["streams"]
Encodings = Literal["none", "with attention", "with every mixer"]
"""The encodings that mixers are tried with."""

DIM, HEADS = 8, 2

LOCAL: list[MixerConfig] = []
"""Cases that by design do not see every position that they might."""


def local(config: MixerConfig) -> MixerConfig:
    """Enters a case among them."""
    LOCAL.append(config)
    return config


MIXER_CASES: Sequence[MixerConfig] = (
    AttentionConfig(),
    AttentionConfig(bias=True, scaled=False, head_dim=6),
    WindowConfig(window=800),
    WindowConfig(window=800, global_tokens="first", global_count=2, global_projections="separate"),
    SparseConfig(block=800),
    BigBirdConfig(block=3, window=601, random=0),
    BigBirdConfig(block=800, random=1, window=1),
    local(LocalConfig(block=3)),
    local(WindowConfig(window=2)),
    local(WindowConfig(window=2, dilation=3, dilated_heads=1, global_tokens="periodic", global_count=4)),
    local(WindowConfig(window=3, global_tokens="first", global_count=3, global_projections="separate", bias=True)),
    local(WindowConfig(window=3, global_tokens="marked")),
    local(SparseConfig(block=3)),
    local(SparseConfig(block=4, pattern="fixed", summary=1, heads="halves")),
    local(SparseConfig(block=3, heads="layers")),
    local(SparseConfig(block=5, pattern="fixed", summary=2)),
    local(DietConfig()),
    local(DietConfig(pattern="dilated_memory", taps=2, base=3)),
    local(DietConfig(pattern="cascade")),
    local(BigBirdConfig(block=2, random=1)),
    local(BigBirdConfig(block=3, window=1, random=0, global_blocks="first")),
    local(BigBirdConfig(block=1, window=0, random=2, global_blocks="none", graph_per_head=False)),
    LinearConfig(),
    LinearConfig(features="softplus", chunk_length=3, bias=True, head_dim=3),
    LinearConfig(features="polynomial", chunk_length=50),
    local(LinearConfig(features="relu", chunk_length=7, eps=0.1)),
    LinformerConfig(rank=5),
    LinformerConfig(rank=5, sharing="heads", bias=True, head_dim=3),
    LinformerConfig(rank=4, sharing="key_value", frozen=True),
    LinformerConfig(rank=4, sharing="layers"),
    LinformerConfig(rank=200, projection="mean"),
    local(LinformerConfig(rank=200, projection="max")),
    LinformerConfig(rank=200, projection="convolution"),
    LinformerConfig(rank=150, projection="convolution", sharing="key_value"),
    SynthesizerConfig(),
    SynthesizerConfig(members=("random",), bias=True, head_dim=3),
    SynthesizerConfig(members=("fixed_random",), per_head=False),
    SynthesizerConfig(members=("factorised_dense",), factor=45),
    SynthesizerConfig(members=("factorised_random",), rank=3, per_head=False),
    SynthesizerConfig(members=("random", "dense", "dot_product")),
    SynthesizerConfig(members=("fixed_random", "factorised_random", "factorised_dense", "dense"), bias=True),
    local(ConvolutionConfig(kernel=3)),
    local(ConvolutionConfig(kernel=4, dynamic=True, softmax=False, glu=False, heads=4, bias=False)),
    LSRAConfig(),
    local(LSRAConfig(window=3, convolution=ConvolutionConfig(kernel=4))),
    LSRAConfig(fraction=0.75, attention_heads=3, bias=True, convolution=ConvolutionConfig(kernel=4, dynamic=True)),
    LSTMConfig(),
    LSTMConfig(width=5),
    BiLSTMConfig(),
    BiLSTMConfig(width=5),
    StarConfig(),
    StarConfig(cycles=3, shared=True, boundary="zero", bias=True),
    StarConfig(cycles=1, boundary="masked", inputs=False),
    StarConfig(ring=False),
    local(StarConfig(radial=False)),
    CompressiveConfig(memory=3, compressed_memory=2, rate=2),
    CompressiveConfig(memory=3, compressed_memory=2, function="most_used", auxiliary="none"),
    CompressiveConfig(memory=4, compressed_memory=1, rate=2, function="dilated", auxiliary="auto_encoding", bias=True),
    local(LSHConfig(rounds=2, chunk_length=3, buckets=4, seed=0)),
    local(LSHConfig(rounds=1, chunk_length=4, back=2, buckets=(2, 4), seed=1, bias=True, head_dim=3, scaled=True)),
    local(LSHConfig(rounds=3, chunk_length=5, chunks="by_sort", ahead=0, across_buckets=True, buckets=6, seed=0)),
    local(LSHConfig(chunk_length=2, back=0, chunks="by_sort", buckets=2, correct_duplicates=False, seed=0)),
    LSHConfig(rounds=None),
    LSHConfig(rounds=2, chunk_length=304, buckets=1, seed=0),
    local(AdaptiveSpanConfig(span=8, ramp=10)),
    local(AdaptiveSpanConfig(span=300, ramp=40, share="layer")),
    local(AdaptiveSpanConfig(span=7, ramp=4, learns="dynamic")),
    local(AdaptiveSpanConfig(span=9, ramp=3, learns="fixed", initial=0.5, penalty=0.0)),
    local(TopKConfig(kept=21)),  # rows longer than half precision is tried on: rounding chooses anew among like scores
    local(TopKConfig(kept=24, when="after", bias=True)),
    local(EntmaxConfig()),
    local(EntmaxConfig(alpha=1.5)),
    local(EntmaxConfig(alpha=2.0, bias=True)),
    AdaptiveSpanConfig(span=700, ramp=800, share="model", learns="dynamic"),
    TopKConfig(kept=900),
    TopKConfig(kept=900, when="after"),
    EntmaxConfig(alpha=1.0),
)
ENCODING_CASES: Sequence[EncodingConfig] = (
    RotaryConfig(),
    RotaryConfig(unrotated=0.5, base=50.0),
    XLConfig(),
    XLConfig(biases="per_layer", clamp_length=2),
    XLConfig(content_bias=False, position_bias=False),
    XLConfig(segments=2),
    ShawConfig(distance=2),
    ShawConfig(distance=3, keys=False, per_head=True, share_layers=True),
    HuangConfig(distance=2),
    HuangConfig(distance=3, per_head=True, share_layers=True),
    LearnedRelativeConfig(buckets=4, max_distance=5),
    LearnedRelativeConfig(buckets=8, max_distance=9, share_layers=False),
)
FEW_ENCODINGS: Sequence[EncodingConfig] = (RotaryConfig(), XLConfig(), ShawConfig(distance=2))
"""The encodings that mixers other than plain attention are tried with: they share its executor, which is tried with
all."""

POSITION_CASES = (
    SinusoidalConfig(),
    SinusoidalConfig(restart="document"),
    LearnedConfig(),
    LearnedConfig(per_layer=True, restart="document", max_length=64),
    SinusoidalConfig(per_layer=True),
)
STACK_CASES: Sequence[StackConfig] = (
    SequentialConfig(),
    SharedConfig(),
    SharedConfig(share="mixer"),
    SharedConfig(share="feedforward"),
    SharedConfig(groups=2),
    UniversalConfig(),
    UniversalConfig(timestep=False, halting=HaltingConfig()),
    UniversalConfig(halting=HaltingConfig(combine="interpolation")),
    ReversibleConfig(),
    ReversibleConfig(recompute=False),
)
FEEDFORWARD_CASES: Sequence[TransitionConfig] = (
    FeedForwardConfig(),
    FeedForwardConfig(chunks=3, activation="gelu"),
    FeedForwardConfig(gated=True, activation="silu", bias=False),
    SeparableConvolutionConfig(),
    SeparableConvolutionConfig(kernels=(4, 1), width=6),
)
TOKEN_CASES = (
    FullTokenEmbeddingConfig(),
    FullTokenEmbeddingConfig(tied=False, scaled=False),
    FullTokenEmbeddingConfig(bias=False),
    AdaptiveTokenEmbeddingConfig(cutoffs=(4, 8), shrink=2),
)
ADAPTER_CASES: Sequence[AdapterConfig] = (
    BottleneckConfig(width=6),
    BottleneckConfig(width=4, activation="gelu", after="feedforward"),
    LowRankConfig(rank=4),
    LowRankConfig(rank=3, alpha=1.0, maps=("query", "key", "value", "output", "up", "down")),
    ParallelAdapterConfig(width=6, sublayers="both"),
    DoRAConfig(rank=3, alpha=5.0),
    VeRAConfig(rank=4, maps=("query", "up")),
    IA3Config(),
)
SMALL = LanguageModelConfig(
    dim=DIM, heads=HEADS, depth=2, mixer=AttentionConfig(encoding=XLConfig(), memory=3, bias=True), initial_std=0.3
)
MODEL_CASES = (
    SMALL,
    EncoderConfig(dim=DIM, heads=HEADS, depth=2),
    EncoderConfig(dim=DIM, heads=HEADS, depth=2, causal=True),
    EncoderConfig(dim=DIM, heads=HEADS, depth=2, mixer=AttentionConfig(encoding=XLConfig()), query_stream="learned"),
    DeFormerConfig(dim=DIM, heads=HEADS, depth=3, apart=1, segments=2, positions=SinusoidalConfig()),
    DeFormerConfig(dim=DIM, heads=HEADS, depth=2, apart=2, causal=True),
    EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, shared_stacks=True),
    EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, norm="post"),
)

CASES: Mapping[str, tuple[Mapping[str, type[Config]], Sequence[Config]]] = {
    "MIXERS": (MIXERS, MIXER_CASES),
    "ENCODINGS": (ENCODINGS, ENCODING_CASES),
    "POSITIONS": (POSITIONS, POSITION_CASES),
    "STACKS": (STACKS, STACK_CASES),
    "FEEDFORWARDS": (FEEDFORWARDS, FEEDFORWARD_CASES),
    "TOKENS": (TOKENS, TOKEN_CASES),
    "MODELS": (MODELS, MODEL_CASES),
    "ADAPTERS": (ADAPTERS, ADAPTER_CASES),
}


LONG = 300
"""More than a block of queries, and no multiple of one."""
MAX_LENGTH = 304
"""The length for which mixers of a fixed length are built: no test reads more."""


class Case(NamedTuple):
    """A mixer's config, built alone with weights large enough to show a difference, as ``numerics`` places it.

    sees_all: whether it sees every position that it might.
    """

    config: MixerConfig
    sees_all: bool = True

    def build(self, mode: Mode | None = None, **changes: Any) -> Mixer:
        torch.manual_seed(0)
        config = self.config.override(changes)
        mixer = config.build(SHAPE._replace(shared={}))
        config.require(mode or self.mode)
        return placed(randomised(mixer.double()))

    @property
    def modes(self) -> list[Mode]:
        """The modes of mixing a sequence with itself that are promised; "permuted", for which the context gives a
        pattern, has separate tests in ``test_two_streams``."""
        return [mode for mode in self.config.promises().modes if mode not in ("permuted", "cross")]

    @property
    def mode(self) -> Mode:
        return self.modes[0]

    @property
    def remembers(self) -> bool:
        return bool(dict(self.config.leaves_with(Memory)))

    @property
    def encoded(self) -> bool:
        return "encoding" in field_types(type(self.config)) and self.config.get("encoding") is not None

    def lengths(self, *short: int) -> Sequence[int]:
        """Short lengths, and without an encoding one of several blocks: encodings in blocks are the executor's."""
        return short if self.encoded else (*short, LONG)


SHAPE = Shape(DIM, HEADS, MAX_LENGTH)


def mixers(
    *required: Promise, encodings: Encodings = "with attention", remembering: bool = False, sees_all: bool = False
) -> pytest.MarkDecorator:
    """Parametrises over every mixer that makes all ``required`` promises."""
    cases = [case for case in variants(encodings) if all(promises(case, promise) for promise in required)]
    cases = [case for case in cases if (case.remembers or not remembering) and (case.sees_all or not sees_all)]
    return pytest.mark.parametrize("case", [example(case) for case in cases])


def each_mode() -> pytest.MarkDecorator:
    """Parametrises over every mixer in every mode of mixing a sequence with itself that it promises."""
    return pytest.mark.parametrize(
        ("case", "mode"), [example(case, mode) for case in variants("with attention") for mode in case.modes]
    )


def dropping() -> pytest.MarkDecorator:
    """Parametrises over every mixer that has dropout, with every such field of it and a value that drops."""
    cases = [(case, dict.fromkeys(dropouts_of(case.config), 0.5)) for case in variants("none")]
    cases = [(case, dropouts) for case, dropouts in cases if dropouts]
    return pytest.mark.parametrize(("case", "dropouts"), [example(case, dropouts) for case, dropouts in cases])


def example(case: Case, *values: Any) -> Any:
    """An example of a test, as pytest takes it. The first case of each kind is quick, and the others are slow."""
    suffix = "".join(f"-{value}" for value in values if isinstance(value, str))
    marks = [] if case in KINDS.values() else [pytest.mark.slow]
    return pytest.param(case, *values, marks=marks, id=f"{name(case.config)}{suffix}")


def dropouts_of(config: Config) -> list[str]:
    """The paths of all of its fields that drop."""
    return [path for path, _ in config.leaves_with(Dropout)]


@cache
def variants(encodings: Encodings) -> Sequence[Case]:
    """Every mixer without an encoding; the first attention with all of them, and of others the first of a kind with
    few, which prove that it hands them to the executor that all share."""
    cases, encoded_types = [], set[type[MixerConfig]]()
    for config in MIXER_CASES:
        cases.append(Case(config, sees_all=config not in LOCAL))
        takes_encoding = "encoding" in field_types(type(config)) and config.get("encoding") is None
        if not takes_encoding or type(config) in encoded_types or encodings == "none":
            continue
        encoded_types.add(type(config))
        if isinstance(config, AttentionConfig) or encodings == "with every mixer":
            tried = ENCODING_CASES if isinstance(config, AttentionConfig) else FEW_ENCODINGS
            cases += [Case(config.override({"encoding": encoding}), config not in LOCAL) for encoding in tried]
    return cases


def first_of_each_kind(cases: Sequence[Case]) -> dict[str, Case]:
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.config.kind, case)
    return first


KINDS: Mapping[str, Case] = first_of_each_kind(variants("none"))
"""The first case of every kind of mixer that has one: for behaviour that the mixer's own fields do not change."""


def promises(case: Case, promise: Promise) -> bool:
    promised = case.config.promises()
    return promised.streams if promise == "streams" else promise in promised.modes


def name(config: Config) -> str:
    """The kind and the fields that differ from its defaults, for the name of a test."""
    changed = []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if value != field.default:
            changed.append(f"{field.name}={name(value) if isinstance(value, Config) else value}")
    return f"{config.kind or type(config).__name__}({','.join(changed)})"


def randomised(network: Network) -> Network:
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network


def context(
    rows: int, length: int, causal: bool = True, padding_mask: Tensor | None = None, start: int | Tensor = 0
) -> Context:
    """``start``: the position of the first token, or (rows, 1) for each row."""
    return Context((torch.arange(length) + start).expand(rows, length), causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=real())
