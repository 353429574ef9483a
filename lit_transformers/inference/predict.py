"""Applies a trained network to lines of text, or of two: the class, number or tags that it predicts, as JSON lines."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from datamodules import Document, LabelledDataConfig, RowDataConfig, Tokenizer, TrainedSymbols, tokenizer_from_dict
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.labelled.tagged_sentences import word_pieces
from datamodules.labelled.texts import WHOLE
from datamodules.rows.reader import RELATIONS
from datamodules.rows.stored_sentences import sentences_of
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import (
    IGNORED,
    LABEL,
    LabelledBatch,
    LabelledDescription,
    RowBatch,
    RowDescription,
    WordTagLabels,
)
from lit_transformers.config import ConfigError
from lit_transformers.heads.pooled import EstimatedNumber
from lit_transformers.heads.relation import Relation
from lit_transformers.inference.calibration import temperature_of
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.runs import load
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks import Task
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.tasks.multi_label import MultiLabel
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.tasks.regression import Regression
from lit_transformers.tasks.tagging import Tagging
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["LineFormat", "Predictor", "predictor_of"]

LineFormat = Literal["text", "json"]
DIGITS = 6
"""The digits of a probability: the next ones depend on the lines beside it."""
SPECIAL = ("[CLS]", "[SEP]", "[SEP]")
"""The special symbols around two texts."""
ONE_TEXT, TWO_TEXTS = ("text",), ("first", "second")
"""The names of the texts of a line of JSON."""
PREDICTED: Mapping[type[PooledTask], tuple[str, ...]] = {
    Classification: ("label", "probabilities"),
    MultiLabel: ("labels", "probabilities"),
    Regression: ("value",),
}
"""The names of what is predicted by each objective."""
NOT_CALIBRATED = "probabilities are those of the network's outputs, and are not calibrated; see: calibrate"
CALIBRATED = "probabilities are calibrated, by a temperature of {:.4g}"


class LineTexts(NamedTuple):
    """What a line holds: as many texts as there are names, with tabs between them, or as a JSON object with these
    fields, or a JSON list."""

    names: tuple[str, ...]
    format: LineFormat

    def of(self, line: str) -> tuple[str, ...]:
        """Returns the texts of a line. Raises ConfigError where it holds something else."""
        plain: Any = [line] if len(self.names) == 1 else line.split("\t")
        if self.format == "json":
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"is no JSON; give {self.example}, or --lines text") from None
        if isinstance(plain, Mapping):
            if missing := [name for name in self.names if name not in plain]:
                raise ConfigError(f"has no field {missing[0]!r}; give {self.example}")
            plain = [plain[name] for name in self.names]
        texts = [plain] if isinstance(plain, str) else plain
        if not isinstance(texts, list) or len(texts) != len(self.names) or not all(isinstance(t, str) for t in texts):
            raise ConfigError(f"has another form; give {self.example}")
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise ConfigError("holds a character that UTF-8 cannot write") from None
        return tuple(texts)

    @property
    def example(self) -> str:
        """What a line is, for messages."""
        if self.format == "json":
            fields = ", ".join(f'"{name}": "..."' for name in self.names)
            return f"{{{fields}}}"
        return "two texts with a tab between them" if len(self.names) == 2 else "a text"


class Predictor(LineWriter):
    """Predicts something of every line.

    names: of what it predicts, "probabilities" among them if it gives any. temperature: by which the outputs are
    divided before they become probabilities, fitted to examples; None where none was. A row has for each token its
    symbol, and 1 in the second text, else 0 (t, 2).
    """

    def __init__(
        self,
        task: Task,
        texts: LineTexts,
        rows: TextRows,
        options: LineOptions,
        names: tuple[str, ...],
        temperature: float | None = None,
    ) -> None:
        super().__init__(options, rows.tokenizer, rows.longest)
        self.empty, self.temperature = json.dumps(dict.fromkeys(names)), temperature
        self.probabilistic = "probabilities" in names
        self.line_texts, self.rows, self.boundary = texts, rows, task.data.vocabulary.boundary
        self.training = task.training_config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task.to(self.device)

    @abstractmethod
    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the predictions of every row, by name. ``padded``: whether any symbol is padding. ``texts``: of the
        line of each row."""

    def texts(self, line: str) -> tuple[str, ...]:
        return self.line_texts.of(line)

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        row, second = self.rows.row(*symbols)
        row = np.append([self.boundary], row)
        is_second = np.arange(len(row)) > (len(row) if second is None else second)
        return np.stack([row, is_second], axis=1)

    @torch.no_grad()
    def outputs(
        self,
        rows: Int[Tensor, "b t 2"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Sequence[str]:
        torch.manual_seed(0)  # as in an evaluation, for mixers that draw random numbers
        with arithmetic(self.training):
            symbols, segments = rows.to(self.device).unbind(dim=2)
            predictions = self.predictions(symbols, segments, padding_mask.to(self.device), padded, texts)
            return [json.dumps(prediction, ensure_ascii=False) for prediction in predictions]

    def messages(self) -> Iterator[str]:
        yield from super().messages()
        if self.probabilistic:
            yield NOT_CALIBRATED if self.temperature is None else CALIBRATED.format(self.temperature)


class TextPredictor(Predictor):
    """Predicts the class, the classes or the number of a text, or of two."""

    def __init__(
        self,
        task: PooledTask,
        rows: TextRows,
        trained: TrainedSymbols,
        options: LineOptions,
        form: LineFormat,
        temperature: float | None,
    ) -> None:
        names = ONE_TEXT if rows.texts == 1 else TWO_TEXTS
        super().__init__(task, LineTexts(names, form), rows, options, PREDICTED[type(task)], temperature)
        self.task, self.labels = task, trained.names_in(task.config.column)
        self.task.label_head.temperature = temperature or 1.0

    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Mapping[str, Any]]:
        numbers, two = torch.arange(len(rows)), self.rows.texts == 2
        unknown = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        batch = LabelledBatch(
            rows, padding_mask, unknown, None, numbers, None, padded=padded, segments=segments if two else None
        )
        for prediction in self.task.predict_step(batch, 0):
            if isinstance(prediction, EstimatedNumber):
                yield {"value": prediction.number}
            elif isinstance(self.task, MultiLabel):
                yield of_sets(self.labels, prediction.probabilities)
            else:
                yield of_classes(self.labels, prediction.probabilities)


class RelationPredictor(Predictor):
    """Predicts the relation of two texts, in rows as those of training without anything hidden."""

    def __init__(
        self,
        task: MaskedLM,
        head: Relation,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        options: LineOptions,
        form: LineFormat,
    ) -> None:
        separator, longest = RowSymbols.of(tokenizer).separator, task.data.length - len(SPECIAL)
        rows = TextRows(tokenizer, longest, (separator,), texts=2)
        super().__init__(task, LineTexts(TWO_TEXTS, form), rows, options, PREDICTED[Classification])
        self.task, self.head, self.labels = task, head, labels

    def encode(self, text: str) -> Symbols:
        sentences = (sentence.text for sentence in sentences_of(Document("", text.encode())))
        return np.concatenate([np.zeros(0, np.int32), *(self.tokenizer.encode(sentence) for sentence in sentences)])

    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Mapping[str, Any]]:
        nothing = torch.full_like(rows, IGNORED)
        order = torch.zeros_like(rows) if RowDescription.of(self.task.data, "predict").ordered else None
        numbers = torch.arange(len(rows))
        tensors = (rows, nothing, padding_mask, segments, nothing[:, 0], numbers)
        batch = RowBatch(*tensors, cursor=None, order=order, padded=padded)
        related = self.head.logits(self.task.evaluation_reading(batch))
        for probabilities in related.softmax(dim=-1).tolist():
            yield of_classes(self.labels, probabilities)


