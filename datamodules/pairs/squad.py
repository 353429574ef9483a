"""Pairs of a question and its paragraph from SQuAD's JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.pairs.source import Languages, Longest
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import Listed, files_of, nothing_left, split_by_hash, stamps
from datamodules.text.squad import is_json, squad_entries
from lit_transformers.config import Fraction

__all__ = ["SquadPairsConfig"]


class SquadPairsConfig(TextPairsConfig, kind="squad"):
    """Questions and their paragraphs (SQuAD, arXiv:1606.05250), from a .json file, plain or compressed, or all such
    files of a folder. Questions on one paragraph share a split.

    path        relative to LIT_DATA or to the working folder
    languages   of questions and paragraphs; None: unknown
    validation  the fraction of paragraphs in validation, by a hash of their text
    test        the fraction of paragraphs in test
    """

    usual: ClassVar[Longest] = Longest(64, 256)

    path: str
    languages: Languages | None = None
    validation: Fraction = 0.1
    test: Fraction = 0.1

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    def corpus(self) -> IndexedCorpus:
        files = files_of(self.path, is_json, left_out := Counter[str]())
        key = [self.to_dict() | {"languages": None}, stamps(files)]
        return index_corpus(key, "", WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        for path, origin, row, entry in squad_entries(files, left_out):
            split = split_by_hash(entry.context, self.validation, self.test)
            yield pair_text(origin, split, row, Texts(entry.question, (entry.context,)), path)
