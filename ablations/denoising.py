"""Baseline config of the studies of pretraining an encoder-decoder, and the scales that these share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Looks, Margin, Metric, Scale
from ablations.baselines import BERT_BASE, BOOKS_GPU, TRANSFORMER_XL
from datamodules import (
    DenoisingDataConfig,
    DenoisingEvaluationConfig,
    PhasesConfig,
    PrefixTargetConfig,
    TextInfillingConfig,
    TopicsConfig,
    WordsConfig,
)
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import Seq2SeqConfig

DENOISING = RunConfig(
    model=EncoderDecoderConfig(dim=64, heads=4, depth=2, norm="pre", positions=LearnedConfig()),
    task=Seq2SeqConfig(label_smoothing=0.0, metrics=("accuracy",)),
    data=DenoisingDataConfig(
        source=TopicsConfig(documents=500),
        tokenizer=WordsConfig(),
        length=64,
        batch_size=16,
        packing="doc_sentences",
        noise=PhasesConfig(first=TextInfillingConfig(), epochs=4, then=PrefixTargetConfig()),
        sentinels=16,
        evaluation=DenoisingEvaluationConfig(examples=128, split="test"),
    ),
    training=TRANSFORMER_XL.training.override(
        {"steps": 550, "optimizer.learning_rate": 3e-3, "validate_every": None},
    ),
)
"""An encoder-decoder that is pretrained for four passes over generated documents, and for a fifth one learns to
continue a text whose beginning it reads. All arms are measured by the latter."""

ELEVEN_PASSES: Mapping[str, Any] = {"data.noise.epochs": 8, "training.steps": 1200}
"""Overrides of DENOISING that pretrain for eight passes, and measure after three more: with half of the updates, an arm
that predicts few symbols is worse than the symbol before."""

CONTINUED_NATS = Metric("test/nats", goal="minimize", label="nats per written symbol")

DENOISING_GPU: Mapping[str, Any] = dict(BOOKS_GPU) | {"data.sentinels": 32, "data.noise.epochs": 40}
"""Overrides of DENOISING for the books of the Gutenberg project: of some 58 passes, the last third is fine-tuning."""

DENOISING_SCALES = {
    "demo": Scale(seeds=Looks(4, 8), margin=Margin(0.03, "less than a tenth of the gain from agreement at a distance")),
    "gpu": Scale(overrides=DENOISING_GPU, margin=Margin(0.02, "a hundredth of the loss of a piece")),
    "paper": Scale(
        overrides=dict(BERT_BASE) | {"data.sentinels": 128, "data.noise.epochs": 800},
        seeds=1,
    ),
}
