"""The attention of single layers of a network, of which distillation learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.observable import ModuleCall
from lit_transformers.precision import full_precision
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.reversible import Reversible

__all__ = ["PLACE", "Loss", "attention_difference", "attention_flops", "attention_weights", "mixers_of"]

PLACE = "task.distillation"
"""The field of the losses by a teacher."""
Loss = Literal["attention", "relations"]
"""The losses that read mixers, by their fields."""
LAYERS: Mapping[Loss, str] = {"attention": "layers", "relations": "relation_layers"}
"""The fields that name the layers of these losses."""


def mixers_of(network: RowNetwork, layers: Sequence[int], loss: Loss) -> list[tuple[QKVMixer, int]]:
    """Returns, for each of ``layers``, its mixer and the number of higher layers that share this mixer. Raises
    ConfigError, which names the field of the loss, if a mixer has no attention to compare."""
    steps, place = [step for stack in network.layers().values() for step in stack], f"{PLACE}.{loss}"
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
            raise ConfigError(f"{reason}; set it to 0, or {LAYERS[loss]} to others than {number}", place)
        if number <= network.apart:
            reason = f"layer {number} reads two texts apart, and they do not attend to each other"
            raise ConfigError(f"{reason}; name another layer, or set {loss} to 0", f"{PLACE}.{LAYERS[loss]}")
        mixers.append((mixer, steps[number:].count(step)))
    return mixers


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


def attention_flops(network: RowNetwork, layers: Sequence[int], length: int) -> float:
    """Returns the forward FLOPs of computing the attention of ``layers`` again. One pass gives the attention to
    ``head_dim`` tokens, and each pass runs twice, once with values of zero."""
    total = 0.0
    for mixer, _ in mixers_of(network, layers, "attention"):
        sums = 2 * math.ceil(length / mixer.head_dim)
        projections = mixer.query.flops(length) + mixer.key.flops(length) + mixer.value.flops(length)
        attention = mixer.flops(length, 0, causal=False) - projections - mixer.merge.flops(length)
        total += projections + sums * attention
    return total