class TagPredictor(Predictor):
    """Predicts the tag of each word of a line, and the entities that tags spell."""

    def __init__(self, task: Tagging, rows: TextRows, options: LineOptions, form: LineFormat) -> None:
        super().__init__(task, LineTexts(ONE_TEXT, form), rows, options, ("words", "tags", "probabilities", "entities"))
        self.task = task
        self.tags = LabelledDescription.of(task.data, "predict").labels_of(LABEL, WordTagLabels, "predict").names

    def texts(self, line: str) -> tuple[str, ...]:
        """Returns the words of a line, and then the text that they are of, or "" where words are given."""
        words = given_words(line) if self.line_texts.format == "json" else None
        if words is not None:
            return (*words, "")
        [text] = self.line_texts.of(line)
        return (*(text[start:stop] for start, stop in word_places(text)), text)

    def encode_each(self, texts: Sequence[str]) -> list[Symbols]:
        return [word_pieces(self.tokenizer, texts[:-1], WHOLE).symbols]

    def predictions(
        self,
        rows: Int[Tensor, "b t"],
        segments: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        padded: bool,
        texts: Sequence[tuple[str, ...]],
    ) -> Iterator[Mapping[str, Any]]:
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
        """Returns the likeliest tag of each word with its probability, None where a word is beyond the row; and the
        entities."""
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
    """Returns the words of a line of JSON that gives words: a list, or an object with "words"; None of any other line.
    Raises ConfigError for words that are no texts, or empty."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    words = plain.get("words") if isinstance(plain, Mapping) else plain
    if not isinstance(words, list):
        return None
    if not all(isinstance(word, str) and word.strip() for word in words):
        raise ConfigError('has a word that is empty or no text; give {"words": ["...", ...]}')
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        raise ConfigError("holds a character that UTF-8 cannot write") from None
    return words


def word_places(text: str) -> list[tuple[int, int]]:
    """Returns where each word of a text begins and ends. A word is letters and digits, with points, hyphens and
    apostrophes between them, and @ or # before them; any other sign that is no space is a word alone."""
    return [match.span() for match in re.finditer(r"[@#]?\w+(?:[-.'’]\w+)*|[^\w\s]", text)]


