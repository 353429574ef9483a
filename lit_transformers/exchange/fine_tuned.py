"""The heads of fine-tuned networks: read from and written for classes such as AutoModelForSequenceClassification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_transformers.batch import DataDescription, Vocabulary
from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.architectures import ARCHITECTURES
from lit_transformers.exchange.mapping import Architecture, Weight, affine
from lit_transformers.heads.head import HeadConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.starting_weights import HEADER, StartingWeights
from lit_transformers.runs.trained_symbols import TrainedSymbols
from lit_transformers.tasks import TaskConfig
from lit_transformers.tasks.labelled import LabelledTaskConfig
from lit_transformers.tasks.task import DESCRIPTION
from lit_transformers.training.checkpoints import read

__all__ = ["FORMS", "FineTunedHead", "HeadForm", "ReadHead", "fine_tuned_head", "head_of_import", "read_head"]

SEQUENCE = "ForSequenceClassification"
CLASSES = (SEQUENCE, "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
"""The ends of the names of the classes with fine-tuned heads."""
PROBLEMS = {
    "class_label": "single_label_classification",
    "class_set_label": "multi_label_classification",
    "number_label": "regression",
}
"""The ``problem_type`` of transformers for each kind of head on whole rows."""
NUMBER = ["LABEL_0"]
"""The label that transformers gives the output of a regression."""
TASKS = {
    "class_label": "classification",
    "class_set_label": "multi_label",
    "number_label": "regression",
    "tag_label": "tagging",
    "answer_span": "question_answering",
    "choice_scores": "multiple_choice",
}
"""The objective with a head of each kind."""
NAMED = ("class_label", "class_set_label", "tag_label")
"""The kinds of heads whose outputs have names."""


class HeadForm(NamedTuple):
    """The form of a head in an architecture of transformers.

    name: the class of transformers. weights: pairs of its tensors and ours; ours are named without the head, and of the
    outputs they begin with "map". fields: the fields of our head's config, with the values for which both compute the
    same outputs. constants: its biases of one number that is added to the scores of all choices, which changes no
    probability; our head has none, and they are written as zeros. settings: the fields of config.json of which one
    value alone can be mapped, the default of transformers.
    """

    name: str
    weights: tuple[Weight, ...]
    fields: Mapping[str, Plain]
    constants: tuple[str, ...] = ()
    settings: Mapping[str, Plain] = MappingProxyType({})


def of_rows(name: str, hidden: str, activation: str, output: str) -> HeadForm:
    """Returns the form of a head on the first vector of a row, with a hidden map."""
    fields = {"pooling": "first", "hidden": activation}
    return HeadForm(name, (*affine(hidden, "hidden"), *affine(output, "map.1")), fields)


def of_choices(
    name: str, hidden: str, activation: str, settings: Mapping[str, Plain] = MappingProxyType({})
) -> HeadForm:
    """Returns the form of a head that scores choices by the first vectors of their rows, with a hidden map."""
    own = of_rows(name, hidden, activation, "classifier")
    return own._replace(weights=own.weights[:-1], constants=("classifier.bias",), settings=settings)


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


def choices(stem: str, *arguments: Any) -> dict[str, HeadForm]:
    """Returns the form of the head of an architecture that scores choices, by our kind of heads."""
    return {"choice_scores": of_choices(f"{stem}ForMultipleChoice", *arguments)}


SUMMARY: Mapping[str, Plain] = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
FORMS: Mapping[str, Mapping[str, HeadForm]] = {
    "bert": forms("Bert", "bert.pooler.dense", "tanh") | choices("Bert", "bert.pooler.dense", "tanh"),
    "albert": forms("Albert", "albert.pooler", "tanh") | choices("Albert", "albert.pooler", "tanh"),
    "roberta": forms("Roberta", "classifier.dense", "tanh", "classifier.out_proj")
    | choices("Roberta", "roberta.pooler.dense", "tanh"),
    "longformer": forms("Longformer", "classifier.dense", "tanh", "classifier.out_proj"),
    "electra": forms("Electra", "classifier.dense", "gelu", "classifier.out_proj")
    | choices("Electra", "sequence_summary.summary", "gelu", SUMMARY),
    "distilbert": forms("DistilBert", "pre_classifier", "relu") | choices("DistilBert", "pre_classifier", "relu"),
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
        own: dict[str, Tensor] = {name: torch.zeros(1) for name in form.constants}
        for pair in form.weights:  # the pooler of an import is a part of its encoder
            name = f"{self.prefix}{pair.ours}"
            own[pair.theirs] = ours[name].contiguous().clone() if name in ours else encoder[pair.theirs]
        described: dict[str, Plain] = {"architectures": [form.name], **form.settings, **self.fields()}
        return {**fields, **described}, {**encoder, **own}, []

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


def head_of_import(weights: StartingWeights) -> FineTunedHead | None:
    """Returns the fine-tuned head of imported weights; None if their objective is not in ``TASKS``."""
    if not isinstance(weights.task, Mapping) or weights.task["kind"] not in TASKS.values():
        return None
    name, config = head_of_task(weights.task)
    known = None if weights.symbols is None else weights.symbols.labels
    labels = (known or label_names(weights.fields)) if config.kind in NAMED else None
    return FineTunedHead(name, config, labels, None)


def head_of_task(plain: Plain) -> tuple[str, HeadConfig]:
    """Returns the name and the config of the head of an objective in ``TASKS``, given as plain data."""
    task = TaskConfig.from_dict(plain)
    assert isinstance(task, LabelledTaskConfig)
    vocabulary = Vocabulary(size=2, boundary=0, unit="piece", byte_lengths=None)
    return next(iter(task.own_heads(task.probe_data(vocabulary, 8)).items()))


class ReadHead(NamedTuple):
    """The fine-tuned head of a folder of Hugging Face.

    task: the objective that it predicts for, as plain data. labels: the names of its outputs; None if they have no
    names. tensors: its weights by our names, without those of the pooler, which other heads may read too. notes:
    messages. refused: the reason why no head here has its outputs; "" otherwise, and if not "", the rest is empty.
    """

    task: Plain = None
    labels: list[str] | None = None
    tensors: Mapping[str, Tensor] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    refused: str = ""


def read_head(
    architecture: Architecture, fields: Mapping[str, Plain], checkpoint: dict[str, Tensor], width: int
) -> ReadHead:
    """Returns the fine-tuned head of a checkpoint, whose tensors it takes out of ``checkpoint``; an empty one if the
    class in ``architectures`` has no fine-tuned head. width: of the vectors that the head reads. Raises ConfigError,
    which names the tensor, for a missing tensor or another shape."""
    classes = fields.get("architectures")
    name = str(classes[0]) if isinstance(classes, list | tuple) and classes else ""
    if not name.endswith(CLASSES):
        return ReadHead()
    known = {kind: form for kind, form in FORMS.get(architecture.name, {}).items() if form.name == name}
    if not known:
        return ReadHead(refused=f"no head here computes the outputs of {name}")
    form, labels = next(iter(known.values())), label_names(fields)
    if lacking := [pair.theirs for pair in form.weights if pair.theirs not in checkpoint]:
        raise ConfigError(f"{name} lacks {lacking[0]}")
    count = next(len(checkpoint[pair.theirs]) for pair in form.weights if pair.ours.startswith("map"))
    kind = kind_of(known, fields, len(labels))
    if reason := "; ".join(reasons(form, kind, fields, labels, count)):
        return ReadHead(refused=f"{name}: {reason}")
    task = {"kind": TASKS[kind], **form.fields}
    prefix = f"heads.{head_of_task(task)[0]}."
    poolers = {pair.theirs for part in architecture.heads for pair in part.weights}
    tensors: dict[str, Tensor] = {}
    for pair in form.weights:
        rows = count if pair.ours.startswith("map") else width
        shape = (rows, width) if pair.ours.endswith(".weight") else (rows,)
        if checkpoint[pair.theirs].shape != shape:
            reason = f"is {tuple(checkpoint[pair.theirs].shape)}, and config.json describes {shape}"
            raise ConfigError(reason, pair.theirs)
        if pair.theirs not in poolers:
            tensors[f"{prefix}{pair.ours}"] = checkpoint.pop(pair.theirs)
    reason = "omitted, for it is added to the scores of all choices and changes no probability"
    notes = [f"{own}: {reason}" for own in form.constants if checkpoint.pop(own, None) is not None]
    named = labels if kind in NAMED else None
    of = "" if named is None else f" of {', '.join(named[:8])}{', ...' if len(named) > 8 else ''}"
    return ReadHead(task, named, tensors, (f"head: {TASKS[kind]}{of}", *notes))


def label_names(fields: Mapping[str, Plain]) -> list[str]:
    """Returns the names of the outputs of a config.json, in their order; those of transformers if it gives none. Raises
    ConfigError for names that are not numbered from 0."""
    names: Any = fields.get("id2label")
    if names is None:
        count = fields.get("num_labels")
        names = {str(number): f"LABEL_{number}" for number in range(count if isinstance(count, int) else 2)}
    if not isinstance(names, Mapping) or {*names} != {str(number) for number in range(len(names))}:
        raise ConfigError("names no outputs by numbers from 0 on", "config.json: id2label")
    return [str(names[str(number)]) for number in range(len(names))]


def kind_of(known: Mapping[str, HeadForm], fields: Mapping[str, Plain], labels: int) -> str:
    """Returns the kind of a head among those of its class. As in transformers, without a ``problem_type`` one output
    predicts a number, and several predict a class. Raises ConfigError for an unknown ``problem_type``."""
    if len(known) == 1:
        return next(iter(known))
    problem = fields.get("problem_type") or PROBLEMS["number_label" if labels == 1 else "class_label"]
    kind = next((kind for kind, own in PROBLEMS.items() if own == problem), None)
    if kind is None:
        raise ConfigError(
            f"is {problem!r}; transformers has {', '.join(PROBLEMS.values())}", "config.json: problem_type"
        )
    return kind


def reasons(form: HeadForm, kind: str, fields: Mapping[str, Plain], labels: list[str], count: int) -> Iterator[str]:
    """Yields the reasons why no head here can replace a head of this form with ``count`` outputs."""
    for name, value in form.settings.items():
        if fields.get(name, value) != value:
            yield f"{name} is {fields[name]!r} in config.json, and only {value!r} can be read"
    expected = {"answer_span": 2, "choice_scores": 1, "number_label": 1}.get(kind)
    if expected is not None and count != expected:
        yield f"it has {count} outputs, and {TASKS[kind]} has {expected} here"
    if expected is None and count < 2:
        yield f"it has one output, and {TASKS[kind]} has two or more here"
    if expected is None and len(labels) != count:
        yield f"it has {count} outputs, and config.json names {len(labels)}"
    if expected is None and len({*labels}) < len(labels):
        yield f"config.json gives two outputs the name {next(name for name in labels if labels.count(name) > 1)!r}"
