"""The number of keys that each query keeps in translation (Zhao et al. 2019, arXiv:1912.11637)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES, in_all_attention
from lit_transformers.mixers import TopKConfig

ABLATION = Ablation(
    question="Does a translator lose anything where each query keeps its k best keys alone?",
    source=Source("Zhao et al. 2019", arxiv="1912.11637"),
    baseline=TRANSLATION,
    factors={
        "kept": {"full": {}} | {str(k): in_all_attention(TopKConfig(kept=k)) for k in (2, 4, 8, 16)},
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    published=Published(
        protocol="IWSLT French-English, from a later paper of the authors; k in self- and cross-attention",
        metric="BLEU",
        cells=[
            PublishedValue("baseline", 37.10),
            PublishedValue("kept=16", 36.95),
            PublishedValue("kept=8", 37.64),
            PublishedValue("kept=4", 37.25),
            PublishedValue("kept=2", 36.62),
        ],
    ),
    scales=TRANSLATION_SCALES,
)
