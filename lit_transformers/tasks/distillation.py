"""Distillation: a student also learns the outputs, states and attention of a trained teacher (arXiv:1503.02531)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import DataDescription, LabelledBatch, LabelledDescription
from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from lit_transformers.heads.head import Head, HeadDict, Representation
from lit_transformers.heads.teacher import TEACHER, TaughtHead, Teacher
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, depth_of, require
from lit_transformers.observable import ModuleCall, recorded_calls
from lit_transformers.precision import full_precision
from lit_transformers.stacks.block import add_losses
from lit_transformers.tasks.layer_attention import (
    PLACE,
    Loss,
    attention_difference,
    attention_flops,
    attention_weights,
    mixers_of,
)
from lit_transformers.tasks.relations import (
    ATTENTION,
    RelatedLayer,
    Relation,
    Relations,
    relation_difference,
    relation_flops,
    relations_of,
    require_relations,
)

if TYPE_CHECKING:
    from lit_transformers.tasks.labelled import LabelledTask

__all__ = ["Distillation", "DistillationConfig"]


class DistillationConfig(Config):
    """Distillation from a teacher, the trained network with its heads that ``start.teacher`` names. The teacher has no
    dropout and its weights stay fixed. The loss of each update is the sum of

    - labels times the loss by labels,
    - logits times T^2 KL(softmax(teacher / T) || softmax(student / T)) of the outputs of each head, summed over the
      targets that count in the loss by labels (arXiv:1503.02531, section 2),
    - hidden times the mean squared difference of the outputs of ``layers``, over channels, real tokens and layers
      (arXiv:1909.10351, equation 8),
    - cosine times the mean of 1 - cos(student, teacher) of the outputs of ``layers``, over real tokens and layers
      (arXiv:1910.01108, section 3),
    - attention times the mean squared difference of attention probabilities before dropout, over heads, pairs of real
      tokens of a row, and layers (arXiv:1909.10351, equation 7, which compares scores before the softmax),
    - relations times the sum over ``relation_of`` of KL(teacher || student) of the relations of one layer, the mean
      over heads and real tokens (MiniLM, arXiv:2002.10957, equations 5 to 8).

    temperature: T. layers: numbers of the student's layers that are compared, 0 for the embeddings; None: all layers
    that read whole rows. teacher_layers: for each of ``layers``, the number of the teacher's layer that it is compared
    with; None: the layers at the same share of the depth (arXiv:1909.10351, section 3.1). teacher_width: channels of
    the teacher's layers; one learned linear map then takes every compared layer of the student to this width for the
    losses hidden and cosine (arXiv:1909.10351, equation 8). None: both have the same width, and no map is learned.
    relation_of: attention: the attention probabilities before dropout, for networks with as many heads. query, key,
    value: softmax(A A^T / sqrt(k)) over the real tokens of a row, of the queries, keys or values A of a head of k
    channels. MiniLM compares attention and value, MiniLMv2 query, key and value (arXiv:2012.15828, section 3).
    relation_heads: the number of heads into which the queries, keys and values of both networks are divided for these
    relations, so that their mixers may have different numbers of heads; None: the heads of the mixers.
    relation_layers: the number of the student's layer and the number of the teacher's layer; None: the last layers.
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
    cosine: NonNegativeFloat = 0.0
    attention: NonNegativeFloat = 0.0
    relations: NonNegativeFloat = 0.0
    layers: tuple[NonNegative, ...] | None = None
    teacher_layers: tuple[NonNegative, ...] | None = None
    teacher_width: Positive | None = None
    relation_of: tuple[Relation, ...] = (ATTENTION, "value")
    relation_heads: Positive | None = None
    relation_layers: tuple[Positive, Positive] | None = None
    rows: Literal["same", "contiguous"] = "same"

    def conflicts(self) -> Iterator[str]:
        if not (self.logits or self.reads_states):
            yield "distillation learns nothing from the teacher; set logits: 1, or distillation to null"
        if not self.compares_layers and (self.layers is not None or self.teacher_layers is not None):
            yield "layers are compared by hidden, cosine and attention, which are 0; set one of them, or drop layers"
        if self.teacher_width is not None and not (self.hidden or self.cosine):
            yield "teacher_width is of the losses hidden and cosine, which are 0; drop teacher_width"
        if self.layers == ():
            yield "layers is empty; set layers to null for all, or hidden: 0, cosine: 0 and attention: 0"
        if self.teacher_layers is not None and len(self.teacher_layers) != len(self.layers or ()):
            yield "teacher_layers needs one number for each of layers; give both the same length"
        if self.attention and 0 in (*(self.layers or ()), *(self.teacher_layers or ())):
            yield "embeddings have no attention; remove 0 from layers, or set attention: 0"
        if not self.relations and (self.relation_heads is not None or self.relation_layers is not None):
            yield "relation_heads and relation_layers are of the loss relations, which is 0; set it, or drop them"
        if self.relations and len({*self.relation_of}) < max(1, len(self.relation_of)):
            yield "relation_of names each relation once: attention, query, key or value; or set relations: 0"
        if self.relation_heads is not None and self.relation_of == (ATTENTION,):
            yield "attention has the heads of its mixers; drop relation_heads, or add value to relation_of"

    def read_by_teacher(self, data: DataDescription) -> DataDescription:
        """Returns the description of the rows that the teacher reads, given the description of the student's rows."""
        if self.rows == "same" or not isinstance(data, LabelledDescription):
            return data
        return replace(data, question_width=None)

    @property
    def reads_states(self) -> bool:
        """Whether the loss reads outputs or mixers of single layers."""
        return bool(self.compares_layers or self.relations)

    @property
    def compares_layers(self) -> bool:
        """Whether the loss compares outputs or attention of ``layers``."""
        return bool(self.hidden or self.cosine or self.attention)


