"""There is no silently ignored knob: every field of every config changes something that can be observed.

Each field of each config is given another value, found from its type or listed, in a small network whose weights are a
function of their names alone; then outputs, gradients, parameters, their initial values, states or FLOPs must differ.
Fields that change outputs by rounding alone (``Rounding``) are left to separate tests.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from allocations import Kept
from contract_cases import CASES, DIM, HEADS, SMALL
from torch import Tensor, nn

from lit_transformers.adapters import AdapterConfig, DoRAConfig, IA3Config, LowRankConfig, VeRAConfig
from lit_transformers.checks.part_checks import other_value
from lit_transformers.config import Config, Rounding, field_types
from lit_transformers.encodings import EncodingConfig, LearnedRelativeConfig, RotaryConfig, XLConfig
from lit_transformers.encodings.positions import LearnedConfig, PositionError, PositionsConfig, SinusoidalConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import MixerConfig, state_tensors
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    AttentionConfig,
    BigBirdConfig,
    CompressiveConfig,
    ConvolutionConfig,
    DietConfig,
    EntmaxConfig,
    LinearConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    SparseConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.models import (
    DeFormerConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    ModelConfig,
)
from lit_transformers.models.encoder import DeFormer, Encoder
from lit_transformers.models.encoder_decoder import EncoderDecoder
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig, TokenEmbeddingConfig
from lit_transformers.stacks import HaltingConfig, SharedConfig, StackConfig, UniversalConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig, SeparableConvolutionConfig, TransitionConfig

VOCABULARY, LENGTH = 11, 6
READER = EncoderConfig(dim=DIM, heads=HEADS, depth=2)
"""Where mixers stand that see both ways alone."""
JOINT = DeFormerConfig(dim=DIM, heads=HEADS, depth=2)
"""A deformer with no layer apart, for fields that layers apart exclude."""


ROUNDING = dict(SMALL.leaves_with(Rounding))


class Knob(NamedTuple):
    """One field of one config, with a config that has a first value for it and one that has another."""

    config: type[Config]
    field: str


LISTED: dict[tuple[type[Config], str], tuple[Config, Any]] = {
    (LearnedRelativeConfig, "buckets"): (LearnedRelativeConfig(buckets=8), 4),
    (LearnedRelativeConfig, "max_distance"): (LearnedRelativeConfig(buckets=4, max_distance=4), 9),
    (XLConfig, "segments"): (XLConfig(segments=2), 3),
    (AttentionConfig, "encoding"): (AttentionConfig(memory=3), RotaryConfig()),
    (LocalConfig, "encoding"): (LocalConfig(block=3), RotaryConfig()),
    (WindowConfig, "encoding"): (WindowConfig(window=2, memory=3), RotaryConfig()),
    (WindowConfig, "window"): (WindowConfig(window=2, memory=3), 3),
    (WindowConfig, "memory"): (WindowConfig(window=4, memory=1), 3),
    (WindowConfig, "smallest"): (WindowConfig(window=4), 1),
    (WindowConfig, "schedule"): (WindowConfig(window=4, smallest=1), "decreasing"),
    (WindowConfig, "dilation"): (WindowConfig(window=2), 2),
    (WindowConfig, "dilated_heads"): (WindowConfig(window=2, dilation=2), 1),
    (WindowConfig, "global_tokens"): (WindowConfig(window=1), "first"),
    (WindowConfig, "global_count"): (WindowConfig(window=1, global_tokens="first"), 2),
    (WindowConfig, "full_every"): (WindowConfig(window=1), 2),
    (RotaryConfig, "long_every"): (RotaryConfig(), 2),
    (RotaryConfig, "long_base"): (RotaryConfig(long_every=2), 50.0),
    (WindowConfig, "global_projections"): (WindowConfig(window=1, global_tokens="first"), "separate"),
    (SparseConfig, "encoding"): (SparseConfig(block=2), RotaryConfig()),
    (SparseConfig, "pattern"): (SparseConfig(block=2), "fixed"),
    (SparseConfig, "block"): (SparseConfig(block=2), 3),
    (SparseConfig, "summary"): (SparseConfig(pattern="fixed", block=3, summary=1), 2),
    (SparseConfig, "heads"): (SparseConfig(block=2), "halves"),
    (DietConfig, "encoding"): (DietConfig(), RotaryConfig()),
    (DietConfig, "base"): (DietConfig(), 3),
    (DietConfig, "taps"): (DietConfig(), 2),
    (DietConfig, "window"): (DietConfig(pattern="cascade", window=1), 2),
    (DietConfig, "growth"): (DietConfig(pattern="cascade", window=1), 3),
    (BigBirdConfig, "encoding"): (BigBirdConfig(block=2), RotaryConfig()),
    (BigBirdConfig, "block"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), 2),
    (BigBirdConfig, "random"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), 2),
    (BigBirdConfig, "window"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), 3),
    (BigBirdConfig, "global_blocks"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), "first"),
    (BigBirdConfig, "seed"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), 1),
    (BigBirdConfig, "graph_per_head"): (BigBirdConfig(block=1, random=1, window=1, global_blocks="none"), False),
    (AdaptiveSpanConfig, "encoding"): (AdaptiveSpanConfig(), RotaryConfig()),
    (AdaptiveSpanConfig, "initial"): (AdaptiveSpanConfig(), 0.5),
    (TopKConfig, "encoding"): (TopKConfig(), RotaryConfig()),
    (TopKConfig, "kept"): (TopKConfig(kept=2), 3),
    (TopKConfig, "when"): (TopKConfig(kept=2), "after"),
    (EntmaxConfig, "encoding"): (EntmaxConfig(), RotaryConfig()),
    (LinearConfig, "chunk_length"): (LinearConfig(chunk_length=2), 3),
    (SynthesizerConfig, "members"): (SynthesizerConfig(), ["random"]),
    (SynthesizerConfig, "factor"): (SynthesizerConfig(members=("factorised_dense",)), 2),
    (SynthesizerConfig, "rank"): (SynthesizerConfig(members=("factorised_random",)), 3),
    (SynthesizerConfig, "per_head"): (SynthesizerConfig(members=("random",)), False),
    (ConvolutionConfig, "heads"): (ConvolutionConfig(), 4),
    (LSHConfig, "rounds"): (LSHConfig(chunk_length=2, buckets=2, seed=0), 3),
    (LSHConfig, "buckets"): (LSHConfig(chunk_length=2, buckets=2, seed=0), (2, 2)),
    (LSHConfig, "encoding"): (LSHConfig(chunk_length=2, buckets=2, seed=0), RotaryConfig()),
    (LSHConfig, "ahead"): (LSHConfig(chunk_length=2, buckets=2, chunks="by_sort", seed=0), 0),
    (LSHConfig, "across_buckets"): (LSHConfig(chunk_length=2, buckets=2, chunks="by_sort", seed=0), True),
    (LSRAConfig, "encoding"): (LSRAConfig(), RotaryConfig()),
    (LSRAConfig, "head_dim"): (LSRAConfig(), 3),
    (LSRAConfig, "fraction"): (LSRAConfig(), 0.25),
    (LSRAConfig, "attention_heads"): (LSRAConfig(), 4),
    (LSRAConfig, "window"): (LSRAConfig(), 3),
    (LSRAConfig, "convolution"): (LSRAConfig(), ConvolutionConfig(kernel=3)),
    (CompressiveConfig, "encoding"): (CompressiveConfig(memory=3, compressed_memory=2), RotaryConfig()),
    (CompressiveConfig, "memory"): (CompressiveConfig(memory=3, compressed_memory=2), 6),
    (CompressiveConfig, "function"): (CompressiveConfig(memory=3, auxiliary="none"), "max"),
    (LearnedConfig, "max_length"): (LearnedConfig(restart="document", max_length=64), 65),
    (SharedConfig, "groups"): (SharedConfig(), 2),
    (AdaptiveTokenEmbeddingConfig, "cutoffs"): (AdaptiveTokenEmbeddingConfig(cutoffs=(4, 8), shrink=2), [5, 8]),
    (AdaptiveTokenEmbeddingConfig, "shrink"): (AdaptiveTokenEmbeddingConfig(cutoffs=(4,), shrink=2), 4),
    (FeedForwardConfig, "width"): (FeedForwardConfig(), 5),
    (SeparableConvolutionConfig, "width"): (SeparableConvolutionConfig(), 5),
    (SeparableConvolutionConfig, "kernels"): (SeparableConvolutionConfig(), [2, 5]),
    (SinusoidalConfig, "offset"): (SinusoidalConfig(restart="document"), 40),
    (LearnedConfig, "offset"): (LearnedConfig(restart="document", max_length=64), 40),
    (UniversalConfig, "halting"): (UniversalConfig(), HaltingConfig()),
    (LowRankConfig, "maps"): (LowRankConfig(rank=4), ["query", "down"]),
    (DoRAConfig, "maps"): (DoRAConfig(rank=4), ["query", "down"]),
    (VeRAConfig, "maps"): (VeRAConfig(rank=4), ["query", "down"]),
    (IA3Config, "maps"): (IA3Config(), ["query", "down"]),
    (EncoderConfig, "embedding_dim"): (READER.override({"transform": "gelu"}), 6),
    (EncoderConfig, "transform_bias"): (READER.override({"transform": "gelu"}), False),
    (DeFormerConfig, "embedding_dim"): (JOINT.override({"transform": "gelu"}), 6),
    (DeFormerConfig, "transform_bias"): (JOINT.override({"transform": "gelu"}), False),
    (DeFormerConfig, "extra_tokens"): (JOINT, 2),
    (DeFormerConfig, "query_stream"): (JOINT, "learned"),
    (EncoderDecoderConfig, "first_norm"): (EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2), False),
    **{
        (model, field): (base, value)
        for model, base in ((type(case), case) for case in CASES["MODELS"][1])
        for field, value in {
            "dim": DIM + 4,
            "heads": 4,
            "mixer": AttentionConfig(encoding=RotaryConfig()),
            "decoder_mixer": AttentionConfig(encoding=RotaryConfig()),
            "cross_mixer": AttentionConfig(bias=True),
            "decoder_depth": 3,
            "positions": SinusoidalConfig(),
            "stack": SharedConfig(),
            "tokens": AdaptiveTokenEmbeddingConfig(cutoffs=(4, 8), shrink=2),
            "feedforward": FeedForwardConfig(width=5),
            "adapter": LowRankConfig(rank=2),
        }.items()
        if field in field_types(model)
    },
}
"""Where the first case of the kind or the value found from the type would not do."""


def knobs() -> Iterator[Knob]:
    kinds = [kind for table, _ in CASES.values() for kind in table.values()]
    for config in (*kinds, HaltingConfig):
        yield from (Knob(config, field) for field in field_types(config) if field not in ROUNDING)


def config_pair(knob: Knob) -> tuple[Config, Config]:
    """Two configs that differ in the knob alone."""
    if (knob.config, knob.field) in LISTED:
        base, value = LISTED[knob.config, knob.field]
    else:
        cases = [SMALL.mixer, HaltingConfig(), *(case for _, cases in CASES.values() for case in cases)]
        of_kind = [case for case in cases if type(case) is knob.config]
        assert of_kind, f"{knob.config.__name__} has no case; list small configs of it in contract_cases.py"
        base = of_kind[0]
        value = other_value(getattr(base, knob.field), field_types(knob.config)[knob.field])
    return base, base.override({knob.field: value})


def network_of(config: Config) -> ModelConfig:
    """A network with the config in its place."""
    match config:
        case ModelConfig():
            return config
        case MixerConfig():
            base = SMALL if "causal" in config.promises().modes else READER
            return base.override({"mixer": config})
        case EncodingConfig() if config.tells_segments:
            return READER.override({"mixer": AttentionConfig(encoding=config)})
        case EncodingConfig():
            return SMALL.override({"mixer.encoding": config})
        case PositionsConfig():
            return SMALL.override({"positions": config})
        case StackConfig():
            return SMALL.override({"stack": config})
        case TokenEmbeddingConfig():
            return SMALL.override({"tokens": config})
        case HaltingConfig():
            # In two steps no symbol comes near the end of its pondering.
            return SMALL.override({"depth": 4, "stack": UniversalConfig(halting=config)})
        case TransitionConfig():
            return SMALL.override({"feedforward": config})
        case AdapterConfig():
            return SMALL.override({"adapter": config})
    raise TypeError(f"no network is made of a {type(config).__name__}")


@cache
def observe(config: ModelConfig) -> dict[str, Any]:
    """All that a user could see of a network. It is computed once, because tests of several fields compare with the
    same network."""
    torch.manual_seed(0)
    network = config.build(probe_data(VOCABULARY, LENGTH)).double()
    observed: dict[str, Any] = {f"initial {key}": value.clone() for key, value in network.named_parameters()}
    if isinstance(network, LanguageModel):
        observed["flops"] = network.flops(LENGTH, LENGTH)
    for key, parameter in network.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{key} {tuple(parameter.shape)}".encode()))
        nn.init.normal_(parameter, std=0.3, generator=generator)
    for mode in ("evaluated", "trained"):
        network.train(mode == "trained")
        torch.manual_seed(1)
        with Kept() as backward_memory:
            outputs, tensors, losses = run(network)
        observed[f"{mode} kept for the backward pass"] = backward_memory.bytes
        observed |= {f"{mode} loss {key}": loss.detach() for key, loss in losses.items()}
        for index, output in enumerate(outputs):
            observed[f"{mode} {index}"] = output.detach()
        observed |= {f"{mode} state {index}": tensor.shape for index, tensor in enumerate(tensors)}
        network.zero_grad()
        torch.stack([output.square().sum() for output in outputs]).sum().backward()
        observed |= {f"{mode} gradient {key}": p.grad for key, p in network.named_parameters() if p.grad is not None}
    return observed


def run(network: nn.Module) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
    """Outputs, the tensors of the state, and the last named losses, for symbols that are always the same."""
    symbols = torch.arange(3 * LENGTH).view(1, -1) * 7 % VOCABULARY
    match network:
        case LanguageModel():
            state, outputs, losses = None, [], {}
            for segment in symbols.split(LENGTH, dim=1):
                try:
                    output = network(segment, state)
                except PositionError:  # as a user would see it
                    break
                state, losses = output.state, output.aux
                outputs.append(network.tokens.log_probabilities(output.hidden))
            return outputs, list(state_tensors(state)), losses
        case Encoder():
            segments = (torch.arange(LENGTH) >= LENGTH // 2).long()[None] if isinstance(network, DeFormer) else None
            output = network(symbols[:, :LENGTH], segments=segments)
            return [network.tokens.log_probabilities(network.predict(output.hidden))], [], output.aux
        case EncoderDecoder():
            output = network(symbols[:, :LENGTH], symbols[:, LENGTH : 2 * LENGTH])
            return [network.tokens.log_probabilities(output.hidden)], [], output.aux
    raise TypeError(f"say here how a {type(network).__name__} runs")


def differ(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape != second.shape or not torch.allclose(first, second, atol=1e-9, rtol=1e-6)
    return bool(first != second)


@pytest.mark.slow
@pytest.mark.parametrize("knob", list(knobs()), ids=lambda knob: f"{knob.config.__name__}.{knob.field}")
def test_every_field_changes_something_observable(knob: Knob) -> None:
    before, after = config_pair(knob)
    changed = [f for f in field_types(knob.config) if getattr(before, f) != getattr(after, f)]
    assert changed == [knob.field]
    observed_before, observed_after = (observe(network_of(config)) for config in (before, after))
    assert observed_before.keys() != observed_after.keys() or any(
        differ(observed_before[key], observed_after[key]) for key in observed_before
    )


def test_the_same_config_observed_twice_shows_no_difference() -> None:
    """Without this, the test above could not fail."""
    first, second = observe.__wrapped__(SMALL), observe.__wrapped__(LanguageModelConfig.from_dict(SMALL.to_dict()))
    assert first.keys() == second.keys()
    assert not any(differ(first[key], second[key]) for key in first)


def test_no_field_is_left_out() -> None:
    tested = {(knob.config, knob.field) for knob in knobs()}
    kinds = [kind for table, _ in CASES.values() for kind in table.values()]
    fields = {(kind, field.name) for kind in kinds for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert {name for _, name in fields - tested} == {*ROUNDING}
    assert set(LISTED) <= tested
