"""Every causal mixer on every task of a battery whose truth is known. This study reproduces no paper.

The tasks are those of MAD (Poli et al. 2024, arXiv:2403.17844) that a network can do by continuing strings, recall with
many queries (Arora et al. 2023, arXiv:2312.04927), induction and nested brackets. A mixer is judged by its mean over
tasks, as a hundred and more comparisons of single tasks would need far more seeds; the matrix of all of them has an
interval in every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Metric, Scale
from ablations.baselines import TRANSFORMER_XL
from datamodules import (
    BracketsConfig,
    GeneratedDataConfig,
    GeneratorConfig,
    InContextRecallConfig,
    InductionConfig,
    MemorisationConfig,
    RecallConfig,
    SelectiveCopyConfig,
    StringEvaluationConfig,
)
from lit_transformers.encodings import RotaryConfig
from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    AttentionConfig,
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
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import StringsConfig
from lit_transformers.training.config import AdamWConfig

TASKS: Mapping[str, GeneratorConfig] = {
    "in_context_recall": InContextRecallConfig(keys=4, values=4),
    "noisy_recall": InContextRecallConfig(keys=4, values=4, noise=0.2, noise_symbols=4),
    "fuzzy_recall": InContextRecallConfig(keys=2, values=4, key_length=2, value_length=2),
    "multi_query_recall": RecallConfig(alphabet=16, pairs=6),
    "selective_copy": SelectiveCopyConfig(alphabet=8, copied=6),
    "memorisation": MemorisationConfig(facts=127),
    "induction": InductionConfig(alphabet=16),
    "brackets": BracketsConfig(alphabet=4, depth=4),
}

BASELINE = "in_context_recall"

ROTARY = RotaryConfig()
MIXERS: Mapping[str, Mapping[str, Any]] = {
    name: {"model.mixer": mixer}
    for name, mixer in {
        "local": LocalConfig(block=8, encoding=ROTARY),
        "window": WindowConfig(window=8, encoding=ROTARY),
        "window_dilated": WindowConfig(window=4, dilation=2, encoding=ROTARY),
        "window_global": WindowConfig(window=8, global_tokens="periodic", global_count=8, encoding=ROTARY),
        "adaptive_span": AdaptiveSpanConfig(span=32, ramp=8, penalty=2e-5, encoding=ROTARY),
        "lsh": LSHConfig(chunk_length=8, encoding=ROTARY),
        "shared_qk": LSHConfig(rounds=None, encoding=ROTARY),
        "sparse_strided": SparseConfig(block=8, encoding=ROTARY),
        "sparse_fixed": SparseConfig(pattern="fixed", block=8, summary=2, encoding=ROTARY),
        "top_k": TopKConfig(kept=8, encoding=ROTARY),
        "entmax": EntmaxConfig(encoding=ROTARY),
        "synthesizer": SynthesizerConfig(members=("random", "dense")),
        "diet": DietConfig(pattern="cascade", window=8, encoding=ROTARY),
        "convolution": ConvolutionConfig(kernel=17),
        "lsra": LSRAConfig(convolution=ConvolutionConfig(kernel=7), encoding=ROTARY),
        "lstm": LSTMConfig(),
    }.items()
} | {"linear": {"model.mixer": LinearConfig(), "model.positions": SinusoidalConfig()}}
"""Mixers with scores of queries and keys have rotary positions, as the baseline has; linear attention has no scores to
rotate, and no order by itself. Windows of 8 keys and values, kernels over 17 inputs and linear attention hold about as
many numbers of a row, 2,048 in two layers of dim 64; an LSTM that held as many would have several times the parameters.
A Compressive Transformer is not among them: strings are read whole, so that nothing past is ever compressed."""

VARIANTS: Mapping[str, str] = {
    f"mixer={name}": f"another setting of {kind}, left to gpu"
    for name, kind in {
        "window_dilated": "window",
        "window_global": "window",
        "shared_qk": "lsh",
        "sparse_fixed": "sparse_strided",
    }.items()
}

MAD: Mapping[str, Any] = {
    "model.dim": 128,
    "model.heads": 8,
    "model.feedforward.width": 512,
    "data.max_length": 128,
    "data.batch_size": 128,
    "data.evaluation.examples": 1280,
    "training.steps": 20_000,
    "training.optimizer.learning_rate": 5e-4,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""MAD's width, number of layers, length, batch, rate and number of updates; its tables also vary the tasks' sizes."""

GPU: Mapping[str, Any] = {**MAD, "training.steps": 4000}
"""A fifth of MAD's updates."""

ABLATION = Ablation(
    question="At equal parameters, which causal mixer learns to recall, copy, memorise and match, and at what cost?",
    answer=["mixer"],
    baseline=RunConfig(
        model=LanguageModelConfig(
            dim=64, heads=4, depth=2, norm="pre", mixer=AttentionConfig(encoding=ROTARY)
        ).override({"feedforward.width": 256}),
        task=StringsConfig(),
        data=GeneratedDataConfig(
            generator=TASKS[BASELINE],
            max_length=32,
            batch_size=32,
            evaluation=StringEvaluationConfig(examples=256, split="test"),
        ),
        training=TRANSFORMER_XL.training.override(
            {"steps": 800, "optimizer": AdamWConfig(learning_rate=2e-3), "validate_every": None}
        ),
    ),
    factors={
        "task": {name: {"data.generator": task} if name != BASELINE else {} for name, task in TASKS.items()},
        "mixer": {"attention": {}, **MIXERS},
    },
    design="product",
    seeds=3,
    metric=Metric(
        "test/accuracy",
        goal="maximize",
        label="accuracy",
        margin=Margin(0.05, "one answer in twenty, of the mean over tasks"),
    ),
    match=Match("parameters", free="model.feedforward.width"),
    effects=["mixer"],
    scales={
        "demo": Scale(seeds=Looks(3, 6), leave_out=VARIANTS),
        "gpu": Scale(overrides=GPU),
        "paper": Scale(overrides=MAD),
    },
)
