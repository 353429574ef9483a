"""Scores of decoded texts: BLEU, chrF and ROUGE of the corpus, by the packages that define them, and accuracy.

Texts are kept in the metric's state as bytes, so they are gathered over ranks as sums are, each example once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.batch import PairBatch
from lit_transformers.config import Plain
from lit_transformers.heads.head import Head
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.scores import ROUGES, ScoreWords, metric_of, rouge_of_each, rouge_signature, streams

__all__ = ["OF_SYMBOLS", "Scores", "TextMetric", "Written", "signatures"]

Scores = Literal["bleu", "chrf", "rouge", "accuracy"]
OF_SYMBOLS = frozenset({"accuracy", "sequence_accuracy"})
"""The measures that the score "accuracy" asks for."""


class Written(NamedTuple):
    """The text decoded for the example of that ordinal, and the references that it is compared with."""

    example: int
    hypothesis: str
    references: tuple[str, ...]


class TextMetric(HeadsMetric):
    """Nats per symbol, and the requested ``scores``, of all examples and of each length.

    A line of the state ``texts`` is the JSON of a Written.
    """

    texts: list[Tensor]

    def __init__(self, heads: Mapping[str, Head], scores: Sequence[Scores], words: ScoreWords | None = None) -> None:
        super().__init__(heads)
        self.scores, self.words = tuple(scores), words or ScoreWords()
        self.add_state("texts", default=[], dist_reduce_fx="cat")

    def add_texts(self, batch: PairBatch, hypotheses: Sequence[str] | None) -> None:
        """Adds the text of every row of a batch without rows of padding; None where none is decoded. All ranks must
        call it as often, for they gather states of the same type."""
        text = torch.zeros(0, dtype=torch.uint8, device=batch.example.device)
        if hypotheses is not None:
            records = zip(batch.example.tolist(), hypotheses, batch.references, strict=True)
            lines = "".join(f"{json.dumps(record)}\n" for record in records)
            text = torch.from_numpy(np.frombuffer(lines.encode(), np.uint8).copy()).to(text.device)
        self.texts.append(text)

    def written(self) -> list[Written]:
        """Returns the texts of this rank, by ordinal; within ``compute`` those of all ranks."""
        if len(self.texts) == 0:
            return []
        lines = dim_zero_cat(self.texts).cpu().numpy().tobytes().decode().splitlines()
        records = (
            Written(example, hypothesis, tuple(references))
            for example, hypothesis, references in map(json.loads, lines)
        )
        return sorted({record.example: record for record in records}.values())

    def outputs(self) -> Sequence[dict[str, Plain]]:
        with self.sync_context():
            return [
                {"id": example, "hypothesis": hypothesis, "references": [*references]}
                for example, hypothesis, references in self.written()
            ]

    def compute(self) -> dict[str, float]:
        """Returns the scores by name, and, for examples with a requested length, by name@length."""
        rows, written = self.rows(), self.written()
        results = self._scores(rows, written)
        for length in sorted({row.length for row in rows} - {0}):
            rows_of_length = [row for row in rows if row.length == length]
            examples = {row.document for row in rows_of_length}
            scores = self._scores(rows_of_length, [record for record in written if record.example in examples])
            results |= {f"{name}@{length}": value for name, value in scores.items()}
        return results

    def _scores(self, rows: Sequence[Any], written: Sequence[Written]) -> dict[str, float]:
        results = self.results_of(rows)
        if "accuracy" not in self.scores:
            results = {name: value for name, value in results.items() if name not in OF_SYMBOLS}
        return results | (corpus_scores(written, self.scores, self.words) if written else {})


def corpus_scores(
    written: Sequence[Written], scores: Iterable[Scores], words: ScoreWords | None = None
) -> dict[str, float]:
    """Returns scores of a corpus from 0 to 100: bleu, chrf, and means of ROUGE's F-measures for the best reference."""
    results: dict[str, float] = {}
    words = words or ScoreWords()
    hypotheses, references = [record.hypothesis for record in written], [record.references for record in written]
    for name in ("bleu", "chrf"):
        if name in scores:
            results[name] = float(metric_of(name, words.bleu).corpus_score(hypotheses, streams(references)).score)
    if "rouge" in scores:
        each_rouge = rouge_of_each(hypotheses, references, words.rouge)
        results |= {name: sum(score[name] for score in each_rouge) / len(each_rouge) for name in ROUGES}
    return results


def signatures(scores: Iterable[Scores], words: ScoreWords | None = None) -> dict[str, Plain]:
    """Returns the packages' signatures of the scores, without the number of references, which depends on the data."""
    results: dict[str, Plain] = {}
    words = words or ScoreWords()
    for name in ("bleu", "chrf"):
        if name in scores:
            metric = metric_of(name, words.bleu)
            metric.num_refs = 1
            results[name] = str(metric.get_signature()).partition("|")[2]
    if "rouge" in scores:
        results["rouge"] = rouge_signature(words.rouge)
    return results
