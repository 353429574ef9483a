"""Decoding token by token (Katharopoulos et al. 2020, arXiv:2006.16236, table 2 and section 4.2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Metric, Published, Scale, Source
from ablations.baselines import CHARACTERS, CHARACTERS_GPU
from lit_transformers.mixers import LinearConfig

LENGTHS = (256, 512, 1024, 4096, 16_384)
LONG = tuple(length for length in LENGTHS if length > 1024)

LONGER = {"data.evaluation.bytes": 32_768, "data.source.piece": 32_768}
"""Overrides with which documents are twice as long as the longest window."""


def cached(length: int) -> dict[str, object]:
    """Returns overrides that read one token at a time, with a cache of the keys and values of ``length`` tokens."""
    return {"data.evaluation.segment_length": 1, "task.evaluation": {"mixer.memory": length}}


def uncached(length: int) -> dict[str, object]:
    """Returns overrides without a cache: for every token the ``length`` tokens before it are read again.

    The first ``length`` tokens of a document are computed in one pass, so documents are several times as long.
    """
    return {"data.evaluation.segment_length": length, "data.evaluation.stride": 1}


ABLATION = Ablation(
    question="How much faster is linear attention when it writes, against softmax with and without a cache?",
    answer=[f"linear against softmax {way} a cache, length {n}" for way in ("with", "without") for n in LENGTHS],
    source=Source("Katharopoulos et al. 2020", arxiv="2006.16236", table="2"),
    baseline=CHARACTERS.override(
        {
            "training.steps": 1,
            "data.evaluation.segment_length": 1,
            "data.evaluation.bytes": 4096,
            "data.evaluation.batch_size": 1,
            "data.source.piece": 4096,
            "model.mixer": LinearConfig(),
        }
    ),
    design="explicit",
    arms={"linear": {}}
    | {f"softmax with a cache, length {n}": {"model.mixer": {"kind": "attention"}} | cached(n) for n in LENGTHS}
    | {f"softmax without a cache, length {n}": {"model.mixer": {"kind": "attention"}} | uncached(n) for n in LENGTHS},
    seeds=3,
    metric=Metric("measured/evaluation_tokens_per_second", goal="maximize", label="tokens per second", compare="ratio"),
    contrasts=[
        Contrast(f"linear against softmax {way} a cache, length {n}", "linear", f"softmax {way} a cache, length {n}")
        for way in ("with", "without")
        for n in LENGTHS
    ],
    published=Published(
        protocol="CIFAR-10, 3,072 tokens per image, one GPU, images per second; softmax there has no cache",
        metric="times faster",
        goal="maximize",
        claims=[
            "Linear attention is 4,462 times faster than softmax without a cache; on MNIST (784 tokens) 317 times."
        ],
    ),
    scales={
        "demo": Scale(
            leave_out={
                f"softmax {way} a cache, length {n}": "minutes on a CPU: left to the gpu scale"
                for way in ("with", "without")
                for n in LONG
            }
        ),
        "gpu": Scale(overrides=dict(CHARACTERS_GPU) | {"training.steps": 1} | LONGER),
        "paper": Scale(
            overrides=dict(CHARACTERS_GPU) | {"model.depth": 16, "model.dim": 256, "training.steps": 1} | LONGER
        ),
    },
)
