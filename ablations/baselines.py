"""Baseline configs of the studies of language models and encoders, and the scales that these studies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablations.ablation import Looks, Margin, Metric, Scale
from datamodules import (
    BooksConfig,
    EvaluationConfig,
    FilesConfig,
    GeneratedDataConfig,
    HubConfig,
    LabelledDataConfig,
    LabelledEvaluationConfig,
    LagsConfig,
    LanguageDataConfig,
    MaskedSumConfig,
    MaskTokensConfig,
    RecallConfig,
    ReviewsConfig,
    RowDataConfig,
    RowEvaluationConfig,
    StdlibConfig,
    StringEvaluationConfig,
    TopicsConfig,
    WordPieceConfig,
    WordsConfig,
)
from lit_transformers.encodings import HuangConfig, LearnedRelativeConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig, LanguageModelConfig
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import (
    ClassificationConfig,
    MaskedLMConfig,
    RegressionConfig,
    ReplacedTokensConfig,
    StringsConfig,
    SymbolGeneratorConfig,
)
from lit_transformers.training.config import AdamConfig, AdamWConfig, CosineConfig, TrainingConfig

TRANSFORMER_XL = RunConfig(
    model=LanguageModelConfig(
        dim=64,
        heads=4,
        depth=2,
        norm="post",
        mixer=AttentionConfig(encoding=XLConfig(), memory=32),
    ),
    data=LanguageDataConfig(
        source=StdlibConfig(piece=4096),
        segment_length=32,
        batch_size=32,
        evaluation=EvaluationConfig(bytes=131_072, split="test"),
    ),
    training=TrainingConfig(
        steps=1400,
        optimizer=AdamWConfig(learning_rate=2e-3),
        schedule=CosineConfig(warmup=50),
        validate_every=350,
        device="cpu",
    ),
)
"""A small Transformer-XL over the bytes of the standard library's source; the demo's size was chosen by measuring.

Documents are pieces of 4 KiB, so that lanes end together and a short evaluation wastes little on padding.
"""


def lags(*distances: int) -> LagsConfig:
    """Returns a source of eight letters, nine in ten of which repeat one of those at the distances, as often each."""
    return LagsConfig(symbols=8, lags=distances, shares=(0.9 / len(distances),) * len(distances))


LAGS: Mapping[str, Any] = {
    "model.norm": "pre",
    "data.source": lags(8, 24),
    "data.tokenizer": "characters",
    "data.segment_length": 16,
    "data.batch_size": 64,
    "training.steps": 500,
    "training.optimizer.learning_rate": 6e-3,
    "training.validate_every": None,
}
"""Overrides of TRANSFORMER_XL for symbols that repeat those 8 and 24 back, of which the second is beyond a segment.

Nearly all that can be known is learned in half a minute, so an arm that does not know a lag has a mechanism that cannot
carry it. Segments are short and lags few because absolute positions learn a distance place by place: with segments of
32 and lags of 4, 16 and 48, sinusoids have not learned the lags within a segment when XL positions know all three. No
lag is so short that an n-gram model of the few symbols before could know it.
"""

LAGS_IN_SEGMENTS: Mapping[str, Any] = dict(LAGS) | {
    "model.positions": None,
    "data.segment_length": 64,
    "data.batch_size": 16,
    "training.steps": 1000,
}
"""Overrides of CHARACTERS for the same symbols, both of whose lags lie within most of a segment.

Mixers with scores of queries and keys need an encoding of relative positions: sinusoids learn a distance place by
place. There are twice as many updates as without segments, since lags that only several layers together reach are
learned late.
"""

RECALL: Mapping[str, Any] = {
    "task": StringsConfig(),
    "data": GeneratedDataConfig(
        generator=RecallConfig(alphabet=16, pairs=6),
        max_length=32,
        batch_size=32,
        evaluation=StringEvaluationConfig(examples=512, split="test"),
    ),
    "training.steps": 1600,
    "training.optimizer.learning_rate": 3e-3,
}
"""Overrides of CHARACTERS for strings that assign values to keys and then ask for them (multi-query recall).

The value to repeat is chosen by the key that it follows, not by its distance, so that only a comparison of contents
retrieves it. Every answer is certain, and a network that compares nothing guesses among eight values. Recall is learned
late and at once: after 800 updates one of three softmax runs had learned nothing of it.
"""
RECALL_MARGIN = Margin(0.1, "a twentieth of the loss of who guesses among all values")

TEXT: Mapping[str, Any] = {
    "model.norm": "pre",
    "model.mixer.memory": 64,
    "data.source.training": 0.25,
    "training.steps": 5600,
    "training.optimizer.learning_rate": 1e-2,
    "training.validate_every": None,
}
"""Overrides of TRANSFORMER_XL with which it learns more of text than short n-grams.

