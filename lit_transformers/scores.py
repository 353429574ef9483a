"""Scores of texts against references, by the packages that define the scores and with fixed settings.

Used by tasks, which score their outputs, and by reports, which read outputs from disk; so nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

__all__ = ["ROUGES", "metric_of", "rouge_of_each", "rouge_signature", "streams"]

ROUGES = ("rouge1", "rouge2", "rougeL")


def metric_of(name: str) -> Any:
    """Returns sacreBLEU's ``bleu`` or ``chrf`` with its defaults: for BLEU the tokenizer 13a, cased."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(force=True) if name == "bleu" else CHRF()


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
