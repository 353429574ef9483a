"""Floors of multiple choice: chance, the longest choice, and the words that a choice shares with its question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.labelled.labelled import LabelledData

__all__ = ["choice_floors"]

Texts = list[npt.NDArray[np.int64]]
"""The symbols of an example: of its question, then of each of its choices."""


def choice_floors(data: LabelledData, metric: str, batches: int) -> dict[str, float]:
    """Returns the accuracy of simple predictors, or the nats of chance.

    The predictors are: chance; the longest choice; and the choice with the highest inverse document frequency of the
    symbols that it shares with the question, summed as log(examples / examples with the symbol). Ties count as their
    share of right choices. Nothing is fitted on the training split. Raises DataError for other metrics.
    """
    if metric not in ("accuracy", "nats"):
        raise DataError(f"no predictor of choices has a value of {metric}")
    examples, right = _examples(data)
    counts = np.array([len(texts) - 1 for texts in examples])
    if metric == "nats":
        return {"chance": float(np.log(counts).mean())}
    holding = np.zeros(data.description.vocabulary.size)
    for texts in examples:
        holding[np.unique(np.concatenate(texts))] += 1
    rarity = np.log(len(examples) / np.maximum(holding, 1))
    lengths = [[len(choice) for choice in choices] for _, *choices in examples]
    shared = [
        [float(rarity[np.intersect1d(question, choice)].sum()) for choice in choices] for question, *choices in examples
    ]
    return {
        "chance": float((1 / counts).mean()),
        "longest choice": _accuracy(lengths, right),
        "words of the question": _accuracy(shared, right),
    }


def _accuracy(scores: Sequence[Sequence[float]], right: list[int]) -> float:
    """Returns the accuracy of the highest score; of k choices that tie for it, the right one counts 1 / k."""
    hits = [(row[place] == max(row)) / row.count(max(row)) for row, place in zip(scores, right, strict=True)]
    return float(np.mean(hits))


def _examples(data: LabelledData) -> tuple[list[Texts], list[int]]:
    """Returns the texts of the measured examples, and the numbers of their right choices."""
    examples, right = [], []
    for batch in data.measured_dataloader():
        assert batch.segments is not None
        for rows, mask, segments, label in zip(
            batch.inputs.numpy(), batch.padding_mask.numpy(), batch.segments.numpy(), batch.labels.tolist(), strict=True
        ):
            if mask.any():
                first = rows[0][mask[0] & (segments[0] == 0)][1:-1]
                choices = [row[real & (place > 0)][:-1] for row, real, place in zip(rows, mask, segments, strict=True)]
                examples.append([first, *(choices[: int(mask.any(axis=1).sum())])])
                right.append(label)
    return examples, right
