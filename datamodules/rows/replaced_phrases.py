"""Given phrases in the place of others of their type: the data of WKLM (arXiv:1912.09637)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from datamodules.rows.noises import Integers, MaskTokensConfig, PlainRow, words_of
from datamodules.rows.phrases import PhrasesConfig

__all__ = ["ReplacePhrasesConfig"]


class ReplacePhrasesConfig(MaskTokensConfig, kind="replace_phrases"):
    """Given phrases are replaced by others of the same type, and whether each was is predicted from its neighbours
    (arXiv:1912.09637, section 2.1). Of the symbols that belong to none, some are hidden as by ``mask_tokens``; the
    paper hides 5 %: set rate.

    The other phrase is drawn uniformly among those of the same type and, unlike in the paper, as many symbols, so that
    the length of a row tells nothing. A phrase without such another is neither predicted nor hidden.

    phrases   the phrases by type
    swapped   the probability that a phrase is replaced where the one before it was not; of two phrases that follow each
              other at most one is
    """

    phrases: PhrasesConfig = PhrasesConfig()
    swapped: Annotated[float, Field(gt=0, lt=1)] = 0.5

    @property
    def needs_words(self) -> bool:
        return True

    @property
    def given(self) -> PhrasesConfig | None:
        return self.phrases

    @property
    def replaces_phrases(self) -> bool:
        return True

    def replace(self, row: PlainRow, chance: np.random.Generator) -> tuple[PlainRow, Integers | None]:
        assert row.phrases is not None
        symbols, allowed, labels, was_replaced = row.symbols.copy(), row.allowed.copy(), [], False
        occurrences = row.phrases.occurrences(row.symbols, words_of(row))
        for start, stop, kind in zip(*(part.tolist() for part in occurrences), strict=True):
            allowed[start:stop] = False
            own = tuple(row.symbols[start:stop].tolist())
            others = row.phrases.alike[kind, stop - start]
            if len(others) == 1:
                continue
            was_replaced = not was_replaced and bool(chance.random() < self.swapped)
            if was_replaced:
                number = int(chance.integers(len(others) - 1))
                other = others[number]
                symbols[start:stop] = others[-1] if other == own else other
            labels.append((start, stop, int(was_replaced)))
        return row._replace(symbols=symbols, allowed=allowed), np.array(labels, np.int64).reshape(-1, 3)
