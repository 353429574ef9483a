"""Compressive Transformer: what leaves the memory is compressed, not lost (Rae et al. 2019, arXiv:1911.05507)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import NonNegative, Positive
from lit_transformers.mixer import Context, Mixed, Mixer, Mode, Shape
from lit_transformers.mixers.attention import AttentionConfig
from lit_transformers.mixers.compression import LEARNED, Function, Past, compressor
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.mixers.qkv import QKVConfig, QKVMixer
from lit_transformers.mixers.reconstruction import Auxiliary, frozen, reconstruction
from lit_transformers.mixers.watched import Watched
from lit_transformers.space import Interval, Space


class CompressiveConfig(QKVConfig, kind="compressive"):
    """memory: inputs kept as they are; compressed_memory: slots that older ones are compressed into, ``rate`` inputs
    into one; function: how; auxiliary: what trains a learned function, also by layer; without, the task does."""

    space: ClassVar[Space] = {"rate": Interval(2, 4)}

    memory: NonNegative = 64
    compressed_memory: Positive = 64
    rate: Positive = 3
    function: Function = "convolution"
    auxiliary: Auxiliary | tuple[Auxiliary, ...] = "attention_reconstruction"

    def conflicts(self) -> Iterator[str]:
        if self.function not in LEARNED and self.auxiliary != "none":
            yield f"function: {self.function} learns nothing that an auxiliary loss could train; set auxiliary: none"

    def build(self, shape: Shape) -> Compressive:
        return Compressive(self, shape)


class Compressive(Mixer):
    """Attention over [compressed memory; memory; segment], the oldest first: algorithm 1.

    After a segment, inputs beyond ``memory`` leave it in whole groups of ``rate``; up to rate - 1 wait in the memory
    for their group. Memory is what the layer was given, without gradient. Distances simply go on over slots and memory,
    a slot counting as one position; the paper leaves this open. Slots that are not filled yet stand there unseen.

    With an auxiliary loss the slots enter attention without history: the loss trains the compression alone, the task
    all but it. Without one a learned function is trained by the task, in the paper through time. Here state then holds
    the inputs of all slots while gradients are on, and they are compressed anew in every segment, as memory is
    projected anew, so a task may cut gradients between segments. Without gradients, keys and values are kept.
    """

    causal = streams = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "bidirectional": "memory is of the past, and there is none where every token sees every other",
        "cross": "memory is of this sequence's past, not of another sequence",
    }

    def __init__(self, config: CompressiveConfig, shape: Shape) -> None:
        super().__init__()
        self.memory, self.slots, self.rate, self.dim = config.memory, config.compressed_memory, config.rate, shape.dim
        self.watches = config.function == "most_used"
        everything = AttentionConfig(
            encoding=config.encoding,
            memory=EVERYTHING,  # what leaves is decided here
            head_dim=config.head_dim,
            bias=config.bias,
            dropout=config.dropout,
            scaled=config.scaled,
        )
        self.reader: QKVMixer = Watched(everything, shape) if self.watches else everything.build(shape)
        self.compressor = compressor(config.function, config.rate, shape.dim)
        self.reconstruction = reconstruction(config.auxiliary, config.rate, shape)
        self.through_time = self.compressor.learns and self.reconstruction is None

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        empty, state = state is None, self._start(x) if state is None else state
        raw = self.through_time and "keys" not in state
        head, memory = Past(state["hidden"].to(x.dtype), state["seen"]).split(self._lead(raw))
        front = self.compressor(head) if raw else head
        unread = empty and not (raw or self.watches or "keys" in state)
        read: Mixed = self.reader(x, ctx, None if unread else readable(state, front.then(memory)))
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.keep is None else ctx.keep
        segment = Past(x.detach(), real)
        whole = memory.then(segment)
        if self.watches:
            whole = whole._replace(used=F.pad(state["used"], (0, 0, 0, x.size(1))) + read.aux["used"][:, self.slots :])
        leaving = max(0, whole.seen.size(1) - self.memory) // self.rate * self.rate
        old, memory = whole.split(leaving)
        new = old if raw else self.compressor(old)
        _, head = head.then(Past(new.hidden.detach(), new.seen)).split(new.seen.size(1))
        kept = {"hidden": torch.cat([head.hidden, memory.hidden], 1), "seen": torch.cat([head.seen, memory.seen], 1)}
        if memory.used is not None:
            kept["used"] = memory.used
        if "keys" in state:
            kept |= self._projected(read.state, new, leaving)
        if self.reconstruction is None or not (self.training and torch.is_grad_enabled()):
            return Mixed(read.y, kept)
        return Mixed(read.y, kept, {"compression": self.reconstruction(self.reader, segment, old, new)})

    def _projected(self, whole: dict[str, Tensor], new: Past, leaving: int) -> dict[str, Tensor]:
        """Keys and values of slots and memory, from those of all that was read."""
        kept = {}
        for name, linear in zip(("keys", "values"), self._projections, strict=True):
            slots, memory = whole[name].tensor_split([self.slots], dim=2)
            slots = torch.cat([slots, frozen(linear, new.hidden, self.reader)], dim=2)[:, :, -self.slots :]
            kept[name] = torch.cat([slots, memory[:, :, leaving:]], dim=2)
        return kept

    @property
    def _projections(self) -> tuple[nn.Linear, nn.Linear]:
        return self.reader.key, self.reader.value

    def _lead(self, raw: bool) -> int:
        """How many vectors of a state stand for the slots: themselves, or the inputs they are made of."""
        return self.slots * self.rate if raw else self.slots

    def _start(self, x: Float[Tensor, "b t d"]) -> dict[str, Tensor]:
        """Slots that stand for nothing, and an empty memory."""
        learning = torch.is_grad_enabled()
        hidden = x.new_zeros(x.size(0), self._lead(self.through_time and learning), self.dim)
        state = {"hidden": hidden, "seen": torch.zeros(hidden.shape[:2], dtype=torch.bool, device=x.device)}
        if self.watches:
            state["used"] = x.new_zeros(x.size(0), 0, 2)
        if not learning:
            state["keys"], state["values"] = (frozen(linear, hidden, self.reader) for linear in self._projections)
        return state

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """Of training, the auxiliary loss among them."""
        memory = min(remembered, self.memory) + max(0, remembered - self.memory) % self.rate
        leaving = max(0, memory + queries - self.memory) // self.rate
        memory += self.slots if remembered or self.watches or self.through_time else 0
        total = self.reader.flops(queries, memory, causal)
        total += self.compressor.flops(self.slots if self.through_time else leaving)
        return total + (self.reconstruction.flops(self.reader, queries, leaving) if self.reconstruction else 0)


def readable(state: dict[str, Tensor], past: Past) -> dict[str, Tensor]:
    """The past as the state of plain attention: its projections, where they are kept, or what they are made from."""
    if "keys" in state:
        return {"keys": state["keys"], "values": state["values"], "seen": past.seen}
    return {"hidden": past.hidden, "seen": past.seen}
