"""How many keys a translator's queries need (Zhao et al. 2019, arXiv:1912.11637)."""

from __future__ import annotations

from ablations.ablation import Ablation, Cell, Match, Published, Source
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES, in_all_attention
from lit_transformers.mixers import TopKConfig

ABLATION = Ablation(
    question="Does a translator lose anything where each query keeps its k best keys alone?",
    source=Source("Zhao et al. 2019", arxiv="1912.11637"),
    baseline=TRANSLATION,
    factors={
        "kept": {"full": {}} | {str(kept): in_all_attention(TopKConfig(kept=kept)) for kept in (2, 4, 8, 16)},
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    published=Published(
        protocol="IWSLT French-English, from a later paper of the authors; k in self- and cross-attention",
        metric="BLEU",
        cells=[
            Cell("baseline", 37.10),
            Cell("kept=16", 36.95),
            Cell("kept=8", 37.64),
            Cell("kept=4", 37.25),
            Cell("kept=2", 36.62),
        ],
    ),
    scales=TRANSLATION_SCALES,
)
