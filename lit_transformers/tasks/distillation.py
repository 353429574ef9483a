"""Distillation: a network also learns the outputs, the states and the attention of a trained one (arXiv:1503.02531)."""

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
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.observable import ModuleCall, recorded_calls
from lit_transformers.precision import full_precision
from lit_transformers.stacks.block import Block, add_losses
from lit_transformers.stacks.reversible import Reversible

if TYPE_CHECKING:
    from lit_transformers.tasks.labelled import LabelledTask

__all__ = ["Distillation", "DistillationConfig", "depth_of"]

PLACE = "task.distillation"


class DistillationConfig(Config):
    """What a network learns from its teacher, the trained network with its heads that ``start.teacher`` names. The
    teacher drops nothing and learns nothing. The loss of each update is the sum of

    - labels times the loss by labels,
    - logits times T^2 KL(softmax(teacher / T) || softmax(student / T)) of the outputs of each head (arXiv:1503.02531,
      section 2), for each target, as its loss by labels is counted,
    - hidden times the mean squared difference of the outputs of layers, over channels, real tokens and ``layers``
      (arXiv:1909.10351, equation 8),
    - attention times the mean squared difference of attention probabilities, before dropout, over heads, pairs of real
      tokens of a row, and ``layers`` (arXiv:1909.10351, equation 7, which compares scores before their softmax).

    temperature: T. layers: numbers of layers of the student, 0 for the embeddings; None for all, or those above the
    layers that read two texts apart. teacher_layers: those of the teacher with which these are compared;
    None for the same numbers, or those at the same share of its depth (arXiv:1909.10351, section 3.1). teacher_width:
    channels of the teacher's layers, to which a learned map then takes those of the student, one map for all layers;
    None where both are compared as they are.
    rows: the rows that the teacher reads: same as the student; contiguous, where padding within a row stands at its end
    instead, as the teacher was trained. Each token is compared with itself.

    DeFormer (arXiv:2005.00697, section 3.2) has the losses by labels, of logits and of states, each with the factor 1
    at T = 2. Its code differs: it counts padding in the difference of states, drops outputs of the teacher as of the
    student, and compares the logits of all positions, those of the question and of padding too; ours are those at which
    an answer may begin or end.
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
            yield "nothing is learned from the teacher; set logits: 1, or distillation to null"
        if not (self.hidden or self.attention) and (self.layers is not None or self.teacher_layers is not None):
            yield "layers are compared by hidden and attention, which are 0; set one of them, or drop layers"
        if self.teacher_width is not None and not self.hidden:
            yield "teacher_width is that of the states that hidden compares, and hidden is 0; drop teacher_width"
        if self.layers == ():
            yield "layers names none; set layers to null for all, or hidden: 0 and attention: 0"
        if self.teacher_layers is not None and len(self.teacher_layers) != len(self.layers or ()):
            yield "teacher_layers has one layer for each of layers; set layers to as many"
        if self.attention and 0 in (*(self.layers or ()), *(self.teacher_layers or ())):
            yield "embeddings have no attention; drop 0 of layers, or set attention: 0"

    def read_by_teacher(self, data: DataDescription) -> DataDescription:
        """Returns the description of the rows that a teacher reads, given those of the student."""
        if self.rows == "same" or not isinstance(data, LabelledDescription):
            return data
        return replace(data, question_width=None)

    @property
    def reads_states(self) -> bool:
        """Whether the outputs of single layers are compared, or their attention."""
        return bool(self.hidden or self.attention)


class States(NamedTuple):
    """What a task makes of a batch: what its heads read; the outputs (n, t, d) of the layers that are compared and
    their attention (n, h, t, t), of rows as the network reads them."""

    reading: Representation
    layers: Sequence[Tensor] = ()
    attention: Sequence[Tensor] = ()


class Distillation(nn.Module):
    """Compares a student with its teacher.

    ``map`` takes outputs of the student's layers to the width of the teacher's; None where they are compared as they
    are. The teacher is a task by itself and no submodule: it is in no checkpoint, in no optimizer and on every rank.
    """

    def __init__(self, config: DistillationConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.map = None if config.teacher_width is None else nn.Linear(dim, config.teacher_width)
        self._teacher: tuple[LabelledTask, ...] = ()
        self.layers: tuple[int, ...] = ()
        self.teacher_layers: tuple[int, ...] = ()

    def accept(self, student: LabelledTask, teacher: LabelledTask) -> None:
        """Takes a trained task as the teacher, which learns nothing from now on. Raises ConfigError where the student
        cannot be compared with it."""
        if teacher.config.kind != student.config.kind:
            reason = f"is a {teacher.config.kind}, and the task is {student.config.kind}"
            raise ConfigError(f"{reason}; name a run of the same task", "start.teacher")
        require_same_heads(self.config, student.trained_heads, teacher.heads)
        if self.config.rows == "contiguous" and student.data.pieces > 1:
            reason = "pieces of a text are cut at fixed places, where no padding stands; set it to same"
            raise ConfigError(reason, f"{PLACE}.rows")
        if self.config.reads_states:
            self.layers, self.teacher_layers = compared_layers(self.config, student.network, teacher.network)
        if self.config.hidden:
            require_same_width(self.config, student.model_config.dim, teacher.model_config.dim)
        if self.config.attention:
            if student.training_config.compile:
                reason = "needs the inputs of single mixers, which a compiled network does not show; set it to 0"
                raise ConfigError(f"{reason}, or training.compile to false", f"{PLACE}.attention")
            heads = student.model_config.heads, teacher.model_config.heads
            if heads[0] != heads[1]:
                reason = f"compares heads one by one, and the student has {heads[0]} and the teacher {heads[1]}"
                raise ConfigError(f"{reason}; set it to 0, or model.heads to {heads[1]}", f"{PLACE}.attention")
            for network, layers in ((student.network, self.layers), (teacher.network, self.teacher_layers)):
                mixers_of(network, layers)
        self._teacher = (teacher.requires_grad_(False).eval(),)

    def teacher_on(self, device: torch.device) -> LabelledTask:
        """Returns the teacher on a device. Raises ConfigError where there is none."""
        if not self._teacher:
            reason = "there is no teacher; name its weights in start.teacher of a run, or call learn_from of the task"
            raise ConfigError(reason, PLACE)
        teacher = self._teacher[0]
        return teacher if teacher.device == device else teacher.to(device)

    def reading(self, student: LabelledTask, batch: LabelledBatch) -> Representation:
        """Reads a batch of training by student and teacher. Returns what the student's heads read, with what they learn
        of the teacher, and the losses of states and attention as the network's own."""
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
        """Returns what the teacher makes of a batch, with its tokens where the student has them."""
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
        """Returns the mean squared difference of two layers at each token, over channels."""
        mapped = own if self.map is None else self.map(own)
        return (full_precision(mapped) - full_precision(taught)).square().mean(dim=-1)

    def flops(self, student: LabelledTask, length: int) -> float:
        """Returns the forward FLOPs of a row of ``length`` tokens in training besides those of the student: of the map
        and of the student's attention, and a third of the teacher's, which has no backward pass, that takes twice as
        many. Those of the teacher are 0 while there is none."""
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
    """Runs a network on a batch of its task, and returns what heads read, with the outputs of layers by their numbers
    and, where it is wanted, their attention."""
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
    """Returns the attention of each of the last ``length`` tokens to each of these in a call of a mixer, without
    dropout. They are computed again, by the values that ``QKVMixer.weighted_sums`` puts in place of the mixer's own."""
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
    """Returns the mean squared difference of the attention of each token, over heads and the real tokens of its row."""
    of_keys = (own - taught).square().mean(dim=1).masked_fill(~real[:, None], 0.0)
    return of_keys.sum(dim=-1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def mean_over_tokens(differences: Sequence[Float[Tensor, "n t"]], real: Bool[Tensor, "n t"]) -> Float[Tensor, ""]:
    """Returns the mean over layers and real tokens."""
    mean = torch.stack(tuple(differences)).mean(dim=0)
    return mean.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def contiguous(batch: LabelledBatch) -> tuple[LabelledBatch, Int[Tensor, "*n t"]]:
    """Returns a batch whose rows have all their padding at the end, and where each token of the batch stands in it."""
    order = (~batch.padding_mask).long().argsort(dim=-1, stable=True)
    moved = {
        name: part.gather(-1, order)
        for name in ("inputs", "padding_mask", "marked", "segments", "words")
        if (part := getattr(batch, name)) is not None
    }
    return batch._replace(**moved), order.argsort(dim=-1)


def at_places(vectors: Float[Tensor, "*n t d"], places: Int[Tensor, "*n t"]) -> Float[Tensor, "*n t d"]:
    """Returns the vectors of tokens that stand at these places."""
    return vectors.gather(-2, places[..., None].expand(*vectors.shape[:-2], places.size(-1), vectors.size(-1)))


def depth_of(network: RowNetwork) -> int:
    """Returns the number of layers of a network, those of all its stacks together."""
    return sum(map(len, network.layers().values()))


def mixers_of(network: RowNetwork, layers: Sequence[int]) -> list[tuple[QKVMixer, int]]:
    """Returns the mixer of each of some layers, with the number of higher layers that it is the mixer of as well.
    Raises ConfigError where a mixer has no attention that could be compared."""
    steps = [step for stack in network.layers().values() for step in stack]
    place = f"{PLACE}.attention"
    if any(isinstance(module, Reversible) for module in network.modules()):
        raise ConfigError("a reversible stack keeps no inputs of its mixers for a gradient; set it to 0", place)
    mixers = []
    for number in layers:
        step = steps[number - 1]
        mixer = step.mixer if isinstance(step, Block) else step
        if not isinstance(mixer, QKVMixer):
            reason = f"a {type(mixer).__name__} weighs no keys by heads, so that it has none to compare"
            raise ConfigError(f"{reason}; set it to 0, or drop layer {number} of layers", place)
        if number <= network.apart:
            reason = f"layer {number} reads two texts apart, which have no attention to each other"
            raise ConfigError(f"{reason}; drop it of layers, or set attention to 0", f"{PLACE}.layers")
        mixers.append((mixer, steps[number:].count(step)))
    return mixers


def attention_flops(network: RowNetwork, layers: Sequence[int], length: int) -> float:
    """Returns the forward FLOPs of computing the attention of layers once more, by as many sums over values as a head
    has channels at a time, each of them twice."""
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
    """Returns the numbers of the layers that are compared, of student and teacher. Raises ConfigError where there is
    no such layer, or none of the teacher is at the same share of its depth."""
    depth, teacher_depth = depth_of(student), depth_of(teacher)
    layers = tuple(range(student.apart + 1, depth + 1)) if config.layers is None else config.layers
    if not layers:
        reason = f"all {depth} layers of the student read two texts apart, so that none is above these"
        raise ConfigError(f"{reason}; name some, or set hidden and attention to 0", f"{PLACE}.layers")
    if config.teacher_layers is not None:
        of_teacher = config.teacher_layers
    elif any(layer * teacher_depth % depth for layer in layers):
        reason = f"none of {teacher_depth} layers stands where layers {[*layers]} of {depth} do"
        raise ConfigError(f"{reason}; name one for each of layers", f"{PLACE}.teacher_layers")
    else:
        of_teacher = tuple(layer * teacher_depth // depth for layer in layers)
    named = (("layers", layers, depth), ("teacher_layers", of_teacher, teacher_depth))
    for field, numbers, last in named:
        if missing := [number for number in numbers if number > last]:
            raise ConfigError(f"there is no layer {missing[0]}; there are 0 to {last}", f"{PLACE}.{field}")
    return layers, of_teacher


def require_same_width(config: DistillationConfig, own: int, taught: int) -> None:
    """Raises ConfigError where states of a student, or what a map makes of them, are not as wide as the teacher's."""
    if taught != (own if config.teacher_width is None else config.teacher_width):
        here = f"those of the student {own}" if config.teacher_width is None else f"the map has {config.teacher_width}"
        reason = f"the layers of the teacher have {taught} channels, and {here}"
        raise ConfigError(f"{reason}; set it to {taught}, or hidden to 0", f"{PLACE}.teacher_width")


def require_same_heads(config: DistillationConfig, student: Mapping[str, Head], teacher: HeadDict) -> None:
    """Raises ConfigError where a head of a student has none of a teacher to learn from, or cannot learn from one."""
    for name, head in student.items():
        if not isinstance(head, TaughtHead) and (config.logits or config.labels != 1):
            reason = f"the head {name} learns by labels alone, with the weight that the head has"
            raise ConfigError(f"{reason}; set labels to 1 and logits to 0, or remove the head", PLACE)
        if config.logits and (name not in teacher or type(teacher[name]) is not type(head)):
            reason = f"has no head {name} that is a {type(head).__name__}"
            raise ConfigError(f"{reason}; name a run with one, or set task.distillation.logits to 0", "start.teacher")
