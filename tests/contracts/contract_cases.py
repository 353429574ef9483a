"""What the contract tests run on: a few small configs of every kind of every table.

A kind that has none fails ``test_every_kind_has_a_case``: add a line here with the kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn

from lit_transformers.config import Config, field_types
from lit_transformers.encodings import (
    ENCODINGS,
    EncodingConfig,
    HuangConfig,
    LearnedRelativeConfig,
    RotaryConfig,
    ShawConfig,
    XLConfig,
)
from lit_transformers.mixer import Context, Mixer, MixerConfig, Mode, Shape
from lit_transformers.mixers import MIXERS, AttentionConfig
from lit_transformers.models import MODELS, EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.tokens import TOKENS, AdaptiveTokensConfig, FullTokensConfig
from lit_transformers.positions import POSITIONS, LearnedConfig, SinusoidalConfig
from lit_transformers.stacks import STACKS, SequentialConfig, SharedConfig

Network = TypeVar("Network", bound=nn.Module)

Promise = Mode | Literal["streams"]

DIM, HEADS = 8, 2

MIXER_CASES: Sequence[MixerConfig] = (
    AttentionConfig(),
    AttentionConfig(bias=True, scaled=False, head_dim=6),
)
ENCODING_CASES: Sequence[EncodingConfig] = (
    RotaryConfig(),
    RotaryConfig(unrotated=0.5, base=50.0),
    XLConfig(),
    XLConfig(biases="per_layer", clamp_length=2),
    XLConfig(content_bias=False, position_bias=False),
    ShawConfig(distance=2),
    ShawConfig(distance=3, keys=False, per_head=True, share_layers=True),
    HuangConfig(distance=2),
    HuangConfig(distance=3, per_head=True, share_layers=True),
    LearnedRelativeConfig(buckets=4, max_distance=5),
    LearnedRelativeConfig(buckets=8, max_distance=9, share_layers=False),
)
POSITION_CASES = (
    SinusoidalConfig(),
    SinusoidalConfig(restart="document"),
    LearnedConfig(),
    LearnedConfig(per_layer=True, restart="document", max_length=64),
)
STACK_CASES = (SequentialConfig(), SharedConfig(), SharedConfig(share="mixer"), SharedConfig(groups=2))
TOKEN_CASES = (
    FullTokensConfig(),
    FullTokensConfig(tied=False, scaled=False),
    AdaptiveTokensConfig(cutoffs=(4, 8), shrink=2),
)
SMALL = LanguageModelConfig(
    dim=DIM, heads=HEADS, depth=4, mixer=AttentionConfig(encoding=XLConfig(), memory=3, bias=True), initial_std=0.3
)
MODEL_CASES = (
    SMALL,
    EncoderConfig(dim=DIM, heads=HEADS, depth=2),
    EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, norm="post"),
)

CASES: Mapping[str, tuple[Mapping[str, type[Config]], Sequence[Config]]] = {
    "MIXERS": (MIXERS, MIXER_CASES),
    "ENCODINGS": (ENCODINGS, ENCODING_CASES),
    "POSITIONS": (POSITIONS, POSITION_CASES),
    "STACKS": (STACKS, STACK_CASES),
    "TOKENS": (TOKENS, TOKEN_CASES),
    "MODELS": (MODELS, MODEL_CASES),
}


class Case(NamedTuple):
    """A mixer's config, built alone in float64 with weights large enough to show a difference."""

    config: MixerConfig

    def build(self, mode: Mode = "causal", **changes: Any) -> Mixer:
        torch.manual_seed(0)
        mixer = self.config.override(changes).build(Shape(DIM, HEADS, 64, 0, 1, shared={}))
        mixer.require(mode)
        return randomised(mixer.double())

    @property
    def encoded(self) -> bool:
        return "encoding" in field_types(type(self.config)) and self.config.get("encoding") is not None

    @property
    def remembers(self) -> bool:
        return "memory" in field_types(type(self.config))


def mixers(*asked: Promise, encoded: bool = True, remembering: bool = False) -> pytest.MarkDecorator:
    """Parametrises over every mixer that promises all that is ``asked``; with every encoding, or with none alone."""
    found = [case for case in variants(encoded) if all(promises(case, promise) for promise in asked)]
    found = [case for case in found if case.remembers or not remembering]
    return pytest.mark.parametrize("case", found, ids=[name(case.config) for case in found])


def variants(encoded: bool) -> Iterator[Case]:
    for config in MIXER_CASES:
        yield Case(config)
        if encoded and "encoding" in field_types(type(config)):
            yield from (Case(config.override({"encoding": encoding})) for encoding in ENCODING_CASES)


def promises(case: Case, promise: Promise) -> bool:
    if promise == "cross" and case.encoded:
        return False
    return bool(getattr(case.config.build(Shape(DIM, HEADS, 64)), promise))


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


def context(rows: int, length: int, causal: bool = True, keep: Tensor | None = None, start: int = 0) -> Context:
    return Context((torch.arange(length) + start).expand(rows, length), causal, keep)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
