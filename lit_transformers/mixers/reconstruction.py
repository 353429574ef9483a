"""What a learned compression is trained by, and by it alone (Rae et al. 2019, arXiv:1911.05507, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.executors import Inputs, attend
from lit_transformers.mixer import Shape, at_layer
from lit_transformers.mixers.compression import Past
from lit_transformers.mixers.memory import some_key
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.patterns import Band

Auxiliary = Literal["none", "auto_encoding", "attention_reconstruction"]


class Reconstruction(nn.Module, ABC):
    """A loss whose gradient reaches the compression and nothing else: all else that enters it is without history."""

    @abstractmethod
    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        """What compression cost: ``segment`` pushed ``old`` out of the memory, where ``new`` now stands for it."""

    @abstractmethod
    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        """FLOPs for so many slots that leave the memory."""


class AutoEncoding(Reconstruction):
    """The mean of |old - g(new)|^2 over real inputs and channels, g a linear map of a slot to its group."""

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__()
        self.rate = rate
        self.decode = nn.Linear(dim, rate * dim)

    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        told = self.decode(new.hidden).unflatten(-1, (self.rate, -1)).flatten(1, 2)
        return mean_square(old.hidden - told, old.seen[..., None])

    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        return 2 * slots * self.rate * reader.dim * reader.dim


class AttentionReconstruction(Reconstruction):
    """The mean of |attn(h, old) - attn(h, new)|^2 over real queries and channels: algorithm 2.

    Attention there is by content alone, without positions, over what leaves the memory alone. The paper writes the
    norm; the mean of its square does not grow with the segment.
    """

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, reader: QKVMixer, segment: Past, old: Past, new: Past) -> Float[Tensor, ""]:
        if old.hidden.size(1) == 0:
            return new.hidden.sum()  # nothing has left: zero, yet a gradient for every parameter, as DDP wants it
        q = frozen(reader.query, segment.hidden, reader)
        before, after = (content(reader, q, part) for part in (old, new))
        wanted = segment.seen & old.seen.any(dim=1, keepdim=True)
        return mean_square(before - after, wanted[:, None, :, None])

    def flops(self, reader: QKVMixer, queries: int, slots: int) -> int:
        if slots == 0:
            return 0
        keys = slots * (1 + self.rate)
        return 2 * reader.width * (reader.dim * (queries + 2 * keys) + 2 * queries * keys)


def content(reader: QKVMixer, q: Float[Tensor, "b h t k"], past: Past) -> Float[Tensor, "b h t k"]:
    """What queries take from the past by the reader's maps, which learn nothing here."""
    k, v = (frozen(linear, past.hidden, reader) for linear in (reader.key, reader.value))
    return attend(Band(None, None), Inputs(q, k, v, some_key(past.seen), crossed=True), scale=reader.scale)


def frozen(linear: nn.Linear, x: Float[Tensor, "b n d"], reader: QKVMixer) -> Float[Tensor, "b h n k"]:
    """The linear map of x in heads, its weights detached."""
    bias = None if linear.bias is None else linear.bias.detach()
    return F.linear(x, linear.weight.detach(), bias).unflatten(-1, (reader.heads, reader.head_dim)).transpose(1, 2)


def mean_square(difference: Float[Tensor, "*n"], counted: Bool[Tensor, "*#n"]) -> Float[Tensor, ""]:
    """Over what is counted; zero where nothing is."""
    counted = counted.expand_as(difference)
    return difference.square().masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def reconstruction(auxiliary: Auxiliary | tuple[Auxiliary, ...], rate: int, shape: Shape) -> Reconstruction | None:
    """The loss of a layer; None where there is none. Raises ConfigError where layers and losses do not match."""
    if not isinstance(auxiliary, str):
        auxiliary = auxiliary[at_layer(tuple(range(len(auxiliary))), shape, "mixer.auxiliary")]
    match auxiliary:
        case "auto_encoding":
            return AutoEncoding(rate, shape.dim)
        case "attention_reconstruction":
            return AttentionReconstruction(rate)
    return None
