"""Compressive memory written as the paper writes it: one vector, one query, one key, one head at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lit_transformers.mixers import CompressiveConfig
from lit_transformers.mixers.compression import Convolved, Dilated
from lit_transformers.mixers.compressive import Compressive
from lit_transformers.mixers.reconstruction import AutoEncoding


class Slow:
    """Algorithms 1 and 2 of arXiv:1911.05507 for one sequence: one query, one key, one head at a time."""

    def __init__(self, mixer: Compressive, config: CompressiveConfig) -> None:
        self.mixer, self.config = mixer, config
        self.memory: list[Tensor] = []
        self.received: list[float] = []
        self.chances: list[int] = []
        self.groups: list[list[Tensor]] = []
        self.slots: list[Tensor] = []

    def maps(self, vectors: list[Tensor], linear: nn.Linear, head: int, learns: bool) -> list[Tensor]:
        width = self.mixer.reader.head_dim
        weight = linear.weight[head * width : (head + 1) * width]
        return [(weight if learns else weight.detach()) @ vector for vector in vectors]

    def attention(self, asked: list[Tensor], seen: list[list[Tensor]], learns: bool) -> tuple[Tensor, list[Tensor]]:
        """Every query over the keys it sees; the heads side by side, and its weights, the mean over heads."""
        reader, said, shares = self.mixer.reader, [], [torch.zeros(len(keys), dtype=torch.float64) for keys in seen]
        for head in range(reader.heads):
            queries = self.maps(asked, reader.query, head, learns)
            column = []
            for number, (q, visible) in enumerate(zip(queries, seen, strict=True)):
                keys, values = (self.maps(visible, linear, head, learns) for linear in (reader.key, reader.value))
                weights = torch.stack([q @ k / math.sqrt(reader.head_dim) for k in keys]).softmax(dim=0)
                shares[number] += weights.detach() / reader.heads
                column.append(torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(dim=0))
            said.append(torch.stack(column))
        return torch.cat(said, dim=-1), shares

    def segment(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is said of a segment, and the loss of what leaves after it."""
        task = self.config.auxiliary == "none"
        front = [self.compress(self.groups, n) for n in range(len(self.groups))] if task and self.learns else self.slots
        front = front[-self.config.compressed_memory :]
        own = list(x)
        past = [*front, *(vector.detach() for vector in self.memory)]
        y, shares = self.attention(own, [[*past, *own[: i + 1]] for i in range(len(own))], learns=True)
        self.use(shares, len(front), len(own))
        self.memory += [vector.detach() for vector in own]
        loss = self.leave([vector.detach() for vector in own])
        return y @ self.mixer.reader.merge.weight.T, loss

    @property
    def learns(self) -> bool:
        return self.config.function in ("convolution", "dilated")

    def use(self, shares: list[Tensor], slots: int, queries: int) -> None:
        self.received += [0.0] * queries
        self.chances += [0] * queries
        for share in shares:
            for place, weight in enumerate(share[slots:].tolist()):
                self.received[place] += weight
                self.chances[place] += 1

    def leave(self, queries: list[Tensor]) -> Tensor | None:
        rate = self.config.rate
        count = max(0, len(self.memory) - self.config.memory) // rate * rate
        old, self.memory = self.memory[:count], self.memory[count:]
        usage = [r / c for r, c in zip(self.received[:count], self.chances[:count], strict=True)]
        self.received, self.chances = self.received[count:], self.chances[count:]
        groups = [old[start : start + rate] for start in range(0, count, rate)]
        self.groups += groups
        if self.config.function == "most_used":
            chosen = sorted(sorted(range(count), key=lambda place: -usage[place])[: count // rate])
            new = [old[place] for place in chosen]
        else:
            new = [self.compress(groups, n) for n in range(len(groups))]
        self.slots = [*self.slots, *(slot.detach() for slot in new)][-self.config.compressed_memory :]
        return self.loss(queries, old, new) if old else None

    def compress(self, groups: list[list[Tensor]], number: int) -> Tensor:
        compressor = self.mixer.compressor
        match self.config.function:
            case "max":
                return torch.stack(groups[number]).amax(dim=0)
            case "mean":
                return torch.stack(groups[number]).mean(dim=0)
        if isinstance(compressor, Convolved):
            return compressor.gather(torch.cat(groups[number]))
        assert isinstance(compressor, Dilated)
        nothing = torch.zeros(self.mixer.dim, dtype=torch.float64)
        made = [nothing] * (2 ** len(compressor.levels) - self.config.rate) + groups[number]
        for level, taps in enumerate(compressor.levels):
            made = [taps(torch.cat([made[i - 2**level], made[i]])) for i in range(2**level, len(made))]
            made = [nothing] * 2**level + (made if level == len(compressor.levels) - 1 else [v.relu() for v in made])
        return made[-1]

    def loss(self, queries: list[Tensor], old: list[Tensor], new: list[Tensor]) -> Tensor | None:
        match self.config.auxiliary:
            case "auto_encoding":
                assert isinstance(self.mixer.reconstruction, AutoEncoding)
                told = torch.cat([self.mixer.reconstruction.decode(slot) for slot in new])
                return (torch.cat(old) - told).square().mean()
            case "attention_reconstruction":
                one, other = (self.attention(queries, [part] * len(queries), learns=False)[0] for part in (old, new))
                return (one - other).square().mean()
        return None
