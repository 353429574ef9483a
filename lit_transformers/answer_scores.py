"""Scores of answers that are spans of a passage: exact match and F1 of words (Rajpurkar et al. 2016, arXiv:1606.05250,
section 6.1), and the best threshold of no answer (Rajpurkar et al. 2018, arXiv:1806.03822, section 5).

Used by tasks and floors, so nothing here needs torch.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["AnswerScores", "BestThreshold", "answer_scores", "best_threshold", "normalized_answer"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerScores(NamedTuple):
    """Scores of one answer from 0 to 100, each the best over the right answers."""

    exact_match: float
    f1: float


class BestThreshold(NamedTuple):
    """The highest mean score that a threshold reaches, and the lowest such threshold: a question is answered where its
    margin is not above that."""

    score: float
    threshold: float


def normalized_answer(text: str) -> str:
    """Returns a text in lower case without ASCII punctuation, English articles and further white space, as the script
    of SQuAD compares it."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def answer_scores(answer: str, answers: Sequence[str], may_be_none: bool) -> AnswerScores:
    """Scores an answer, "" for none, against the right ones, none where the passage has no answer.

    F1 is that of the words in common; where either text has no word it is 100 if neither has one, else 0.
    may_be_none: whether the rules of SQuAD 2.0 hold, by which right answers without a word do not count.
    """
    right = [text for text in answers if normalized_answer(text)] if may_be_none else answers
    return AnswerScores(*map(max, zip(*(_scores(answer, text) for text in right or [""]), strict=True)))


def _scores(answer: str, right: str) -> AnswerScores:
    texts = (normalized_answer(answer), normalized_answer(right))
    exact_match = 100.0 * (texts[0] == texts[1])
    words, right_words = (Counter(text.split()) for text in texts)
    if not words or not right_words:
        return AnswerScores(exact_match, exact_match)
    common = (words & right_words).total()
    return AnswerScores(exact_match, 100.0 * 2 * common / (words.total() + right_words.total()))


def best_threshold(
    margins: npt.NDArray[np.float64], answered: npt.NDArray[np.float64], refused: npt.NDArray[np.float64]
) -> BestThreshold:
    """Returns the best threshold of questions, given by how much the score of no answer exceeds that of the best span,
    and the score of each question where it is answered and where it is not.

    Where no question should be answered, the threshold is below all margins. Questions of one margin are answered
    together.
    """
    order = np.argsort(margins, kind="stable")
    margins, gains = margins[order], (answered - refused)[order]
    is_last = np.append(margins[1:] != margins[:-1], True)
    totals = np.append(0.0, np.cumsum(gains)[is_last])
    thresholds = np.append(np.nextafter(margins[0], -np.inf), margins[is_last])
    best = int(np.argmax(totals))
    return BestThreshold(float((refused.sum() + totals[best]) / len(margins)), float(thresholds[best]))
