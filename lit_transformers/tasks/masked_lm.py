"""Masked language modelling, alone or with the relation of two segments (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription, needed_mask
from lit_transformers.config import ConfigError, PositiveFloat
from lit_transformers.heads.head import Head, HeadConfig, Representation
from lit_transformers.heads.hidden_symbols import HiddenSymbols, HiddenSymbolsConfig, hidden_positions
from lit_transformers.heads.phrase_detection import ReplacedPhrases, ReplacedPhrasesConfig
from lit_transformers.heads.relation import Relation, RelationConfig
from lit_transformers.heads.span_boundary import SpanBoundary, SpanBoundaryConfig
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.records.measure import Measure
from lit_transformers.tasks.pair_metric import PairMetric, pair_measures
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig

READ_AT_ONCE = 256
"""The most rows of a pass that computes pseudo-log-likelihoods."""


class MaskedLMConfig(TaskConfig, kind="masked_lm"):
    """The symbols that the data hide are predicted from those on both sides. Only their positions reach the softmax.

    Where the data ask for the relation of two segments (``data.relation``), it is predicted from the first vector of a
    row through a map with tanh, the pooler of BERT's code. relation_weight: of that loss; the loss of symbols counts 1.
    detach_relation: whether that loss trains the pooler and its output alone, so that they read representations that
    the network has learned from the loss of symbols.
    span_boundary: whether symbols are also predicted from the vectors next to their span; None: they are not.
    Where the data replace phrases (``data.noise.kind=replace_phrases``), the task also predicts of each whether it
    was replaced, from the vectors next to it. phrase_weight: of that loss.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    relation_weight: PositiveFloat = 1.0
    detach_relation: bool = False
    span_boundary: SpanBoundaryConfig | None = None
    phrase_weight: PositiveFloat = 1.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MaskedLM:
        return MaskedLM(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        rows = RowDescription.of(data, self.kind)
        heads: dict[str, HeadConfig] = {"symbols": HiddenSymbolsConfig()}
        if rows.relations:
            heads["relation"] = RelationConfig(weight=self.relation_weight, detach=self.detach_relation)
        if self.span_boundary is not None:
            heads["boundary"] = self.span_boundary
        if rows.phrases:
            heads["phrase"] = ReplacedPhrasesConfig(weight=self.phrase_weight)
        return heads

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        return super().measures(data) | pair_measures(RowDescription.of(data, self.kind).rules, MaskedMetric.pair_nats)

    def random_batch(self, data: DataDescription) -> RowBatch:
        """Returns two random rows of one or two segments, with a third of their symbols to be predicted."""
        rows = RowDescription.of(data, self.kind)
        special = (data.vocabulary.boundary, rows.separator, rows.mask)
        ordinary = torch.tensor([symbol for symbol in range(data.vocabulary.size) if symbol not in special])
        symbols = ordinary[torch.randint(len(ordinary), (2, data.length))]
        middle = data.length // 2
        symbols[:, 0], symbols[:, -1] = data.vocabulary.boundary, rows.separator
        if rows.segments == 2:
            symbols[:, middle] = rows.separator
        position = torch.arange(data.length)
        hidden = (position % 3 == 1) & (position != middle) & (position < data.length - 1)
        segments = (position > middle).long() * (rows.segments - 1)
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
            most_targets=int(hidden.sum()),
            padded=False,
        )


class MaskedMetric(PairMetric):
    """The measures of heads on rows. The columns are the same for every choice of heads. Minimal pairs are judged by
    the pseudo-log-likelihood of a row."""

    pair_nats = "pseudo_nats"

    def __init__(self, heads: Mapping[str, Head], rules: Sequence[str] = ()) -> None:
        super().__init__(heads, rules, {"relation": Relation, "boundary": SpanBoundary, "phrase": ReplacedPhrases})


class MaskedLM(Task):
    """Trains and measures a network that predicts hidden symbols."""

    config: MaskedLMConfig
    metric: MaskedMetric
    network: RowNetwork
    former_names: ClassVar[Mapping[str, str]] = {
        "relation_head.": "heads.relation.map.",
        "boundary_head.": "heads.boundary.",
        "detector.": "heads.phrase.map.",
    }

    def __init__(
        self, config: MaskedLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, sees one side alone, or the data hide nothing."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        self.network = without_order(reader.build(data))
        rules = RowDescription.of(data, config.kind).rules
        self.add_heads(lambda heads: MaskedMetric(heads, rules))

    def read(self, network: RowNetwork, batch: RowBatch) -> Representation:
        output = read_rows(network, batch)
        return Representation(network, output.hidden, aux=output.aux)

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "n v"]:
        positions = hidden_positions(batch)
        return positions.scored_alone(self.symbols.log_probabilities(self.evaluation_reading(batch), positions))

    @property
    def symbols(self) -> HiddenSymbols:
        """The head that predicts hidden symbols."""
        return cast("HiddenSymbols", self.heads["symbols"])

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        if batch.rule is None:
            super().validation_step(batch, batch_index)
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
            f"{model.kind} sees only the symbols before a hidden one; set model to an encoder that is not causal, "
            "or task to causal_lm or bilm",
            "model",
        )
    return reader


def without_order(network: RowNetwork) -> RowNetwork:
    """Returns the network, in which weights that only predictions in an order of the row use are not trained."""
    for parameter in network.order_only():
        parameter.requires_grad_(False)
    return network


def read_rows(network: RowNetwork, batch: RowBatch) -> ModelOutput:
    """Runs a network on the rows of a batch, whose first symbols are marked for patterns that single such ones out."""
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = batch.padding_mask[:, 0]
    if batch.order is not None:
        return network.read_ordered(batch.inputs, needed_mask(batch), first, batch.segments, batch.order)
    return network.read_row(batch.inputs, needed_mask(batch), first, batch.segments)
