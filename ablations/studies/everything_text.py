"""Every causal mixer on the same text, at equal parameters and tokens. This study reproduces no paper."""

from __future__ import annotations

from ablations.ablation import Ablation, Match
from ablations.baselines import BITS_PER_BYTE, CHARACTER_SCALES, CHARACTERS
from lit_transformers.encodings import RotaryConfig
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    CompressiveConfig,
    ConvolutionConfig,
    DietConfig,
    EntmaxConfig,
    LinearConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    LSTMConfig,
    SparseConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)

MIXERS = {
    "local": LocalConfig(block=32),
    "window": WindowConfig(window=32),
    "window_dilated": WindowConfig(window=16, dilation=2),
    "window_global": WindowConfig(window=32, global_tokens="periodic", global_count=32),
    "adaptive_span": AdaptiveSpanConfig(span=256, ramp=16, penalty=2e-5),
    "lsh": LSHConfig(chunk_length=32),
    "shared_qk": LSHConfig(rounds=None),
    "sparse_strided": SparseConfig(block=16),
    "sparse_fixed": SparseConfig(pattern="fixed", block=16, summary=2),
    "top_k": TopKConfig(kept=8),
    "entmax": EntmaxConfig(),
    "linear": LinearConfig(),
    "synthesizer": SynthesizerConfig(members=("random", "dense")),
    "compressive": CompressiveConfig(memory=128, compressed_memory=64),
    "diet": DietConfig(pattern="cascade", window=16),
    "convolution": ConvolutionConfig(kernel=15),
    "lsra": LSRAConfig(convolution=ConvolutionConfig(kernel=15)),
    "lstm": LSTMConfig(),
}

ABLATION = Ablation(
    question="At equal parameters and equal text, which causal mixer predicts best, and at what cost?",
    baseline=CHARACTERS.override({"model.feedforward.width": 256}),
    factors={
        "mixer": {
            "attention": {},
            "attention_rotary": {"model.positions": None, "model.mixer.encoding": RotaryConfig()},
        }
        | {name: {"model.mixer": mixer} for name, mixer in MIXERS.items()},
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("parameters", free="model.feedforward.width"),
    scales=CHARACTER_SCALES,
)
