"""The head of a fine-tuned network as classes of transformers have it, such as AutoModelForSequenceClassification."""

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
"""What transformers calls the problem of each of our heads of whole rows."""
NUMBER = ["LABEL_0"]
"""What transformers calls the number of a regression."""


class HeadForm(NamedTuple):
    """A head as an architecture of transformers has it.

    name: of the class of transformers. weights: the pairs of its tensors with ours, which are named without the head.
    fields: those of our head's config with the values that compute the same.
    """

    name: str
    weights: tuple[Weight, ...]
    fields: Mapping[str, Plain]


def of_rows(name: str, hidden: str, activation: str, output: str) -> HeadForm:
    """Returns the form of a head on the first vector of a row, which a hidden map reads."""
    fields = {"pooling": "first", "hidden": activation}
    return HeadForm(name, (*affine(hidden, "hidden"), *affine(output, "map.1")), fields)


def of_tokens(name: str, output: str, ours: str, fields: Mapping[str, Plain] = MappingProxyType({})) -> HeadForm:
    """Returns the form of a head on the vector of each token. ours: the name of its map."""
    return HeadForm(name, affine(output, ours), fields)


def forms(stem: str, hidden: str, activation: str, output: str = "classifier") -> dict[str, HeadForm]:
    """Returns the forms of the heads of an architecture whose classes begin with ``stem``, by our kinds of heads."""
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
"""The forms of heads, by the architectures that have some and by our kinds of heads."""


class FineTunedHead(NamedTuple):
    """The head of a fine-tuned network. name: by which its task calls it. labels: the names of its outputs; None where
    they have none. depth: of the network as it is read; None for all layers."""

    name: str
    config: HeadConfig
    labels: list[str] | None
    depth: int | None

    @property
    def prefix(self) -> str:
        """How the names of its tensors begin."""
        return f"heads.{self.name}."

    def added(
        self, fields: Mapping[str, Plain], tensors: Mapping[str, Tensor], ours: Mapping[str, Tensor]
    ) -> tuple[dict[str, Plain], dict[str, Tensor], list[str]]:
        """Returns a config.json and its tensors with this head, which replaces others, or as they are with a line that
        says why, where the architecture has no such head. ours: all tensors of the task."""
        architecture = ARCHITECTURES[str(fields["model_type"])]
        form = FORMS.get(architecture.name, {}).get(self.config.kind)
        if form is None:
            reason = f"a {architecture.name} has none of the kind {self.config.kind}"
            return {**fields}, {**tensors}, [f"head {self.name}: omitted, for {reason}"]
        if unequal := [f"task.{name}={value}" for name, value in form.fields.items() if self._has(name) != value]:
            reason = f"{form.name} computes another one; train with {' and '.join(unequal)} to export it"
            return {**fields}, {**tensors}, [f"head {self.name}: omitted, for {reason}"]
        encoder = {name: tensor for name, tensor in tensors.items() if name.startswith(architecture.prefix)}
        own = {pair.theirs: ours[f"{self.prefix}{pair.ours}"].contiguous().clone() for pair in form.weights}
        return {**fields, "architectures": [form.name], **self.fields()}, {**encoder, **own}, []

    def fields(self) -> dict[str, Plain]:
        """Returns the fields of config.json that name its outputs, and what kind of problem it solves."""
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
    """Returns the head that the run of a checkpoint was trained for; None where it was no fine-tuning on labels."""
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
