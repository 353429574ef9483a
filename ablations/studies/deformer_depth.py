"""How many layers may read a question and a passage apart (DeFormer, Cao et al. 2020, arXiv:2005.00697), for questions
of one and of two hops."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Looks, Margin, Metric, Published, Scale, Source
from datamodules import FactsConfig, LabelledDataConfig, LabelledEvaluationConfig
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.models import DeFormerConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import QuestionAnsweringConfig
from lit_transformers.training.config import AdamWConfig, ConstantConfig, TrainingConfig

BASELINE = RunConfig(
    model=DeFormerConfig(dim=64, heads=4, depth=3, positions=LearnedConfig(restart="document"), segments=2),
    task=QuestionAnsweringConfig(scores="product", longest_answer=1),
    data=LabelledDataConfig(source=FactsConfig(), batch_size=192, evaluation=LabelledEvaluationConfig(split="test")),
    training=TrainingConfig(
        steps=600,
        optimizer=AdamWConfig(learning_rate=2e-3),
        schedule=ConstantConfig(warmup=50),
        validate_every=50,
        device="cpu",
    ),
)
"""A reader of three layers. Its logits are products of facts with the question: with all three layers apart, only the
logits can combine both."""

LARGER = {
    "model.dim": 256,
    "model.heads": 8,
    "data.source": FactsConfig(entities=12, relations=4, questions=96),
    "training.steps": 4000,
    "training.optimizer.learning_rate": 5e-4,
    "training.schedule.warmup": 400,
    "training.validate_every": 200,
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides for passages of 48 facts, on a GPU."""

ABLATION = Ablation(
    question="How many layers may read a question and a passage apart if the answer takes one or two hops?",
    answer=["no layer above"],
    source=Source("Cao et al. 2020", arxiv="2005.00697"),
    baseline=BASELINE,
    factors={"apart": {"0": {}, **{str(layers): {"model.apart": layers} for layers in (1, 2, 3)}}},
    design="one_factor",
    seeds=Looks(3, 6),
    metric=Metric(
        "test/two_hops_exact_match",
        goal="maximize",
        label="answers to questions of two hops",
        margin=Margin(2.0, "two in a hundred questions, a fortieth of the gain from following the second hop"),
    ),
    also=[
        Metric("test/one_hop_exact_match", goal="maximize", label="answers to questions of one hop"),
        Metric("test/two_hops_nats", goal="minimize", label="nats of questions of two hops"),
        Metric("test/one_hop_nats", goal="minimize", label="nats of questions of one hop"),
    ],
    contrasts=[
        Contrast("two layers above", "apart=1", "baseline"),
        Contrast("one layer above", "apart=2", "baseline"),
        Contrast("no layer above", "apart=3", "baseline"),
    ],
    published=Published(
        protocol="BERT-base on SQuAD 1.1 and other data, whose numbers of hops are not known",
        metric="F1 on SQuAD 1.1",
        goal="maximize",
        claims=[
            "With 9 of 12 layers apart F1 is 87.00, as against 88.34 of the full network: the lower layers can read a "
            "passage without its question.",
        ],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=LARGER),
        "paper": Scale(overrides={**LARGER, "training.steps": 20_000}, seeds=1),
    },
)
