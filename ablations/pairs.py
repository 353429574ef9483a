"""Baseline configs of the studies of translation, summarization and strings, and the scales that these share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Looks, Margin, Metric, Scale
from datamodules import (
    BPEConfig,
    DocstringsConfig,
    HubPairsConfig,
    MessagesConfig,
    Multi30kConfig,
    PairDataConfig,
    PairEvaluationConfig,
    QMSumConfig,
    StringPairsConfig,
)
from lit_transformers.decoding.decode import BeamConfig, GreedyConfig
from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.mixer import MixerConfig
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.tokens import FullTokenEmbeddingConfig
from lit_transformers.runs import RunConfig
from lit_transformers.stacks import UniversalConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.training.config import (
    AdamConfig,
    AverageConfig,
    CosineConfig,
    InverseSquareRootConfig,
    TrainingConfig,
)

BLEU = Metric("test/bleu", goal="maximize", label="BLEU")
ROUGE = Metric("test/rougeL", goal="maximize", label="ROUGE-L")

TRANSLATION = RunConfig(
    model=EncoderDecoderConfig(
        dim=64,
        heads=4,
        depth=2,
        norm="post",
        dropout=0.05,
        positions=SinusoidalConfig(restart="document"),
        feedforward=FeedForwardConfig(width=256),
    ),
    task=Seq2SeqConfig(counted=(30, 30), decoding=GreedyConfig()),
    data=PairDataConfig(
        source=MessagesConfig(),
        tokenizer=BPEConfig(size=1000),
        tokens_per_batch=1024,
        longest_source=64,
        longest_target=64,
        evaluation=PairEvaluationConfig(split="test"),
    ),
    training=TrainingConfig(
        steps=1500,
        optimizer=AdamConfig(learning_rate=8e-3, beta2=0.98, epsilon=1e-9),
        schedule=CosineConfig(warmup=400),
        device="cpu",
    ),
)
"""A small Transformer over the English and French messages of an installed package. FLOPs are counted for sentences of
30 tokens, as in arXiv:2004.11886. Rate, warm-up, dropout and norm were searched by
``python -m ablations tune examples/translation_recipe.py --trials 8``. In two minutes of one core it learns more than a
table of words knows, which it does not with a quarter of the rate, with a short warm-up, or with pre-norm."""

MULTI30K: Mapping[str, Any] = {
    "model.dim": 128,
    "model.heads": 8,
    "model.depth": 4,
    "model.feedforward.width": 256,
    "model.dropout": 0.3,
    "task.decoding": BeamConfig(beams=5, length_penalty=1.0),
    "data.source": Multi30kConfig(),
    "data.tokenizer": BPEConfig(size=10_000),
    "data.tokens_per_batch": 4096,
    "training": TrainingConfig(
        steps=8000,
        average=AverageConfig(last=10, every=100),
        optimizer=AdamConfig(learning_rate=5e-3, beta2=0.98, epsilon=1e-9),
        schedule=InverseSquareRootConfig(warmup=2000),
        device="cuda",
    ),
}
"""Multi30k with a Transformer small enough for its 29,000 captions (arXiv:2105.14462, table 2: dim 128, 4 layers)."""

WMT14: Mapping[str, Any] = {
    "model.dim": 512,
    "model.heads": 8,
    "model.depth": 6,
    "model.feedforward.width": 2048,
    "task.decoding": BeamConfig(beams=4, length_penalty=0.6),
    "data.source": HubPairsConfig(name="wmt14"),
    "data.tokenizer": BPEConfig(size=37_000),
    "data.tokens_per_batch": 25_000,
    "data.longest_source": 128,
    "data.longest_target": 128,
    "training": TrainingConfig(
        steps=100_000,
        average=AverageConfig(last=5, every=1500),
        optimizer=AdamConfig(learning_rate=7e-4, beta2=0.98, epsilon=1e-9),
        schedule=InverseSquareRootConfig(warmup=4000),
        device="cuda",
    ),
}
"""The base model of arXiv:1706.03762, section 5: its learning rate peaks at 512^-0.5 4000^-0.5."""

TRANSLATION_SCALES = {
    "demo": Scale(seeds=Looks(4, 8, 16), margin=Margin(1.0, "papers report gains of about a point or more")),
    "gpu": Scale(overrides=MULTI30K),
    "paper": Scale(overrides=WMT14, seeds=1),
}

STRINGS = RunConfig(
    model=EncoderDecoderConfig(
        dim=64,
        heads=4,
        depth=3,
        norm="post",
        positions=SinusoidalConfig(restart="document", offset=32),
        stack=UniversalConfig(),
        tokens=FullTokenEmbeddingConfig(scaled=False),
    ),
    task=Seq2SeqConfig(metrics=("accuracy",), label_smoothing=0.0),
    data=PairDataConfig(
        source=StringPairsConfig(max_length=10),
        tokens_per_batch=704,
        evaluation=PairEvaluationConfig(lengths=(20,), split="test"),
    ),
    training=TrainingConfig(
        steps=1500,
        optimizer=AdamConfig(learning_rate=1e-3),
        schedule=CosineConfig(warmup=100),
        device="cpu",
    ),
)
"""Strings of up to 10 symbols in training and 20 in evaluation; offsets let every position occur in training. Token
embeddings are unscaled, so that position encodings are larger than they: a copy of twice the trained length is then
wholly right, and with scaled embeddings hardly two thirds of its symbols are."""


def strings_scale(lengths: tuple[int, ...], steps: int, **sizes: int) -> dict[str, Any]:
    """Returns the overrides for training on strings of up to 40 symbols with a model of these sizes."""
    return {
        **{f"model.{name}": value for name, value in sizes.items()},
        "model.positions.offset": 512,
        "data.source.max_length": 40,
        "data.tokens_per_batch": 8192,
        "data.evaluation.lengths": lengths,
        "training.steps": steps,
        "training.optimizer.learning_rate": 5e-4,
        "training.schedule.warmup": 1000,
        "training.device": "cuda",
    }


ADDITION_AND_HALTING: Mapping[str, str] = {
    "strings=addition": "left to gpu: minutes teach little of adding",
    "model=universal_halting": "left to gpu",
}
"""The arms that the demos of strings leave out, and why."""
SYMBOLS_MARGIN = Margin(0.05, "one symbol in twenty")

STRINGS_SCALES = {
    "demo": Scale(
        overrides={"data.source.max_length": 8, "data.evaluation.lengths": (16,), "training.steps": 2000},
        seeds=Looks(4, 8),
        leave_out=ADDITION_AND_HALTING,
        margin=SYMBOLS_MARGIN,
    ),
    "gpu": Scale(overrides=strings_scale((40, 80, 400), 20_000, dim=256, heads=8, depth=6)),
    "paper": Scale(overrides=strings_scale((400,), 200_000, dim=512, heads=8, depth=6), seeds=1),
}

DOCSTRINGS = TRANSLATION.override(
    {
        "task.metrics": ("rouge",),
        "task.counted": (96, 24),
        "data": PairDataConfig(
            source=DocstringsConfig(),
            tokenizer=BPEConfig(size=1000),
            tokens_per_batch=1536,
            longest_source=96,
            longest_target=32,
            evaluation=PairEvaluationConfig(examples=256, split="test"),
        ),
        "training.optimizer.learning_rate": 3e-3,
    }
)
"""The beginnings of functions of the standard library and torch are the sources, the first sentences of their
docstrings the targets. Two minutes on one core reach 7.6 ROUGE-L; with a vocabulary of 4,000 symbols 4.4."""

SUMMARIES_GPU: Mapping[str, Any] = {
    "model.dim": 256,
    "model.heads": 8,
    "model.depth": 4,
    "model.feedforward.width": 1024,
    "model.dropout": 0.3,
    "task.decoding": BeamConfig(beams=4, length_penalty=1.0),
    "task.counted": (256, 16),
    "data.tokenizer": BPEConfig(size=8000),
    "data.tokens_per_batch": 32_768,
    "data.longest_source": 256,
    "training.steps": 6000,
    "training.optimizer.learning_rate": 1e-3,
    "training.schedule.warmup": 600,
    "training.device": "cuda",
    "training.precision": "bf16",
}

DOCSTRINGS_SCALES = {
    "demo": Scale(),
    "gpu": Scale(overrides=SUMMARIES_GPU),
    "paper": Scale(
        overrides=dict(SUMMARIES_GPU)
        | {
            "model.dim": 512,
            "model.feedforward.width": 2048,
            "data.source": HubPairsConfig(name="cnn_dailymail"),
            "data.longest_source": 512,
            "data.longest_target": 128,
            "training.steps": 100_000,
        },
        seeds=1,
    ),
}

TOO_NEAR = "hardly more than this scale's beginning of 256"
SUMMARIES_SCALES = {
    "demo": Scale(
        leave_out={f"length={length}": "left to the larger scales" for length in (1024, 4096, 16_384)},
    ),
    "gpu": Scale(
        overrides=dict(SUMMARIES_GPU) | {"data.source": QMSumConfig(), "data.longest_target": 128},
        leave_out={"length=384": TOO_NEAR, "length=16384": "hardly a meeting is as long"},
    ),
    "paper": Scale(
        overrides=dict(SUMMARIES_GPU)
        | {
            "model.dim": 512,
            "model.depth": 6,
            "model.feedforward.width": 2048,
            "data.source": HubPairsConfig(name="ccdv/arxiv-summarization"),
            "data.longest_target": 512,
            "training.steps": 100_000,
        },
        seeds=1,
        leave_out={"length=384": TOO_NEAR},
    ),
}


def in_self_attention(mixer: MixerConfig) -> dict[str, Any]:
    """Returns overrides that replace the self-attention of encoder and decoder by a mixer."""
    return {"model.mixer": mixer, "model.decoder_mixer": mixer}


def in_all_attention(mixer: MixerConfig) -> dict[str, Any]:
    """Returns overrides that replace self-attention and cross-attention by a mixer."""
    return in_self_attention(mixer) | {"model.cross_mixer": mixer}