def of_classes(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, Any]:
    """Returns the likeliest label and the probability of each."""
    named = by_name(labels, probabilities)
    best = max(range(len(probabilities)), key=lambda number: probabilities[number])
    return {"label": [*named][best], "probabilities": named}


def of_sets(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, Any]:
    """Returns the labels with a probability of one half or more, and the probability of each."""
    named = by_name(labels, probabilities)
    likely = [name for name, probability in zip(named, probabilities, strict=True) if probability >= 0.5]
    return {"labels": likely, "probabilities": named}


def by_name(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, float]:
    """Returns rounded probabilities by the names of their labels, or else by their numbers."""
    names = labels or [str(number) for number in range(len(probabilities))]
    return {name: round(probability, DIGITS) for name, probability in zip(names, probabilities, strict=True)}


def predictor_of(checkpoint: Path, options: LineOptions, form: LineFormat = "text") -> Predictor:
    """Returns the predictor of a checkpoint. Raises ConfigError where it predicts nothing of texts."""
    task, config, extra = load(checkpoint)
    require_numbers(task, checkpoint)
    trained = TrainedSymbols.of(extra)
    if isinstance(task, PooledTask | Tagging) and isinstance(config.data, LabelledDataConfig):
        rows = None if trained.tokenizer is None else config.data.source.text_rows(trained)
        if rows is None:
            reason = f"was trained on {config.data.name}, which are no texts; measure it by: evaluate"
            raise ConfigError(reason, str(checkpoint))
        if isinstance(task, Tagging):
            return TagPredictor(task, rows, options, form)
        return TextPredictor(task, rows, trained, options, form, temperature_of(checkpoint))
    head = dict(task.heads).get("relation")
    if isinstance(task, MaskedLM) and isinstance(config.data, RowDataConfig) and isinstance(head, Relation):
        tokenizer = tokenizer_from_dict(extra["tokenizer"])
        return RelationPredictor(task, head, tokenizer, RELATIONS[config.data.relation], options, form)
    reason = f"neither classifies texts, nor gives them a number or tags, for its task is {config.task.kind}"
    raise ConfigError(f"{reason}; generate, translate and summarize write", str(checkpoint))
