"""Summaries of documents that are too long for full attention (Zaheer et al. 2020, arXiv:2007.14062,
section 4.1; Beltagy et al. 2020, arXiv:2004.05150, section 7)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.pairs import DOCSTRINGS, ROUGE, SUMMARIES_SCALES
from lit_transformers.mixers import BigBirdConfig, WindowConfig

LENGTHS = (384, 1024, 4096, 16_384)

ABLATION = Ablation(
    question="Is a windowed encoder that reads a long document better than full attention that reads its beginning?",
    answer=[f"window reading {length} against full reading the beginning" for length in LENGTHS],
    source=Source("Zaheer et al. 2020", arxiv="2007.14062", table="4"),
    baseline=DOCSTRINGS,
    factors={
        "encoder": {
            "full": {},
            "window": {"model.mixer": WindowConfig(window=32, global_tokens="first")},
            "big_bird": {"model.mixer": BigBirdConfig(block=16, random=1)},
        },
        "length": {"short": {}} | {str(length): {"data.longest_source": length} for length in LENGTHS},
    },
    design="product",
    seeds=3,
    metric=ROUGE,
    contrasts=[
        *(
            Contrast(
                f"{encoder} reading {length} against full reading the beginning",
                f"encoder={encoder} length={length}",
                "encoder=full length=short",
            )
            for encoder in ("full", "window", "big_bird")
            for length in LENGTHS
        ),
        *(
            Contrast(
                f"{encoder} against full, {length}",
                f"encoder={encoder} length={length}",
                f"encoder=full length={length}",
            )
            for encoder in ("window", "big_bird")
            for length in LENGTHS
        ),
    ],
    published=Published(
        protocol="arXiv, PubMed and BigPatent with inputs of 3,072 tokens, from a pre-trained encoder",
        metric="ROUGE-L",
        claims=[
            "BigBird beats a Transformer that reads 1,024 tokens on all three, at base and at large size.",
            "LED: reading 16K instead of 4K tokens of arXiv papers gives 2 ROUGE-L more (arXiv:2004.05150, figure 3).",
        ],
    ),
    scales=SUMMARIES_SCALES,
)
