"""A small study of real runs on a generated corpus, for tests that kill the processes they start."""

from __future__ import annotations

import random
from pathlib import Path

__all__ = ["write_study"]

_STUDY = """
from ablations.ablation import Ablation, Match, Metric
from datamodules import EvaluationConfig, FilesConfig, LanguageDataConfig
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.training.config import TrainingConfig
from MODULE import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(
        model=LanguageModelConfig(
            dim=16, heads=2, depth=2, dropout=0.1, mixer=AttentionConfig(encoding=XLConfig(), memory=16)
        ),
        data=LanguageDataConfig(
            source=FilesConfig(path=CORPUS),
            segment_length=16,
            batch_size=4,
            evaluation=EvaluationConfig(bytes=2000),
            workers=WORKERS,
        ),
        training=TrainingConfig(steps=STEPS, log_every=20, device="cpu"),
    ),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=SEEDS,
    metric=Metric("val/bpb", goal="minimize"),
    match=Match("tokens"),
    rates=None,
)
"""


def write_study(
    path: Path, corpus: Path, *, module: str = "lit_transformers.runs", steps: int, seeds: int, workers: int = 0
) -> None:
    """Writes a study of two arms with the given seeds and steps, whose baseline is a RunConfig of ``module``.

    workers: processes that load the data of a run.
    """
    write_corpus(corpus)
    substitutions = {
        "MODULE": module,
        "CORPUS": repr(str(corpus)),
        "STEPS": str(steps),
        "SEEDS": str(seeds),
        "WORKERS": str(workers),
    }
    text = _STUDY
    for name, value in substitutions.items():
        text = text.replace(name, value)
    path.write_text(text)


def write_corpus(folder: Path) -> None:
    """Writes forty small documents of words, the same ones every time."""
    words = ["the", "model", "reads", "a", "segment", "and", "remembers", "what", "came", "before", "it"]
    generator = random.Random(0)
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(generator.choice(words) for _ in range(400)))