class Compared(NamedTuple):
    """The numbers of the layers of a network that are compared. layers: of outputs, and of attention if
    ``with_attention``. relations: of the layer of relations, none or one; kinds: of these relations."""

    layers: tuple[int, ...] = ()
    with_attention: bool = False
    relations: tuple[int, ...] = ()
    kinds: tuple[Relation, ...] = ()


class States(NamedTuple):
    """The states of a task for one batch. reading: the input of its heads. layers: outputs (n, t, d) of the compared
    layers. attention: their attention (n, h, t, t). relations: of one layer or none. n counts rows as the network reads
    them."""

    reading: Representation
    layers: Sequence[Tensor] = ()
    attention: Sequence[Tensor] = ()
    relations: Sequence[Relations] = ()


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
        self.own = self.taught_by = Compared()

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the student's compared layers."""
        return self.own.layers

    @property
    def teacher_layers(self) -> tuple[int, ...]:
        """The numbers of the teacher's layers that these are compared with."""
        return self.taught_by.layers

    def accept(self, student: LabelledTask, teacher: LabelledTask) -> None:
        """Sets a trained task as the teacher, and freezes its weights. Raises ConfigError if the student cannot be
        compared with it."""
        config = self.config
        if teacher.config.kind != student.config.kind:
            reason = f"is a {teacher.config.kind}, and the task is {student.config.kind}"
            raise ConfigError(f"{reason}; name a run of the same task", "start.teacher")
        require_same_heads(config, student.trained_heads, teacher.heads)
        if config.rows == "contiguous" and student.data.pieces > 1:
            reason = "pieces of a text are cut at fixed places, so padding cannot move; set it to same"
            raise ConfigError(reason, f"{PLACE}.rows")
        networks = student.network, teacher.network
        pairs = compared_layers(config, *networks) if config.compares_layers else ((), ())
        if config.hidden or config.cosine:
            require_same_width(config, student.model_config.dim, teacher.model_config.dim)
        if config.attention:
            require_mixers(student, "attention")
            require_same_attention(student, teacher)
            for network, layers in zip(networks, pairs, strict=True):
                mixers_of(network, layers, "attention")
        related = related_layers(config, *networks) if config.relations else ((), ())
        if config.relations:
            require_mixers(student, "relations")
            own, taught = (
                RelatedLayer(task.network, number, require(task.model_config, RowModelConfig, PLACE).first_sees_all)
                for task, (number,) in zip((student, teacher), related, strict=True)
            )
            require_relations(own, taught, config.relation_of, config.relation_heads)
        self.own, self.taught_by = (
            Compared(layers, bool(config.attention), layer, config.relation_of)
            for layers, layer in zip(pairs, related, strict=True)
        )
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
        outputs in ``parts`` and the losses of states, attention and relations in ``aux``."""
        config, teacher = self.config, self.teacher_on(student.device)
        with torch.no_grad():
            taught = self.taught(teacher, batch)
            learning = student.heads_of(batch).items()
            heads = {name: head for name, head in learning if head.weight and isinstance(head, TaughtHead)}
            outputs = {
                head: teacher_head.outputs(taught.reading, batch)
                for name, head in heads.items()
                if config.logits and isinstance(teacher_head := teacher.heads[name], TaughtHead)
            }
        own = states(student, student.network, batch, self.own)
        losses = self.losses(own, taught, student.reader(batch).rows_read(batch).padding_mask)
        lesson = Teacher(outputs, config.logits, config.labels, config.temperature)
        aux = add_losses(own.reading.aux, losses)
        return own.reading._replace(aux=aux, parts={**own.reading.parts, TEACHER: lesson})

    def losses(self, own: States, taught: States, real: Bool[Tensor, "n t"]) -> dict[str, Tensor]:
        """Returns the weighted losses of states, attention and relations, by name. real: True at real tokens of the
        rows that the network reads, False at padding."""
        config, losses = self.config, dict[str, Tensor]()
        mapped = [layer if self.map is None else self.map(layer) for layer in own.layers]
        for name, weight, difference in (
            ("hidden", config.hidden, squared_difference),
            ("cosine", config.cosine, cosine_difference),
        ):
            if weight:
                of_layers = [difference(*pair) for pair in zip(mapped, taught.layers, strict=True)]
                losses[f"distilled_{name}"] = weight * mean_over_tokens(of_layers, real)
        if config.attention:
            pairs = zip(own.attention, taught.attention, strict=True)
            of_layers = [attention_difference(*pair, real) for pair in pairs]
            losses["distilled_attention"] = config.attention * mean_over_tokens(of_layers, real)
        for pair in zip(own.relations, taught.relations, strict=True):
            of_layers = [relation_difference(*pair, config.relation_heads, real)]
            losses["distilled_relations"] = config.relations * mean_over_tokens(of_layers, real)
        return losses

    def taught(self, teacher: LabelledTask, batch: LabelledBatch) -> States:
        """Returns the teacher's states for a batch, with each token at its place in the student's rows."""
        network = teacher.evaluator()
        if self.config.rows == "same":
            return states(teacher, network, batch, self.taught_by)
        moved, places = contiguous(batch)
        read, rows = states(teacher, network, moved, self.taught_by), places.flatten(0, -2)
        return States(
            read.reading._replace(hidden=at_places(read.reading.hidden, places)),
            [at_places(layer, rows) for layer in read.layers],
            [pairs_at_places(weights, rows) for weights in read.attention],
            [
                relations._replace(
                    attention=None if relations.attention is None else pairs_at_places(relations.attention, rows),
                    projections={name: at_places(part, rows) for name, part in relations.projections.items()},
                )
                for relations in read.relations
            ],
        )

    def flops(self, student: LabelledTask, length: int) -> float:
        """Returns the forward FLOPs that distillation adds to a row of ``length`` tokens in training: the map, the
        student's attention and relations, and a third of the teacher's forward FLOPs. A training step counts as three
        forward passes, and the teacher has no backward pass. Without a teacher, only the map counts."""
        total = 0.0 if self.map is None else 2.0 * length * self.map.weight.numel() * len(self.layers or (1,))
        if not self._teacher:
            return total
        return total + compared_flops(student.network, self.own, length) + self.teacher_flops(length) / 3

    def teacher_flops(self, length: int) -> float:
        """Returns the forward FLOPs of the teacher for a row of ``length`` tokens."""
        (teacher,) = self._teacher
        network = teacher.network
        total = network.flops(length) - network.softmax_flops(length) + teacher.flops_of_heads(length)
        return total + compared_flops(network, self.taught_by, length)


def states(task: LabelledTask, network: RowNetwork, batch: LabelledBatch, compared: Compared) -> States:
    """Runs a network on a batch of its task. Returns the input of its heads, and the outputs, attention and relations
    of the compared layers."""
    reader = task.reader(batch)
    if not (compared.layers or compared.relations):
        return States(reader.read(network, batch))
    mixers = mixers_of(network, compared.layers, "attention") if compared.with_attention else []
    related = mixers_of(network, compared.relations, "relations")
    with recorded_calls({str(id(mixer)): mixer for mixer, _ in (*mixers, *related)}) as calls:
        rows, read = reader.every_layer(network, batch)

    def call_of(mixer: QKVMixer, later: int) -> ModuleCall:
        return [call for call in calls if call.module is mixer][-1 - later]

    length = rows.inputs.size(1)
    chosen = read._replace(layers=tuple(read.layers[layer] for layer in reader.combination.layers))
    return States(
        reader.combined(network, batch, chosen),
        [read.layers[layer] for layer in compared.layers],
        [attention_weights(call_of(*mixer), length) for mixer in mixers],
        [relations_of(call_of(*mixer), compared.kinds, length) for mixer in related],
    )


def compared_flops(network: RowNetwork, compared: Compared, length: int) -> float:
    """Returns the forward FLOPs of computing the attention and the relations of the compared layers again."""
    attention = attention_flops(network, compared.layers, length) if compared.with_attention else 0.0
    return attention + sum(relation_flops(network, layer, compared.kinds, length) for layer in compared.relations)


def squared_difference(own: Float[Tensor, "n t d"], taught: Float[Tensor, "n t d"]) -> Float[Tensor, "n t"]:
    """Returns the mean squared difference over channels of two layers, for each token (n, t)."""
    return (full_precision(own) - full_precision(taught)).square().mean(dim=-1)


def cosine_difference(own: Float[Tensor, "n t d"], taught: Float[Tensor, "n t d"]) -> Float[Tensor, "n t"]:
    """Returns 1 - cos of the vectors of two layers, for each token (n, t)."""
    return 1 - F.cosine_similarity(full_precision(own), full_precision(taught), dim=-1)


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


def pairs_at_places(weights: Float[Tensor, "n h t t"], rows: Int[Tensor, "n t"]) -> Float[Tensor, "n h t t"]:
    """Returns the weights of each pair of tokens at ``rows``."""
    return at_places(at_places(weights, rows[:, None]).mT, rows[:, None]).mT


def compared_layers(
    config: DistillationConfig, student: RowNetwork, teacher: RowNetwork
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the numbers of the compared layers of the student and of the teacher. Raises ConfigError if a layer does
    not exist, or the teacher has no layer at the same share of its depth."""
    depth, teacher_depth = depth_of(student), depth_of(teacher)
    layers = tuple(range(student.apart + 1, depth + 1)) if config.layers is None else config.layers
    if not layers:
        reason = f"all {depth} layers of the student read two texts apart, so none reads whole rows"
        raise ConfigError(f"{reason}; name some, or set hidden, cosine and attention to 0", f"{PLACE}.layers")
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
        raise ConfigError(f"{reason}; set it to {taught}, or hidden and cosine to 0", f"{PLACE}.teacher_width")


