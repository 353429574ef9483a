"""Predicts from lines of one or two texts with a trained network, and writes JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules import (
    DataConfig,
    Document,
    LabelledDataConfig,
    MixedDataConfig,
    QuestionsConfig,
    RowDataConfig,
    Tokenizer,
    TrainedSymbols,
    tokenizer_from_dict,
)
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.core.trained import require_tokenizer
from datamodules.labelled.choices import ChoiceExamplesConfig
from datamodules.rows.reader import RELATIONS
from datamodules.rows.stored_sentences import sentences_of
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError, nearest
from lit_transformers.heads.pooled import EstimatedNumber
from lit_transformers.heads.relation import Relation
from lit_transformers.inference.calibration import temperature_of
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict_answers import AnswerPredictor
from lit_transformers.inference.predict_choices import ChoicePredictor
from lit_transformers.inference.predict_symbols import SymbolPredictor, row_batch
from lit_transformers.inference.predict_tags import TagPredictor
from lit_transformers.inference.predictor import (
    DIGITS,
    LineFormat,
    LineRows,
    LineTexts,
    Predictor,
    load_for_lines,
)
from lit_transformers.runs.evaluate import require_numbers
from lit_transformers.tasks import Task
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.tasks.multi_label import MultiLabel
from lit_transformers.tasks.multi_task import MultiTask
from lit_transformers.tasks.multiple_choice import MultipleChoice
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.tasks.question_answering import QuestionAnswering
from lit_transformers.tasks.regression import Regression
from lit_transformers.tasks.retrieval import Retrieval
from lit_transformers.tasks.tagging import Tagging

__all__ = ["predictor_of"]

SPECIAL = ("[CLS]", "[SEP]", "[SEP]")
"""The special symbols around two texts."""
ONE_TEXT, TWO_TEXTS = ("text",), ("first", "second")
"""The fields of a line of JSON: one text, or two texts."""
PREDICTED: Mapping[type[PooledTask], tuple[str, ...]] = {
    Classification: ("label", "probabilities"),
    MultiLabel: ("labels", "probabilities"),
    Regression: ("value",),
}
"""The fields of the prediction of each task."""


class TextPredictor(Predictor):
    """Predicts the class, the classes or the number of a text, or of a pair of texts."""

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
        self.ability = "score" if isinstance(task, Regression) else "classify"
        self.task.label_head.temperature = temperature or 1.0

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        rows, segments, padding_mask, padded, _ = read
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

    ability = "classify"

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

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        related = self.head.logits(self.task.evaluation_reading(row_batch(self.task, read)))
        for probabilities in related.softmax(dim=-1).tolist():
            yield of_classes(self.labels, probabilities)


def of_classes(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, Any]:
    """Returns the likeliest label, and the probability of each label."""
    named = by_name(labels, probabilities)
    best = max(range(len(probabilities)), key=lambda number: probabilities[number])
    return {"label": [*named][best], "probabilities": named}


def of_sets(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, Any]:
    """Returns the labels with a probability of at least one half, and the probability of each label."""
    named = by_name(labels, probabilities)
    likely = [name for name, probability in zip(named, probabilities, strict=True) if probability >= 0.5]
    return {"labels": likely, "probabilities": named}


def by_name(labels: Sequence[str] | None, probabilities: Sequence[float]) -> dict[str, float]:
    """Returns rounded probabilities by the names of labels, or by their numbers if they have no names."""
    names = labels or [str(number) for number in range(len(probabilities))]
    return {name: round(probability, DIGITS) for name, probability in zip(names, probabilities, strict=True)}


def of_one_source(
    task: Task, data: DataConfig, trained: TrainedSymbols, head: str | None, place: str
) -> tuple[Task, DataConfig, TrainedSymbols]:
    """Returns a trained task, its data and its symbols; of several tasks, the task of the source that ``head`` names.
    Raises ConfigError if ``head`` names no source, or if there is only one task."""
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
    checkpoint: Path,
    options: LineOptions,
    form: LineFormat = "text",
    threshold: float | None = None,
    head: str | None = None,
) -> Predictor:
    """Returns the predictor of a checkpoint. Raises ConfigError if its task makes no predictions from texts, or has no
    threshold.

    threshold: of no answer, in place of the task's threshold. head: for a run of several tasks, the source whose head
    predicts.
    """
    whole, config, extra = load_for_lines(checkpoint, None if threshold is None else {"task.threshold": threshold})
    require_numbers(whole, checkpoint)
    task, data, trained = of_one_source(whole, config.data, TrainedSymbols.of(extra), head, str(checkpoint))
    source = data.source if isinstance(data, LabelledDataConfig) else None
    if isinstance(task, QuestionAnswering) and isinstance(source, QuestionsConfig):
        return AnswerPredictor(task, source.windows(require_tokenizer(trained.tokenizer)), options, form)
    if isinstance(task, MultipleChoice) and isinstance(source, ChoiceExamplesConfig):
        return ChoicePredictor(task, source, trained, options, form)
    if isinstance(task, Retrieval):
        raise ConfigError("a run of retrieval searches the passages of a file; name the file", "--passages")
    if isinstance(task, PooledTask | Tagging | MultipleChoice) and source is not None:
        rows = None if trained.tokenizer is None else source.text_rows(trained)
        if rows is None or isinstance(task, MultipleChoice):
            reason = f"was trained on {data.name}, which are not texts; measure it by: evaluate"
            raise ConfigError(reason, str(checkpoint))
        if isinstance(task, Tagging):
            return TagPredictor(task, rows, options, form)
        return TextPredictor(task, rows, trained, options, form, temperature_of(checkpoint))
    relation = dict(task.heads).get("relation")
    if isinstance(task, MaskedLM) and isinstance(data, RowDataConfig) and extra.get("tokenizer"):
        tokenizer = tokenizer_from_dict(extra["tokenizer"])
        if isinstance(relation, Relation):
            return RelationPredictor(task, relation, tokenizer, RELATIONS[data.relation], options, form)
        return SymbolPredictor(task, tokenizer, options, form)
    reason = f"makes no predictions from texts, since its task is {task.config.kind}"
    raise ConfigError(f"{reason}; generate, translate and summarize write", str(checkpoint))
