"""Configs drawn at random from the tables pass their gates, or are refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from random import Random

import pytest
import torch
from random_configs import random_fields

from lit_transformers.config import Config, ConfigError
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates import gates, miniature
from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers import (
    MIXERS,
    AdaptiveSpanConfig,
    CompressiveConfig,
    ConvolutionConfig,
    DietConfig,
    LinformerConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.models import MODELS, EncoderConfig, EncoderDecoderConfig, ModelConfig
from lit_transformers.stacks import UniversalConfig

ROUNDS = 2
"""Configs of every mixer. A hand that looks for new failures takes more, and other seeds."""
LAST = "every parameter learns"
LENGTH = 4 * miniature.LONGEST
"""The length that a table of positions must hold, for a probe's segments follow one another."""


def model_with(mixer: type[Config], model: type[Config], random: Random) -> ModelConfig:
    """A model of one kind with a mixer of one kind and all else at random. Raises ConfigError where it is refused."""
    fields = random_fields(model, random) | {"mixer": random_fields(mixer, random)}
    fields |= {"dim": 16, "heads": 2, "depth": random.randint(1, 3)}
    config = ModelConfig.from_dict(fields)
    if isinstance(config.positions, LearnedConfig) and config.positions.restart == "document":
        config = config.override({"positions.max_length": LENGTH})
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        config.build(miniature.probe_data(miniature.VOCABULARY, LENGTH))
    return config


def accepted(rounds: int, attempts: int = 60) -> Iterator[ModelConfig]:
    """``rounds`` configs of every mixer, in the kinds of models in turn. Each refusal has a reason."""
    random, models = Random(0), cycle(MODELS.values())
    for _ in range(rounds):
        for mixer in MIXERS.values():
            for _ in range(attempts):
                try:
                    config = model_with(mixer, next(models), random)
                except ConfigError as error:
                    assert error.reason
                    continue
                yield config
                break


def mixer_of(config: ModelConfig, parameter: str) -> MixerConfig:
    """The config of the mixer that a parameter belongs to, or stands next to."""
    mixer = config.mixer
    if isinstance(config, EncoderDecoderConfig) and parameter.startswith("decoder."):
        mixer = config.cross_mixer if ".cross" in parameter else config.decoder_mixer
    return mixer.convolution if isinstance(mixer, LSRAConfig) and ".convolution." in parameter else mixer


def shows_one_key(mixer: MixerConfig) -> bool:
    """Whether queries of some layer see one key, whose weight is one for any score."""
    match mixer:
        case LocalConfig():
            return mixer.block == 1
        case TopKConfig():
            return 1 in miniature.whole(mixer.kept)
        case ConvolutionConfig():
            return 1 in miniature.whole(mixer.kernel)
        case LinformerConfig():
            return 1 in miniature.whole(mixer.rank)
        case DietConfig():
            return 1 in (mixer.taps, mixer.window)
        case AdaptiveSpanConfig():
            return mixer.span == 1 or mixer.ramp + mixer.span * (mixer.initial or 0) <= 2
    return False


def rightly_idle(config: ModelConfig, parameter: str) -> bool:
    """Whether a parameter of this model learns nothing because of the settings of its config."""
    mixer = mixer_of(config, parameter)
    scores = ("query.", "key.", "relative.", "dynamic.", "mixer.weight", "convolution.weight", "cross_norm.")
    if shows_one_key(mixer) and any(name in parameter for name in scores):
        return True
    if ".halting." in parameter:  # every token halts in its first step, so that its one weight is one
        return isinstance(config.stack, UniversalConfig) and config.stack.halting is not None
    if isinstance(mixer, CompressiveConfig) and (".compressor." in parameter or ".reconstruction." in parameter):
        # The one segment of a target leaves nothing to compress.
        return isinstance(config, EncoderDecoderConfig)
    if ".spans." in parameter:  # longer than the rows of a probe, and without a penalty
        return isinstance(mixer, AdaptiveSpanConfig) and not mixer.penalty and bool(mixer.initial)
    if isinstance(mixer, WindowConfig):
        return idle_in_a_window(config, mixer, parameter)
    if parameter == "extra.weight":  # none of these looks far enough to see tokens before the first
        return isinstance(mixer, LocalConfig | ConvolutionConfig | LSHConfig)
    return False


def idle_in_a_window(config: ModelConfig, mixer: WindowConfig, parameter: str) -> bool:
    """Whether it is a projection that no query of a token of its kind, global or not, makes use of."""
    if ".global_maps." not in parameter:
        return mixer.global_tokens == "periodic" and mixer.global_count == 1  # all tokens are global
    if isinstance(config, EncoderConfig):  # all global tokens are extra ones, which nobody reads after the last layer
        return config.extra_tokens > 0
    if mixer.global_tokens == "first" and mixer.global_count == 1:  # as a causal query it sees itself alone
        return ".global_maps.2." not in parameter
    return mixer.global_tokens == "marked"  # text has no marks


@pytest.mark.slow
def test_every_config_that_is_not_refused_passes_its_gates() -> None:
    """But for parameters that its config leaves nothing to learn, which the last gate names."""
    failures, kinds = [], set()
    for config in accepted(ROUNDS):
        kinds.add((config.kind, config.mixer.kind))
        for gate in gates.check(config):
            idle = gate.detail.removeprefix("no gradient reaches ").split(", ") if gate.name == LAST else []
            if gate.name.startswith("predictions in order") and config.get("query_stream") == "content":
                assert not gate.passed, "the stream that reads a symbol predicts it"
            elif not gate.passed and not (idle and all(rightly_idle(config, parameter) for parameter in idle)):
                failures.append(f"{gate.name}: {gate.detail}\n{config.to_yaml()}")
    assert not failures, "\n".join(failures)
    assert {mixer for _, mixer in kinds} == set(MIXERS) and {model for model, _ in kinds} == set(MODELS)
