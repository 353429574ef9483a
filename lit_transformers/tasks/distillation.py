"""Distillation: a student also learns the outputs, states and attention of a trained teacher (arXiv:1503.02531)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledBatch, LabelledDescription
from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from lit_transformers.heads.head import Head, HeadDict, Representation
from lit_transformers.heads.teacher import TEACHER, TaughtHead, Teacher
from lit_transformers.mixer import Context
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import RowNetwork, depth_of
from lit_transformers.observable import ModuleCall, recorded_calls
from lit_transformers.precision import full_precision
from lit_transformers.stacks.block import Block, add_losses
from lit_transformers.stacks.reversible import Reversible

if TYPE_CHECKING:
    from lit_transformers.tasks.labelled import LabelledTask

__all__ = ["Distillation", "DistillationConfig"]

PLACE = "task.distillation"


class DistillationConfig(Config):
    """Distillation from a teacher, the trained network with its heads that ``start.teacher`` names. The teacher has no
    dropout and its weights stay fixed. The loss of each update is the sum of

    - labels times the loss by labels,
    - logits times T^2 KL(softmax(teacher / T) || softmax(student / T)) of the outputs of each head, summed over the
      targets that count in the loss by labels (arXiv:1503.02531, section 2),
    - hidden times the mean squared difference of the outputs of ``layers``, over channels, real tokens and layers
      (arXiv:1909.10351, equation 8),
    - attention times the mean squared difference of attention probabilities before dropout, over heads, pairs of real
      tokens of a row, and layers (arXiv:1909.10351, equation 7, which compares scores before the softmax).

    temperature: T. layers: numbers of the student's layers that are compared, 0 for the embeddings; None: all layers
    that read whole rows. teacher_layers: for each of ``layers``, the number of the teacher's layer that it is compared
    with; None: the layers at the same share of the depth (arXiv:1909.10351, section 3.1). teacher_width: channels of
    the teacher's layers; one learned linear map then takes every compared layer of the student to this width. None:
    both have the same width, and no map is learned.
    rows: the rows that the teacher reads. same: the rows of the student. contiguous: the same rows with all padding
    moved to their end, if the teacher was trained on such rows. Each token is compared with itself.

    DeFormer (arXiv:2005.00697, section 3.2) has the losses by labels, of logits and of states, each with factor 1, and
    T = 2. Its code differs: it counts padding in the difference of states, applies dropout to the teacher, and compares
    logits at all positions, including the question and padding. Here logits are compared only at positions where an
    answer may begin or end.
    """

    temperature: PositiveFloat = 2.0
    labels: NonNegativeFloat = 1.0
    logits: NonNegativeFloat = 1.0
    hidden: NonNegativeFloat = 1.0
    attention: NonNegativeFloat = 0.0
    layers: tuple[NonNegative, ...] | None = None
    teacher_layers: tuple[NonNegative, ...] | None = None
    teacher_width: Positive | None = None
    rows: Literal["same", "contiguous"] = "same"

    def conflicts(self) -> Iterator[str]:
        if not (self.logits or self.hidden or self.attention):
            yield "distillation learns nothing from the teacher; set logits: 1, or distillation to null"
        if not (self.hidden or self.attention) and (self.layers is not None or self.teacher_layers is not None):
            yield "layers are compared by hidden and attention, which are 0; set one of them, or drop layers"
        if self.teacher_width is not None and not self.hidden:
            yield "teacher_width needs the loss of states, and hidden is 0; drop teacher_width"
        if self.layers == ():
            yield "layers is empty; set layers to null for all, or hidden: 0 and attention: 0"
        if self.teacher_layers is not None and len(self.teacher_layers) != len(self.layers or ()):
            yield "teacher_layers needs one number for each of layers; give both the same length"
        if self.attention and 0 in (*(self.layers or ()), *(self.teacher_layers or ())):
            yield "embeddings have no attention; remove 0 from layers, or set attention: 0"

    def read_by_teacher(self, data: DataDescription) -> DataDescription:
        """Returns the description of the rows that the teacher reads, given the description of the student's rows."""
        if self.rows == "same" or not isinstance(data, LabelledDescription):
            return data
        return replace(data, question_width=None)

    @property
    def reads_states(self) -> bool:
        """Whether the loss compares outputs or attention of single layers."""
        return bool(self.hidden or self.attention)


class States(NamedTuple):
    """The states of a task for one batch. reading: the input of its heads. layers: outputs (n, t, d) of the compared
    layers. attention: their attention (n, h, t, t). n counts rows as the network reads them."""

    reading: Representation
    layers: Sequence[Tensor] = ()
    attention: Sequence[Tensor] = ()


