"""The prediction of the next symbol of a text, by the softmax of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, LanguageDescription, TextBatch
from lit_transformers.config import ConfigError, Positive
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.models.capabilities import CausalNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, minimized

Counted = Literal["full", "half", "last"]


def counted_targets(targets: Int[Tensor, "b t"], counted: Counted) -> Int[Tensor, "b t"]:
    """Returns the targets, IGNORED where a loss over all, half or the last of them does not count them."""
    match counted:
        case "full":
            return targets
        case "half":
            middle = targets.size(1) // 2
            return torch.cat([torch.full_like(targets, IGNORED)[:, :middle], targets[:, middle:]], dim=1)
        case "last":
            is_real = (targets != IGNORED).long()
            return targets.masked_fill((is_real.cumsum(1) != is_real.sum(1, keepdim=True)) | (is_real == 0), IGNORED)


def counted_number(length: int, counted: Counted) -> int:
    """Returns how many of ``length`` targets such a loss counts."""
    return {"full": length, "half": length - length // 2, "last": 1}[counted]


class NextSymbolConfig(HeadConfig, kind="next_symbol"):
    """loss: over every position; over the second half of each segment (arXiv:1901.02860, table 6, "half"); or at the
    last position alone. Every position is measured."""

    reads: ClassVar[Reads] = LanguageDescription

    loss: Counted = "full"

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> NextSymbol:
        return NextSymbol(self, network, data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        per_byte = {} if data.vocabulary.byte_lengths is None else minimized("bpb", per="byte")
        return minimized("nats", "perplexity", per="symbol") | per_byte


class NextSymbol(Head):
    """Nats of each symbol after those before it, and the bytes that it stands for."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int}

    def __init__(self, config: NextSymbolConfig, network: Network, data: DataDescription) -> None:
        super().__init__(config)
        lengths = data.vocabulary.byte_lengths
        self.counted, self.softmax_flops, self.known = config.loss, network.tokens.flops, lengths is not None
        self.register_buffer("byte_lengths", None if lengths is None else torch.tensor(lengths), persistent=False)

    def targets(self, batch: TextBatch) -> Int[Tensor, ""]:
        return (counted_targets(batch.targets, self.counted) != IGNORED).sum()

    def loss(self, reading: Representation, batch: TextBatch) -> HeadLoss:
        return HeadLoss.of(reading.network.tokens.nll(reading.hidden, counted_targets(batch.targets, self.counted)))

    def sums(self, reading: Representation, batch: TextBatch) -> Float[Tensor, "b t 3"]:
        nats, is_scored = reading.network.tokens.nll(reading.hidden, batch.targets), batch.targets != IGNORED
        real = batch.targets.clamp(min=0)
        byte_counts = self.byte_lengths[real] if isinstance(self.byte_lengths, Tensor) else torch.zeros_like(real)
        return torch.stack([nats.double(), is_scored.double(), (byte_counts * is_scored).double()], dim=-1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns nats and perplexity per token, and bits per byte (bpc in arXiv:1901.02860) where bytes are known."""
        nats, tokens = math.fsum(sums["nats"]), sum(sums["tokens"])
        results = {"nats": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
        return results | ({"bpb": nats / math.log(2) / sum(sums["bytes"])} if self.known else {})

    def flops(self, length: int) -> float:
        return self.softmax_flops(counted_number(length, self.counted))


class LayerSymbolsConfig(HeadConfig, kind="layer_symbols"):
    """The next symbol once more from the output of each layer but the last, by the softmax of the network; the loss is
    the sum over layers. Layer l of N is trained until the share l / 2N of all updates (arXiv:1808.04444, section 3.2),
    and none is measured. loss: as of next_symbol."""

    reads: ClassVar[Reads] = LanguageDescription

    loss: Counted = "full"

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> LayerSymbols:
        """Raises ConfigError for a network whose layers are not read one by one."""
        if not isinstance(network, CausalNetwork):
            raise ConfigError(f"the layers of a {model.kind} are not read one by one", "task.heads")
        return LayerSymbols(self, model.depth, network)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return {}


class LayerSymbols(Head):
    """Nats of the next symbol from intermediate layers."""

    needs_layers: ClassVar[bool] = True
    measured: ClassVar[bool] = False

    def __init__(self, config: LayerSymbolsConfig, depth: int, network: Network) -> None:
        super().__init__(config)
        self.until = [layer / (2 * depth) for layer in range(1, depth)]
        self.counted, self.softmax_flops = config.loss, network.tokens.flops

    def learns(self, progress: float) -> bool:
        return any(progress < until for until in self.until)

    def targets(self, batch: TextBatch) -> Int[Tensor, ""]:
        return (counted_targets(batch.targets, self.counted) != IGNORED).sum()

    def loss(self, reading: Representation, batch: TextBatch) -> HeadLoss:
        targets, network = counted_targets(batch.targets, self.counted), reading.network
        layers = zip(reading.layers, self.until, strict=True)
        learning = (hidden for hidden, until in layers if reading.progress < until)
        sums = [network.tokens.nll(network.read_layer(hidden), targets).sum() for hidden in learning]
        return HeadLoss.of(torch.stack(sums))

    def sums(self, reading: Representation, batch: TextBatch) -> Float[Tensor, "b t 2"]:
        raise NotImplementedError("intermediate layers are not measured")

    def flops(self, length: int) -> float:
        """Returns those at the beginning of training, when all layers learn."""
        return len(self.until) * self.softmax_flops(counted_number(length, self.counted))


class FutureSymbolConfig(HeadConfig, kind="future_symbol"):
    """A symbol further ahead than the next one, by a separate softmax (arXiv:1808.04444, section 3.4).

    steps: how many symbols after the next one; 1 is the paper's next-but-one character. Targets that are of another
    document are not predicted. loss: as of next_symbol.
    """

    reads: ClassVar[Reads] = LanguageDescription

    steps: Positive = 1
    loss: Counted = "full"

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> FutureSymbol:
        return FutureSymbol(self, model.dim, data.vocabulary.size)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per="symbol")


class FutureSymbol(Head):
    """Nats of the symbol ``steps`` after the next one."""

    def __init__(self, config: FutureSymbolConfig, dim: int, symbols: int) -> None:
        super().__init__(config)
        self.steps, self.counted = config.steps, config.loss
        self.logits = torch.nn.Linear(dim, symbols)

    def further(self, batch: TextBatch, counted: Counted) -> Int[Tensor, "b s"]:
        """Returns targets ``steps`` further ahead, IGNORED where they are of another document or are not counted."""
        same = batch.document[:, self.steps :] == batch.document[:, : -self.steps]
        is_counted = counted_targets(batch.targets, counted)[:, : -self.steps] != IGNORED
        return torch.where(same & is_counted, batch.targets[:, self.steps :], IGNORED)

    def nats(self, reading: Representation, targets: Int[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Returns -log p of each target; 0 where it is IGNORED."""
        logits = full_precision(self.logits(reading.hidden[:, : -self.steps]))
        nats: Tensor = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return nats.view_as(targets)

    def targets(self, batch: TextBatch) -> Int[Tensor, ""]:
        return (self.further(batch, self.counted) != IGNORED).sum()

    def loss(self, reading: Representation, batch: TextBatch) -> HeadLoss:
        return HeadLoss.of(self.nats(reading, self.further(batch, self.counted)))

    def sums(self, reading: Representation, batch: TextBatch) -> Float[Tensor, "b t 2"]:
        targets = self.further(batch, "full")
        columns = torch.stack([self.nats(reading, targets).double(), (targets != IGNORED).double()], dim=-1)
        return torch.nn.functional.pad(columns, (0, 0, 0, self.steps))

    def flops(self, length: int) -> float:
        return 2 * max(0, length - self.steps) * self.logits.weight.numel()
