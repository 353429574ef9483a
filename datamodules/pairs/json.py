"""Pairs from JSON: lines with two fields, and data sets of summaries in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from datamodules.core.archives import members
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import Member, damage, format_of, lines_in, parsed, whole
from datamodules.pairs.source import Languages, Longest
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import Listed, files_of, named_split, nothing_left, split_by_hash, stamps
from lit_transformers.config import Fraction, nearest

__all__ = ["JsonPairsConfig", "QMSumConfig", "SciTLDRConfig"]


class JsonPairsConfig(TextPairsConfig, kind="jsonl"):
    """JSON lines, in a file or in all files with their suffixes in a folder or tar; plain or compressed.

    path         relative to LIT_DATA or to the working folder
    source       the fields; the texts of a list are joined with spaces as a source, and each is a reference as a target
    target
    languages    of sources and targets, where they are known
    splits       folders: by the folder or file names (train, validation, test). hash: by a hash of the source, so that
                 equal ones share a split
    validation   the fractions of a split by hash
    test
    """

    path: str
    source: str = "source"
    target: str = "target"
    languages: Languages | None = None
    splits: Literal["folders", "hash"] = "folders"
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    def corpus(self) -> IndexedCorpus:
        left_out = Counter[str]()
        files = files_of(self.path, _is_lines, left_out)
        key = [self.to_dict() | {"languages": None}, stamps(files)]
        return index_corpus(key, "", WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        for path, name in files:
            with damage(path):
                for member in members(path, name, _is_lines, left_out):
                    yield from self._lines(member, path)

    def _lines(self, member: Member, path: Path) -> Iterator[Text]:
        for row, line in enumerate(lines_in(member.stream, member.name)):
            if line.strip():
                place = f"{member.name}:{row + 1}"
                texts = self._read(parsed(line, place), place)
                by_name = self.splits == "folders"
                split = named_split(member.name) if by_name else split_by_hash(texts.source, self.validation, self.test)
                yield pair_text(member.name, split, row, texts, path)

    def _read(self, record: Any, place: str) -> Texts:
        if not isinstance(record, dict):
            raise DataError(f"{place}: not a JSON object but {type(record).__name__}")
        source = _field_texts(record, self.source, "source", place)
        return Texts(" ".join(source), tuple(_field_texts(record, self.target, "target", place)))


class SciTLDRConfig(TextPairsConfig, kind="scitldr"):
    """Abstracts of papers, each in one sentence; several of these in evaluation (arXiv:2004.15011).

    path  a folder with train.jsonl.xz, dev.jsonl.xz and test.jsonl.xz
    """

    summaries: ClassVar[bool] = True
    usual: ClassVar[Longest] = Longest(512, 64)

    path: str = "scitldr-a"

    @property
    def languages(self) -> Languages | None:
        return None

    def corpus(self) -> IndexedCorpus:
        return JsonPairsConfig(path=self.path).corpus()


class QMSumConfig(TextPairsConfig, kind="qmsum"):
    """A question and a whole meeting, and the answer that the meeting gives (arXiv:2104.05938).

    The source is the question, then every turn with its speaker, so that a cut removes the meeting's end.

    path  a folder or tar with train/, val/ and test/, each meeting a .json file
    """

    summaries: ClassVar[bool] = True
    usual: ClassVar[Longest] = Longest(4096, 256)

    path: str = "qmsum"

    @property
    def languages(self) -> Languages | None:
        return None

    def corpus(self) -> IndexedCorpus:
        left_out = Counter[str]()
        files = files_of(self.path, _is_meeting, left_out)
        return index_corpus(["qmsum", stamps(files)], "", WHOLE, self._texts(files, left_out), left_out)

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        for path, name in files:
            with damage(path):
                for member in members(path, name, _is_meeting, left_out):
                    yield from _meeting(member, path)


def _is_lines(name: str) -> bool:
    return format_of(name) in ("lines", "archive")


def _is_meeting(name: str) -> bool:
    return name.endswith(".json") or format_of(name) == "archive"


def _field_texts(record: dict[str, Any], field: str, side: str, place: str) -> list[str]:
    """Returns the texts of a field: its text, or those of its list. Raises DataError."""
    if field not in record:
        raise DataError(f"{place}: no field {field!r}; {nearest(field, record)} (set data.source.{side})")
    value = record[field]
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        content = "an empty list" if value == [] else "no text"
        raise DataError(f"{place}: {field!r} holds {content}; set data.source.{side} to a field of text")
    return texts


def _meeting(member: Member, path: Path) -> Iterator[Text]:
    """Yields the pairs of one meeting. Raises DataError where it is not a meeting of QMSum."""
    split, meeting = named_split(member.name), parsed(whole(member), member.name)
    try:
        turns = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])
        questions = [
            (question["query"], question["answer"])
            for question in [*meeting["general_query_list"], *meeting["specific_query_list"]]
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"{member.name}: no meeting of QMSum ({error} is missing); correct data.source.path") from None
    for row, (query, answer) in enumerate(questions):
        yield pair_text(member.name, split, row, Texts(f"{query}\n{turns}", (answer,)), path)
