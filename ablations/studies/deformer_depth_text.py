"""How many layers of a pretrained reader may read a question and a passage apart (DeFormer, Cao et al. 2020,
arXiv:2005.00697, table 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, PublishedValue, Scale, Source
from ablations.fine_tuning import FETCH, READER, READER_F1, SIX_LANGUAGES, SIX_LANGUAGES_ON_GPU

SEVERAL = {
    **{f"apart={layers}": "between the depths of the demo" for layers in (1, 2, 4)},
    "apart=6": "a head with products is a separate question",
    "scores=product": "a head with products is a separate question",
}
"""The arms that the demo omits, with the reasons."""

ABLATION = Ablation(
    question="How many layers of a pretrained reader may read questions and passages apart?",
    answer=["five of six layers apart"],
    source=Source("Cao et al. 2020", arxiv="2005.00697", table="2"),
    baseline=READER,
    factors={
        "apart": {
            "0": {},
            **{str(layers): {"model.apart": layers} for layers in range(1, 6)},
            "6": {"model.apart": 6, "task.scores": "product"},
        },
        "scores": {"linear": {}, "product": {"task.scores": "product"}},
    },
    design="one_factor",
    seeds=5,
    metric=READER_F1,
    contrasts=[
        Contrast("one of six layers apart", "apart=1", "baseline"),
        Contrast("two of six layers apart", "apart=2", "baseline"),
        Contrast("three of six layers apart", "apart=3", "baseline"),
        Contrast("four of six layers apart", "apart=4", "baseline"),
        Contrast("five of six layers apart", "apart=5", "baseline"),
        Contrast("two encoders in place of one", "apart=6", "scores=product"),
    ],
    published=Published(
        protocol="BERT-base on SQuAD 1.1, distilled from the full network; here MiniLM of six layers, fine-tuned alone "
        "on xquad, cross-validated by passage: the five seeds are the five folds, and arms are compared fold by fold "
        "on the same questions",
        metric="F1 on SQuAD 1.1",
        goal="maximize",
        cells=[PublishedValue("baseline", 88.34)],
        claims=[
            "With 9 of 12 layers apart F1 is 87.00 and exact match 79.13, as against 88.34 and 80.92 of the full "
            "network.",
        ],
    ),
    scales={
        "demo": Scale(leave_out=SEVERAL),
        "hour": Scale(overrides=SIX_LANGUAGES, arms=["baseline", "apart=5"]),
        "gpu": Scale(overrides=SIX_LANGUAGES_ON_GPU),
        "paper": Scale(overrides=SIX_LANGUAGES_ON_GPU),
    },
    preparation=FETCH,
)
"""A fold has about 238 questions in English, and about 1,430 in six languages. If the standard deviation of paired
differences is 45 points of F1, five folds of English resolve differences of about 3.6 points. Six languages resolve
about 1.5, if errors on translations of a question are independent."""
