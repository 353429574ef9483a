"""How good what was written is: BLEU, chrF and ROUGE of the corpus, by the packages that define them, and accuracy.

Texts lie in the metric's state as bytes, so what gathers sums over ranks gathers them too, each example once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.batch import PairBatch
from lit_transformers.config import Plain
from lit_transformers.scores import ROUGES, metric_of, rouge_of_each, rouge_signature, streams
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.string_metric import StringLoss, columns_of, summary

__all__ = ["Scores", "TextMetric", "Written", "signatures"]

Scores = Literal["bleu", "chrf", "rouge", "accuracy"]


class Written(NamedTuple):
    """What was written for the example of that ordinal, and the texts that it is compared with."""

    example: int
    hypothesis: str
    references: tuple[str, ...]


class TextMetric(ExampleMetric):
    """Nats of a symbol, and the ``scores`` that are asked for, of all examples and of each length.

    A line of the state ``texts`` is the JSON of a Written.
    """

    texts: list[Tensor]

    def __init__(self, scores: Sequence[Scores]) -> None:
        super().__init__()
        self.scores = tuple(scores)
        self.add_state("texts", default=[], dist_reduce_fx="cat")

    def row(self, document: int, sums: list[float]) -> StringLoss:
        return StringLoss.of(document, sums)

    def update(
        self, log_probabilities: Float[Tensor, "b t v"], batch: PairBatch, hypotheses: Sequence[str] | None
    ) -> None:
        """What was said of every position of a batch without rows of padding, and what was written for every row."""
        self.add(batch.example, columns_of(log_probabilities, batch.targets, batch.asked))
        lines = ""
        if hypotheses is not None:
            written = zip(batch.example.tolist(), hypotheses, batch.references, strict=True)
            lines = "".join(f"{json.dumps(one)}\n" for one in written)
        # Also of none: ranks gather states of one type.
        self.texts.append(torch.from_numpy(np.frombuffer(lines.encode(), np.uint8).copy()).to(batch.example.device))

    def written(self) -> list[Written]:
        """What this rank knows of, by ordinal; within ``compute`` what all ranks do."""
        if len(self.texts) == 0:
            return []
        lines = dim_zero_cat(self.texts).cpu().numpy().tobytes().decode().splitlines()
        found = (Written(example, said, tuple(references)) for example, said, references in map(json.loads, lines))
        return sorted({one.example: one for one in found}.values())

    def outputs(self) -> Sequence[dict[str, Plain]]:
        with self.sync_context():
            return [{"id": n, "hypothesis": said, "references": [*told]} for n, said, told in self.written()]

    def compute(self) -> dict[str, float]:
        """The scores, by name and, where examples were asked for by their length, by name@length."""
        rows, written = self.rows(), self.written()
        found = self._scores(rows, written)
        for length in sorted({row.length for row in rows} - {0}):
            alone = [row for row in rows if row.length == length]
            chosen = {row.document for row in alone}
            of_length = self._scores(alone, [one for one in written if one.example in chosen])
            found |= {f"{name}@{length}": value for name, value in of_length.items()}
        return found

    def _scores(self, rows: Sequence[StringLoss], written: Sequence[Written]) -> dict[str, float]:
        found = summary(rows)
        if "accuracy" not in self.scores:
            found = {name: value for name, value in found.items() if name == "nats"}
        return found | (corpus_scores(written, self.scores) if written else {})


def corpus_scores(written: Sequence[Written], scores: Iterable[Scores]) -> dict[str, float]:
    """Of 0 to 100, of a corpus: bleu, chrf, and the means of ROUGE's F-measures, of the best of the references."""
    found: dict[str, float] = {}
    hypotheses, references = [one.hypothesis for one in written], [one.references for one in written]
    for name in ("bleu", "chrf"):
        if name in scores:
            found[name] = float(metric_of(name).corpus_score(hypotheses, streams(references)).score)
    if "rouge" in scores:
        of_each = rouge_of_each(hypotheses, references)
        found |= {name: sum(score[name] for score in of_each) / len(of_each) for name in ROUGES}
    return found


def signatures(scores: Iterable[Scores]) -> dict[str, Plain]:
    """How the scores are made, in the words of the packages; without the number of references, which is the data's."""
    found: dict[str, Plain] = {}
    for name in ("bleu", "chrf"):
        if name in scores:
            metric = metric_of(name)
            metric.num_refs = 1
            found[name] = str(metric.get_signature()).partition("|")[2]
    if "rouge" in scores:
        found["rouge"] = rouge_signature()
    return found
