"""The base of objectives that predict labels: a network that reads whole rows, and heads on its output."""

from __future__ import annotations

import math
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
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import (
    LayerOutputs,
    LowerStates,
    RowModelConfig,
    RowNetwork,
    depth_of,
    require,
)
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.distillation import Distillation, DistillationConfig
from lit_transformers.tasks.features import FeatureTable
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import INSTEAD_OF_FROZEN


class LabelledTaskConfig(TaskConfig):
    """Base of the configs of objectives that predict labels of rows, of their tokens, or of spans.

    layers: heads read the output of the first n layers, and the network omits the others; None: all layers. With a
    network frozen by ``training.groups``, the heads are a probe of a layer (Alain and Bengio 2016, arXiv:1610.01644,
    section 3; Tenney et al. 2019, arXiv:1905.05950).
    combined_layers: the layers whose outputs the heads read together: 0 for the embeddings with their positions, 1 for
    the lowest layer, -1 for the last layer within ``layers``, -2 for the layer below it. The network omits higher
    layers. Empty: only the last layer.
    layer_combination: how the outputs of these layers are combined. concatenation: along channels, which makes them
    wider. mean, max: of each channel (arXiv:1905.05583, section 5.3.2). scalar_mix: the mean weighted by a softmax of
    one learned number for each layer, times a learned scale (ELMo, arXiv:1802.05365, equation 1).
    distillation: losses by a trained teacher, ``start.teacher``, in addition to labels; None: only labels.
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
            yield f"evaluation measures another network, and {field} keeps only a part of it; {way_out}"
        if self.layer_combination != "concatenation" and len(self.combined_layers) < 2:
            yield f"{self.layer_combination} combines two layers or more; set combined_layers: [-2, -1], or drop it"

    def fewest_layers(self) -> int:
        """Returns the smallest depth at which the layers that are combined, counted from below or from above, and those
        that are compared with a teacher are different layers."""
        below, above = max((0, *self.combined_layers)), -min((0, *self.combined_layers))
        fields = self.distillation
        compared = () if fields is None else (*(fields.layers or ()), *(fields.relation_layers or ())[:1])
        return max(self.layers or 1, below + above, *compared)

    @property
    def learned_of_teacher(self) -> frozenset[str]:
        fields = self.distillation
        if fields is None:
            return frozenset()
        return frozenset({"outputs"} if fields.logits else {}) | ({"states"} if fields.reads_states else frozenset())

    def by_labels_alone(self) -> Self:
        """Returns the config of the same objective without a teacher."""
        return self if self.distillation is None else self.override({"distillation": None})

    def teach_probe(self, task: Task) -> None:
        """Sets a teacher of the same family, with random weights, for the task of a probe."""
        fields = self.distillation
        if fields is None or not isinstance(task, LabelledTask):
            return
        model, changes = task.model_config, dict[str, int]()
        if fields.teacher_width is not None:
            changes["dim"] = fields.teacher_width
            changes |= {"heads": 1} if fields.teacher_width % model.heads else {}
        deepest = max((0, *(fields.teacher_layers or ()), *(fields.relation_layers or ())[1:]))
        if deepest > depth_of(task.network):
            changes["depth"] = deepest
        teacher = self.by_labels_alone().build(
            model.override(changes), fields.read_by_teacher(task.data), TrainingConfig()
        )
        assert isinstance(teacher, LabelledTask)
        if fields.relation_heads is not None and task.distillation is not None:  # more than the probe may have channels
            mixers = [mixer for one in (task, teacher) for mixer in one.modules() if isinstance(mixer, QKVMixer)]
            heads = math.gcd(fields.relation_heads, *(mixer.width for mixer in mixers))
            task.distillation.config = fields.override({"relation_heads": heads})
        task.learn_from(teacher)

    def numbered_layers(self, count: int) -> tuple[int, ...]:
        """Returns the numbers, counted from below, of the combined layers of a network of ``count`` layers; 0 for the
        embeddings. Without ``combined_layers``, only the last layer. Raises ConfigError for a layer that does not exist
        or occurs twice."""
        numbers = tuple(layer if layer >= 0 else count + 1 + layer for layer in self.combined_layers) or (count,)
        for layer, number in zip(self.combined_layers, numbers, strict=False):
            if not 0 <= number <= count:
                raise ConfigError(f"there is no layer {layer}; there are 0 to {count}", "task.combined_layers")
            if numbers.count(number) > 1:
                raise ConfigError(f"layer {number} occurs twice; drop one", "task.combined_layers")
        return numbers

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two examples of random symbols. Each has a random label and, in every row, a random marked token; two
        texts if the data allow two."""
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
    """Trains and measures a network that reads whole rows. Subclasses add their heads. ``features``: a table of cached
    outputs of the network or of its lowest layers, which replaces these for rows that it holds; usually None.
    ``first_alone``: the heads that are computed read the first token of each row alone; usually False."""

    first_alone = False
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
        """Raises ConfigError if the model cannot be built or used for this objective."""
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
        with torch.random.fork_rng(devices=[]):  # heads have the same initial weights with and without a map
            fields = config.distillation
            self.distillation = None if fields is None else Distillation(fields, model.dim)

    def learn_from(self, teacher: LabelledTask) -> None:
        """Sets a trained task as the teacher. Raises ConfigError if this task has no ``distillation``, or cannot be
        compared with the teacher."""
        if self.distillation is None:
            raise ConfigError("has no distillation to learn from a teacher; set task.distillation", "task")
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
        """Counts the training examples of each class for heads with balanced class weights. Raises ConfigError if the
        data module of the trainer cannot count them."""
        super().on_fit_start()
        for head in self.heads.values():
            if isinstance(head, ClassLabel) and head.balanced:
                count = getattr(getattr(self.trainer, "datamodule", None), "class_counts", None)
                if count is None:
                    reason = "balanced needs counts of training labels, which this trainer's data lack; give a number"
                    raise ConfigError(f"{reason} for each class", "task.class_weights")
                head.balance(count(head.column, head.classes))

    def read(self, network: RowNetwork, batch: LabelledBatch) -> Representation:
        rows = self.rows_read(batch)
        table = self.features if self.features is not None and network is self.network else None
        cached = None if table is None else table.read(rows)
        if table is None or cached is None:
            read = self.chosen_layers(network, rows)
        elif table.lower:
            read = self.upper_layers(network, rows, LowerStates(table.lower, cached.to(self.dtype)))
        else:
            read = LayerOutputs(cached.to(self.dtype).chunk(len(self.combination.layers), dim=-1), {})
        return self.combined(network, batch, read)

    def combined(self, network: RowNetwork, batch: LabelledBatch, read: LayerOutputs) -> Representation:
        """Returns the input of heads for a batch. read: the outputs of a network for ``rows_read``, only the combined
        layers."""
        hidden = self.combination(read.layers)
        if self.data.pieces > 1:
            hidden = joined_rows(hidden, len(batch.inputs))[:, : batch.inputs.size(1)]
        return Representation(network, hidden, aux=read.aux)

    def reader(self, batch: LabelledBatch) -> LabelledTask:
        """Hook: returns the task by which a network reads a batch. By default itself."""
        return self

    def rows_read(self, batch: LabelledBatch) -> LabelledBatch:
        """Returns the rows that the network reads: those of the batch, or their pieces."""
        return batch if self.data.pieces == 1 else in_pieces(batch, self.data.length)

    def every_layer(self, network: RowNetwork, batch: LabelledBatch) -> tuple[LabelledBatch, LayerOutputs]:
        """Runs a network on ``rows_read`` of a batch. Returns these rows and the outputs of all layers."""
        rows = self.rows_read(batch)
        return rows, network.read_layers(rows.inputs, needed_mask(rows), marks(rows), rows.segments)

    def chosen_layers(self, network: RowNetwork, rows: LabelledBatch) -> LayerOutputs:
        """Runs a network on rows of one piece each. Returns the outputs of the combined layers: of the first token of
        each row alone if ``first_alone``."""
        inputs = rows.inputs, needed_mask(rows), marks(rows), rows.segments
        if self.combination.last_alone:
            output = network.read_first(*inputs) if self.first_alone else network.read_row(*inputs)
            return LayerOutputs((output.hidden,), output.aux)
        read = network.read_layers(*inputs)
        return read._replace(layers=tuple(read.layers[layer] for layer in self.combination.layers))

    def upper_layers(self, network: RowNetwork, rows: LabelledBatch, lower: LowerStates) -> LayerOutputs:
        """Runs the layers above ``lower`` on rows of one piece each. Returns the outputs of the combined layers."""
        read = network.read_upper_layers(lower, rows.inputs, needed_mask(rows), marks(rows), rows.segments)
        return read._replace(layers=tuple(read.layers[layer - lower.layers] for layer in self.combination.layers))


