"""Scores answers that are spans of a passage: exact match and F1 of words (Rajpurkar et al. 2016, arXiv:1606.05250,
section 6.1), and the best threshold of no answer (Rajpurkar et al. 2018, arXiv:1806.03822, section 5).

Tasks and floors use it; it does not import torch.
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
    """The scores of one answer, from 0 to 100; each is the maximum over the right answers."""

    exact_match: float
    f1: float


class BestThreshold(NamedTuple):
    """The highest mean score that a threshold reaches, and the lowest such threshold. A question is answered if its
    margin is at most the threshold."""

    score: float
    threshold: float


def normalized_answer(text: str) -> str:
    """Returns a text as the script of SQuAD compares it: in lower case, without ASCII punctuation and English articles,
    and with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def answer_scores(answer: str, answers: Sequence[str], may_be_none: bool) -> AnswerScores:
    """Scores an answer against the right answers.

    answer: "" for no answer. answers: empty if the passage has no answer. may_be_none: apply the rules of SQuAD 2.0,
    which ignore right answers without a word. F1 counts the common words; if a text has no word, F1 is 100 if both have
    none, else 0.
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
    """Returns the threshold of no answer with the highest mean score.

    margins: the score of no answer minus the score of the best span, of each question (n,). answered, refused: the
    score of each question if it is answered, and if it is not. If no question should be answered, the threshold is
    below all margins. Questions with equal margins are answered together.
    """
    order = np.argsort(margins, kind="stable")
    margins, gains = margins[order], (answered - refused)[order]
    is_last = np.append(margins[1:] != margins[:-1], True)
    totals = np.append(0.0, np.cumsum(gains)[is_last])
    thresholds = np.append(np.nextafter(margins[0], -np.inf), margins[is_last])
    best = int(np.argmax(totals))
    return BestThreshold(float((refused.sum() + totals[best]) / len(margins)), float(thresholds[best]))
