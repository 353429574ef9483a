"""Summarization of a function's source by the first sentence of its docstring, from installed packages."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, Source
from ablations.pairs import DOCSTRINGS, DOCSTRINGS_SCALES, ROUGE
from lit_transformers.mixers import BiLSTMConfig, ConvolutionConfig, LinearConfig, LSRAConfig, WindowConfig

ABLATION = Ablation(
    question="Which encoder summarises a function best, at equal parameters?",
    source=Source("Wu et al. 2020", arxiv="2004.11886", table="3"),
    baseline=DOCSTRINGS,
    factors={
        "encoder": {
            "attention": {},
            "window": {"model.mixer": WindowConfig(window=16)},
            "lsra": {"model.mixer": LSRAConfig(convolution=ConvolutionConfig(kernel=7))},
            "linear": {"model.mixer": LinearConfig()},
            "bilstm": {"model.mixer": BiLSTMConfig(), "model.positions": None},
        }
    },
    design="one_factor",
    seeds=3,
    metric=ROUGE,
    match=Match("parameters", free="model.feedforward.width", tolerance=0.02),
    published=Published(
        protocol="CNN and Daily Mail, 30 tokens in and out counted; Lite Transformer with 17.3M parameters",
        metric="ROUGE-L",
        claims=["Lite Transformer has the ROUGE of a Transformer with 2.5 times its multiply-adds."],
    ),
    scales=DOCSTRINGS_SCALES,
)
