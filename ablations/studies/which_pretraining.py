"""The pretraining objective that helps downstream tasks most (ALBERT, Lan et al. 2020, arXiv:1909.11942, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Metric, Published, PublishedValue, Source
from ablations.fine_tuning import FETCH, MINILM_NETWORK, PIECES, SEEDS, rates, scales
from datamodules import (
    BooksConfig,
    ConllConfig,
    LabelledEvaluationConfig,
    MaskTokensConfig,
    MixedDataConfig,
    QuestionsConfig,
    RowDataConfig,
    RowEvaluationConfig,
    SentencesConfig,
    UniformConfig,
)
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import (
    ClassificationConfig,
    MaskedLMConfig,
    MultiTaskConfig,
    QuestionAnsweringConfig,
    RegressionConfig,
    ReplacedTokensConfig,
    SymbolGeneratorConfig,
    TaggingConfig,
)
from lit_transformers.training.config import AdamWConfig, LinearDecayConfig, TrainingConfig

ENCODER = MINILM_NETWORK.override({"dim": 128, "heads": 4, "depth": 2, "feedforward.width": 512, "embedding_dim": 128})
"""A small BERT with the vocabulary of the released models."""

PRETRAINING = RunConfig(
    model=ENCODER,
    task=MaskedLMConfig(),
    data=RowDataConfig(
        source=BooksConfig(),
        tokenizer=PIECES,
        length=64,
        packing="segment_pair",
        noise=MaskTokensConfig(),
        batch_size=16,
        evaluation=RowEvaluationConfig(examples=512),
    ),
    training=TrainingConfig(
        steps=3000, optimizer=AdamWConfig(learning_rate=2e-3), schedule=LinearDecayConfig(warmup=150), device="cpu"
    ),
)
"""Masked language modelling on books, with pairs of segments in rows of 64 tokens. The loss stays at that of the
frequencies of words for several hundred updates, so that fewer updates teach little."""

CLASSES = ClassificationConfig(pooling="mean", dropout=0.1)
SCORES = {
    "sst2": "accuracy",
    "cola": "matthews",
    "trec": "accuracy",
    "sick_entailment": "accuracy",
    "sick_relatedness": "spearman",
    "wnut17": "f1",
    "ewt": "accuracy",
    "xquad": "f1",
}
"""The tasks, with the score of each. The mean of the scores judges; each task counts once."""


def sentences(corpus: str) -> SentencesConfig:
    """Returns 2,000 examples of a corpus, different for each seed."""
    return SentencesConfig(
        corpus=corpus,  # type: ignore[arg-type]
        tokenizer=PIECES,
        length=64,
        examples=2000,
        subset="by_seed",
    )


BATTERY = RunConfig(
    model=ENCODER,
    task=MultiTaskConfig(
        tasks={
            "sst2": CLASSES,
            "cola": CLASSES,
            "trec": CLASSES,
            "sick_entailment": CLASSES,
            "sick_relatedness": RegressionConfig(column="relatedness", pooling="mean"),
            "wnut17": TaggingConfig(),
            "ewt": TaggingConfig(),
            "xquad": QuestionAnsweringConfig(),
        },
        scores=SCORES,
    ),
    data=MixedDataConfig(
        sources={
            "sst2": sentences("sst2"),
            "cola": sentences("cola"),
            "trec": sentences("trec"),
            "sick_entailment": sentences("sick"),
            "sick_relatedness": sentences("sick"),
            "wnut17": ConllConfig(
                path="wnut17",
                tokenizer=PIECES,
                length=64,
                examples=2000,
                train_files=("wnut17train.conll",),
                validation_files=("emerging.dev.conll",),
            ),
            "ewt": ConllConfig(
                path="ud-english-ewt",
                tokenizer=PIECES,
                length=64,
                train_files=("en_ewt-ud-dev.conllu",),
                validation_files=("en_ewt-ud-test.conllu",),
            ),
            "xquad": QuestionsConfig(tokenizer=PIECES, length=192, stride=64),
        },
        sampling=UniformConfig(),
        batch_size=16,
        evaluation=LabelledEvaluationConfig(examples=500, batch_size=32),
    ),
    training=TrainingConfig(
        steps=800, optimizer=AdamWConfig(learning_rate=5e-4), schedule=LinearDecayConfig(warmup=80), device="cpu"
    ),
)
"""Eight tasks at once, each with one batch in eight. GLUE (arXiv:1804.07461) trains one network for each task."""


def pretrained(**overrides: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm whose network is first pretrained, once for all seeds."""
    paths = {path.replace("__", "."): value for path, value in overrides.items()}
    return {"start.network": {"run": PRETRAINING.override(paths).to_dict(), "seed": 0}}


GPU: Mapping[str, Any] = {"training.device": "cuda", "training.precision": "bf16", "training.steps": 16_000}
"""Overrides of BATTERY on one GPU. The pretraining of an arm has as many steps as in the demo."""

NONE, MASKED, NEXT, ORDER, ELECTRA = "none", "masked_words", "next_sentences", "sentence_order", "electra"

ABLATION = Ablation(
    question="Which pretraining objective helps the tasks of an encoder most?",
    answer=["hidden words against none", "sentence order", "replaced words against hidden words"],
    source=Source("Lan et al. 2020", arxiv="1909.11942", table="5"),
    baseline=BATTERY,
    factors={
        "pretraining": {
            NONE: {},
            MASKED: pretrained(),
            NEXT: pretrained(data__relation="next_sentence"),
            ORDER: pretrained(data__relation="sentence_order"),
            ELECTRA: pretrained(task=ReplacedTokensConfig(generator=SymbolGeneratorConfig(width=0.25))),
        },
        "rate": rates(BATTERY),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=Metric(
        "val/mean_score",
        goal="maximize",
        label="mean score of eight tasks",
        margin=Margin(0.01, "a hundredth of the scale of the scores"),
    ),
    also=[
        Metric(f"val/{task}_{score}", goal="maximize", label=f"{task.replace('_', ' ')}, {score}")
        for task, score in SCORES.items()
    ],
    contrasts=[
        Contrast("hidden words against none", f"pretraining={MASKED}", "baseline"),
        Contrast("next sentences", f"pretraining={NEXT}", f"pretraining={MASKED}"),
        Contrast("sentence order", f"pretraining={ORDER}", f"pretraining={MASKED}"),
        Contrast("replaced words against hidden words", f"pretraining={ELECTRA}", f"pretraining={MASKED}"),
    ],
    published=Published(
        protocol="ALBERT-base, 125,000 updates with 4,096 rows of 512 tokens, fine-tuned on each of five tasks; here "
        "3,000 updates with 16 rows of 64 tokens, and eight tasks at once. All seeds of an arm start from one "
        "pretrained network, so that intervals are over fine-tuning alone",
        metric="mean score of SQuAD 1.1 and 2.0, MNLI, SST-2 and RACE",
        goal="maximize",
        cells=[
            PublishedValue(f"pretraining={MASKED}", 79.0),
            PublishedValue(f"pretraining={NEXT}", 79.2),
            PublishedValue(f"pretraining={ORDER}", 80.1),
        ],
        claims=[
            "Replaced words in place of hidden ones raise the score of GLUE from 82.2 to 85.0 (Clark et al. 2020, "
            "arXiv:2003.10555, table 5)."
        ],
    ),
    scales=scales(GPU),
    preparation=FETCH,
)
"""In the demo no arm passes the floor of its tasks, so that no comparison has a verdict: 3,000 updates of pretraining
teach little more than the frequencies of words, and 100 batches of each task are few for a network without pretraining.
The scale gpu has sixteen thousand updates on the tasks."""
