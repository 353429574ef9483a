"""Masks of n-grams (ALBERT, arXiv:1909.11942) and of given phrases (ERNIE, arXiv:1904.09223)."""

from __future__ import annotations

import numpy as np

from datamodules.rows.noises import Chosen, NoiseConfig, PlainRow, fitting, placed_spans, words_of
from datamodules.rows.phrases import PhrasesConfig
from lit_transformers.config import Positive

__all__ = ["MaskNgramsConfig", "MaskPhrasesConfig"]


class MaskNgramsConfig(NoiseConfig, kind="mask_ngrams"):
    """N-grams of whole words are hidden, as in ALBERT (arXiv:1909.11942, section 4.1): n words with a probability that
    is proportional to 1 / n. Each symbol is masked, replaced or kept separately, as in the authors' code.

    They are placed as spans are (``MaskSpansConfig``): anywhere, none upon another, and the last one is cut. Where
    words cannot be known from symbols, each symbol counts as a word.

    longest  the most words of an n-gram
    """

    longest: Positive = 3

    @property
    def needs_words(self) -> bool:
        return False

    @property
    def most_words(self) -> int:
        return self.longest

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        shares = np.cumsum(1 / np.arange(1, self.longest + 1))
        spans = placed_spans(row, self.count(int(row.allowed.sum())), shares, chance)
        places = np.concatenate([np.arange(start, stop) for start, stop in spans])
        return Chosen(places, np.arange(len(places)))


class MaskPhrasesConfig(NoiseConfig, kind="mask_phrases"):
    """Given phrases are hidden as a whole, as in the stages of ERNIE (arXiv:1904.09223, section 3.2): all symbols of
    one, or none. Each symbol is masked, replaced or kept separately.

    Phrases, and words that belong to none, are hidden in random order, each that still fits into the number of
    predictions; where the shortest one does not fit, one is hidden all the same.

    phrases  the phrases, each hidden as a whole
    others   whether words are hidden that belong to no phrase; without, nothing is predicted of a row without a phrase
    """

    phrases: PhrasesConfig = PhrasesConfig()
    others: bool = True

    @property
    def needs_words(self) -> bool:
        return True

    @property
    def given(self) -> PhrasesConfig | None:
        return self.phrases

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        assert row.phrases is not None
        words = words_of(row)
        start, stop, _ = row.phrases.occurrences(row.symbols, words)
        units = np.stack([start, stop], axis=1)
        if self.others:
            within = np.zeros(len(row.symbols) + 1, np.int64)
            np.add.at(within, start, 1)
            np.add.at(within, stop, -1)
            units = np.concatenate([units, words[np.cumsum(within)[words[:, 0]] == 0]])
        places = fitting(units, self.count(int(row.allowed.sum())), chance)
        return Chosen(places, np.arange(len(places)))
