"""Exports the head of a fine-tuned network for classes of transformers, such as AutoModelForSequenceClassification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from lit_transformers.batch import DataDescription
from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.architectures import ARCHITECTURES
from lit_transformers.exchange.mapping import Weight, affine
from lit_transformers.heads.head import HeadConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.starting_weights import HEADER
from lit_transformers.runs.trained_symbols import TrainedSymbols
from lit_transformers.tasks.labelled import LabelledTaskConfig
from lit_transformers.tasks.task import DESCRIPTION
from lit_transformers.training.checkpoints import read

__all__ = ["FORMS", "FineTunedHead", "HeadForm", "fine_tuned_head"]

SEQUENCE = "ForSequenceClassification"
PROBLEMS = {
    "class_label": "single_label_classification",
    "class_set_label": "multi_label_classification",
    "number_label": "regression",
}
"""The ``problem_type`` of transformers for each kind of head on whole rows."""
NUMBER = ["LABEL_0"]
"""The label that transformers gives the output of a regression."""


class HeadForm(NamedTuple):
    """The form of a head in an architecture of transformers.

    name: the class of transformers. weights: pairs of its tensors and ours; ours are named without the head. fields:
    the fields of our head's config, with the values for which both compute the same outputs.
    """

    name: str
    weights: tuple[Weight, ...]
    fields: Mapping[str, Plain]


def of_rows(name: str, hidden: str, activation: str, output: str) -> HeadForm:
    """Returns the form of a head on the first vector of a row, with a hidden map."""
    fields = {"pooling": "first", "hidden": activation}
    return HeadForm(name, (*affine(hidden, "hidden"), *affine(output, "map.1")), fields)


def of_tokens(name: str, output: str, ours: str, fields: Mapping[str, Plain] = MappingProxyType({})) -> HeadForm:
    """Returns the form of a head on the vector of each token. ours: the name of its map in our head."""
    return HeadForm(name, affine(output, ours), fields)


def forms(stem: str, hidden: str, activation: str, output: str = "classifier") -> dict[str, HeadForm]:
    """Returns the forms of the heads of an architecture, by our kinds of heads. Names of its classes begin with
    ``stem``."""
    rows = of_rows(f"{stem}{SEQUENCE}", hidden, activation, output)
    tags = of_tokens(f"{stem}ForTokenClassification", "classifier", "map.1")
    answers = of_tokens(f"{stem}ForQuestionAnswering", "qa_outputs", "map", {"scores": "linear"})
    return {**dict.fromkeys(PROBLEMS, rows), "tag_label": tags, "answer_span": answers}


FORMS: Mapping[str, Mapping[str, HeadForm]] = {
    "bert": forms("Bert", "bert.pooler.dense", "tanh"),
    "albert": forms("Albert", "albert.pooler", "tanh"),
    "roberta": forms("Roberta", "classifier.dense", "tanh", "classifier.out_proj"),
    "longformer": forms("Longformer", "classifier.dense", "tanh", "classifier.out_proj"),
    "electra": forms("Electra", "classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": forms("DistilBert", "pre_classifier", "relu"),
}
"""The forms of heads, by architecture and by our kinds of heads."""


class FineTunedHead(NamedTuple):
    """The head of a fine-tuned network. name: of the head in its task. labels: the names of its outputs; None if they
    have no names. depth: the number of layers that the head reads; None for all layers."""

    name: str
    config: HeadConfig
    labels: list[str] | None
    depth: int | None

    @property
    def prefix(self) -> str:
        """The beginning of the names of its tensors."""
        return f"heads.{self.name}."

    def added(
        self, fields: Mapping[str, Plain], tensors: Mapping[str, Tensor], ours: Mapping[str, Tensor]
    ) -> tuple[dict[str, Plain], dict[str, Tensor], list[str]]:
        """Returns the fields of config.json, the tensors and messages, with this head in place of other heads.

        If the architecture has no such head, the fields and tensors are unchanged and a message gives the reason. ours:
        all tensors of the task.
        """
        architecture = ARCHITECTURES[str(fields["model_type"])]
        form = FORMS.get(architecture.name, {}).get(self.config.kind)
        if form is None:
            reason = f"a {architecture.name} of transformers has no head of the kind {self.config.kind}"
            return {**fields}, {**tensors}, [f"head {self.name}: omitted, for {reason}"]
        if unequal := [f"task.{name}={value}" for name, value in form.fields.items() if self._has(name) != value]:
            reason = f"{form.name} computes another head; train with {' and '.join(unequal)} to export it"
            return {**fields}, {**tensors}, [f"head {self.name}: omitted, for {reason}"]
        encoder = {name: tensor for name, tensor in tensors.items() if name.startswith(architecture.prefix)}
        own = {pair.theirs: ours[f"{self.prefix}{pair.ours}"].contiguous().clone() for pair in form.weights}
        return {**fields, "architectures": [form.name], **self.fields()}, {**encoder, **own}, []

    def fields(self) -> dict[str, Plain]:
        """Returns the fields of config.json that name its outputs and state its ``problem_type``."""
        problem = PROBLEMS.get(self.config.kind)
        names = NUMBER if problem == "regression" else self.labels
        labels: dict[str, Plain] = {}
        if names is not None:
            by_number = dict(enumerate(names))
            labels = {"id2label": {str(number): name for number, name in by_number.items()}}
            labels["label2id"] = {name: number for number, name in by_number.items()}
        return labels | ({"problem_type": problem} if problem else {})

    def _has(self, field: str) -> Plain:
        return self.config.to_dict().get(field)


def fine_tuned_head(checkpoint: Path) -> FineTunedHead | None:
    """Returns the first head of the run of a checkpoint; None if the run did not learn from labels."""
    contents = read(checkpoint, mmap=True)
    saved: Mapping[str, Any] = contents[HEADER]
    try:
        task = RunConfig.from_dict(saved["config"]).task
    except ConfigError:  # of a plug-in that is not loaded
        return None
    if not isinstance(task, LabelledTaskConfig) or DESCRIPTION not in contents:
        return None
    heads = task.own_heads(DataDescription.from_dict(contents[DESCRIPTION]))
    name, config = next(iter(heads.items()))
    return FineTunedHead(name, config, TrainedSymbols.of(saved).labels, task.layers)
