"""The base of the objectives that predict labels of rows: a network that reads whole rows, and heads on its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lit_transformers.batch import (
    ChoiceLabels,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    MixedDescription,
    needed_mask,
)
from lit_transformers.config import ConfigError, Positive
from lit_transformers.heads.combined_layers import CombinedLayers, LayerCombination
from lit_transformers.heads.head import Representation
from lit_transformers.heads.pooled import ClassLabel
from lit_transformers.heads.pooling import cut_rows, joined_rows
from lit_transformers.models.capabilities import LayerOutputs, RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.distillation import Distillation, DistillationConfig, depth_of
from lit_transformers.tasks.features import FeatureTable
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import INSTEAD_OF_FROZEN


class LabelledTaskConfig(TaskConfig):
    """Base of the configs of objectives that predict labels of rows, of their tokens, or of spans.

    layers: reads the output of the first n layers, and omits the others; None for the network's own output.
    Where ``training.groups`` freeze the network, it is a probe of the representations of a layer (Alain and Bengio
    2016, arXiv:1610.01644, section 3; Tenney et al. 2019, arXiv:1905.05950).
    combined_layers: the layers whose outputs heads read together: 0 for the embeddings with their positions, 1 for the
    lowest layer, -1 for the last of those that ``layers`` leaves, -2 for the one below it. Layers above them are
    omitted. Empty: the last layer alone.
    layer_combination: how these are combined. concatenation, by which heads read vectors that many times as wide; the
    mean or the max of each channel (arXiv:1905.05583, section 5.3.2); scalar_mix, the mean weighted by a softmax of one
    learned number a layer, times another one (ELMo, arXiv:1802.05365, equation 1).
    distillation: what it also learns from a trained network, ``start.teacher``; None: the labels alone.
    """

    reads: ClassVar[type[DataDescription]] = LabelledDescription
    absent: ClassVar[Mapping[str, str]] = {"frozen": INSTEAD_OF_FROZEN}

    layers: Positive | None = None
    combined_layers: tuple[int, ...] = ()
    layer_combination: LayerCombination = "concatenation"
    distillation: DistillationConfig | None = None

    def conflicts(self) -> Iterator[str]:
        if (self.layers is not None or self.combined_layers) and self.evaluation:
            field = "combined_layers" if self.layers is None else "layers"
            way_out = f"empty evaluation, or drop {field}"
            yield f"evaluation measures another network, and {field} takes a part of it; {way_out}"
        if self.layer_combination != "concatenation" and len(self.combined_layers) < 2:
            yield f"{self.layer_combination} combines two layers or more; set combined_layers: [-2, -1], or drop it"

    def fewest_layers(self) -> int:
        """Returns as many layers as those that are combined need, counted from below and from above, to be others."""
        below, above = max((0, *self.combined_layers)), -min((0, *self.combined_layers))
        compared = () if self.distillation is None else self.distillation.layers or ()
        return max(self.layers or 1, below + above, *compared)

    @property
    def learned_of_teacher(self) -> frozenset[str]:
        fields = self.distillation
        if fields is None:
            return frozenset()
        return frozenset({"outputs"} if fields.logits else {}) | ({"states"} if fields.reads_states else frozenset())

    def by_labels_alone(self) -> Self:
        """Returns the config of an objective that learns from no teacher."""
        return self if self.distillation is None else self.override({"distillation": None})

    def teach_probe(self, task: Task) -> None:
        """Gives a task of a probe a teacher of its own family, whose weights are random."""
        fields = self.distillation
        if fields is None or not isinstance(task, LabelledTask):
            return
        model, changes = task.model_config, dict[str, int]()
        if fields.teacher_width is not None:
            changes["dim"] = fields.teacher_width
            changes |= {"heads": 1} if fields.teacher_width % model.heads else {}
        if (deepest := max(fields.teacher_layers or (0,))) > depth_of(task.network):
            changes["depth"] = deepest
        teacher = self.by_labels_alone().build(
            model.override(changes), fields.read_by_teacher(task.data), TrainingConfig()
        )
        assert isinstance(teacher, LabelledTask)
        task.learn_from(teacher)

    def numbered_layers(self, count: int) -> tuple[int, ...]:
        """Returns the combined layers of a network of ``count`` layers by their numbers from below, the embeddings
        being 0; the last one alone where none are combined. Raises ConfigError for one that there is not, and for one
        that is there twice."""
        numbers = tuple(layer if layer >= 0 else count + 1 + layer for layer in self.combined_layers) or (count,)
        for layer, number in zip(self.combined_layers, numbers, strict=False):
            if not 0 <= number <= count:
                raise ConfigError(f"there is no layer {layer}; there are 0 to {count}", "task.combined_layers")
            if numbers.count(number) > 1:
                raise ConfigError(f"layer {number} is there twice; drop one", "task.combined_layers")
        return numbers

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two examples of random symbols, each with a random label and a random marked token in every row, and
        of two texts if rows may have two."""
        described = LabelledDescription.of(data, self.kind)
        choices = (described.labels.count,) if isinstance(described.labels, ChoiceLabels) else ()
        length = described.longest_row
        shape = (2, *choices, length)
        inputs = torch.randint(1, data.vocabulary.size, shape)
        labels = described.labels.random(2, length)
        columns = {name: kind.random(2, length) for name, kind in described.columns.items()}
        marked = torch.arange(length) == torch.randint(length, (*shape[:-1], 1))
        real, rows = torch.ones_like(marked), torch.arange(2)
        segments = random_segments(inputs, described.question_width) if described.segments > 1 else None
        words = words_of_two(2, length) if described.of_words else None
        return LabelledBatch(
            inputs, real, labels, marked, rows, None, columns, padded=False, segments=segments, words=words
        )


