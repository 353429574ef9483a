"""Applies a trained network to lines of text, or of two: the class or the number that it predicts, as JSON lines."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from datamodules import (
    DataConfig,
    Document,
    LabelledDataConfig,
    MixedDataConfig,
    RowDataConfig,
    Tokenizer,
    TrainedSymbols,
    tokenizer_from_dict,
)
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.rows.reader import RELATIONS
from datamodules.rows.stored_sentences import sentences_of
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import IGNORED, LabelledBatch, RowBatch, RowDescription
from lit_transformers.config import ConfigError, nearest
from lit_transformers.heads.relation import Relation
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.runs import load
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks import Task
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.tasks.multi_task import MultiTask
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["LineFormat", "Predictor", "predictor_of"]

LineFormat = Literal["text", "json"]
DIGITS = 6
"""The digits of a probability: the next ones depend on the lines beside it."""
SPECIAL = ("[CLS]", "[SEP]", "[SEP]")
"""The special symbols around two texts."""
NOT_CALIBRATED = "probabilities are those of the network's softmax, and are not calibrated"


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
            plain = [plain.get(name) for name in self.names]
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
    """Predicts something of every line. ``probabilistic``: whether it gives probabilities."""

    probabilistic: bool

    def __init__(
        self,
        task: Task,
        texts: LineTexts,
        tokenizer: Tokenizer,
        longest: int,
        options: LineOptions,
        probabilistic: bool,
    ) -> None:
        super().__init__(options, tokenizer, longest)
        self.probabilistic = probabilistic
        self.empty = json.dumps(dict.fromkeys(("label", "probabilities") if probabilistic else ("value",)))
        self.line_texts, self.boundary = texts, task.data.vocabulary.boundary
        self.training = task.training_config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task.to(self.device)

    @abstractmethod
    def predictions(
        self, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"], padded: bool
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the predictions of every row, by name. ``padded``: whether any symbol is padding."""

    def texts(self, line: str) -> tuple[str, ...]:
        return self.line_texts.of(line)

    @torch.no_grad()
    def outputs(self, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"], padded: bool) -> Sequence[str]:
        torch.manual_seed(0)  # as in an evaluation, for mixers that draw random numbers
        with arithmetic(self.training):
            predictions = self.predictions(rows.to(self.device), padding_mask.to(self.device), padded)
            return [json.dumps(prediction, ensure_ascii=False) for prediction in predictions]

    def messages(self) -> Iterator[str]:
        yield from super().messages()
        if self.probabilistic:
            yield NOT_CALIBRATED


class TextPredictor(Predictor):
    """Predicts the class or the number of a text."""

    def __init__(
        self, task: PooledTask, rows: TextRows, trained: TrainedSymbols, options: LineOptions, form: LineFormat
    ) -> None:
        is_classifier = isinstance(task, Classification)
        super().__init__(task, LineTexts(("text",), form), rows.tokenizer, rows.longest, options, is_classifier)
        self.task, self.rows, self.labels = task, rows, trained.labels

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        return np.append([self.boundary], self.rows.row(symbols[0]))

    def predictions(
        self, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"], padded: bool
    ) -> Iterator[Mapping[str, Any]]:
        numbers = torch.arange(len(rows))
        batch = LabelledBatch(rows, padding_mask, numbers.to(rows.device), None, numbers, None, padded=padded)
        for prediction in self.task.predict_step(batch, 0):
            values = prediction._asdict()
            if "probabilities" in values:
                yield of_classes(self.labels, values["probabilities"])
            else:
                yield {"value" if name == "number" else name: v for name, v in values.items() if name != "document"}


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
        texts, longest = LineTexts(("first", "second"), form), task.data.length - len(SPECIAL)
        super().__init__(task, texts, tokenizer, longest, options, True)
        self.task, self.head, self.labels = task, head, labels
        self.separator = RowSymbols.of(tokenizer).separator

    def encode(self, text: str) -> Symbols:
        sentences = (sentence.text for sentence in sentences_of(Document("", text.encode())))
        return np.concatenate([np.zeros(0, np.int32), *(self.tokenizer.encode(sentence) for sentence in sentences)])

    def row(self, symbols: Sequence[Symbols]) -> Symbols:
        """Returns both texts, of which the longer one loses its end."""
        first, second = symbols
        first = first[: max(self.longest - len(second), self.longest // 2)]
        second = second[: self.longest - len(first)]
        return np.concatenate([[self.boundary], first, [self.separator], second, [self.separator]])

    def predictions(
        self, rows: Int[Tensor, "b t"], padding_mask: Bool[Tensor, "b t"], padded: bool
    ) -> Iterator[Mapping[str, Any]]:
        is_after = (rows == self.separator).cumsum(dim=1) - (rows == self.separator).long()
        segments, nothing = is_after.clamp(max=1) * padding_mask, torch.full_like(rows, IGNORED)
        order = torch.zeros_like(rows) if RowDescription.of(self.task.data, "predict").ordered else None
        numbers = torch.arange(len(rows))
        tensors = (rows, nothing, padding_mask, segments, nothing[:, 0], numbers)
        batch = RowBatch(*tensors, cursor=None, order=order, padded=padded)
        related = self.head.logits(self.task.evaluation_reading(batch))
        for probabilities in related.softmax(dim=-1).tolist():
            yield of_classes(self.labels, probabilities)


def of_classes(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, Any]:
    """Returns the likeliest label and the probability of each; labels without a name are called by their number."""
    names = labels or [str(number) for number in range(len(probabilities))]
    best = max(range(len(names)), key=lambda number: probabilities[number])
    rounded = [round(probability, DIGITS) for probability in probabilities]
    return {"label": names[best], "probabilities": dict(zip(names, rounded, strict=True))}


def of_one_source(
    task: Task, data: DataConfig, trained: TrainedSymbols, head: str | None, place: str
) -> tuple[Task, DataConfig, TrainedSymbols]:
    """Returns a trained task, its data and its symbols: of several, those of the one that ``head`` names. Raises
    ConfigError where it names none, or there is one alone."""
    if not isinstance(task, MultiTask) or not isinstance(data, MixedDataConfig):
        if head is not None:
            raise ConfigError(f"{place} has one task; omit it", "--head")
        return task, data, trained
    if head not in data.sources:
        way_out = f"name one with --head: {', '.join(data.names)}" if head is None else nearest(head, data.names)
        reason = "has heads of several tasks" if head is None else f"has no head {head!r}"
        raise ConfigError(f"{reason}; {way_out}", place)
    return task.of_source(head), data.of_source(head), trained.of_source(head)


def predictor_of(
    checkpoint: Path, options: LineOptions, form: LineFormat = "text", head: str | None = None
) -> Predictor:
    """Returns the predictor of a checkpoint. Raises ConfigError where it predicts nothing of texts.

    head: of several tasks, the source whose head predicts.
    """
    whole, config, extra = load(checkpoint)
    require_numbers(whole, checkpoint)
    task, data, trained = of_one_source(whole, config.data, TrainedSymbols.of(extra), head, str(checkpoint))
    if isinstance(task, PooledTask) and isinstance(data, LabelledDataConfig):
        rows = None if trained.tokenizer is None else data.source.text_rows(trained)
        if rows is None:
            reason = f"was trained on {data.name}, which are no texts; measure it by: evaluate"
            raise ConfigError(reason, str(checkpoint))
        return TextPredictor(task, rows, trained, options, form)
    relation = dict(task.heads).get("relation")
    if isinstance(task, MaskedLM) and isinstance(data, RowDataConfig) and isinstance(relation, Relation):
        tokenizer = tokenizer_from_dict(extra["tokenizer"])
        return RelationPredictor(task, relation, tokenizer, RELATIONS[data.relation], options, form)
    reason = f"neither classifies texts nor gives them a number, for its task is {task.config.kind}"
    raise ConfigError(f"{reason}; generate, translate and summarize write", str(checkpoint))
