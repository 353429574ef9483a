"""Masked language modelling, alone or with the relation of two segments (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, PositiveFloat
from lit_transformers.mixer import full_precision
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig


class MaskedLMConfig(TaskConfig, kind="masked_lm"):
    """The symbols that the data hide are predicted from those on both sides. Only their positions reach the softmax.

    Where the data ask for the relation of two segments (``data.relation``), it is predicted from the first vector of a
    row through a map with tanh, the pooler of BERT's code. relation_weight: of that loss; the loss of symbols counts 1.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    relation_weight: PositiveFloat = 1.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MaskedLM:
        return MaskedLM(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of the network with its predictions of ``RowDescription.predictions`` symbols a row."""
        rows, reader = RowDescription.of(data, self.kind), two_sided(model, self.kind)
        network_cost = cost(reader, data, data.length, continued=False)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = reader.build(data)
        predicted = network.predict_flops(rows.predictions) + network.tokens.flops(rows.predictions)
        pooler = sum(p.numel() for p in relation_head(model.dim, rows.relations).parameters()) if rows.relations else 0
        flops = predicted - network.softmax_flops(data.length) + 2 * pooler
        return network_cost._replace(
            parameters=network_cost.parameters + pooler,
            flops_per_token=network_cost.flops_per_token + flops / data.length,
        )

    def random_batch(self, data: DataDescription) -> RowBatch:
        """Returns two random rows of one or two segments, with a third of their symbols to be predicted."""
        rows = RowDescription.of(data, self.kind)
        symbols = torch.randint(1, data.vocabulary.size, (2, data.length))
        hidden = torch.arange(data.length) % 3 == 1
        segments = (torch.arange(data.length) > data.length // 2).long() * (rows.segments - 1)
        relation = torch.randint(rows.relations, (2,)) if rows.relations else torch.full((2,), IGNORED)
        return RowBatch(
            symbols.masked_fill(hidden, rows.mask),
            symbols.masked_fill(~hidden, IGNORED),
            torch.ones_like(symbols, dtype=torch.bool),
            segments.expand(2, -1),
            relation,
            torch.arange(2),
            0,
            None,
        )


class MaskedRow(NamedTuple):
    """One row: its ordinal, nats of its predicted symbols, their number, bytes (0), how many of them were the most
    likely, the nats of its relation, 1 if it had a relation to predict, and 1 if that was the most likely."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    relation_nats: float
    relations: int
    correct_relations: int


class MaskedMetric(ExampleMetric):
    """Nats and accuracy per predicted symbol, and nats and accuracy of relations where there are any."""

    def row(self, document: int, sums: list[float]) -> MaskedRow:
        nats, tokens, correct, relation_nats, relations, correct_relations = sums
        return MaskedRow(
            document, nats, int(tokens), 0, int(correct), relation_nats, int(relations), int(correct_relations)
        )

    def update(self, output: MaskedOutput, batch: RowBatch) -> None:
        """Adds the predictions of a batch; rows of padding have nothing to predict and do not count."""
        scored, related = batch.targets != IGNORED, batch.relation != IGNORED
        row = torch.arange(len(batch.targets), device=scored.device)[:, None].expand_as(scored)[scored]
        correct = output.symbols.argmax(dim=-1) == batch.targets[scored]
        columns = torch.zeros(len(batch.targets), 6, dtype=torch.float64, device=scored.device)
        of_symbols = torch.stack([symbol_nats(output, batch).double(), torch.ones_like(correct).double(), correct], -1)
        columns[:, :3] = columns[:, :3].index_add(0, row, of_symbols)
        if output.relation is not None:
            columns[:, 3] = relation_nats(output.relation, batch.relation).double()
            columns[:, 4] = related
            columns[:, 5] = (output.relation.argmax(dim=-1) == batch.relation) & related
        real = batch.padding_mask.any(dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        """Returns nats, perplexity and accuracy of symbols; and relation_nats and relation_accuracy if there are."""
        rows = self.rows()
        tokens, relations = sum(row.tokens for row in rows), sum(row.relations for row in rows)
        if tokens == 0:
            return {}
        nats = math.fsum(row.nats for row in rows) / tokens
        results = {"nats": nats, "perplexity": math.exp(min(nats, 700.0))}
        results["accuracy"] = sum(row.correct for row in rows) / tokens
        if relations:
            results["relation_nats"] = math.fsum(row.relation_nats for row in rows) / relations
            results["relation_accuracy"] = sum(row.correct_relations for row in rows) / relations
        return results


class MaskedOutput(NamedTuple):
    """symbols (n, v): log probabilities at the n positions whose symbol is predicted, row by row; relation (b, c):
    logits of the relations, or None."""

    symbols: Float[Tensor, "n v"]
    relation: Float[Tensor, "b c"] | None


class MaskedLM(Task):
    """Trains and measures a network that predicts hidden symbols."""

    config: MaskedLMConfig
    network: RowNetwork

    def __init__(
        self, config: MaskedLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, sees one side alone, or the data hide nothing."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        self.network = without_order(reader.build(data))
        relations = RowDescription.of(data, config.kind).relations
        self.relation_head = relation_head(model.dim, relations) if relations else None
        if self.training_config.compile:
            self.network.compile()
        self.metric = MaskedMetric()

    def training_step(self, batch: RowBatch, batch_index: int) -> dict[str, Any]:
        output = read_rows(self.network, batch)
        scored = batch.targets != IGNORED
        hidden = self.network.predict(output.hidden[scored])
        mean = token_mean(self.network.tokens.nll(hidden, batch.targets[scored]).sum(), scored)
        related = self.related(output)
        if related is None:
            return self.training_output(mean, output.aux)
        relation = token_mean(relation_nats(related, batch.relation).sum(), batch.relation != IGNORED)
        return self.training_output(mean, output.aux, self.config.relation_weight * relation.loss)

    def related(self, output: ModelOutput) -> Float[Tensor, "b c"] | None:
        """Returns the logits of the relations, or None where the data have none."""
        return None if self.relation_head is None else full_precision(self.relation_head(output.hidden[:, 0]))

    def predicted(self, batch: RowBatch) -> MaskedOutput:
        """Returns the predictions of the network in evaluation."""
        evaluator = self.evaluator()
        output = read_rows(evaluator, batch)
        hidden = evaluator.predict(output.hidden[batch.targets != IGNORED])
        return MaskedOutput(evaluator.tokens.log_probabilities(hidden), self.related(output))

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "n v"]:
        return self.predicted(batch).symbols

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        self.metric.update(self.predicted(batch), batch)


def two_sided(model: ModelConfig, task: str) -> RowModelConfig:
    """Returns the model. Raises ConfigError where it reads no whole rows, or a position sees one side alone; ``task``
    needs it."""
    reader = require(model, RowModelConfig, f"{task} trains")
    if not reader.first_sees_all:
        raise ConfigError(
            f"a {model.kind} sees what stands before a hidden symbol alone; set model to encoder, or task to causal_lm",
            "model",
        )
    return reader


def without_order(network: RowNetwork) -> RowNetwork:
    """Returns the network, with what only predictions in an order of the row use left out of training."""
    for parameter in network.order_only():
        parameter.requires_grad_(False)
    return network


def read_rows(network: RowNetwork, batch: RowBatch) -> ModelOutput:
    """Runs a network on the rows of a batch, whose first symbols are marked for patterns that single such ones out."""
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = batch.padding_mask[:, 0]
    return network.read_row(batch.inputs, batch.padding_mask, first, batch.segments)


def relation_head(dim: int, relations: int) -> nn.Sequential:
    """Builds the pooler of BERT's code and a linear map to the logits of so many relations."""
    return nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, relations))


def symbol_nats(output: MaskedOutput, batch: RowBatch) -> Float[Tensor, " n"]:
    """Returns -log p of each predicted symbol, row by row."""
    targets = batch.targets[batch.targets != IGNORED]
    return -output.symbols.gather(-1, targets[:, None])[:, 0]


def relation_nats(logits: Float[Tensor, "b c"], relation: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Returns -log p of each relation; 0 where there is none to predict."""
    return F.cross_entropy(logits, relation, ignore_index=IGNORED, reduction="none")
