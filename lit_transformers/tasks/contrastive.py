"""Contrastive pretraining: a row is matched with the n-gram that is hidden in it (InfoWord, arXiv:1910.08350)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, NonNegativeFloat, Positive, PositiveFloat
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.cost import ModelCost
from lit_transformers.models.model import ModelConfig
from lit_transformers.precision import full_precision
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.masked_lm import HIDDEN, MaskedLMConfig, read_rows, two_sided
from lit_transformers.tasks.pair_metric import refuse_pairs
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.ranks import joined_over_ranks, most_over_ranks


class ContrastiveConfig(TaskConfig, kind="contrastive"):
    """The first vector of a row, in which an n-gram is hidden, is compared with that of the n-gram, [CLS] n-gram [SEP],
    by the same network, and with those of the n-grams of the other rows of the batch, over all ranks (arXiv:1910.08350,
    section 4). Hidden symbols are predicted as well, in the same pass.

    The n-gram is the longest span that the data hide in a row, the first one of several: mask_spans or mask_ngrams
    serve as ``data.noise``, with ``unchanged`` and ``replaced`` at 0, so that it does not stand in the row.

    loss: info_nce, -log of the softmax over all n-grams (equation 2 there); binary_nce, the logistic loss of the own
    n-gram as real, and of each other one as noise (arXiv:1310.4546, equation 4). An n-gram of other rows that is the
    same is none of the others.
    temperature: the scores are divided by it. longest: symbols of an n-gram that are read, the first ones.
    masked_weight: of the loss of hidden symbols; the contrastive one counts 1.
    Compare evaluations of the same evaluation.batch_size of the data.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    loss: Literal["info_nce", "binary_nce"] = "info_nce"
    temperature: PositiveFloat = 1.0
    longest: Positive = 10
    masked_weight: NonNegativeFloat = 1.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Contrastive:
        return Contrastive(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of reading rows, with the predictions of hidden symbols where they count, and n-grams of the
        longest length; scores of pairs, which the number of rows decides, are left out."""
        rows = RowDescription.of(data, self.kind)
        masked = MaskedLMConfig().cost(model, without_heads(rows))
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = two_sided(model, self.kind).build(data)
        flops, parameters = network.flops(self.read(rows) + 2) - network.softmax_flops(self.read(rows) + 2), 0
        if not self.masked_weight:
            flops -= network.predict_flops(rows.predictions) + network.tokens.flops(rows.predictions)
            parameters = sum(p.numel() for p in network.prediction_only())
        return masked._replace(
            parameters=masked.parameters - parameters,
            flops_per_token=masked.flops_per_token + flops / data.length,
        )

    def read(self, rows: RowDescription) -> int:
        """Returns the symbols of the longest n-gram that is read, which no row is too short for."""
        return min(self.longest, rows.length - 2)

    def units(self, data: DataDescription) -> Mapping[str, str]:
        return {"nats": f"row by {self.loss}", "accuracy": "row", "masked_nats": HIDDEN}

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)

    def protocol(self) -> dict[str, Any]:
        return {"loss": self.loss, "longest": self.longest}


def without_heads(rows: RowDescription) -> RowDescription:
    """Returns the description of rows of which nothing is predicted but symbols."""
    return RowDescription(
        vocabulary=rows.vocabulary,
        length=rows.length,
        mask=rows.mask,
        separator=rows.separator,
        segments=rows.segments,
        predictions=rows.predictions,
    )


class Ngrams(NamedTuple):
    """The n-gram of each row: ``symbols`` (b, n), 0 after its last one, and the number of them, ``lengths`` (b,), 0
    where a row hides nothing."""

    symbols: Int[Tensor, "b n"]
    lengths: Int[Tensor, " b"]


def longest_spans(targets: Int[Tensor, "b t"], longest: int) -> Ngrams:
    """Returns the first of the longest runs of predicted symbols in each row, its first ``longest`` symbols."""
    position = torch.arange(targets.size(1), device=targets.device)
    is_hidden = targets != IGNORED
    before = torch.where(is_hidden, -1, position).cummax(dim=1).values
    run = torch.where(is_hidden, position - before, 0)
    lengths, stop = run.max(dim=1)
    places = (stop - lengths + 1)[:, None] + torch.arange(longest, device=targets.device)
    lengths = lengths.clamp(max=longest)
    symbols = targets.gather(1, places.clamp(max=targets.size(1) - 1))
    return Ngrams(symbols * (torch.arange(longest, device=targets.device) < lengths[:, None]), lengths)


class Contrasts(NamedTuple):
    """What each row says of n-grams: its loss, ``nats``, and whether its own has the highest score, ``correct``, 0 and
    False where it has none; which rows are ``scored``; all (b,). And -log p of hidden symbols, row by row, ``masked``
    (m,), and auxiliary losses by name."""

    nats: Float[Tensor, " b"]
    correct: Bool[Tensor, " b"]
    scored: Bool[Tensor, " b"]
    masked: Float[Tensor, " m"]
    aux: dict[str, Tensor]


class ContrastiveRow(NamedTuple):
    """One row: its ordinal, its contrastive loss, 1, bytes (0), 1 if its own n-gram had the highest score, and nats and
    number of its hidden symbols."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    masked_nats: float
    masked_tokens: int


class ContrastiveMetric(ExampleMetric):
    """The contrastive loss and accuracy of a row, and nats of a hidden symbol."""

    def row(self, document: int, sums: list[float]) -> ContrastiveRow:
        nats, tokens, correct, masked_nats, masked_tokens = sums
        return ContrastiveRow(document, nats, int(tokens), 0, int(correct), masked_nats, int(masked_tokens))

    def update(self, output: Contrasts, batch: RowBatch) -> None:
        """Adds the rows of a batch; those of padding do not count."""
        hidden = batch.targets != IGNORED
        masked = torch.zeros(hidden.shape, dtype=torch.float64, device=hidden.device)
        masked = masked.masked_scatter(hidden, output.masked.double())
        parts = (output.nats, output.scored, output.correct, masked.sum(dim=1), hidden.sum(dim=1))
        real = batch.padding_mask.any(dim=1)
        self.add(batch.example[real], torch.stack([part.double() for part in parts], dim=1)[real])

    def compute(self) -> dict[str, float]:
        """Returns nats and accuracy of rows, and masked_nats of hidden symbols."""
        rows = self.rows()
        count, hidden = len(rows), sum(row.masked_tokens for row in rows)
        if count == 0:
            return {}
        return {
            "nats": math.fsum(row.nats for row in rows) / count,
            "accuracy": sum(row.correct for row in rows) / count,
            "masked_nats": math.fsum(row.masked_nats for row in rows) / hidden,
        }


class Contrastive(Task):
    """Trains and measures a network by what is hidden in its rows, against what is hidden in others."""

    config: ContrastiveConfig
    network: RowNetwork
    data: RowDescription

    def __init__(
        self,
        config: ContrastiveConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or sees one side alone, or where rows are ordered, so that
        the first symbol may see no other."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        if self.data.ordered:
            raise ConfigError("the first symbol of a row has to see all of it; drop data.attention_masks", "task")
        refuse_pairs(self.data, config.kind)
        self.network = reader.build(data)
        self.longest = config.read(self.data)
        if not config.masked_weight:
            for parameter in self.network.prediction_only():
                parameter.requires_grad_(False)
        if self.training_config.compile:
            self.network.compile()
        self.metric = ContrastiveMetric()

    def training_step(self, batch: RowBatch, batch_index: int) -> dict[str, Any]:
        output = self.contrasts(self.network, batch)
        mean = token_mean(output.nats.sum(), output.scored)
        if not self.config.masked_weight:
            return self.training_output(mean, output.aux)
        masked = token_mean(output.masked.sum(), batch.targets != IGNORED)
        return self.training_output(mean, output.aux, self.config.masked_weight * masked.loss)

    def contrasts(self, network: RowNetwork, batch: RowBatch) -> Contrasts:
        """Compares rows with the n-grams of all ranks, and predicts hidden symbols."""
        ngrams = longest_spans(batch.targets, self.longest)
        rows = read_rows(network, batch)
        read = self.read_ngrams(network, ngrams)
        rank_parts = read.hidden[:, 0], ngrams.symbols, ngrams.lengths
        # A rank may have a row less than others in the last batch of an evaluation; rows of zeros hide nothing.
        count = len(batch.targets)
        missing = 0 if self.training else most_over_ranks(count, batch.targets.device) - count
        (vectors, first), (symbols, _), (lengths, _) = (
            joined_over_ranks(torch.cat([part, part.new_zeros(missing, *part.shape[1:])])) for part in rank_parts
        )
        own = first + torch.arange(len(batch.targets), device=vectors.device)
        is_own = torch.arange(len(vectors), device=vectors.device) == own[:, None]
        is_same = (symbols == ngrams.symbols[:, None]).all(dim=-1) & (lengths == ngrams.lengths[:, None])
        scores = full_precision(rows.hidden[:, 0] @ vectors.T) / self.config.temperature
        left_out = ((lengths == 0) | is_same) & ~is_own
        scored = (ngrams.lengths > 0) & batch.padding_mask.any(dim=1)
        nats = self.nats(scores, own, left_out).masked_fill(~scored, 0.0)
        best = scores.masked_fill(left_out, -torch.inf).argmax(dim=1)
        hidden = batch.targets != IGNORED
        masked = network.tokens.nll(network.predict(rows.hidden[hidden]), batch.targets[hidden])
        aux = {name: loss + read.aux.get(name, torch.zeros_like(loss)) for name, loss in rows.aux.items()}
        return Contrasts(nats, (best == own) & scored, scored, masked, aux)

    def nats(
        self, scores: Float[Tensor, "b n"], own: Int[Tensor, " b"], left_out: Bool[Tensor, "b n"]
    ) -> Float[Tensor, " b"]:
        """Returns the loss of each row, whose own n-gram is that at ``own``, without pairs that are left out."""
        if self.config.loss == "info_nce":
            return F.cross_entropy(scores.masked_fill(left_out, -torch.inf), own, reduction="none")
        real = F.one_hot(own, scores.size(1)).to(scores.dtype)
        pairs = F.binary_cross_entropy_with_logits(scores, real, reduction="none")
        return pairs.masked_fill(left_out, 0.0).sum(dim=1)

    def read_ngrams(self, network: RowNetwork, ngrams: Ngrams) -> Any:
        """Runs the network on [CLS] n-gram [SEP] of each row."""
        count, longest = ngrams.symbols.shape
        symbols = F.pad(ngrams.symbols, (1, 1), value=0)
        symbols[:, 0] = self.data.vocabulary.boundary
        symbols = symbols.scatter(1, ngrams.lengths[:, None] + 1, self.data.separator)
        position = torch.arange(longest + 2, device=symbols.device)
        padding_mask = position < ngrams.lengths[:, None] + 2
        return network.read_row(symbols, padding_mask, (position == 0).expand(count, -1))

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, " b"]:
        return self.contrasts(self.evaluator(), batch).nats

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        self.metric.update(self.contrasts(self.evaluator(), batch), batch)