def related_layers(
    config: DistillationConfig, student: RowNetwork, teacher: RowNetwork
) -> tuple[tuple[int], tuple[int]]:
    """Returns the number of the layer of relations of the student and of the teacher. Raises ConfigError if it does not
    exist."""
    depths = depth_of(student), depth_of(teacher)
    for whose, layer, depth in zip(("student", "teacher"), config.relation_layers or depths, depths, strict=True):
        if layer > depth:
            reason = f"the {whose} has no layer {layer}; its layers are 1 to {depth}"
            raise ConfigError(reason, f"{PLACE}.relation_layers")
    own, taught = config.relation_layers or depths
    return (own,), (taught,)


def require_mixers(student: LabelledTask, loss: Loss) -> None:
    """Raises ConfigError if the inputs of the student's mixers cannot be read."""
    if student.training_config.compile:
        reason = "needs the inputs of single mixers, which a compiled network hides; set it to 0"
        raise ConfigError(f"{reason}, or training.compile to false", f"{PLACE}.{loss}")


def require_same_attention(student: LabelledTask, teacher: LabelledTask) -> None:
    """Raises ConfigError if both networks have different numbers of heads."""
    heads = student.model_config.heads, teacher.model_config.heads
    if heads[0] != heads[1]:
        reason = f"compares heads one by one, and the student has {heads[0]} and the teacher {heads[1]}"
        raise ConfigError(f"{reason}; set it to 0, or model.heads to {heads[1]}", f"{PLACE}.attention")


def require_same_heads(config: DistillationConfig, student: Mapping[str, Head], teacher: HeadDict) -> None:
    """Raises ConfigError if a head of the student cannot learn from a teacher, or the teacher has no such head."""
    for name, head in student.items():
        if not isinstance(head, TaughtHead) and (config.logits or config.labels != 1):
            reason = f"the head {name} learns only by labels, with its own weight"
            raise ConfigError(f"{reason}; set labels to 1 and logits to 0, or remove the head", PLACE)
        if config.logits and (name not in teacher or type(teacher[name]) is not type(head)):
            reason = f"has no head {name} that is a {type(head).__name__}"
            raise ConfigError(f"{reason}; name a run with one, or set task.distillation.logits to 0", "start.teacher")
