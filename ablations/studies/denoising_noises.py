"""The damage to a text before it is written anew (Lewis et al. 2020, arXiv:1910.13461, table 1)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.denoising import CONTINUED_NATS, DENOISING, DENOISING_SCALES, ELEVEN_PASSES
from datamodules import (
    CausalTargetConfig,
    ComposedConfig,
    DocumentRotationConfig,
    MASSConfig,
    SentencePermutationConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
)

ABLATION = Ablation(
    question="Which noise teaches an encoder-decoder most to continue a text?",
    source=Source("Lewis et al. 2020", arxiv="1910.13461", table="1"),
    baseline=DENOISING.override(ELEVEN_PASSES),
    factors={
        "noise": {
            "infilling": {},
            "infilling_and_permutation": {"data.noise.first": ComposedConfig()},
            "masking": {"data.noise.first": TokenMaskingConfig(rate=0.3)},
            "deletion": {"data.noise.first": TokenDeletionConfig(rate=0.3)},
            "permutation": {"data.noise.first": SentencePermutationConfig()},
            "rotation": {"data.noise.first": DocumentRotationConfig()},
            "mass": {"data.noise.first": MASSConfig()},
            "language_model": {"data.noise.first": CausalTargetConfig()},
        }
    },
    seeds=3,
    metric=CONTINUED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="base size, pretrained on books and Wikipedia, fine-tuned to summarize CNN/DM",
        metric="perplexity on CNN/DM",
        goal="minimize",
        cells=[
            PublishedValue("noise=infilling", 5.83),
            PublishedValue("noise=infilling_and_permutation", 5.41),
            PublishedValue("noise=masking", 6.10),
            PublishedValue("noise=deletion", 5.87),
            PublishedValue("noise=permutation", 7.89),
            PublishedValue("noise=rotation", 10.59),
            PublishedValue("noise=mass", 6.19),
            PublishedValue("noise=language_model", 6.56, "decoder alone"),
        ],
        claims=["SQuAD F1: infilling 90.8, masking 90.4, permutation 85.4, rotation 77.2, language model 76.7."],
    ),
    scales=DENOISING_SCALES,
)
