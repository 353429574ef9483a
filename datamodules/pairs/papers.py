"""Papers, paired with summaries that people wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar
from xml.etree import ElementTree

from datamodules.core.archives import members
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import damage, format_of, whole
from datamodules.pairs.source import Languages, Longest
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import Listed, files_of, nothing_left, split_by_hash, stamps
from lit_transformers.config import Fraction

__all__ = ["SciSummNetConfig"]

SUMMARY = ".scisummnet_human.txt"


class SciSummNetConfig(TextPairsConfig, kind="scisummnet"):
    """Papers of the ACL Anthology with a summary of about 150 words (arXiv:1909.01716).

    The data set has no splits: papers are split by a hash of their names.

    path        a folder or tar with NAME/Reference_XML/NAME.xml and NAME/summary/NAME.scisummnet_human.txt
    abstract    whether a source begins with the paper's abstract
    validation  the fractions of the splits
    test
    """

    summaries: ClassVar[bool] = True
    usual: ClassVar[Longest] = Longest(4096, 256)

    path: str = "scisummnet"
    abstract: bool = True
    validation: Fraction = 0.1
    test: Fraction = 0.1

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    @property
    def languages(self) -> Languages | None:
        return None

    def corpus(self) -> IndexedCorpus:
        left_out = Counter[str]()
        files = files_of(self.path, _is_part, left_out)
        return index_corpus([self.to_dict(), stamps(files)], "", WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        """Yields the papers, whose parts come in any order; each part is held until the other is read."""
        papers: dict[str, str] = {}
        summaries: dict[str, str] = {}
        for path, name, content in _parts(files, left_out):
            paper = PurePosixPath(name).name.removesuffix(".xml").removesuffix(SUMMARY)
            if name.endswith(SUMMARY):
                summaries[paper] = _decoded(content, name)
            else:
                papers[paper] = _paper(content, name, self.abstract)
            if paper in papers and paper in summaries:
                yield self._pair(paper, papers.pop(paper), summaries.pop(paper), path)
        for paper in sorted({*papers, *summaries}):
            missing = "summary" if paper in papers else "paper"
            raise DataError(f"{paper}: no {missing} next to it; fetch the data again or correct data.source.path")

    def _pair(self, paper: str, text: str, summary: str, path: Path) -> Text:
        split = split_by_hash(paper, self.validation, self.test)
        return pair_text(paper, split, -1, Texts(text, (summary,)), path)


def _parts(files: list[Listed], left_out: Counter[str]) -> Iterator[tuple[Path, str, bytes]]:
    """Yields the path, name and content of every paper and summary."""
    for path, name in files:
        with damage(path):
            for member in members(path, name, _is_part, left_out):
                yield path, member.name, whole(member)


def _is_part(name: str) -> bool:
    return name.endswith((".xml", SUMMARY)) or format_of(name) == "archive"


def _decoded(content: bytes, name: str) -> str:
    """Returns a summary as one line of text; most begin with the paper's title."""
    try:
        return " ".join(content.decode().split())
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: byte {error.start} is not UTF-8 ({error.reason}); convert it to UTF-8") from None


def _paper(content: bytes, name: str, abstract: bool) -> str:
    """Returns title, abstract and sections: each part on a separate line, with its sentences one after another."""
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise DataError(f"{name}: not XML ({error}); fetch the data again") from None
    parts = []
    for part in root:
        if part.tag != "ABSTRACT" or abstract:
            sentences = [part.get("title", ""), *(" ".join((text or "").split()) for text in part.itertext())]
            parts.append(" ".join(sentence for sentence in sentences if sentence))
    return "\n".join(part for part in parts if part)
