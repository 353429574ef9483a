"""Reads questions on paragraphs from SQuAD's JSON, version 1 (arXiv:1606.05250) and 2 (arXiv:1806.03822)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.core.archives import members
from datamodules.core.errors import DataError
from datamodules.core.reading import COMPRESSIONS, Member, damage, parsed, whole
from datamodules.text.sources import Listed

__all__ = ["SquadAnswer", "SquadEntry", "SquadQuestion", "is_json", "squad_entries", "squad_questions"]


class SquadAnswer(NamedTuple):
    """An answer. text: its text. start: the character of the context at which it starts, from 0."""

    text: str
    start: int


class SquadQuestion(NamedTuple):
    """A question on a paragraph.

    place      the place of the question in its file, for messages
    paragraph  the numbers of the article in the file and of the paragraph in the article, from 0: "3.1"
    title      the title of the article; "" without a title
    context    the text of the paragraph
    id         the id of the question in the file
    answers    empty if the paragraph does not answer the question
    """

    place: str
    paragraph: str
    title: str
    context: str
    id: str
    question: str
    answers: tuple[SquadAnswer, ...]


class SquadEntry(NamedTuple):
    """A question and its place. path: the file or archive. origin: the name of the file, within an archive too. row:
    the number of the question in the file, from 0."""

    path: Path
    origin: str
    row: int
    question: SquadQuestion


def is_json(name: str) -> bool:
    """Whether a name ends in .json, with or without the suffix of a compression."""
    return name.lower().endswith((".json", *(f".json{compression}" for compression in COMPRESSIONS)))


def squad_entries(files: Iterable[Listed], left_out: Counter[str]) -> Iterator[SquadEntry]:
    """Yields the questions of files in order, with the errors of ``squad_questions``."""
    for path, name in files:
        with damage(path):
            for member in members(path, name, is_json, left_out):
                for row, question in enumerate(squad_questions(member)):
                    yield SquadEntry(path, member.name, row, question)


def squad_questions(member: Member) -> Iterator[SquadQuestion]:
    """Yields the questions of a file in order. Raises DataError, which names the place, if the file has another layout,
    or the text of an answer is not at its ``answer_start``."""
    content = parsed(whole(member), member.name)
    for number, article in enumerate(_field(content, "data", list, member.name)):
        place = f"{member.name}: data[{number}]"
        for paragraph_number, paragraph in enumerate(_field(article, "paragraphs", list, place)):
            nested = f"{place}.paragraphs[{paragraph_number}]"
            context = _field(paragraph, "context", str, nested)
            for question_number, entry in enumerate(_field(paragraph, "qas", list, nested)):
                nested_entry = f"{nested}.qas[{question_number}]"
                yield SquadQuestion(
                    place=nested_entry,
                    paragraph=f"{number}.{paragraph_number}",
                    title=str(article.get("title") or ""),
                    context=context,
                    id=str(_field(entry, "id", str | int, nested_entry)),
                    question=_field(entry, "question", str, nested_entry),
                    answers=tuple(_answers(entry, context, nested_entry)),
                )


def _answers(entry: dict[str, Any], context: str, place: str) -> Iterator[SquadAnswer]:
    for number, answer in enumerate([] if entry.get("is_impossible") else _field(entry, "answers", list, place)):
        nested = f"{place}.answers[{number}]"
        text, start = _field(answer, "text", str, nested), _field(answer, "answer_start", int, nested)
        if start < 0 or not context.startswith(text, start):
            reason = f"{text[:40]!r} is not at character {start} of its paragraph"
            raise DataError(f"{nested}: {reason}; correct answer_start, which counts characters from 0")
        yield SquadAnswer(text, start)


def _field(record: Any, name: str, kind: Any, place: str) -> Any:
    """Returns a field of a record. Raises DataError if it is missing or has another type."""
    if not isinstance(record, dict) or not isinstance(record.get(name), kind):
        raise DataError(f"{place}: no field {name} of SQuAD's layout; correct the file, or data.source.path")
    return record[name]
