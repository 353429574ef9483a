"""Evaluation speed: reusing state against sliding by one token (Dai et al. 2019, arXiv:1901.02860, table 9)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Metric, Published, PublishedValue, Scale, Source
from ablations.baselines import GPU, TRANSFORMER_XL

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
LENGTHS = (64, 128, 256, 512, *PUBLISHED)


def reuse(length: int) -> dict[str, object]:
    """Returns overrides that evaluate segments as in training, each with a memory of ``length`` tokens."""
    return {"task.evaluation": {"mixer.memory": length}}


def slide(length: int) -> dict[str, object]:
    """Returns overrides that predict every token from a separate window of ``length`` tokens, without memory."""
    return {
        "data.evaluation.segment_length": length,
        "data.evaluation.stride": 1,
        "task.evaluation": {"mixer.memory": 0},
    }


ABLATION = Ablation(
    question="How much faster is evaluation with reused state than by sliding one token at a time?",
    answer=[f"reusing against sliding, attention {length}" for length in LENGTHS],
    source=Source("Dai et al. 2019", arxiv="1901.02860", table="9"),
    baseline=TRANSFORMER_XL.override(
        {
            "training.steps": 1,
            "training.validate_every": None,
            "data.evaluation.bytes": 4096,
            "data.evaluation.batch_size": 2,
            "task.evaluation": {"mixer.memory": 0},
        }
    ),
    design="explicit",
    arms={"no attention beyond the segment": {}}
    | {f"state reused, attention {length}": reuse(length) for length in LENGTHS}
    | {f"sliding by one, attention {length}": slide(length) for length in LENGTHS},
    seeds=3,
    metric=Metric("measured/evaluation_tokens_per_second", goal="maximize", label="tokens per second", compare="ratio"),
    contrasts=[
        Contrast(
            f"reusing against sliding, attention {length}",
            f"state reused, attention {length}",
            f"sliding by one, attention {length}",
        )
        for length in LENGTHS
    ],
    published=Published(
        protocol="one GPU, batch size 1; how many times slower the model of Al-Rfou et al. is, token by token",
        metric="times slower",
        goal="minimize",
        cells=[
            PublishedValue(f"sliding by one, attention {length}", times, note=f"attention length {length}")
            for length, times in PUBLISHED.items()
        ],
        claims=["Up to 1,874 times faster at attention length 3,800."],
    ),
    scales={
        "demo": Scale(
            leave_out={
                f"{way}, attention {length}": "minutes on a CPU: left to the gpu scale"
                for way in ("state reused", "sliding by one")
                for length in PUBLISHED
            }
        ),
        "gpu": Scale(
            overrides=dict(GPU) | {"training.steps": 1, "training.validate_every": None, "data.evaluation.bytes": 8192}
        ),
        "paper": Scale(
            overrides=dict(GPU)
            | {
                "model.depth": 24,
                "model.dim": 1024,
                "training.steps": 1,
                "training.validate_every": None,
                "data.evaluation.bytes": 8192,
            },
        ),
    },
)
