"""Predicts the tags of the words of each line, and the entities that the tags spell."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.labelled.tagged_sentences import word_pieces
from datamodules.labelled.texts import WHOLE
from lit_transformers.batch import IGNORED, LABEL, LabelledBatch, LabelledDescription, WordTagLabels
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineRows, LineTexts, Predictor, require_writable
from lit_transformers.tasks.tagging import Tagging

__all__ = ["TagPredictor"]


class TagPredictor(Predictor):
    """Predicts the tag of each word of a line, and the entities that the tags spell."""

    ability = "tag"

    def __init__(self, task: Tagging, rows: TextRows, options: LineOptions, form: LineFormat) -> None:
        super().__init__(
            task, LineTexts(("text",), form), rows, options, ("words", "tags", "probabilities", "entities")
        )
        self.task = task
        self.tags = LabelledDescription.of(task.data, "predict").labels_of(LABEL, WordTagLabels, "predict").names

    def texts(self, line: str) -> tuple[str, ...]:
        """Returns the words of a line, then its text, or "" if the line gives words."""
        words = given_words(line) if self.line_texts.format == "json" else None
        if words is not None:
            return (*words, "")
        [text] = self.line_texts.of(line)
        return (*(text[start:stop] for start, stop in word_places(text)), text)

    def is_empty(self, texts: tuple[str, ...]) -> bool:
        return len(texts) == 1

    def encode_each(self, texts: Sequence[str]) -> list[Symbols]:
        return [word_pieces(self.tokenizer, texts[:-1], WHOLE).symbols]

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        rows, _, padding_mask, padded, texts = read
        words = torch.zeros(rows.shape, dtype=torch.long)
        labels = torch.full((len(rows), max(map(len, texts)), 2), IGNORED)
        for row, (*own, _) in enumerate(texts):
            numbers = word_pieces(self.tokenizer, own, self.rows.longest).words
            words[row, 1 : len(numbers) + 1] = torch.from_numpy(numbers)
            labels[row, : len(own)] = 0
        places = torch.arange(len(rows))
        batch = LabelledBatch(rows, padding_mask, labels.to(rows.device), None, places, None, padded=padded)
        for tagged in self.task.predict_step(batch._replace(words=words.to(rows.device)), 0):
            *own, text = texts[tagged.document]
            yield self.of_words(own, text, tagged.probabilities)

    def of_words(
        self, words: Sequence[str], text: str, probabilities: Sequence[tuple[float, ...] | None]
    ) -> dict[str, Any]:
        """Returns the prediction of one line: its words, the likeliest tag of each word and its probability (None for a
        word that was cut from the row), and the entities."""
        numbers = [None if own is None else max(range(len(own)), key=own.__getitem__) for own in probabilities]
        best = [None if own is None else max(own) for own in probabilities]
        rules, entities = self.task.label_head.rules, list[dict[str, Any]]()
        places = word_places(text) if text else None
        if rules is not None:
            tags = torch.tensor([[IGNORED if number is None else number for number in numbers]], device=self.device)
            spans = rules.spans(tags)
            for start in spans.begins[0].nonzero()[:, 0].tolist():
                stop, kind = int(spans.stops[0, start]), rules.types[int(spans.types[0, start])]
                probability = math.prod(value or 0.0 for value in best[start:stop])
                entity = {"type": kind, "text": " ".join(words[start:stop]), "words": [start, stop]}
                if places is not None:
                    first, last = places[start][0], places[stop - 1][1]
                    entity |= {"text": text[first:last], "characters": [first, last]}
                entities.append(entity | {"probability": round(probability, DIGITS)})
        return {
            "words": words,
            "tags": [None if number is None else self.tags[number] for number in numbers],
            "probabilities": [None if value is None else round(value, DIGITS) for value in best],
            "entities": entities,
        }


def given_words(line: str) -> list[str] | None:
    """Returns the words of a line of JSON that gives words: a list, or an object with "words". None for any other line.
    Raises ConfigError for a word that is empty or not a text."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    words = plain.get("words") if isinstance(plain, Mapping) else plain
    if not isinstance(words, list):
        return None
    if not all(isinstance(word, str) and word.strip() for word in words):
        raise ConfigError('has a word that is empty or no text; give {"words": ["...", ...]}')
    require_writable(words)
    return words


def word_places(text: str) -> list[tuple[int, int]]:
    """Returns the start and end of each word of a text. A word is a run of letters and digits, with points, hyphens and
    apostrophes between them, and @ or # before them. Any other character except a space is a word by itself."""
    return [match.span() for match in re.finditer(r"[@#]?\w+(?:[-.'’]\w+)*|[^\w\s]", text)]
