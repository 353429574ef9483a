"""Objectives with one prediction for each row: a network, and a head on one vector of its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.activations import Activation
from lit_transformers.batch import LABEL, DataDescription, LabelledBatch, LabelledDescription, Vocabulary
from lit_transformers.config import ConfigError, Dropout, Fraction
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.heads.pooled import PooledHead, PooledHeadConfig
from lit_transformers.heads.pooling import PiecePooling, Pooling
from lit_transformers.heads.teacher import TEACHER, TaughtHead, Teacher
from lit_transformers.models.capabilities import RowModelConfig, require
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.tasks.self_distillation import PAST, PastWeights, SelfDistillationConfig
from lit_transformers.training.config import TrainingConfig


class PooledTaskConfig(LabelledTaskConfig):
    """Base of the configs of objectives with one prediction for each row.

    pooling: the vector of a row. first: the vector of its first token, the boundary ([CLS] in arXiv:1810.04805, section
    3). mean, max: over all real tokens, for each channel. last: the vector of the last token, the only one that sees
    the whole row in a language_model. attention: the mean weighted by a softmax of products with a learned query,
    initially equal to mean. dropout: probability of dropout on this vector.
    piece_pooling: combines the vectors of the pieces of a text, if the data cut long texts into pieces: mean, max or
    attention (arXiv:1905.05583, section 5.3.1).
    hidden: activation after a linear map of the pooled vector to the same width, such as tanh in BERT's pooler; with
    released weights for heads, the map starts from the released pooler. None: no map.
    self_distillation: also learn the outputs of the network with the mean of its last weights; None: only labels.
    column: the name of the column of labels that is predicted.
    """

    pooling: Pooling = "first"
    hidden: Activation | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0
    piece_pooling: PiecePooling = "mean"
    self_distillation: SelfDistillationConfig | None = None
    column: str = LABEL

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.self_distillation is not None and self.distillation is not None:
            yield "self_distillation and distillation each need a teacher, and a task has one; drop one of them"

    def by_labels_alone(self) -> Self:
        alone = super().by_labels_alone()
        return alone if alone.self_distillation is None else alone.override({"self_distillation": None})

    def head(self) -> PooledHeadConfig:
        """Returns the head that predicts the label."""
        raise NotImplementedError

    def head_fields(self) -> dict[str, Any]:
        """Returns the fields that the head has from the task."""
        names = ("pooling", "hidden", "dropout", "piece_pooling", "column")
        return {name: getattr(self, name) for name in names}

    def probe_data(self, vocabulary: Vocabulary, length: int) -> LabelledDescription:
        heads = [self.head(), *(head for head in self.heads if isinstance(head, PooledHeadConfig))]
        return replace(
            LabelledDescription.for_probe(vocabulary, length),
            labels=heads[0].probe_labels,
            columns={head.column: head.probe_labels for head in heads if head.column != LABEL},
            pieces=1 if self.piece_pooling == "mean" else 2,
        )

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"label": self.head()}

    def measured_as(self, metric: str) -> str:
        """Returns a metric with the name of its column of labels in front, unless that is ``label``. Example:
        "relatedness:nats"."""
        heads = {head.name or head.kind: head for head in self.heads if isinstance(head, PooledHeadConfig)}
        name = next((name for name in heads if metric.startswith(f"{name}_")), None)
        column = self.column if name is None else heads[name].column
        measure = metric if name is None else metric.removeprefix(f"{name}_")
        return measure if column == LABEL else f"{column}:{measure}"


class PooledTask(LabelledTask):
    """Trains and measures a network with a head on one vector of each row."""

    config: PooledTaskConfig
    former_names: ClassVar[Mapping[str, str]] = {
        "head.": "heads.label.map.",
        "heads.relation.map.0.": "heads.label.hidden.",
    }

    def __init__(
        self,
        config: PooledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError if the model cannot be built or used for this objective, or the labels are of another
        kind."""
        require_readable(model, config.kind, config.pooling)
        description = LabelledDescription.of(data, config.kind)
        if config.piece_pooling != "mean" and description.pieces == 1:
            reason = "each text of these data is one piece; drop it, or set data.source.pieces"
            raise ConfigError(reason, "task.piece_pooling")
        config.head().outputs(config.reads.of(data, config.kind))
        super().__init__(config, model, data, training)
        if config.self_distillation is not None and self.training_config.strategy == "fsdp":
            reason = "a teacher needs whole weights on each rank, and strategy fsdp divides them"
            raise ConfigError(f"{reason}; set it to null, or training.strategy: ddp", "task.self_distillation")
        self.past = None if config.self_distillation is None else PastWeights(config.self_distillation.last)
        self.add_heads()

    def training_reading(self, batch: LabelledBatch) -> Representation:
        teacher = self.teacher(batch)
        reading = super().training_reading(batch)
        return reading if teacher is None else reading._replace(parts={TEACHER: teacher})

    def teacher(self, batch: LabelledBatch) -> Teacher | None:
        """Returns the outputs of the network with the mean of its last weights; None without self-distillation and in
        the first update."""
        if self.past is None or self.config.self_distillation is None:
            return None
        self.past.note(self)
        if not self.past.is_teacher:
            return None
        was_training = self.training
        with torch.no_grad(), self.past.averaged(self):
            self.eval()
            reading = self.read(self.network, batch)
            heads = [head for head in self.trained_heads.values() if isinstance(head, TaughtHead)]
            outputs = {head: head.outputs(reading, batch) for head in heads}
        self.train(was_training)
        return Teacher(outputs, self.config.self_distillation.weight)

    def other_flops(self, length: int) -> float:
        """Returns a third of the forward FLOPs of the teacher: a training step counts as three forward passes, and the
        teacher has no backward pass."""
        if self.past is None:
            return super().other_flops(length)
        of_heads = sum(head.flops(length) for head in self.trained_heads.values() if isinstance(head, TaughtHead))
        return (self.network.flops(length) - self.network.softmax_flops(length) + of_heads) / 3

    def updated(self) -> None:
        if self.past is not None:
            self.past.is_updated = True

    def held_weights(self) -> dict[str, Any]:
        return {} if self.past is None else {PAST: self.past.state()}

    def hold_weights(self, held: Mapping[str, Any]) -> None:
        if self.past is not None:
            self.past.restore(held[PAST])

    @property
    def label_head(self) -> PooledHead:
        """The head that predicts the label."""
        return cast("PooledHead", self.heads["label"])

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        return self.label_head.outputs(self.evaluation_reading(batch), batch)

    @contextmanager
    def reading_first(self) -> Iterator[None]:
        """Lets the network compute the output of the first token of each row alone within the block, if the label is
        predicted from it."""
        self.first_alone = self.config.pooling == "first" and self.data.pieces == 1
        try:
            yield
        finally:
            self.first_alone = False

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[Any]:
        """Returns the ``prediction`` of the head for every example, without rows of padding."""
        real, predict = batch.padding_mask.any(dim=1), self.label_head.prediction
        with self.reading_first():
            outputs = self.evaluation_output(batch)[real].tolist()
        return [predict(*pair) for pair in zip(batch.example[real].tolist(), outputs, strict=True)]


def require_readable(model: ModelConfig, task: str, pooling: Pooling) -> None:
    """Raises ConfigError if ``pooling`` cannot be used with the output of a model."""
    reader = require(model, RowModelConfig, f"{task} reads")
    if pooling == "first" and not reader.first_sees_all:
        raise ConfigError(
            f"the first token of a {model.kind} sees only itself; set task.pooling to last or mean, "
            "or model to an encoder that is not causal",
            "task.pooling",
        )
