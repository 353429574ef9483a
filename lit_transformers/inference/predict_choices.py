"""Predicts the right choice for questions with choices, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from datamodules import TrainedSymbols
from datamodules.core.examples import Example
from datamodules.core.tokenizers import Symbols
from datamodules.core.trained import require_tokenizer
from datamodules.labelled.choices import ChoiceExamplesConfig
from datamodules.labelled.labelled import RowShape, batched
from lit_transformers.batch import LabelledDescription
from lit_transformers.config import ConfigError
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineRows, LineTexts, Predictor, require_writable
from lit_transformers.tasks.multiple_choice import MultipleChoice

__all__ = ["ChoicePredictor"]

CHOICE_LINE = '{"question": "...", "choices": ["...", "..."]}'
"""A line of a question with choices, for messages."""


class ChoicePredictor(Predictor):
    """Predicts the right choice for each question. A line holds the question, then its choices: with tabs between them,
    as {"question": ..., "choices": [...]}, or as a JSON list."""

    ability = "choose"

    def __init__(
        self,
        task: MultipleChoice,
        source: ChoiceExamplesConfig,
        trained: TrainedSymbols,
        options: LineOptions,
        form: LineFormat,
    ) -> None:
        rows = source.rows_of(require_tokenizer(trained.tokenizer))
        super().__init__(task, LineTexts(("question", "choices"), form), rows, options, ("choice", "probabilities"))
        self.task = task

    def texts(self, line: str) -> tuple[str, ...]:
        plain: Any = line.split("\t")
        if self.line_texts.format == "json":
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"is no JSON; give {CHOICE_LINE}, or --lines text") from None
        if isinstance(plain, Mapping) and isinstance(plain.get("choices"), list):
            plain = [plain.get("question"), *plain["choices"]]
        if not isinstance(plain, list) or len(plain) < 3 or not all(isinstance(text, str) for text in plain):
            with_tabs = "a question and its choices with tabs between them"
            example = CHOICE_LINE if self.line_texts.format == "json" else with_tabs
            raise ConfigError(f"has another form; give {example}")
        require_writable(plain)
        return tuple(plain)

    def read_at_once(self, symbols: Sequence[Symbols]) -> int:
        question, *choices = map(len, symbols)
        return question + max(choices)

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        """Returns, in the first column: the number of choices; for each choice the length of its row and the place of
        its second text; then the symbols of all rows."""
        question, *choices = symbols
        rows = [self.rows.row(question, choice) for choice in choices]
        sizes = [number for row, second in rows for number in (len(row), second or 0)]
        packed = np.concatenate([[len(rows)], sizes, *(row for row, _ in rows)])
        return np.stack([packed, *[np.zeros_like(packed)] * 2], axis=1).astype(np.int64)

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        rows = read.rows
        examples = []
        for ordinal, row in enumerate(rows.tolist()):
            count, places, start = row[0], [], 0
            for length, second in zip(row[1 : 2 * count + 1 : 2], row[2 : 2 * count + 1 : 2], strict=True):
                places.append((start, start + second, start + length))
                start += length
            symbols = np.array(row[2 * count + 1 : 2 * count + 1 + start])
            examples.append((ordinal, Example(symbols, 0, choices=tuple(places))))
        described = LabelledDescription.of(self.task.data, "predict")
        shape = RowShape(len(rows), 1, self.boundary, 0, described.label_columns, described.segments)
        batch = batched(shape, examples, "")
        parts: dict[str, Any] = batch._asdict()
        parts |= {name: part.to(rows.device) for name, part in parts.items() if isinstance(part, Tensor)}
        for prediction in self.task.predict_step(batch._replace(**parts), 0):
            probabilities = [round(probability, DIGITS) for probability in prediction.probabilities]
            best = max(range(len(probabilities)), key=lambda place: prediction.probabilities[place])
            yield {"choice": best, "probabilities": probabilities}
