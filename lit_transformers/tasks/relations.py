"""Relations of tokens in the self-attention of one layer, of which distillation learns (MiniLM, arXiv:2002.10957)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.heads.teacher import divergence
from lit_transformers.mixers.attention import Attention
from lit_transformers.mixers.heads import split
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.observable import ModuleCall
from lit_transformers.precision import full_precision
from lit_transformers.tasks.layer_attention import PLACE, attention_flops, attention_weights, mixers_of

__all__ = [
    "ATTENTION",
    "RelatedLayer",
    "Relation",
    "Relations",
    "relation_difference",
    "relation_flops",
    "relations_of",
    "require_relations",
]

Relation = Literal["attention", "query", "key", "value"]
"""The source of relations of tokens: the attention of a mixer, or the outputs of one of its linear maps, by name."""
ATTENTION: Relation = "attention"


class RelatedLayer(NamedTuple):
    """A layer whose relations are compared. sees_all: whether each token sees all tokens of its row."""

    network: RowNetwork
    number: int
    sees_all: bool


class Relations(NamedTuple):
    """The input of the relations of one layer. heads: the number of heads of its mixer. attention: its attention
    probabilities; None where they are not compared. projections: the outputs (n, t, w) of its linear maps, by name."""

    heads: int
    attention: Float[Tensor, "n h t t"] | None
    projections: Mapping[Relation, Tensor]


def relations_of(call: ModuleCall, kinds: Sequence[Relation], length: int) -> Relations:
    """Returns the input of relations among the last ``length`` tokens in a recorded call of a mixer."""
    mixer, x = call.module, call.inputs[0][:, -length:]
    assert isinstance(mixer, QKVMixer)
    maps: dict[Relation, Tensor] = {kind: getattr(mixer, kind)(x) for kind in kinds if kind != ATTENTION}
    attention = attention_weights(call, length) if ATTENTION in kinds else None
    return Relations(mixer.heads, attention, maps)


def relation_difference(
    own: Relations, taught: Relations, heads: int | None, real: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """Returns the sum over relations of KL(teacher || student), in nats, for each token (n, t), the mean over heads.
    heads: of the relations of projections; None: those of the mixers. real: True at real tokens, False at padding.

    Relations of projections are softmax(A A^T / sqrt(k)) over the real tokens of a row, for the vectors A of k channels
    of a head (arXiv:2002.10957, equations 6 and 7).
    """
    total = torch.zeros(real.shape, device=real.device)
    if own.attention is not None and taught.attention is not None:
        total = total + kept_divergence(own.attention, taught.attention).mean(dim=1)
    keys = real[:, None, None]
    for kind, vectors in own.projections.items():
        scores, expected = (
            products(of_network, heads or number).masked_fill(~keys, -torch.inf)
            for of_network, number in ((vectors, own.heads), (taught.projections[kind], taught.heads))
        )
        total = total + divergence(scores, expected, 1.0).mean(dim=1)
    return total


def products(vectors: Float[Tensor, "n t w"], heads: int) -> Float[Tensor, "n h t t"]:
    """Returns A A^T / sqrt(k) of the vectors A of k channels of each of ``heads`` heads."""
    parts = split(full_precision(vectors), heads)
    return parts @ parts.mT * parts.size(-1) ** -0.5


def kept_divergence(own: Float[Tensor, "*n s"], taught: Float[Tensor, "*n s"]) -> Float[Tensor, "*n"]:
    """Returns KL(taught || own) of probabilities over keys, in nats. Keys of probability 0 in ``taught`` add nothing,
    and ``own`` counts as the smallest normal number where it is 0."""
    least = torch.finfo(own.dtype).tiny
    return (taught * (taught.clamp(min=least).log() - own.clamp(min=least).log())).sum(dim=-1)


def require_relations(
    student: RelatedLayer, teacher: RelatedLayer, kinds: Sequence[Relation], heads: int | None
) -> None:
    """Raises ConfigError if the relations of two layers cannot be compared."""
    of_student, of_teacher = (
        mixers_of(layer.network, (layer.number,), "relations")[0][0] for layer in (student, teacher)
    )
    counts = of_student.heads, of_teacher.heads
    if ATTENTION in kinds and (not isinstance(of_student, Attention) or teacher.sees_all > student.sees_all):
        reason = f"the student's {type(of_student).__name__} hides tokens that the teacher may attend to"
        raise ConfigError(f"{reason}, where the divergence has no bound; drop attention", f"{PLACE}.relation_of")
    if counts[0] != counts[1] and (ATTENTION in kinds or heads is None):
        reason = f"compare heads one by one, and the student has {counts[0]} and the teacher {counts[1]}"
        way_out = "set relation_of to [query, key, value], and relation_heads to a number that divides both widths"
        raise ConfigError(f"{reason}; {way_out}", f"{PLACE}.relations")
    for whose, mixer in (("student", of_student), ("teacher", of_teacher)):
        if heads is not None and mixer.width % heads:
            reason = f"{heads} heads do not divide the {mixer.width} channels of the {whose}'s queries, keys and values"
            raise ConfigError(f"{reason}; set it to a number that does", f"{PLACE}.relation_heads")


def relation_flops(network: RowNetwork, layer: int, kinds: Sequence[Relation], length: int) -> float:
    """Returns the forward FLOPs of the relations of a layer of a network, for a row of ``length`` tokens."""
    ((mixer, _),) = mixers_of(network, (layer,), "relations")
    maps = [getattr(mixer, kind) for kind in kinds if kind != ATTENTION]
    total = float(sum(one.flops(length) + 2 * length**2 * mixer.width for one in maps))
    return total + (attention_flops(network, (layer,), length) if ATTENTION in kinds else 0.0)
