"""Whether a reader with lower layers apart gains by distillation from the full network (DeFormer, Cao et al. 2020,
arXiv:2005.00697, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, PublishedValue, Scale, Source
from ablations.fine_tuning import FETCH, READER, READER_F1, SEEDS, THREE_PASSES
from lit_transformers.config import Plain
from lit_transformers.tasks.distillation import DistillationConfig

TEACHER: Mapping[str, Any] = {"run": READER.to_dict()}
"""The source of the teacher: the full network, fine-tuned on the same folds, as in the demo at every scale."""
FROM_TEACHER: Mapping[str, Any] = {"start.network": TEACHER, "start.heads": "network"}
HALF_A_PASS: Mapping[str, Any] = {"training.steps": 75, "training.schedule.warmup": 8}
"""Overrides for readers that continue from their teacher, half as long as the teacher was trained."""
LONGER = "the demo compares readers that continue from their teacher for half a pass; the scale hour has this arm"
NOT_OF_PAPER = {
    "learning=without_labels": "the authors have no such arm",
    "learning=with_attention": "the paper has no such loss",
}
"""Arms that only large scales have, with the reasons."""


def distilled(**losses: Plain) -> Mapping[str, Any]:
    """Returns the overrides of an arm that learns from its teacher. losses: weights of losses, by the field of
    ``DistillationConfig``."""
    return {"start.teacher": TEACHER, "task.distillation": DistillationConfig.from_dict(losses)}


ABLATION = Ablation(
    question="What does a reader with three of six layers apart gain by learning from the full network?",
    answer=["distillation in place of none from the teacher's weights"],
    source=Source("Cao et al. 2020", arxiv="2005.00697", table="2"),
    baseline=READER.override({"model.apart": 3, **FROM_TEACHER}),
    factors={
        "learning": {
            "from_teacher": {},
            "alone": {"start": READER.start},
            "distilled": distilled(),
            "without_labels": distilled(labels=0.0),
            "without_logits": distilled(logits=0.0),
            "without_hidden": distilled(hidden=0.0),
            "with_attention": distilled(attention=1.0),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=READER_F1,
    contrasts=[
        Contrast("distillation in place of none from the teacher's weights", "learning=distilled", "baseline"),
        Contrast("distillation in place of fine-tuning alone", "learning=distilled", "learning=alone"),
        Contrast("the teacher's weights in place of the released ones", "baseline", "learning=alone"),
        Contrast("distillation without labels", "learning=without_labels", "learning=distilled"),
        Contrast("distillation without logits", "learning=without_logits", "learning=distilled"),
        Contrast("distillation without states", "learning=without_hidden", "learning=distilled"),
        Contrast("distillation with attention", "learning=with_attention", "learning=distilled"),
    ],
    published=Published(
        protocol="BERT-base with 9 of 12 layers apart on SQuAD 1.1, with logits and states of the full network, each "
        "with the weight 1; here MiniLM with 3 of 6 layers apart on xquad, cross-validated by passage",
        metric="F1 on SQuAD 1.1",
        goal="maximize",
        cells=[PublishedValue("learning=distilled", 87.00, note="9 of 12 layers apart")],
        claims=["Both losses by the teacher recover a part of the lost F1; the full network has 88.34."],
    ),
    scales={
        "demo": Scale(
            overrides=HALF_A_PASS,
            leave_out=NOT_OF_PAPER
            | {f"learning={arm}": LONGER for arm in ("alone", "without_logits", "without_hidden")},
        ),
        "hour": Scale(leave_out=NOT_OF_PAPER),
        "gpu": Scale(overrides=THREE_PASSES),
        "paper": Scale(overrides=THREE_PASSES),
    },
    preparation=FETCH,
)
"""With five of six layers apart, a reader of one pass over xquad stays below the floor."""