It reads a quarter of the library's text several times. A 6-gram model of all of the text knows as much as the network
learns in an hour, because an n-gram model reads everything there is, and a network only the part that it has time for.
"""
TEXT_MARGIN = Margin(0.02, "between one and two hundredths of the loss of a byte, in bits or in nats")

POSITIONS: Mapping[str, Mapping[str, Any]] = {
    "xl": {},
    "shaw": {"model.mixer.encoding": ShawConfig(distance=64)},
    "huang": {"model.mixer.encoding": HuangConfig(distance=64)},
    "learned_relative": {"model.mixer.encoding": LearnedRelativeConfig(max_distance=64)},
    "rotary": {"model.mixer.encoding": RotaryConfig()},
    "sinusoidal": {"model.mixer.encoding": None, "model.positions": SinusoidalConfig()},
    "sinusoidal_counting_on": {
        "model.mixer.encoding": None,
        "model.positions": SinusoidalConfig(restart="document"),
    },
    "learned": {"model.mixer.encoding": None, "model.positions": LearnedConfig()},
    "learned_per_layer": {"model.mixer.encoding": None, "model.positions": LearnedConfig(per_layer=True)},
    "none": {"model.mixer.encoding": None},
}
"""Levels of a factor that varies positions; the baseline has those of Transformer-XL."""


def positions(*names: str) -> dict[str, Mapping[str, Any]]:
    """Returns the levels with these names, in order."""
    return {name: POSITIONS[name] for name in names}


GPU: Mapping[str, Any] = {
    "model.dim": 512,
    "model.heads": 8,
    "model.depth": 8,
    "model.dropout": 0.1,
    "model.mixer.memory": 128,
    "data.source.piece": 65_536,
    "data.segment_length": 128,
    "data.batch_size": 64,
    "data.evaluation": EvaluationConfig(bytes=2_097_152, split="test"),
    "training.steps": 4000,
    "training.optimizer.learning_rate": 5e-4,
    "training.schedule.warmup": 400,
    "training.validate_every": 500,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of TRANSFORMER_XL for a model that fills one GPU."""

ENWIK8: Mapping[str, Any] = {
    "model.dim": 512,
    "model.heads": 8,
    "model.depth": 12,
    "model.feedforward.width": 2048,
    "model.initial_std": 0.02,
    "model.dropout": 0.1,
    "model.mixer.memory": 512,
    "data": LanguageDataConfig(
        source=FilesConfig(path="enwik8", splits="order", piece=4_194_304),
        segment_length=512,
        batch_size=22,
        documents="stream",
        evaluation=EvaluationConfig(segment_length=80, split="test"),
    ),
    "training": TrainingConfig(
        steps=400_000,
        optimizer=AdamConfig(learning_rate=2.5e-4),
        schedule=CosineConfig(),
        clip=0.25,
        validate_every=4000,
        device="cuda",
    ),
}
"""The 12-layer character model of Transformer-XL's own scripts (41M parameters on enwik8).

enwik8 is read from a file below LIT_DATA: 90, 5 and 5 MB of it, the usual split. The Hub's copy is a table of
lines, on which bits per character would not be comparable.
"""

WIKITEXT_103: Mapping[str, Any] = {
    "model.dim": 410,
    "model.heads": 10,
    "model.depth": 16,
    "model.feedforward.width": 2100,
    "model.initial_std": 0.02,
    "model.dropout": 0.1,
    "model.mixer.memory": 128,
    "model.tokens": AdaptiveTokenEmbeddingConfig(cutoffs=(20_000, 40_000, 200_000), shrink=1),
    "data": LanguageDataConfig(
        source=HubConfig(name="Salesforce/wikitext", subset="wikitext-103-v1", rows="wikitext"),
        tokenizer="words",  # type: ignore[arg-type]
        segment_length=128,
        batch_size=60,
        documents="stream",
        evaluation=EvaluationConfig(split="test"),
    ),
    "training": TrainingConfig(
        steps=200_000,
        optimizer=AdamConfig(learning_rate=2.5e-4),
        schedule=CosineConfig(),
        clip=0.25,
        validate_every=4000,
        device="cuda",
    ),
}
"""The word model of arXiv:1901.02860, table 6: 128M parameters, segments of 128."""