class LabelledTask(Task):
    """Trains and measures a network that reads whole rows. Subclasses add their heads. ``features``: a table of what
    the network makes of rows, from which these are read where they are in it; None in general."""

    config: LabelledTaskConfig
    network: RowNetwork
    data: LabelledDescription | MixedDescription

    def __init__(
        self,
        config: LabelledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or cannot be used for such an objective."""
        reader = require(model, RowModelConfig, f"{config.kind} reads")
        super().__init__(config, model, data, training)
        self.network = built(reader, config, data)
        layers = config.numbered_layers(depth_of(self.network))
        self.combination = CombinedLayers(layers, config.layer_combination)
        self.features: FeatureTable | None = None
        if max(layers) < depth_of(self.network):
            self.network.keep_layers(max(layers))
        for parameter in self.network.prediction_only():
            parameter.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):  # heads start alike, whether or not there is a map
            fields = config.distillation
            self.distillation = None if fields is None else Distillation(fields, model.dim)

    def learn_from(self, teacher: LabelledTask) -> None:
        """Takes a trained task as the teacher of a distillation. Raises ConfigError where this one learns from none, or
        cannot be compared with it."""
        if self.distillation is None:
            raise ConfigError("learns from no teacher; set task.distillation", "task")
        self.distillation.accept(self, teacher)

    def training_reading(self, batch: LabelledBatch) -> Representation:
        if self.distillation is None:
            return self.read(self.network, batch)
        return self.distillation.reading(self, batch)

    def other_flops(self, length: int) -> float:
        return 0 if self.distillation is None else self.distillation.flops(self, length)

    def unused(self) -> list[nn.Parameter]:
        return [*super().unused(), *self.network.prediction_only()]

    def head_model(self) -> ModelConfig:
        return self.model_config.override({"dim": self.combination.width(self.model_config.dim)})

    def on_fit_start(self) -> None:
        """Counts the examples of each class, where the losses of a head are weighted by them. Raises ConfigError where
        the trainer has no data module that counts them."""
        super().on_fit_start()
        for head in self.heads.values():
            if isinstance(head, ClassLabel) and head.balanced:
                count = getattr(getattr(self.trainer, "datamodule", None), "class_counts", None)
                if count is None:
                    reason = "balanced counts the labels of training, which this trainer's data do not; give a number"
                    raise ConfigError(f"{reason} for each class", "task.class_weights")
                head.balance(count(head.column, head.classes))

    def read(self, network: RowNetwork, batch: LabelledBatch) -> Representation:
        rows = self.rows_read(batch)
        cached = self.features.read(rows) if self.features is not None and network is self.network else None
        if cached is None:
            read = self.chosen_layers(network, rows)
        else:
            read = LayerOutputs(cached.to(self.dtype).chunk(len(self.combination.layers), dim=-1), {})
        return self.combined(network, batch, read)

    def combined(self, network: RowNetwork, batch: LabelledBatch, read: LayerOutputs) -> Representation:
        """Returns what heads read of a batch, given what a network made of ``rows_read``: the layers that are combined
        alone."""
        hidden = self.combination(read.layers)
        if self.data.pieces > 1:
            hidden = joined_rows(hidden, len(batch.inputs))[:, : batch.inputs.size(1)]
        return Representation(network, hidden, aux=read.aux)

    def rows_read(self, batch: LabelledBatch) -> LabelledBatch:
        """Returns the rows that the network reads of a batch: its own, or their pieces."""
        return batch if self.data.pieces == 1 else in_pieces(batch, self.data.length)

    def every_layer(self, network: RowNetwork, batch: LabelledBatch) -> tuple[LabelledBatch, LayerOutputs]:
        """Runs a network on ``rows_read`` of a batch, and returns these and the outputs of all layers."""
        rows = self.rows_read(batch)
        return rows, network.read_layers(rows.inputs, needed_mask(rows), marks(rows), rows.segments)

    def chosen_layers(self, network: RowNetwork, rows: LabelledBatch) -> LayerOutputs:
        """Runs a network on rows of one piece each, and returns the layers that are combined."""
        inputs = rows.inputs, needed_mask(rows), marks(rows), rows.segments
        if self.combination.last_alone(depth_of(network)):
            output = network.read_row(*inputs)
            return LayerOutputs((output.hidden,), output.aux)
        read = network.read_layers(*inputs)
        return read._replace(layers=tuple(read.layers[layer] for layer in self.combination.layers))


def built(reader: RowModelConfig, config: LabelledTaskConfig, data: DataDescription) -> RowNetwork:
    """Builds the network with the layers that the config reads. Raises ConfigError where it has no more than these."""
    network = reader.build(data)
    if config.layers is not None and config.layers != reader.get("depth"):
        network.keep_layers(config.layers)
    return network


def in_pieces(batch: LabelledBatch, length: int) -> LabelledBatch:
    """Returns the pieces of rows as rows of at most ``length`` tokens, those of the first row first. All rows have
    the same number, of which the last ones may be padding alone."""
    if batch.inputs.size(1) <= length:
        return batch
    inputs, real = cut_rows(batch.inputs, length), cut_rows(batch.padding_mask, length)
    marked = None if batch.marked is None else cut_rows(batch.marked, length)
    segments = None if batch.segments is None else cut_rows(batch.segments, length)
    padded = batch.padded or batch.inputs.size(1) % length > 0
    return batch._replace(inputs=inputs, padding_mask=real, marked=marked, segments=segments, padded=padded)


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns the tokens that the data mark, or else the first token of each row (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    return first & batch.padding_mask


def random_segments(inputs: Int[Tensor, "*n t"], question_width: int | None = None) -> Int[Tensor, "*n t"]:
    """Returns segments of rows of two texts, of which the second begins at a random token, or behind as many as the
    first one always has, where rows are longer."""
    length, shape = inputs.size(-1), (*inputs.shape[:-1], 1)
    if question_width is not None and question_width < length:
        last = torch.full(shape, question_width - 1)
    else:
        last = torch.randint(length - 1, shape)
    return (torch.arange(length) > last).long()


def words_of_two(rows: int, length: int) -> Int[Tensor, "b t"]:
    """Returns the words of rows whose words have two tokens each, the last one perhaps one, behind the boundary."""
    return ((torch.arange(length) + 1) // 2).expand(rows, length)
