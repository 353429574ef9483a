"""Language models of rows from left to right and from right to left (BiLM of ELMo, Peters et al. 2018,
arXiv:1802.05365, section 3.1), or from left to right alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, Plain
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig
from lit_transformers.stacks.block import add_losses
from lit_transformers.tasks.masked_lm import MaskedLMConfig, read_rows
from lit_transformers.tasks.pair_metric import PairMetric, pair_units
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig


class BiLMConfig(TaskConfig, kind="bilm"):
    """Every symbol of a row is predicted from those before it, and by a second network from those after it.

    directions: both: two networks of one config share the embeddings of symbols and the softmax, and nothing else; the
    loss is the sum of those of both, each the mean over what it predicts. forward: the first network alone, a language
    model from left to right.

    Nothing is hidden: where the data put [MASK] or another symbol, the original one is read. Special symbols are read
    and never predicted, nor is a relation of segments. The second network reads the symbols of a row in reverse, with
    positions that count from its end.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    directions: Literal["both", "forward"] = "both"

    def conflicts(self) -> Iterator[str]:
        if self.evaluation and self.directions == "both":
            yield "evaluation changes one network, and both directions have two; empty it, or set directions: forward"

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> BiLM:
        return BiLM(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of one network or two, with the predictions of all symbols of a row but special ones."""
        rows, reader = RowDescription.of(data, self.kind), one_sided(model, self.kind)
        one = cost(reader, data, data.length, continued=False)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = reader.build(data)
        predictions = rows.length - 1 - rows.segments
        flops = network.predict_flops(predictions) + network.tokens.flops(predictions)
        flops_per_token = one.flops_per_token + (flops - network.softmax_flops(rows.length)) / rows.length
        if self.directions == "forward":
            return one._replace(flops_per_token=flops_per_token)
        shared = sum(p.numel() for p in network.tokens.parameters())
        return one._replace(parameters=2 * one.parameters - shared, flops_per_token=2 * flops_per_token)

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)

    def units(self, data: DataDescription) -> Mapping[str, str]:
        sides = ("forward", "backward") if self.directions == "both" else ("forward",)
        of_symbols = dict.fromkeys((f"{side}_{name}" for side in sides for name in ("nats", "accuracy")), "symbol")
        return of_symbols | pair_units(RowDescription.of(data, self.kind).rules, BiLMMetric.pair_nats)

    def protocol(self) -> dict[str, Plain]:
        return {"directions": self.directions}


class BiLMRow(NamedTuple):
    """One row: its ordinal, nats of the symbols that are predicted from left to right, their number, bytes (0), how
    many of them were the most likely; and nats, number and right ones from right to left."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    backward_nats: float
    backward_tokens: int
    backward_correct: int


class BiLMMetric(PairMetric):
    """Nats and accuracy of a symbol in each direction. Minimal pairs are judged by the log likelihood of a row, the sum
    of those of all directions."""

    pair_nats = "obeying_nats"

    def row(self, document: int, sums: list[float]) -> BiLMRow:
        nats, tokens, correct, backward_nats, backward_tokens, backward_correct = sums
        backward = (backward_nats, int(backward_tokens), int(backward_correct))
        return BiLMRow(document, nats, int(tokens), 0, int(correct), *backward)

    def update(self, predictions: list[Predicted], batch: RowBatch) -> None:
        """Adds the predictions of a batch in each direction; rows of padding do not count."""
        columns = torch.zeros(len(batch.inputs), 6, dtype=torch.float64, device=batch.inputs.device)
        for number, direction in enumerate(predictions):
            nats, own = direction.nats.double(), slice(3 * number, 3 * number + 3)
            sums = torch.stack([nats, torch.ones_like(nats), direction.correct.to(nats)], dim=-1)
            columns[:, own] = columns[:, own].index_add(0, direction.row, sums)
        real = batch.padding_mask.any(dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        """Returns forward_nats and forward_accuracy; backward_nats and backward_accuracy where there are two
        directions; and the results of minimal pairs."""
        rows = self.rows()
        tokens, backward = sum(row.tokens for row in rows), sum(row.backward_tokens for row in rows)
        if tokens == 0:
            return {}
        results = {
            "forward_nats": math.fsum(row.nats for row in rows) / tokens,
            "forward_accuracy": sum(row.correct for row in rows) / tokens,
        }
        if backward:
            results["backward_nats"] = math.fsum(row.backward_nats for row in rows) / backward
            results["backward_accuracy"] = sum(row.backward_correct for row in rows) / backward
        return results | self.pair_results()


class Read(NamedTuple):
    """What a network represents of the rows of a batch: vectors (n, e) that the softmax reads, each for the symbol in
    ``targets`` (n,) that stands after it, row by row; the number of its ``row`` (n,); and auxiliary losses by name."""

    vectors: Float[Tensor, "n e"]
    targets: Int[Tensor, " n"]
    row: Int[Tensor, " n"]
    aux: dict[str, Tensor]


class Predicted(NamedTuple):
    """The predictions of one direction: -log p of each symbol, whether it was the most likely, and the number of its
    row; all (n,), row by row."""

    nats: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    row: Int[Tensor, " n"]


class BiLM(Task):
    """Trains and measures language models of rows, ``network`` from left to right and ``backward_network`` from right
    to left, if there is one. Both start from the same weights."""

    config: BiLMConfig
    metric: BiLMMetric
    network: RowNetwork
    data: RowDescription

    def __init__(
        self, config: BiLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built or sees what it is to predict, where rows are not read as
        they are, or where weights cannot be shared."""
        reader = one_sided(model, config.kind)
        super().__init__(config, model, data, training)
        if self.data.ordered or self.data.restarts or self.data.phrases:
            reason = "drop data.attention_masks and data.restart, and set data.noise to one that replaces no phrases"
            raise ConfigError(f"{config.kind} reads rows as they are, in their own order; {reason}", "task")
        self.network = reader.build(data)
        self.backward_network = reader.build(data) if config.directions == "both" else None
        if self.backward_network is not None:
            if self.training_config.strategy == "fsdp":
                raise ConfigError(
                    "fsdp cannot share weights between networks; set directions: forward", "task.directions"
                )
            self.backward_network.tokens = self.network.tokens
        for network in (self.network, self.backward_network):
            if network is not None and self.training_config.compile:
                network.compile()
        self.metric = BiLMMetric(self.data.rules)

    def training_step(self, batch: RowBatch, batch_index: int) -> dict[str, Any]:
        means, aux = [], dict[str, Tensor]()
        for network, rows in self.directed(self.network, batch):
            read = represented(network, rows)
            nats = network.tokens.nll(read.vectors, read.targets)
            means.append(token_mean(nats.sum(), torch.ones_like(read.row, dtype=torch.bool)))
            aux = add_losses(aux, read.aux)
        first, *others = means
        added_loss = torch.stack([mean.loss for mean in others]).sum() if others else None
        return self.training_output(first, aux, added_loss)

    def directed(self, network: RowNetwork, batch: RowBatch) -> Iterator[tuple[RowNetwork, RowBatch]]:
        """Yields the network of each direction with the rows as it reads them: with the original symbols, all of which
        but special ones are targets."""
        symbols = torch.where(batch.targets != IGNORED, batch.targets, batch.inputs)
        special = torch.zeros_like(batch.padding_mask)
        for number in (self.data.vocabulary.boundary, self.data.separator, self.data.mask):
            special |= symbols == number
        targets = symbols.masked_fill(special | ~batch.padding_mask, IGNORED)
        rows = batch._replace(inputs=symbols, targets=targets)
        yield network, rows
        if self.backward_network is not None:
            yield self.backward_network, in_reverse(rows)

    def predicted(self, batch: RowBatch) -> list[Predicted]:
        """Returns the predictions of each direction in evaluation."""
        predictions = []
        for network, rows in self.directed(self.evaluator(), batch):
            vectors, targets, row, _ = represented(network, rows)
            log_probabilities = network.tokens.log_probabilities(vectors)
            nats = -log_probabilities.gather(-1, targets[:, None])[:, 0]
            predictions.append(Predicted(nats, log_probabilities.argmax(dim=-1) == targets, row))
        return predictions

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, " n"]:
        return torch.cat([direction.nats for direction in self.predicted(batch)])

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        predictions = self.predicted(batch)
        if batch.rule is None:
            self.metric.update(predictions, batch)
            return
        scores = torch.zeros(len(batch.inputs), dtype=torch.float64, device=batch.inputs.device)
        for direction in predictions:
            scores = scores.index_add(0, direction.row, -direction.nats.double())
        self.metric.update_pairs(scores, batch)


def one_sided(model: ModelConfig, task: str) -> RowModelConfig:
    """Returns the model. Raises ConfigError where it reads no whole rows, or a position sees both sides; ``task`` needs
    one that sees what is before it alone."""
    reader = require(model, RowModelConfig, f"{task} trains")
    if reader.first_sees_all:
        raise ConfigError(
            f"{model.kind} sees the symbols that {task} predicts; set model.causal: true of an encoder, "
            "or model to language_model",
            "model",
        )
    return reader


def represented(network: RowNetwork, rows: RowBatch) -> Read:
    """Runs a network on rows, and returns what stands before each of their targets."""
    output = read_rows(network, rows)
    targets = rows.targets[:, 1:]
    scored = targets != IGNORED
    vectors = network.predict(output.hidden[:, :-1][scored])
    return Read(vectors, targets[scored], scored.nonzero()[:, 0], dict(output.aux))


def in_reverse(rows: RowBatch) -> RowBatch:
    """Returns rows whose symbols stand in reverse, with their padding at the end as before."""
    position = torch.arange(rows.inputs.size(1), device=rows.inputs.device)
    length = rows.padding_mask.sum(dim=1, keepdim=True)
    place = torch.where(rows.padding_mask, length - 1 - position, position)
    inputs, targets, segments = (part.gather(1, place) for part in (rows.inputs, rows.targets, rows.segments))
    return rows._replace(inputs=inputs, targets=targets, segments=segments)
