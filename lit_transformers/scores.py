"""Scores of texts against references, by the packages that define the scores and with fixed settings, and of classes.

Used by tasks, which score their outputs, and by reports, which read outputs from disk; so nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["ROUGES", "confusion", "goal_of", "matthews", "metric_of", "rouge_of_each", "rouge_signature", "streams"]

ROUGES = ("rouge1", "rouge2", "rougeL")
LOSSES = frozenset({"nats", "perplexity", "bpb", "mse"})
"""The last word of the names of metrics of which less is better; of all others more is."""


def goal_of(metric: str) -> Literal["minimize", "maximize"]:
    """Returns what is better of a metric of validations, by its name, such as ``val/relation_nats`` or ``nats@8``."""
    last_word = metric.rpartition("/")[2].partition("@")[0].rpartition("_")[2]
    return "minimize" if last_word in LOSSES else "maximize"


def metric_of(name: str) -> Any:
    """Returns sacreBLEU's ``bleu`` or ``chrf`` with its defaults: for BLEU the tokenizer 13a, cased."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(force=True) if name == "bleu" else CHRF()


def confusion(correct: npt.ArrayLike, labels: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Returns for examples of two classes, 0 and 1, whether each is a true positive, a false positive or a false
    negative, and 1 [examples, 4], given whether its class was predicted and which it is."""
    right, positive = np.asarray(correct, np.float64), np.asarray(labels, np.float64)
    columns = [right * positive, (1 - right) * (1 - positive), (1 - right) * positive, np.ones_like(right)]
    return np.column_stack(columns)


def matthews(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns Matthews correlation [...], from -1 to 1, of totals [..., 4] of ``confusion`` (Matthews 1975).

    It is 0, as of chance, where one class alone is predicted or occurs.
    """
    hits, alarms, misses, count = np.moveaxis(totals, -1, 0)
    rejections = count - hits - alarms - misses
    spread = np.sqrt((hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses))
    correlation: npt.NDArray[np.float64] = (hits * rejections - alarms * misses) / np.where(spread > 0, spread, 1.0)
    return np.where(spread > 0, correlation, 0.0)


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Returns a list of the n-th references of all examples, for each n; None where an example has fewer."""
    count = max(map(len, references))
    return [[texts[n] if n < len(texts) else None for texts in references] for n in range(count)]


def rouge_of_each(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """Returns ROUGE F-measures (0 to 100) of each example, with its best reference and with stemming (Lin 2004)."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([*ROUGES], use_stemmer=True)
    scores = (scorer.score_multi(texts, hypothesis) for hypothesis, texts in zip(hypotheses, references, strict=True))
    return [{name: 100.0 * score[name].fmeasure for name in ROUGES} for score in scores]


def rouge_signature() -> str:
    """Returns the settings of ``rouge_of_each`` in one line."""
    return f"F-measure, stems, best reference|rouge-score:{version('rouge-score')}"
