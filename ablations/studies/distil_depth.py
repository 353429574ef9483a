"""The gain of a student of half the layers from its teacher, over more updates without one (Sanh et al. 2019,
arXiv:1910.01108; Wang et al. 2020, arXiv:2002.10957)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Match, Published, Scale, Source
from ablations.compression import DENSE
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS, WHOLE
from lit_transformers.config import Plain
from lit_transformers.tasks.distillation import DistillationConfig

TEACHER: Mapping[str, Any] = {"run": DENSE.to_dict()}
"""The source of the teacher and of the student's layers: the whole network, fine-tuned on the same sentences."""
KEPT = (2, 4, 6)


def losses(**weights: Plain) -> DistillationConfig:
    """Returns losses by labels and by the given fields of the teacher."""
    return DistillationConfig.from_dict({"logits": 0.0, "hidden": 0.0, **weights})


WITHOUT: Mapping[str, Any] = {"task.distillation": None, "start.teacher": None}
"""The overrides of an arm that learns by labels alone."""
STUDENT = DENSE.override(
    {
        "model.depth": len(KEPT),
        "training.steps": 125,
        "training.schedule.warmup": 12,
        "start": {"network": TEACHER, "heads": "network", "layers": KEPT, "teacher": TEACHER},
        "task.distillation": losses(logits=1.0),
    }
)
"""The layers 2, 4 and 6 of the fine-tuned network, which learn by labels and by its logits."""

LARGER_TEACHER: Mapping[str, Any] = {"run": DENSE.override(WHOLE).to_dict()}
LARGER: Mapping[str, Any] = {**WHOLE, "start.network": LARGER_TEACHER, "start.teacher": LARGER_TEACHER}
"""Overrides of STUDENT: both networks have had three passes of all sentences on a GPU."""

ABLATION = Ablation(
    question="At equal compute, does a student of half the layers gain by its teacher?",
    answer=["logits in place of more updates", "states in place of more updates", "relations in place of more updates"],
    source=Source("Sanh et al. 2019", arxiv="1910.01108", table="4"),
    baseline=STUDENT,
    factors={
        "teaches": {
            "logits": {},
            "nothing": WITHOUT,
            "cosine": {"task.distillation": losses(cosine=1.0)},
            "relations": {"task.distillation": losses(relations=1.0)},
            "all": {"task.distillation": losses(logits=1.0, cosine=1.0, relations=1.0)},
            "nothing_six_layers": {**WITHOUT, "model.depth": 6, "start.layers": None},
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    match=Match("flops", free="training.steps"),
    contrasts=[
        Contrast("logits in place of more updates", "baseline", "teaches=nothing"),
        Contrast("states in place of more updates", "teaches=cosine", "teaches=nothing"),
        Contrast("relations in place of more updates", "teaches=relations", "teaches=nothing"),
        Contrast("all three in place of more updates", "teaches=all", "teaches=nothing"),
        Contrast("states and relations besides logits", "teaches=all", "baseline"),
        Contrast("three layers that are taught in place of six", "baseline", "teaches=nothing_six_layers"),
    ],
    published=Published(
        protocol="BERT-base and a student of 6 of its 12 layers on masked symbols, before fine-tuning; here MiniLM, "
        "fine-tuned on SST-2, and 3 of its 6 layers, with the teacher's forward passes counted",
        metric="GLUE",
        goal="maximize",
        claims=[
            "The student keeps 97 % of GLUE with 40 % fewer parameters.",
            "Of its three losses, that by the teacher's outputs matters most, then the cosine of states.",
            "MiniLM (arXiv:2002.10957) keeps more than 99 % on SQuAD 2.0 and some tasks of GLUE with half of the "
            "layers' parameters, by relations alone.",
        ],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=LARGER),
        "paper": Scale(overrides=LARGER, seeds=1),
    },
    preparation=FETCH,
)
