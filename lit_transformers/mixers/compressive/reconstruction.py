"""Auxiliary losses that train a learned compression alone (Rae et al. 2019, arXiv:1911.05507, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.attention.executors import Inputs, attend
from lit_transformers.attention.patterns import Band
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import Shape, at_layer
from lit_transformers.mixers.compressive.compression import Past
from lit_transformers.mixers.heads import split
from lit_transformers.mixers.memory import some_key
from lit_transformers.mixers.qkv import QKVMixer

Auxiliary = Literal["none", "auto_encoding", "attention_reconstruction"]


class Reconstruction(nn.Module, ABC):
    """A loss whose gradient reaches the compression alone: everything else that enters it is detached."""

    @abstractmethod
    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        """Returns the loss of replacing ``old``, which ``segment`` pushed out of the memory, by ``new``."""

    @abstractmethod
    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        """FLOPs of the loss for ``slots`` new slots and ``queries`` positions of a segment."""


class AutoEncoding(Reconstruction):
    """The mean of |old - g(new)|^2 over real inputs and channels, g a linear map of a slot to its group."""

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__()
        self.rate = rate
        self.decode = nn.Linear(dim, rate * dim)

    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        decoded = self.decode(new.hidden).unflatten(-1, (self.rate, -1)).flatten(1, 2)
        return mean_square(old.hidden - decoded, old.key_mask[..., None])

    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        return 2 * slots * self.rate * reader.dim * reader.dim


class AttentionReconstruction(Reconstruction):
    """The mean of |attn(h, old) - attn(h, new)|^2 over real queries and channels: algorithm 2.

    This attention is by content alone, without positions, and only over inputs that leave the memory. The paper uses
    the norm; the mean of its square does not grow with the segment.
    """

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        if old.hidden.size(1) == 0:
            return new.hidden.sum()  # nothing has left: zero, but with a gradient for every parameter, which DDP needs
        q = frozen(reader.query, segment.hidden, reader)
        before, after = (content(reader, q, part) for part in (old, new))
        mask = segment.key_mask & old.key_mask.any(dim=1, keepdim=True)
        return mean_square(before - after, mask[:, None, :, None])

    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        if slots == 0:
            return 0
        keys = slots * (1 + self.rate)
        maps = reader.query.flops(queries) + reader.key.flops(keys) + reader.value.flops(keys)
        return maps + 4 * reader.width * queries * keys


def content(reader: QKVMixer, q: Float[Tensor, "b h t k"], past: Past) -> Float[Tensor, "b h t k"]:
    """Returns attention of queries to the past with the reader's maps, which are detached."""
    k, v = (frozen(linear, past.hidden, reader) for linear in (reader.key, reader.value))
    return attend(Band(None, None), Inputs(q, k, v, some_key(past.key_mask), crossed=True), scale=reader.scale)


def frozen(linear: LinearMap, x: Float[Tensor, "b n d"], reader: QKVMixer) -> Float[Tensor, "b h n k"]:
    """Applies a linear map with detached weights to x, and splits the result into heads."""
    return split(linear.frozen(x), reader.heads)


def mean_square(difference: Float[Tensor, "*n"], counted: Bool[Tensor, "*#n"]) -> Float[Tensor, ""]:
    """Returns the mean square over the elements that are counted; zero if none is."""
    counted = counted.expand_as(difference)
    return difference.square().masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def reconstruction(auxiliary: Auxiliary | tuple[Auxiliary, ...], rate: int, shape: Shape) -> Reconstruction | None:
    """Builds the loss of a layer, or None if it has none. Raises ConfigError where layers and losses do not match."""
    if not isinstance(auxiliary, str):
        auxiliary = auxiliary[at_layer(tuple(range(len(auxiliary))), shape, "mixer.auxiliary")]
    match auxiliary:
        case "auto_encoding":
            return AutoEncoding(rate, shape.dim)
        case "attention_reconstruction":
            return AttentionReconstruction(rate)
    return None
