"""Compressive Transformer: inputs that leave memory are compressed, not lost (Rae et al. 2019, arXiv:1911.05507)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.config import Length, Memory, NonNegative, Positive
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import Context, Mixer, MixerOutput, Promises, Shape
from lit_transformers.mixers.attention import AttentionConfig
from lit_transformers.mixers.compressive.compression import LEARNED, Function, Past, compressor
from lit_transformers.mixers.compressive.key_usage import UsageAttention
from lit_transformers.mixers.compressive.reconstruction import Auxiliary, frozen, reconstruction
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.mixers.qkv import QKVMixer, ScoresConfig
from lit_transformers.named_tuples import with_fields
from lit_transformers.space import Interval, Space


@final
class CompressiveConfig(ScoresConfig, kind="compressive"):
    """memory: inputs kept uncompressed; compressed_memory: slots for older ones, ``rate`` inputs each; function: of the
    compression; auxiliary: the loss that trains a learned function, one or one per layer; without, the task's does."""

    space: ClassVar[Space] = {"rate": Interval(2, 4)}

    memory: Annotated[NonNegative, Memory] = 64
    compressed_memory: Annotated[Positive, Length] = 64
    rate: Annotated[Positive, Length] = 3
    function: Function = "convolution"
    auxiliary: Auxiliary | tuple[Auxiliary, ...] = "attention_reconstruction"

    def conflicts(self) -> Iterator[str]:
        if self.function not in LEARNED and self.auxiliary != "none":
            yield f"function: {self.function} learns nothing that an auxiliary loss could train; set auxiliary: none"

    @property
    def remembered(self) -> int:
        return self.memory + self.rate - 1 + self.compressed_memory * self.rate

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal",),
            streams=True,
            refusals={
                "bidirectional": "memory is of the past, and there is none where every token sees every other",
                "cross": "memory is of this sequence's past, not of another sequence",
            },
        )

    def build(self, shape: Shape) -> Compressive:
        return Compressive(self, shape)


