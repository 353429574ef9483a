"""Questions on paragraphs in the JSON of SQuAD (arXiv:1606.05250), and of its version 2 (arXiv:1806.03822)."""

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
    """The text of an answer and the character of its context at which it starts, from 0."""

    text: str
    start: int


class SquadQuestion(NamedTuple):
    """A question on a paragraph.

    place      of the question in its file, for messages
    paragraph  the numbers of its article and of its paragraph in that, from 0: "3.1"
    title      of the article; "" where it has none
    context    the text of the paragraph
    id         of the question, as the file has it
    answers    none where the paragraph does not answer it
    """

    place: str
    paragraph: str
    title: str
    context: str
    id: str
    question: str
    answers: tuple[SquadAnswer, ...]


class SquadEntry(NamedTuple):
    """A question with the file that holds it, the name of that, in an archive too, and the number of the question in
    it, from 0."""

    path: Path
    origin: str
    row: int
    question: SquadQuestion


def is_json(name: str) -> bool:
    """Whether a file's name is that of JSON, plain or compressed."""
    return name.lower().endswith((".json", *(f".json{compression}" for compression in COMPRESSIONS)))


def squad_entries(files: Iterable[Listed], left_out: Counter[str]) -> Iterator[SquadEntry]:
    """Yields the questions of files in order. Raises DataError as ``squad_questions`` does."""
    for path, name in files:
        with damage(path):
            for member in members(path, name, is_json, left_out):
                for row, question in enumerate(squad_questions(member)):
                    yield SquadEntry(path, member.name, row, question)


def squad_questions(member: Member) -> Iterator[SquadQuestion]:
    """Yields the questions of a file in order. Raises DataError, which names the place, where the file has another
    layout, or an answer does not stand in its paragraph where it says."""
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
            reason = f"{text[:40]!r} does not stand at character {start} of its paragraph"
            raise DataError(f"{nested}: {reason}; correct answer_start, which counts characters from 0")
        yield SquadAnswer(text, start)


def _field(record: Any, name: str, kind: Any, place: str) -> Any:
    """Returns a field of a record. Raises DataError where it is missing or of another type."""
    if not isinstance(record, dict) or not isinstance(record.get(name), kind):
        raise DataError(f"{place}: no {name} as SQuAD has it; correct the file, or data.source.path")
    return record[name]
