"""The passages that a retriever has ranked for questions, in a file of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from datamodules.core.errors import DataError
from datamodules.core.reading import damage
from lit_transformers.config import MissingFileError, existing, named_by

__all__ = ["RetrievedPassages"]

FIELD = "data.source.retrieved"
FORM = '{"passages": [TEXT, ...], "questions": {QUESTION: [NUMBER, ...]}}'


class RetrievedPassages(NamedTuple):
    """Passages, and for the text of each question the numbers of passages, the most similar first. digest: of the
    file. place: its path, for messages."""

    passages: Sequence[str]
    questions: Mapping[str, Sequence[int]]
    digest: str = ""
    place: str = ""

    @classmethod
    def read(cls, path: str) -> Self:
        """Reads a file below LIT_DATA or in the working folder. Raises MissingFileError if there is none, and DataError
        if it has another form."""
        place = existing(path, "LIT_DATA")
        if place is None:
            reason = f"{path}: no such file ({named_by('LIT_DATA')})"
            raise MissingFileError(f"{reason}; python -m ablations.retrieved_passages writes one", FIELD)
        with damage(place):
            content = place.read_bytes()
        try:
            plain = json.loads(content)
            passages, questions = [*plain["passages"]], {**plain["questions"]}
            numbers = {number for own in questions.values() for number in own}
            whole = all(isinstance(text, str) and text.strip() for text in passages) and all(questions.values())
            whole = whole and all(type(number) is int and 0 <= number < len(passages) for number in numbers)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise DataError(f"{place}: holds no ranked passages; the form is {FORM}; correct {FIELD}")
        return cls(passages, questions, hashlib.sha256(content).hexdigest()[:32], str(place))

    def write(self, path: Path) -> None:
        plain = {"passages": [*self.passages], "questions": {**self.questions}}
        path.write_text(json.dumps(plain), encoding="utf-8")

    def of(self, name: str, question: str, best: int | None) -> Sequence[int]:
        """Returns the numbers of the ``best`` passages for a question; None: of all its passages. name: of the
        question. Raises DataError if the file has too few passages for it."""
        numbers = self.questions.get(question, ())
        if len(numbers) < (best or 1):
            reason = f"{self.place} ranks {len(numbers)} passages for it, and {best or 1} are to be read"
            raise DataError(f"{name}: {reason}; correct {FIELD}, or data.source.best")
        return numbers[:best]
