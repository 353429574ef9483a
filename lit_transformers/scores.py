"""How alike a text is to its references, by the packages that define it and with one choice of their settings.

Read by tasks, which measure what they write, and by reports, which read it from disk; so nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

__all__ = ["ROUGES", "metric_of", "rouge_of_each", "rouge_signature", "streams"]

ROUGES = ("rouge1", "rouge2", "rougeL")


def metric_of(name: str) -> Any:
    """sacreBLEU's ``bleu`` or ``chrf`` with its defaults: for BLEU the tokenizer 13a, cased."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(force=True) if name == "bleu" else CHRF()


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """The n-th references of all examples, for each n; None where an example has fewer."""
    most = max(map(len, references))
    return [[of_one[n] if n < len(of_one) else None for of_one in references] for n in range(most)]


def rouge_of_each(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """F-measures of 0 to 100 of each example, of the best of its references, with stems (Lin 2004)."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([*ROUGES], use_stemmer=True)
    found = (scorer.score_multi(told, said) for said, told in zip(hypotheses, references, strict=True))
    return [{name: 100.0 * score[name].fmeasure for name in ROUGES} for score in found]


def rouge_signature() -> str:
    """How ``rouge_of_each`` is made, in a line."""
    return f"F-measure, stems, best reference|rouge-score:{version('rouge-score')}"
