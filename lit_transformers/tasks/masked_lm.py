"""Masked language modelling, alone or with the relation of two segments (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, PositiveFloat
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.precision import full_precision
from lit_transformers.tasks.pair_metric import PairMetric, pair_units
from lit_transformers.tasks.phrase_detection import Detected, PhraseDetector, detected
from lit_transformers.tasks.span_boundary import SpanBoundary, SpanBoundaryConfig, boundaries
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig

READ_AT_ONCE = 256
"""The most rows of a pass that computes pseudo-log-likelihoods."""


HIDDEN = "hidden symbol"
"""What metrics of symbols that the data hide are means over."""


class MaskedLMConfig(TaskConfig, kind="masked_lm"):
    """The symbols that the data hide are predicted from those on both sides. Only their positions reach the softmax.

    Where the data ask for the relation of two segments (``data.relation``), it is predicted from the first vector of a
    row through a map with tanh, the pooler of BERT's code. relation_weight: of that loss; the loss of symbols counts 1.
    detach_relation: whether that loss trains the pooler and its output alone, so that they read what the network has
    learned from the loss of symbols.
    span_boundary: whether symbols are predicted from what stands beside their span as well; None: they are not.
    Where the data replace phrases (``data.noise.kind=replace_phrases``), the task also predicts of each whether it
    was replaced, from the vectors beside it. phrase_weight: of that loss.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    relation_weight: PositiveFloat = 1.0
    detach_relation: bool = False
    span_boundary: SpanBoundaryConfig | None = None
    phrase_weight: PositiveFloat = 1.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MaskedLM:
        return MaskedLM(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of the network with its predictions of ``RowDescription.predictions`` symbols a row."""
        rows, reader = RowDescription.of(data, self.kind), two_sided(model, self.kind)
        network_cost = cost(reader, data, data.length, continued=False)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = reader.build(data)
            added = [self.boundary_head(model.dim, network), *([PhraseDetector(model.dim)] if rows.phrases else [])]
        predicted = network.predict_flops(rows.predictions) + network.tokens.flops(rows.predictions)
        pooler = sum(p.numel() for p in relation_head(model.dim, rows.relations).parameters()) if rows.relations else 0
        flops, parameters = predicted - network.softmax_flops(data.length) + 2 * pooler, pooler
        for head in added:
            parameters += 0 if head is None else sum(p.numel() for p in head.parameters())
            if isinstance(head, SpanBoundary):
                flops += head.flops(rows.predictions) + network.tokens.flops(rows.predictions)
        return network_cost._replace(
            parameters=network_cost.parameters + parameters,
            flops_per_token=network_cost.flops_per_token + flops / data.length,
        )

    def units(self, data: DataDescription) -> Mapping[str, str]:
        rows = RowDescription.of(data, self.kind)
        boundaries = {"boundary_nats": HIDDEN} if self.span_boundary is not None else {}
        phrases = dict.fromkeys(("phrase_nats", "phrase_accuracy"), "phrase") if rows.phrases else {}
        return masked_units(rows) | boundaries | phrases | pair_units(rows.rules, MaskedMetric.pair_nats)

    def boundary_head(self, dim: int, network: RowNetwork) -> SpanBoundary | None:
        """Builds what predicts symbols from the boundaries of their spans; None where nothing does."""
        if self.span_boundary is None:
            return None
        with torch.no_grad():
            width = network.predict(torch.zeros(1, dim)).size(-1)
        return SpanBoundary(self.span_boundary, dim, width)

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
            None,
            torch.tensor([[[2, 3, 0]], [[2, 3, 1]]]) if rows.phrases else None,
            torch.arange(2)[:, None] * torch.arange(data.length) if rows.ordered else None,
        )


def masked_units(rows: RowDescription, symbol: str = HIDDEN) -> dict[str, str]:
    """Returns what the metrics of hidden symbols, and of relations where there are any, are means over."""
    of_relations = dict.fromkeys(("relation_nats", "relation_accuracy"), "relation") if rows.relations else {}
    return dict.fromkeys(("nats", "perplexity", "accuracy"), symbol) | of_relations


class MaskedRow(NamedTuple):
    """One row: its ordinal, nats of its predicted symbols, their number, bytes (0), how many of them were the most
    likely, the nats of its relation, 1 if it had a relation to predict, and 1 if that was the most likely; nats and
    number of the symbols that are predicted from the boundaries of their spans; nats and number of the phrases that may
    have been replaced, and of how many of them that was predicted rightly."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    relation_nats: float
    relations: int
    correct_relations: int
    boundary_nats: float
    boundary_tokens: int
    phrase_nats: float
    phrases: int
    correct_phrases: int


class MaskedMetric(PairMetric):
    """Nats and accuracy per predicted symbol, nats and accuracy of relations and of replaced phrases where there are
    any, and nats of symbols that are predicted from the boundaries of their spans. Minimal pairs are judged by the
    pseudo-log-likelihood of a row."""

    pair_nats = "pseudo_nats"

    def row(self, document: int, sums: list[float]) -> MaskedRow:
        nats, tokens, correct, relation_nats, relations, correct_relations, boundary_nats, boundary_tokens, *last = sums
        phrase_nats, phrases, correct_phrases = last
        return MaskedRow(
            document,
            nats,
            int(tokens),
            0,
            int(correct),
            relation_nats,
            int(relations),
            int(correct_relations),
            boundary_nats,
            int(boundary_tokens),
            phrase_nats,
            int(phrases),
            int(correct_phrases),
        )

    def update(self, output: MaskedOutput, batch: RowBatch) -> None:
        """Adds the predictions of a batch; rows of padding have nothing to predict and do not count."""
        scored, related = batch.targets != IGNORED, batch.relation != IGNORED
        row = torch.arange(len(batch.targets), device=scored.device)[:, None].expand_as(scored)[scored]
        correct = output.symbols.argmax(dim=-1) == batch.targets[scored]
        columns = torch.zeros(len(batch.targets), 11, dtype=torch.float64, device=scored.device)
        of_symbols = torch.stack([symbol_nats(output, batch).double(), torch.ones_like(correct).double(), correct], -1)
        columns[:, :3] = columns[:, :3].index_add(0, row, of_symbols)
        if output.relation is not None:
            columns[:, 3] = relation_nats(output.relation, batch.relation).double()
            columns[:, 4] = related
            columns[:, 5] = (output.relation.argmax(dim=-1) == batch.relation) & related
        if output.boundary is not None:
            nats = output.boundary.nats.double()
            of_boundaries = torch.stack([nats, torch.ones_like(nats)], dim=-1)
            columns[:, 6:8] = columns[:, 6:8].index_add(0, output.boundary.row, of_boundaries)
        if output.phrases is not None:
            nats = output.phrases.nats.double()
            of_phrases = torch.stack([nats, torch.ones_like(nats), output.phrases.correct.double()], dim=-1)
            columns[:, 8:] = columns[:, 8:].index_add(0, output.phrases.row, of_phrases)
        real = batch.padding_mask.any(dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        """Returns nats, perplexity and accuracy of symbols; relation_nats, relation_accuracy, boundary_nats,
        phrase_nats and phrase_accuracy, if there are; and the results of minimal pairs."""
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
        if boundary_tokens := sum(row.boundary_tokens for row in rows):
            results["boundary_nats"] = math.fsum(row.boundary_nats for row in rows) / boundary_tokens
        if phrases := sum(row.phrases for row in rows):
            results["phrase_nats"] = math.fsum(row.phrase_nats for row in rows) / phrases
            results["phrase_accuracy"] = sum(row.correct_phrases for row in rows) / phrases
        return results | self.pair_results()


class BoundaryNats(NamedTuple):
    """-log p of each symbol that is predicted from the boundaries of its span, and its ``row``."""

    nats: Float[Tensor, " m"]
    row: Int[Tensor, " m"]


class MaskedOutput(NamedTuple):
    """symbols (n, v): log probabilities at the n positions whose symbol is predicted, row by row; relation (b, c):
    logits of the relations, or None; boundary: what is predicted from the boundaries of spans, or None; phrases: what
    is predicted of phrases that may have been replaced, or None."""

    symbols: Float[Tensor, "n v"]
    relation: Float[Tensor, "b c"] | None
    boundary: BoundaryNats | None = None
    phrases: Detected | None = None


class MaskedLM(Task):
    """Trains and measures a network that predicts hidden symbols."""

    config: MaskedLMConfig
    metric: MaskedMetric
    network: RowNetwork

    def __init__(
        self, config: MaskedLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, sees one side alone, or the data hide nothing."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        self.network = without_order(reader.build(data))
        rows = RowDescription.of(data, config.kind)
        self.relation_head = relation_head(model.dim, rows.relations) if rows.relations else None
        self.boundary_head = config.boundary_head(model.dim, self.network)
        self.detector = PhraseDetector(model.dim) if rows.phrases else None
        if self.training_config.compile:
            self.network.compile()
        self.metric = MaskedMetric(RowDescription.of(data, config.kind).rules)

    def training_step(self, batch: RowBatch, batch_index: int) -> dict[str, Any]:
        output = read_rows(self.network, batch)
        scored = batch.targets != IGNORED
        hidden = self.network.predict(output.hidden[scored])
        mean = token_mean(self.network.tokens.nll(hidden, batch.targets[scored]).sum(), scored)
        return self.training_output(mean, output.aux, self.added_loss(output, batch))

    def added_loss(self, output: ModelOutput, batch: RowBatch) -> Float[Tensor, ""] | None:
        """Returns the weighted losses of relations, from boundaries of spans, and of replaced phrases, each a mean of
        its own; None where there are none."""
        losses = []
        related, beside = self.related(output), self.from_boundaries(self.network, output, batch)
        phrases = self.detected(output, batch)
        if related is not None:
            relation = token_mean(relation_nats(related, batch.relation).sum(), batch.relation != IGNORED)
            losses.append(self.config.relation_weight * relation.loss)
        if beside is not None and self.config.span_boundary is not None:
            boundary = token_mean(beside.nats.sum(), torch.ones_like(beside.row, dtype=torch.bool))
            losses.append(self.config.span_boundary.weight * boundary.loss)
        if phrases is not None:
            told_apart = token_mean(phrases.nats.sum(), torch.ones_like(phrases.correct))
            losses.append(self.config.phrase_weight * told_apart.loss)
        return torch.stack(losses).sum() if losses else None

    def related(self, output: ModelOutput) -> Float[Tensor, "b c"] | None:
        """Returns the logits of the relations, or None where the data have none."""
        if self.relation_head is None:
            return None
        first = output.hidden[:, 0]
        return full_precision(self.relation_head(first.detach() if self.config.detach_relation else first))

    def from_boundaries(self, network: RowNetwork, output: ModelOutput, batch: RowBatch) -> BoundaryNats | None:
        """Predicts symbols from the boundaries of their spans; None where that is not asked for."""
        if self.boundary_head is None or self.config.span_boundary is None:
            return None
        spans = boundaries(batch.targets, self.config.span_boundary.longest)
        return BoundaryNats(network.tokens.nll(self.boundary_head(output.hidden, spans), spans.targets), spans.row)

    def detected(self, output: ModelOutput, batch: RowBatch) -> Detected | None:
        """Predicts which phrases were replaced; None where there are none, or it is not learned."""
        if self.detector is None or batch.phrases is None:
            return None
        return detected(self.detector, output.hidden, batch.phrases)

    def predicted(self, batch: RowBatch) -> MaskedOutput:
        """Returns the predictions of the network in evaluation."""
        evaluator = self.evaluator()
        output = read_rows(evaluator, batch)
        hidden = evaluator.predict(output.hidden[batch.targets != IGNORED])
        beside = self.from_boundaries(evaluator, output, batch)
        symbols = evaluator.tokens.log_probabilities(hidden)
        return MaskedOutput(symbols, self.related(output), beside, self.detected(output, batch))

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "n v"]:
        return self.predicted(batch).symbols

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        if batch.rule is None:
            self.metric.update(self.predicted(batch), batch)
        else:
            self.metric.update_pairs(self.pseudo_log_likelihood(batch), batch)

    def pseudo_log_likelihood(self, batch: RowBatch) -> Float[Tensor, " b"]:
        """Returns for each row the sum over its targets of log p(target), each behind [MASK] while all else is read
        (Salazar et al. 2020, arXiv:1910.14659, equation 2). A row is read once for each of its targets."""
        evaluator, mask = self.evaluator(), RowDescription.of(self.data, self.config.kind).mask
        rows, places = (batch.targets != IGNORED).nonzero(as_tuple=True)
        scores = torch.zeros(len(batch.targets), dtype=torch.float64, device=rows.device)
        for row, place in zip(rows.split(READ_AT_ONCE), places.split(READ_AT_ONCE), strict=True):
            inputs, here = batch.inputs[row], torch.arange(len(row), device=row.device)
            inputs[here, place] = mask
            masked = batch._replace(
                inputs=inputs,
                targets=batch.targets[row],
                padding_mask=batch.padding_mask[row],
                segments=batch.segments[row],
            )
            hidden = evaluator.predict(read_rows(evaluator, masked).hidden[here, place])
            targets = batch.targets[row, place]
            scores.index_add_(0, row, -evaluator.tokens.nll(hidden, targets).double())
        return scores


def two_sided(model: ModelConfig, task: str) -> RowModelConfig:
    """Returns the model. Raises ConfigError where it reads no whole rows, or a position sees one side alone; ``task``
    needs it."""
    reader = require(model, RowModelConfig, f"{task} trains")
    if not reader.first_sees_all:
        raise ConfigError(
            f"{model.kind} sees what stands before a hidden symbol alone; set model to an encoder that is not causal, "
            "or task to causal_lm or bilm",
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
    if batch.order is not None:
        return network.read_ordered(batch.inputs, batch.padding_mask, first, batch.segments, batch.order)
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
