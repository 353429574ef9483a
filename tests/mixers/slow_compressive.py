"""Compressive memory written as the paper writes it: one vector, one query, one key, one head at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lit_transformers.mixers import CompressiveConfig
from lit_transformers.mixers.compressive.compression import Convolved, Dilated
from lit_transformers.mixers.compressive.compressive import Compressive
from lit_transformers.mixers.compressive.reconstruction import AutoEncoding


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

    def attention(
        self, query_vectors: list[Tensor], visible_keys: list[list[Tensor]], learns: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Every query over the keys it sees; the heads side by side, and its weights, the mean over heads."""
        reader, head_outputs, mean_weights = (
            self.mixer.reader,
            [],
            [torch.zeros(len(keys), dtype=torch.float64) for keys in visible_keys],
        )
        for head in range(reader.heads):
            queries = self.maps(query_vectors, reader.query, head, learns)
            rows = []
            for index, (q, visible) in enumerate(zip(queries, visible_keys, strict=True)):
                keys, values = (self.maps(visible, linear, head, learns) for linear in (reader.key, reader.value))
                weights = torch.stack([q @ k / math.sqrt(reader.head_dim) for k in keys]).softmax(dim=0)
                mean_weights[index] += weights.detach() / reader.heads
                rows.append(torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(dim=0))
            head_outputs.append(torch.stack(rows))
        return torch.cat(head_outputs, dim=-1), mean_weights

    def segment(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output of a segment, and the loss of the vectors that leave memory after it."""
        task = self.config.auxiliary == "none"
        slots = [self.compress(self.groups, n) for n in range(len(self.groups))] if task and self.learns else self.slots
        slots = slots[-self.config.compressed_memory :]
        tokens = list(x)
        past = [*slots, *(vector.detach() for vector in self.memory)]
        y, mean_weights = self.attention(tokens, [[*past, *tokens[: i + 1]] for i in range(len(tokens))], learns=True)
        self.use(mean_weights, len(slots), len(tokens))
        self.memory += [vector.detach() for vector in tokens]
        loss = self.leave([vector.detach() for vector in tokens])
        return y @ self.mixer.reader.merge.weight.T, loss

    @property
    def learns(self) -> bool:
        return self.config.function in ("convolution", "dilated")

    def use(self, mean_weights: list[Tensor], slots: int, queries: int) -> None:
        self.received += [0.0] * queries
        self.chances += [0] * queries
        for row in mean_weights:
            for index, weight in enumerate(row[slots:].tolist()):
                self.received[index] += weight
                self.chances[index] += 1

    def leave(self, queries: list[Tensor]) -> Tensor | None:
        rate = self.config.rate
        count = max(0, len(self.memory) - self.config.memory) // rate * rate
        evicted, self.memory = self.memory[:count], self.memory[count:]
        usage = [r / c for r, c in zip(self.received[:count], self.chances[:count], strict=True)]
        self.received, self.chances = self.received[count:], self.chances[count:]
        groups = [evicted[start : start + rate] for start in range(0, count, rate)]
        self.groups += groups
        if self.config.function == "most_used":
            chosen = sorted(sorted(range(count), key=lambda index: -usage[index])[: count // rate])
            compressed = [evicted[index] for index in chosen]
        else:
            compressed = [self.compress(groups, n) for n in range(len(groups))]
        self.slots = [*self.slots, *(slot.detach() for slot in compressed)][-self.config.compressed_memory :]
        return self.loss(queries, evicted, compressed) if evicted else None

    def compress(self, groups: list[list[Tensor]], index: int) -> Tensor:
        compressor = self.mixer.compressor
        match self.config.function:
            case "max":
                return torch.stack(groups[index]).amax(dim=0)
            case "mean":
                return torch.stack(groups[index]).mean(dim=0)
        if isinstance(compressor, Convolved):
            return compressor.gather(torch.cat(groups[index]))
        assert isinstance(compressor, Dilated)
        zeros = torch.zeros(self.mixer.dim, dtype=torch.float64)
        outputs = [zeros] * (2 ** len(compressor.levels) - self.config.rate) + groups[index]
        for level, taps in enumerate(compressor.levels):
            outputs = [taps(torch.cat([outputs[i - 2**level], outputs[i]])) for i in range(2**level, len(outputs))]
            outputs = [zeros] * 2**level + (
                outputs if level == len(compressor.levels) - 1 else [v.relu() for v in outputs]
            )
        return outputs[-1]

    def loss(self, queries: list[Tensor], evicted: list[Tensor], compressed: list[Tensor]) -> Tensor | None:
        match self.config.auxiliary:
            case "auto_encoding":
                assert isinstance(self.mixer.reconstruction, AutoEncoding)
                reconstructed = torch.cat([self.mixer.reconstruction.decode(slot) for slot in compressed])
                return (torch.cat(evicted) - reconstructed).square().mean()
            case "attention_reconstruction":
                expected, reconstruction = (
                    self.attention(queries, [keys] * len(queries), learns=False)[0] for keys in (evicted, compressed)
                )
                return (expected - reconstruction).square().mean()
        return None
