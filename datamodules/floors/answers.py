"""Floors of answers to questions: no answer, the first sentence, and the sentence with most words of the question."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import cast

import numpy as np

from datamodules.core.documents import Document
from datamodules.core.errors import DataError
from datamodules.labelled.labelled import LabelledData
from datamodules.labelled.questions import Questions
from datamodules.rows.stored_sentences import sentences_of
from lit_transformers.answer_scores import AnswerScores, answer_scores, normalized_answer

__all__ = ["question_floors"]


def question_floors(data: LabelledData, metric: str) -> dict[str, float]:
    """Returns exact match or F1 of simple answers, or nats of a uniform distribution.

    The answers are: no answer; the first sentence; the sentence that shares most words with the question; in that
    sentence the longest run of words that are not in the question. The distribution is uniform over the tokens of the
    window's passage and [CLS]. Nothing is fitted. Raises DataError for other metrics.
    """
    name = metric.removeprefix("best_")
    if name not in ("nats", *AnswerScores._fields):
        raise DataError(f"no predictor of answers has a value of {metric}")
    examples, batches = cast("Questions", data.examples), [*data.measured_dataloader()]
    if name == "nats":
        counts = np.concatenate([(batch.segments == 1).sum(dim=1).numpy() for batch in batches])
        return {"all tokens alike": float(np.log(counts[counts > 0]).mean())}
    measured = sorted({int(number) for batch in batches for number in batch.example})
    read = [examples.question(data.measured_split, number) for number in measured]
    may_be_none = not all(question.answers for _, question in read)
    values = {}
    for predictor, answer in PREDICTORS.items():
        scores = [
            answer_scores(
                answer(question.text, paragraph.passage), [right.text for right in question.answers], may_be_none
            )
            for paragraph, question in read
        ]
        values[predictor] = float(np.mean([getattr(score, name) for score in scores]))
    return values


def sentences(passage: str) -> list[str]:
    """Returns the sentences of a passage; the whole passage if it has no sentence."""
    return [sentence.text.decode().strip() for sentence in sentences_of(Document("", passage.encode()))] or [passage]


def nearest_sentence(question: str, passage: str) -> str:
    """Returns the first sentence that shares most words with a question."""
    words = {*normalized_answer(question).split()}
    return max(sentences(passage), key=lambda sentence: len(words & {*normalized_answer(sentence).split()}))


def longest_run(question: str, passage: str) -> str:
    """Returns the first longest run of words of the nearest sentence that are not in the question."""
    words = {*normalized_answer(question).split()}
    grouped = groupby(nearest_sentence(question, passage).split(), lambda word: normalized_answer(word) in words)
    runs: list[list[str]] = [[*run] for is_known, run in grouped if not is_known]
    longest: list[str] = max(runs or [[]], key=len)
    return " ".join(longest)


PREDICTORS: dict[str, Callable[[str, str], str]] = {
    "no answer": lambda question, passage: "",
    "first sentence": lambda question, passage: sentences(passage)[0],
    "sentence with the most words of the question": nearest_sentence,
    "longest run of other words in that sentence": longest_run,
}
"""Predictors by name: a function from a question and a passage to an answer, "" for no answer."""