CHARACTERS = TRANSFORMER_XL.override(
    {
        "model.norm": "pre",
        "model.mixer": AttentionConfig(),
        "model.positions": SinusoidalConfig(),
        "data.segment_length": 256,
        "data.batch_size": 8,
        "training.steps": 600,
        "training.validate_every": None,
    }
)
"""A small language model without memory, over segments long enough for sparse patterns to leave something out."""


MEMORY = "model.mixer.memory"


def without(path: str, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a scale's overrides without that of a path, which some baselines do not have or state themselves."""
    return {other: value for other, value in scale.items() if other != path}


def leaving(scales: Mapping[str, Scale], **left_out: Mapping[str, str]) -> dict[str, Scale]:
    """Returns the scales with arms left out: ``left_out`` maps each scale to its selectors and their reasons."""
    return {name: replace(scale, leave_out=left_out.get(name, {})) for name, scale in scales.items()}


CHARACTERS_TEXT: Mapping[str, Any] = {
    "data.source.training": 0.25,
    "training.steps": 2800,
    "training.optimizer.learning_rate": 1e-2,
}
"""Overrides of CHARACTERS with which it reads as much text as TRANSFORMER_XL does with TEXT, of the same quarter."""
RELATIVE: Mapping[str, Any] = {"model.positions": None, "model.mixer.encoding": XLConfig()}
"""Overrides of CHARACTERS for mixers with queries and keys, which learn a distance place by place from sinusoids."""
RELATIVE_TEXT = {**CHARACTERS_TEXT, **RELATIVE}

CHARACTERS_GPU: Mapping[str, Any] = without(MEMORY, GPU) | {
    "data.segment_length": 1024,
    "data.batch_size": 16,
    "training.validate_every": None,
}
"""Overrides of CHARACTERS for a model that fills one GPU."""

CHARACTERS_PAPER: Mapping[str, Any] = without(MEMORY, ENWIK8) | {"data.segment_length": 2048, "data.batch_size": 16}
"""12 layers on enwik8 with segments of 2,048: the first phase of arXiv:2004.05150, section 4.2."""


def character_scales(
    demo: Mapping[str, Any],
    margin: Margin,
    text: Mapping[str, Any] = CHARACTERS_TEXT,
    seeds: Looks | None = None,
) -> dict[str, Scale]:
    """Returns the scales of a study of CHARACTERS whose demo is on data with a known truth: text waits for an hour.

    text: the overrides of the scale ``hour``. seeds: the looks of the demo, by default at 4 and 8.
    """
    return {
        "demo": Scale(overrides=demo, seeds=seeds or Looks(4, 8), margin=margin),
        "hour": Scale(overrides=text, seeds=Looks(4, 8), margin=TEXT_MARGIN),
        "gpu": Scale(overrides=CHARACTERS_GPU),
        "paper": Scale(overrides=CHARACTERS_PAPER, seeds=1),
    }


CHARACTER_SCALES = {
    "demo": Scale(),
    "gpu": Scale(overrides=CHARACTERS_GPU),
    "paper": Scale(overrides=CHARACTERS_PAPER, seeds=1),
}
BITS_PER_BYTE = Metric("test/bpb", goal="minimize", label="bits per byte")
NATS_PER_SYMBOL = Metric("test/nats", goal="minimize", label="nats per symbol")

SUMS = RunConfig(
    model=EncoderConfig(dim=64, heads=4, depth=2, norm="pre", positions=SinusoidalConfig()),
    task=RegressionConfig(pooling="first"),
    data=LabelledDataConfig(
        source=MaskedSumConfig(length=127, ones=4, levels=8),
        evaluation=LabelledEvaluationConfig(examples=512, split="test"),
    ),
    training=TRANSFORMER_XL.training.override({"steps": 300, "validate_every": None}),
)
"""An encoder that sums the marked values of a row and is read at its first token, which all of the row must reach."""

SUMS_GPU: Mapping[str, Any] = {
    "model.dim": 256,
    "model.heads": 8,
    "model.depth": 4,
    "data.source": MaskedSumConfig(length=1023, ones=10, levels=32, train=200_000),
    "data.batch_size": 64,
    "training.steps": 6000,
    "training.optimizer.learning_rate": 5e-4,
    "training.schedule.warmup": 400,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of SUMS for a model that fills one GPU."""

REVIEWS: Mapping[str, Any] = {
    "model.dim": 256,
    "model.heads": 4,
    "model.depth": 4,
    "task": ClassificationConfig(pooling="mean"),
    "data.source": ReviewsConfig(length=4096),
    "data.batch_size": 32,
    "training.steps": 20_000,
    "training.optimizer.learning_rate": 5e-4,
    "training.schedule.warmup": 2000,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Reviews by bytes, cut at 4,096, as Long Range Arena reads them (arXiv:2011.04006, section 2.2.2)."""

SQUARED_ERROR = Metric("test/mse", goal="minimize", label="mean squared error")
SUMS_MARGIN = Margin(0.03, "a tenth of the error of who always answers the mean of all sums")

ALL_MASKED = MaskTokensConfig(unchanged=0.0, replaced=0.0)
"""A seventh of the symbols, all behind [MASK]: the noise under which arms with different noise are measured."""

MASKED = RunConfig(
    model=EncoderConfig(dim=64, heads=4, depth=2, norm="pre", positions=LearnedConfig()),
    task=MaskedLMConfig(),
    data=RowDataConfig(
        source=TopicsConfig(),
        tokenizer=WordsConfig(),
        length=64,
        batch_size=16,
        packing="doc_sentences",
        evaluation=RowEvaluationConfig(noise=ALL_MASKED, examples=512, split="test"),
    ),
    training=TRANSFORMER_XL.training.override(
        {"steps": 600, "optimizer.learning_rate": 3e-3, "validate_every": None},
    ),
)
"""An encoder that predicts hidden words of documents whose topics, agreement and order are each worth a known loss.

After half a minute of one core it knows the places of words, the topic of a row and which endings agree.
"""
MASKED_NATS = Metric("test/nats", goal="minimize", label="nats per hidden symbol")
MASKED_MARGIN = Margin(0.03, "less than a tenth of the gain from agreement at a distance")

PAIRS_ACCURACY = Metric(
    "test/pairs_accuracy",
    goal="maximize",
    label="accuracy on minimal pairs",
    margin=Margin(0.03, "three pairs in a hundred"),
)
ELECTRA = MASKED.override(
    {
        "model.embedding_dim": 64,
        "model.transform": "gelu",
        "task": ReplacedTokensConfig(generator=SymbolGeneratorConfig(width=0.25)),
        "data.source": TopicsConfig(openers=4, forms=4, agreement=1.0, topics=32, words=960, focus=1.0, content=4),
        "data.evaluation.pairs": 256,
        "training.steps": 750,
        "training.clip": 1.0,
        "training.optimizer.learning_rate": 1.5e-3,
    }
)
"""A discriminator with a generator of a quarter of its width, measured by minimal pairs: rows with an ending that does
not agree, with two openers exchanged, or with a word of another topic, each next to the row without that fault.

A generator that knows its text leaves nothing to notice, nor does a text that breaks its own rules. In pilots of one
seed, clipped gradients cut the updates to a third, and 960 words kept BERT from knowing every pair.
"""

BOOKS_GPU: Mapping[str, Any] = {
    "model.dim": 256,
    "model.heads": 8,
    "model.depth": 6,
    "data.source": BooksConfig(),
    "data.tokenizer": WordPieceConfig(size=16_384),
    "data.length": 128,
    "data.batch_size": 256,
    "data.packing": "full_sentences",
    "data.evaluation.examples": 4096,
    "training.steps": 20_000,
    "training.optimizer.learning_rate": 5e-4,
    "training.schedule.warmup": 2000,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides of MASKED for the books of the Gutenberg project on one GPU."""
BERT_BASE: Mapping[str, Any] = dict(BOOKS_GPU) | {
    "model.dim": 768,
    "model.heads": 12,
    "model.depth": 12,
    "data.length": 512,
    "training.steps": 100_000,
    "training.optimizer.learning_rate": 1e-4,
}
"""Overrides of MASKED for the size of BERT-base."""

ELECTRA_GPU: Mapping[str, Any] = dict(BOOKS_GPU) | {"model.embedding_dim": 128, "data.evaluation.pairs": 1000}
"""Overrides of ELECTRA for the size of ELECTRA-small, on one GPU."""
ELECTRA_BASE: Mapping[str, Any] = dict(BERT_BASE) | {
    "model.embedding_dim": 768,
    "data.evaluation.pairs": 1000,
}
"""Overrides of ELECTRA for the size of ELECTRA-base."""
