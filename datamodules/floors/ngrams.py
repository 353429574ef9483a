"""N-gram models with interpolated Witten-Bell smoothing (Chen and Goodman 1996, arXiv:cmp-lg/9606011, section 2.4),
computed by sorting, without a loop over symbols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.tokenizers import Symbols

__all__ = ["NgramText", "ngram_nats"]

Floats = npt.NDArray[np.float64]


class NgramText(NamedTuple):
    """Training documents and then evaluated ones as one sequence of symbols.

    symbols: from 0 to below ``size``; ``size`` itself is the boundary. trained: number of symbols that belong to
    training. longest: number of boundaries before each document, and of symbols of the longest context.
    """

    symbols: npt.NDArray[np.int64]
    trained: int
    size: int
    longest: int

    @classmethod
    def of(cls, training: Sequence[Symbols], evaluated: Sequence[Symbols], size: int, longest: int) -> NgramText:
        """Lays documents end to end, with ``longest`` boundaries in between, so that no context reaches into
        another."""
        boundaries = np.full(longest, size)
        parts = [part for document in (*training, *evaluated) for part in (boundaries, document)]
        trained = sum(longest + len(document) for document in training)
        return cls(np.concatenate(parts).astype(np.int64), trained, size, longest)


def ngram_nats(text: NgramText) -> Iterator[Floats]:
    """Yields -log p in nats of every evaluated symbol, by the models with contexts of 0, 1, 2, ... symbols.

    n(c w) counts how often w follows the context c in training, n(c) how often any symbol does, and T(c) how many
    different ones do: p(w | c) = (n(c w) + T(c) p(w | c')) / (n(c) + T(c)), where c' is c without its first symbol, and
    p(w | c') where c never occurred. Below the empty context all symbols are equally likely.
    """
    predicted = text.symbols < text.size
    evaluated = np.flatnonzero(predicted[text.trained :]) + text.trained
    trained = np.flatnonzero(predicted[: text.trained])
    contexts = np.zeros(len(text.symbols), np.int64)
    probabilities = np.full(len(evaluated), 1 / text.size)
    for _ in range(text.longest + 1):
        # A context is known by its number, so that with the next symbol it fits into 64 bits, however long it is.
        grams, numbers = np.unique(contexts * (text.size + 1) + text.symbols, return_inverse=True)
        counts = np.bincount(numbers[trained], minlength=len(grams))
        context_of_gram = grams // (text.size + 1)
        totals = np.bincount(context_of_gram, weights=counts)
        kinds = np.bincount(context_of_gram, weights=counts > 0)
        context = contexts[evaluated]
        occurred = totals[context] > 0
        smoothed = counts[numbers[evaluated]] + kinds[context] * probabilities
        probabilities[occurred] = (smoothed / np.maximum(totals + kinds, 1)[context])[occurred]
        yield -np.log(probabilities)
        contexts = np.concatenate([[0], numbers[:-1]])