def built(reader: RowModelConfig, config: LabelledTaskConfig, data: DataDescription) -> RowNetwork:
    """Builds the network with only the layers that the config reads. Raises ConfigError if it does not have more."""
    network = reader.build(data)
    if config.layers is not None and config.layers != reader.get("depth"):
        network.keep_layers(config.layers)
    return network


def in_pieces(batch: LabelledBatch, length: int) -> LabelledBatch:
    """Returns the pieces of rows as rows of at most ``length`` tokens, in the order of the rows. All rows have the same
    number of pieces; the last ones may hold only padding."""
    if batch.inputs.size(1) <= length:
        return batch
    inputs, real = cut_rows(batch.inputs, length), cut_rows(batch.padding_mask, length)
    marked = None if batch.marked is None else cut_rows(batch.marked, length)
    segments = None if batch.segments is None else cut_rows(batch.segments, length)
    padded = batch.padded or batch.inputs.size(1) % length > 0
    return batch._replace(inputs=inputs, padding_mask=real, marked=marked, segments=segments, padded=padded)


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns a mask (b, t) of the tokens that the data mark; without marks, of the first token of each row
    (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    return first & batch.padding_mask


def random_segments(inputs: Int[Tensor, "*n t"], question_width: int | None = None) -> Int[Tensor, "*n t"]:
    """Returns the segments of rows of two texts. The second text begins at ``question_width`` if this is given and
    shorter than the rows, and else at a random token."""
    length, shape = inputs.size(-1), (*inputs.shape[:-1], 1)
    if question_width is not None and question_width < length:
        last = torch.full(shape, question_width - 1)
    else:
        last = torch.randint(length - 1, shape)
    return (torch.arange(length) > last).long()


def words_of_two(rows: int, length: int) -> Int[Tensor, "b t"]:
    """Returns the words (b, t) of rows: 0 for the boundary, then two tokens for each word; the last may have one."""
    return ((torch.arange(length) + 1) // 2).expand(rows, length)