@final
class Compressive(Mixer):
    """Attention over [compressed memory; memory; segment], the oldest first: algorithm 1.

    After a segment, inputs beyond ``memory`` leave it in whole groups of ``rate``; up to rate - 1 wait in the memory
    for their group. Memory holds the inputs of the layer, without gradient. Distances continue over slots and memory, a
    slot counting as one position; the paper leaves this open. Slots that are not filled yet are masked.

    With an auxiliary loss slots are detached: that loss trains the compression alone, and the task everything else.
    Without one the task trains a learned function, in the paper through time. Here state then holds the inputs of all
    slots while gradients are on, and they are compressed again in every segment, as memory is projected again, so that
    a task may cut gradients between segments. Without gradients, keys and values are kept.
    """

    def __init__(self, config: CompressiveConfig, shape: Shape) -> None:
        super().__init__()
        self.memory, self.slots, self.rate, self.dim = config.memory, config.compressed_memory, config.rate, shape.dim
        self.watches = config.function == "most_used"
        everything = AttentionConfig(
            encoding=config.encoding,
            memory=EVERYTHING,  # this mixer decides which inputs leave
            head_dim=config.head_dim,
            bias=config.bias,
            dropout=config.dropout,
            scaled=config.scaled,
        )
        self.reader: QKVMixer = UsageAttention(everything, shape) if self.watches else everything.build(shape)
        self.compressor = compressor(config.function, config.rate, shape.dim)
        self.reconstruction = reconstruction(config.auxiliary, config.rate, shape)
        self.through_time = self.compressor.learns and self.reconstruction is None

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        empty, state = state is None, self._empty_state(x) if state is None else state
        raw = self.through_time and "keys" not in state
        head, memory = Past(state["hidden"].to(x.dtype), state["key_mask"]).split(self._slot_vectors(raw))
        front = self.compressor(head) if raw else head
        ignores_past = empty and not (raw or self.watches or "keys" in state)
        unbroken = 0 if empty else self._unbroken(ctx.unbroken, memory.key_mask.size(1))
        read = None if ignores_past else readable(state, front.then(memory))
        output: MixerOutput = self.reader(x, with_fields(ctx, unbroken=unbroken), read)
        real = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding_mask is None else ctx.padding_mask
        )
        segment = Past(x.detach(), real)
        past = memory.then(segment)
        if self.watches:
            used = output.observed["used"][:, self.slots :]
            past = with_fields(past, used=F.pad(state["used"], (0, 0, 0, x.size(1))) + used)
        leaving = max(0, past.key_mask.size(1) - self.memory) // self.rate * self.rate
        old, memory = past.split(leaving)
        new = old if raw else self.compressor(old)
        _, head = head.then(Past(new.hidden.detach(), new.key_mask)).split(new.key_mask.size(1))
        new_state = {
            "hidden": torch.cat([head.hidden, memory.hidden], 1),
            "key_mask": torch.cat([head.key_mask, memory.key_mask], 1),
        }
        if memory.used is not None:
            new_state["used"] = memory.used
        if "keys" in state:
            new_state |= self._projected(output.state, new, leaving)
        if self.reconstruction is None or not (self.training and torch.is_grad_enabled()):
            return MixerOutput(output.y, new_state)
        return MixerOutput(output.y, new_state, {"compression": self.reconstruction(self.reader, segment, old, new)})

    def _projected(self, reader_state: dict[str, Tensor], new: Past, leaving: int) -> dict[str, Tensor]:
        """Returns keys and values of the new slots and memory, from those of all positions that the reader saw."""
        projected = {}
        for name, linear in zip(("keys", "values"), self._projections, strict=True):
            slots, memory = reader_state[name].tensor_split([self.slots], dim=2)
            slots = torch.cat([slots, frozen(linear, new.hidden, self.reader)], dim=2)[:, :, -self.slots :]
            projected[name] = torch.cat([slots, memory[:, :, leaving:]], dim=2)
        return projected

    def _unbroken(self, tokens: int, memory: int) -> int:
        """Returns how many positions before the segment, slots included, hold nothing but the latest ``tokens``, of
        which memory has the last ``memory``. The most used vectors may be of any tokens, so those slots do not count.
        """
        return min(tokens, memory) + (0 if self.watches else max(0, tokens - memory) // self.rate)

    @property
    def _projections(self) -> tuple[LinearMap, LinearMap]:
        return self.reader.key, self.reader.value

    def _slot_vectors(self, raw: bool) -> int:
        """Returns how many vectors of a state represent the slots: slots, or, if ``raw``, the inputs of all slots."""
        return self.slots * self.rate if raw else self.slots

    def _empty_state(self, x: Float[Tensor, "b t d"]) -> dict[str, Tensor]:
        """Returns a state of masked slots and an empty memory."""
        learning = torch.is_grad_enabled()
        hidden = x.new_zeros(x.size(0), self._slot_vectors(self.through_time and learning), self.dim)
        state = {"hidden": hidden, "key_mask": torch.zeros(hidden.shape[:2], dtype=torch.bool, device=x.device)}
        if self.watches:
            state["used"] = x.new_zeros(x.size(0), 0, 2)
        if not learning:
            state["keys"], state["values"] = (frozen(linear, hidden, self.reader) for linear in self._projections)
        return state

    def decoding_state(self, length: int) -> int:
        """As in ``Mixer.decoding_state``: keys and values of slots and memory, and the inputs of the layer, from which
        memory will be compressed."""
        memory = min(length, self.memory + self.rate - 1)
        slots = min(self.slots, max(0, length - self.memory) // self.rate)
        return 2 * self.reader.width * (slots + memory) + self.dim * memory

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """As in ``Mixer.flops``; includes the auxiliary loss of training."""
        memory = min(remembered, self.memory) + max(0, remembered - self.memory) % self.rate
        leaving = max(0, memory + queries - self.memory) // self.rate
        memory += self.slots if remembered or self.watches or self.through_time else 0
        total = self.reader.flops(queries, memory, causal)
        total += self.compressor.flops(self.slots if self.through_time else leaving)
        return total + (self.reconstruction.flops(self.reader, queries, leaving) if self.reconstruction else 0)


def readable(state: dict[str, Tensor], past: Past) -> dict[str, Tensor]:
    """Returns the past as a state of plain attention: its keys and values if the state has them, else its vectors."""
    if "keys" in state:
        return {"keys": state["keys"], "values": state["values"], "key_mask": past.key_mask}
    return {"hidden": past.hidden, "key_mask": past.key_mask}
