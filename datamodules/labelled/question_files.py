"""Files of questions on passages: JSON of SQuAD, versions 1.1 and 2.0, and JSON lines or tables of a question each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

from datamodules.core.errors import DataError
from datamodules.core.reading import COMPRESSIONS, Member, parsed, whole
from datamodules.text.nested_records import records_of
from lit_transformers.config import nearest

__all__ = ["REPEATED", "Paragraph", "Question", "RightAnswer", "is_questions", "paragraphs_in"]

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".json", ".jsonl", ".ndjson", *TABLES)
ANSWER = ("answer", "answer_start")
"""The fields of a single answer and of the place of its first character."""
REPEATED = "answers without answer_start that occur several times, of which the first place is read"


class RightAnswer(NamedTuple):
    """A right answer: its first character in the passage, and its text."""

    start: int
    text: str

    @property
    def stop(self) -> int:
        """The character after its last."""
        return self.start + len(self.text)


class Question(NamedTuple):
    """A question with its right answers, none where the passage has none, and the name of its record."""

    name: str
    text: str
    answers: tuple[RightAnswer, ...]

    def fault(self, passage: str) -> str | None:
        """Returns which of its answers is not where it should be in the passage; None where all are."""
        for answer in self.answers:
            stated = passage[answer.start : answer.stop] if answer.start >= 0 else ""
            if not answer.text.strip() or stated != answer.text:
                place = f"at character {answer.start} of" if answer.start >= 0 else "in"
                return f"{self.name}: the answer {shortened(answer.text)} is not {place} its passage"
        return None


class Paragraph(NamedTuple):
    """A passage and the questions on it, at a line or a place of a file."""

    place: str
    passage: str
    questions: tuple[Question, ...]

    def stored(self) -> bytes:
        """Returns the bytes that ``restored`` reads. Raises DataError for a character that UTF-8 cannot write."""
        questions = [[question.name, question.text, [*question.answers]] for question in self.questions]
        try:
            return json.dumps([self.place, self.passage, questions], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(f"{self.place}: holds a character that UTF-8 cannot write; correct it") from None

    @classmethod
    def restored(cls, content: bytes) -> Self:
        """Returns the paragraph that ``stored`` wrote."""
        place, passage, questions = json.loads(content)
        return cls(
            place,
            passage,
            tuple(Question(name, text, tuple(RightAnswer(*a) for a in own)) for name, text, own in questions),
        )


def is_questions(name: str) -> bool:
    """Whether a file's name is that of questions: JSON, JSON lines or a table, plain or compressed."""
    return _suffix(name) in SUFFIXES


def _suffix(name: str) -> str:
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def paragraphs_in(member: Member, counts: Counter[str]) -> Iterator[Paragraph]:
    """Yields the paragraphs of a file; lines that follow each other on one passage are one. counts: of answers whose
    place is not certain. Raises DataError, which names the question."""
    suffix = _suffix(member.name)
    records = _document(member) if suffix == ".json" else _grouped(_records(member, suffix in TABLES))
    for (place, passage), questions in records:
        read = tuple(_question(question, passage, at, counts) for at, question in questions)
        if not passage.strip():
            raise DataError(f"{place}: the passage is empty; correct it, or remove its questions")
        yield Paragraph(place, passage, read)


Records = Iterator[tuple[tuple[str, str], list[tuple[str, Any]]]]
"""The place and the text of each passage, with the place and the record of each question on it."""


def _document(member: Member) -> Records:
    """Yields the passages of a file of SQuAD with their questions."""
    for number, article in enumerate(_list(parsed(whole(member), member.name), "data", member.name), 1):
        for paragraph_number, paragraph in enumerate(_list(article, "paragraphs", f"{member.name}:{number}"), 1):
            place = f"{member.name}:{number}.{paragraph_number}"
            questions = _list(paragraph, "qas", place)
            yield (place, _text(paragraph, "context", place)), [(place, question) for question in questions]


def _records(member: Member, is_table: bool) -> Iterator[tuple[str, Any]]:
    """Yields the records of a file with their places. ``answer`` in place of ``answers`` is one text; an empty text
    means that the passage has no answer."""
    for record in records_of(member):
        values = record.values
        if isinstance(values, dict) and "answers" not in values and (is_table or "answer" in values):
            if "answer" not in values:
                raise DataError(f"{record.place}: no column 'answer'; {nearest('answer', values)}")
            answer, start = (str(values[name] if values.get(name) is not None else "") for name in ANSWER)
            own = {"text": answer, "answer_start": int(start) if start.isdecimal() else start or None}
            values = values | {"answers": [own] if answer.strip() else []}
        yield record.place, values


def _grouped(records: Iterator[tuple[str, Any]]) -> Records:
    """Yields the passages of lines that follow each other."""
    placed = ((place, record, _text(record, "context", place)) for place, record in records)
    for passage, lines in groupby(placed, key=lambda line: line[2]):
        questions = [(place, record) for place, record, _ in lines]
        yield (questions[0][0], passage), questions


def _question(record: Any, passage: str, place: str, counts: Counter[str]) -> Question:
    text = _text(record, "question", place)
    name = f"{place}, question {record.get('id', shortened(text))}"
    if not text.strip():
        raise DataError(f"{name}: is empty; correct or remove it")
    if record.get("is_impossible") is True:
        return Question(name, text, ())
    if "answers" not in record:
        raise DataError(f"{name}: no field 'answers'; give an empty list where the passage has none")
    return Question(name, text, tuple(_answers(record["answers"], passage, name, counts)))


def _answers(answers: Any, passage: str, name: str, counts: Counter[str]) -> Iterator[RightAnswer]:
    """Yields the answers of a list of texts, of a list of records, or of a record of lists. Without its place, an
    answer is where it occurs first."""
    if isinstance(answers, dict):
        texts, starts = (answers.get(field) for field in ("text", "answer_start"))
        starts = [None] * len(texts) if isinstance(texts, list) and starts is None else starts
        if not (isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)):
            raise DataError(f"{name}: answers are no lists 'text' and 'answer_start' of one length; correct them")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(answers, list):
        raise DataError(f"{name}: answers are {shortened(json.dumps(answers, default=repr))}, and no list; correct it")
    for answer in answers:
        record = {"text": answer} if isinstance(answer, str) else answer
        text, start = _text(record, "text", name), record.get("answer_start")
        if start is None:
            start = passage.find(text)
            counts[REPEATED] += passage.find(text, start + 1) > 0
        if type(start) is not int:
            raise DataError(f"{name}: answer_start is {start!r}, and no number of a character; correct it")
        yield RightAnswer(start, text)


def _field(record: Any, field: str, place: str) -> Any:
    if not isinstance(record, dict):
        raise DataError(f"{place}: a {type(record).__name__}, and no JSON object with {field!r}; correct it")
    if field not in record:
        raise DataError(f"{place}: no {field!r}; {nearest(field, record)}")
    return record[field]


def _list(record: Any, field: str, place: str) -> list[Any]:
    items = _field(record, field, place)
    if not isinstance(items, list):
        raise DataError(f"{place}: {field!r} is no list; correct it")
    return items


def _text(record: Any, field: str, place: str) -> str:
    text = _field(record, field, place)
    if not isinstance(text, str):
        raise DataError(f"{place}: {field!r} holds no text; correct it")
    return text


def shortened(text: str) -> str:
    """Quotes a text for a message, its beginning alone where it is long."""
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