class Distillation(nn.Module):
    """Compares a student with its teacher (arXiv:1503.02531).

    ``map``: the linear map of the student's layers to the teacher's width; None without ``teacher_width``. The teacher
    is a separate task and no submodule: no checkpoint and no optimizer holds it, and every rank has a whole copy.
    """

    def __init__(self, config: DistillationConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.map = None if config.teacher_width is None else nn.Linear(dim, config.teacher_width)
        self._teacher: tuple[LabelledTask, ...] = ()
        self.layers: tuple[int, ...] = ()
        self.teacher_layers: tuple[int, ...] = ()

    def accept(self, student: LabelledTask, teacher: LabelledTask) -> None:
        """Sets a trained task as the teacher, and freezes its weights. Raises ConfigError if the student cannot be
        compared with it."""
        if teacher.config.kind != student.config.kind:
            reason = f"is a {teacher.config.kind}, and the task is {student.config.kind}"
            raise ConfigError(f"{reason}; name a run of the same task", "start.teacher")
        require_same_heads(self.config, student.trained_heads, teacher.heads)
        if self.config.rows == "contiguous" and student.data.pieces > 1:
            reason = "pieces of a text are cut at fixed places, so padding cannot move; set it to same"
            raise ConfigError(reason, f"{PLACE}.rows")
        if self.config.reads_states:
            self.layers, self.teacher_layers = compared_layers(self.config, student.network, teacher.network)
        if self.config.hidden:
            require_same_width(self.config, student.model_config.dim, teacher.model_config.dim)
        if self.config.attention:
            if student.training_config.compile:
                reason = "needs the inputs of single mixers, which a compiled network hides; set it to 0"
                raise ConfigError(f"{reason}, or training.compile to false", f"{PLACE}.attention")
            heads = student.model_config.heads, teacher.model_config.heads
            if heads[0] != heads[1]:
                reason = f"compares heads one by one, and the student has {heads[0]} and the teacher {heads[1]}"
                raise ConfigError(f"{reason}; set it to 0, or model.heads to {heads[1]}", f"{PLACE}.attention")
            for network, layers in ((student.network, self.layers), (teacher.network, self.teacher_layers)):
                mixers_of(network, layers)
        self._teacher = (teacher.requires_grad_(False).eval(),)

    def teacher_on(self, device: torch.device) -> LabelledTask:
        """Returns the teacher, moved to a device. Raises ConfigError if no teacher is set."""
        if not self._teacher:
            reason = "no teacher is set; name its weights in start.teacher of a run, or call learn_from of the task"
            raise ConfigError(reason, PLACE)
        teacher = self._teacher[0]
        return teacher if teacher.device == device else teacher.to(device)

    def reading(self, student: LabelledTask, batch: LabelledBatch) -> Representation:
        """Runs student and teacher on a training batch. Returns the input of the student's heads, with the teacher's
        outputs in ``parts`` and the losses of states and attention in ``aux``."""
        config, teacher = self.config, self.teacher_on(student.device)
        with torch.no_grad():
            taught = self.taught(teacher, batch)
            heads = {name: head for name, head in student.trained_heads.items() if isinstance(head, TaughtHead)}
            outputs = {
                head: teacher_head.outputs(taught.reading, batch)
                for name, head in heads.items()
                if config.logits and isinstance(teacher_head := teacher.heads[name], TaughtHead)
            }
        own = states(student, student.network, batch, self.layers, bool(config.attention))
        losses: dict[str, Tensor] = {}
        if config.reads_states:
            real = student.rows_read(batch).padding_mask
            if config.hidden:
                compared = zip(own.layers, taught.layers, strict=True)
                differences = [self.state_difference(layer, expected) for layer, expected in compared]
                losses["distilled_hidden"] = config.hidden * mean_over_tokens(differences, real)
            if config.attention:
                pairs = zip(own.attention, taught.attention, strict=True)
                differences = [attention_difference(*pair, real) for pair in pairs]
                losses["distilled_attention"] = config.attention * mean_over_tokens(differences, real)
        lesson = Teacher(outputs, config.logits, config.labels, config.temperature)
        aux = add_losses(own.reading.aux, losses)
        return own.reading._replace(aux=aux, parts={**own.reading.parts, TEACHER: lesson})

    def taught(self, teacher: LabelledTask, batch: LabelledBatch) -> States:
        """Returns the teacher's states for a batch, with each token at its place in the student's rows."""
        network, with_attention = teacher.evaluator(), bool(self.config.attention)
        if self.config.rows == "same":
            return states(teacher, network, batch, self.teacher_layers, with_attention)
        moved, places = contiguous(batch)
        read = states(teacher, network, moved, self.teacher_layers, with_attention)
        rows = places.flatten(0, -2)
        return States(
            read.reading._replace(hidden=at_places(read.reading.hidden, places)),
            [at_places(layer, rows) for layer in read.layers],
            [at_places(at_places(weights, rows[:, None]).mT, rows[:, None]).mT for weights in read.attention],
        )

    def state_difference(self, own: Float[Tensor, "n t d"], taught: Float[Tensor, "n t e"]) -> Float[Tensor, "n t"]:
        """Returns the mean squared difference over channels of two layers, for each token (n, t)."""
        mapped = own if self.map is None else self.map(own)
        return (full_precision(mapped) - full_precision(taught)).square().mean(dim=-1)

    def flops(self, student: LabelledTask, length: int) -> float:
        """Returns the forward FLOPs that distillation adds to a row of ``length`` tokens in training: the map, the
        student's attention, and a third of the teacher's forward FLOPs. A training step counts as three forward passes,
        and the teacher has no backward pass. Without a teacher, only the map counts."""
        total = 0.0 if self.map is None else 2.0 * length * self.map.weight.numel() * len(self.layers or (1,))
        if not self._teacher:
            return total
        if self.config.attention:
            total += attention_flops(student.network, self.layers, length)
        return total + self.teacher_flops(length) / 3

    def teacher_flops(self, length: int) -> float:
        """Returns the forward FLOPs of the teacher for a row of ``length`` tokens."""
        (teacher,) = self._teacher
        network = teacher.network
        total = network.flops(length) - network.softmax_flops(length) + teacher.flops_of_heads(length)
        return total + (attention_flops(network, self.teacher_layers, length) if self.config.attention else 0.0)


def states(
    task: LabelledTask, network: RowNetwork, batch: LabelledBatch, layers: Sequence[int], with_attention: bool
) -> States:
    """Runs a network on a batch of its task. Returns the input of its heads, the outputs of ``layers`` and, if
    ``with_attention``, their attention."""
    if not layers:
        return States(task.read(network, batch))
    mixers = mixers_of(network, layers) if with_attention else ()
    with recorded_calls({str(id(mixer)): mixer for mixer, _ in mixers}) as calls:
        rows, read = task.every_layer(network, batch)
    attention = []
    for mixer, later in mixers:
        own = [call for call in calls if call.module is mixer]
        attention.append(attention_weights(own[-1 - later], rows.inputs.size(1)))
    chosen = read._replace(layers=tuple(read.layers[layer] for layer in task.combination.layers))
    return States(task.combined(network, batch, chosen), [read.layers[layer] for layer in layers], attention)


def attention_weights(call: ModuleCall, length: int) -> Float[Tensor, "n h t t"]:
    """Returns the attention among the last ``length`` tokens in a recorded call of a mixer, without dropout. It is
    computed again by ``QKVMixer.weighted_sums``, with unit vectors in place of the values."""
    mixer, (x, ctx, *rest) = call.module, call.inputs
    assert isinstance(mixer, QKVMixer) and isinstance(ctx, Context)
    was_training, mixer.training = mixer.training, False
    inputs, _, segment = mixer.prepared(x, ctx, rest[0] if rest else None)
    of_keys = torch.eye(inputs.k.size(-2), device=x.device)
    weights = torch.cat([*mixer.weighted_sums(of_keys, inputs, ctx, segment)], dim=-1)
    mixer.training = was_training
    return full_precision(weights[..., -length:, -length:])


def attention_difference(
    own: Float[Tensor, "n h t t"], taught: Float[Tensor, "n h t t"], real: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """Returns the mean squared difference of attention for each token (n, t), over heads and the real tokens of its
    row."""
    of_keys = (own - taught).square().mean(dim=1).masked_fill(~real[:, None], 0.0)
    return of_keys.sum(dim=-1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def mean_over_tokens(differences: Sequence[Float[Tensor, "n t"]], real: Bool[Tensor, "n t"]) -> Float[Tensor, ""]:
    """Returns the mean over layers and real tokens of differences (n, t), one tensor for each layer."""
    mean = torch.stack(tuple(differences)).mean(dim=0)
    return mean.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def contiguous(batch: LabelledBatch) -> tuple[LabelledBatch, Int[Tensor, "*n t"]]:
    """Returns a batch with all padding moved to the end of its rows, and for each token of ``batch`` its place
    there."""
    order = (~batch.padding_mask).long().argsort(dim=-1, stable=True)
    moved = {
        name: part.gather(-1, order)
        for name in ("inputs", "padding_mask", "marked", "segments", "words")
        if (part := getattr(batch, name)) is not None
    }
    return batch._replace(**moved), order.argsort(dim=-1)


def at_places(vectors: Float[Tensor, "*n t d"], places: Int[Tensor, "*n t"]) -> Float[Tensor, "*n t d"]:
    """Returns the vectors at ``places`` of each row."""
    return vectors.gather(-2, places[..., None].expand(*vectors.shape[:-2], places.size(-1), vectors.size(-1)))


def mixers_of(network: RowNetwork, layers: Sequence[int]) -> list[tuple[QKVMixer, int]]:
    """Returns, for each of ``layers``, its mixer and the number of higher layers that share this mixer. Raises
    ConfigError if a mixer has no attention to compare."""
    steps = [step for stack in network.layers().values() for step in stack]
    place = f"{PLACE}.attention"
    if any(isinstance(module, Reversible) for module in network.modules()):
        raise ConfigError(
            "a reversible stack does not keep the inputs of its mixers for a gradient; set it to 0", place
        )
    mixers = []
    for number in layers:
        step = steps[number - 1]
        mixer = step.mixer if isinstance(step, Block) else step
        if not isinstance(mixer, QKVMixer):
            reason = f"a {type(mixer).__name__} has no attention probabilities by heads"
            raise ConfigError(f"{reason}; set it to 0, or remove layer {number} from layers", place)
        if number <= network.apart:
            reason = f"layer {number} reads two texts apart, and they do not attend to each other"
            raise ConfigError(f"{reason}; remove it from layers, or set attention to 0", f"{PLACE}.layers")
        mixers.append((mixer, steps[number:].count(step)))
    return mixers


def attention_flops(network: RowNetwork, layers: Sequence[int], length: int) -> float:
    """Returns the forward FLOPs of computing the attention of ``layers`` again. One pass gives the attention to
    ``head_dim`` tokens, and each pass runs twice, once with values of zero."""
    total = 0.0
    for mixer, _ in mixers_of(network, layers):
        sums = 2 * math.ceil(length / mixer.head_dim)
        projections = mixer.query.flops(length) + mixer.key.flops(length) + mixer.value.flops(length)
        attention = mixer.flops(length, 0, causal=False) - projections - mixer.merge.flops(length)
        total += projections + sums * attention
    return total


def compared_layers(
    config: DistillationConfig, student: RowNetwork, teacher: RowNetwork
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the numbers of the compared layers of the student and of the teacher. Raises ConfigError if a layer does
    not exist, or the teacher has no layer at the same share of its depth."""
    depth, teacher_depth = depth_of(student), depth_of(teacher)
    layers = tuple(range(student.apart + 1, depth + 1)) if config.layers is None else config.layers
    if not layers:
        reason = f"all {depth} layers of the student read two texts apart, so none reads whole rows"
        raise ConfigError(f"{reason}; name some, or set hidden and attention to 0", f"{PLACE}.layers")
    if config.teacher_layers is not None:
        of_teacher = config.teacher_layers
    elif any(layer * teacher_depth % depth for layer in layers):
        reason = f"the teacher of {teacher_depth} layers has none at the depths of layers {[*layers]} of {depth}"
        raise ConfigError(f"{reason}; name one for each of layers", f"{PLACE}.teacher_layers")
    else:
        of_teacher = tuple(layer * teacher_depth // depth for layer in layers)
    named = (("layers", layers, depth), ("teacher_layers", of_teacher, teacher_depth))
    for field, numbers, last in named:
        if missing := [number for number in numbers if number > last]:
            raise ConfigError(f"there is no layer {missing[0]}; there are 0 to {last}", f"{PLACE}.{field}")
    return layers, of_teacher


def require_same_width(config: DistillationConfig, own: int, taught: int) -> None:
    """Raises ConfigError if the student's states, or the output of the map, and the teacher's differ in width."""
    if taught != (own if config.teacher_width is None else config.teacher_width):
        here = f"the student's have {own}" if config.teacher_width is None else f"the map has {config.teacher_width}"
        reason = f"the layers of the teacher have {taught} channels, and {here}"
        raise ConfigError(f"{reason}; set it to {taught}, or hidden to 0", f"{PLACE}.teacher_width")


def require_same_heads(config: DistillationConfig, student: Mapping[str, Head], teacher: HeadDict) -> None:
    """Raises ConfigError if a head of the student cannot learn from a teacher, or the teacher has no such head."""
    for name, head in student.items():
        if not isinstance(head, TaughtHead) and (config.logits or config.labels != 1):
            reason = f"the head {name} learns only by labels, with its own weight"
            raise ConfigError(f"{reason}; set labels to 1 and logits to 0, or remove the head", PLACE)
        if config.logits and (name not in teacher or type(teacher[name]) is not type(head)):
            reason = f"has no head {name} that is a {type(head).__name__}"
            raise ConfigError(f"{reason}; name a run with one, or set task.distillation.logits to 0", "start.teacher")
