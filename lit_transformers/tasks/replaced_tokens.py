"""Replaced token detection (ELECTRA, Clark et al. 2020, arXiv:2003.10555), and what its table 5 compares it with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import Config, ConfigError, Plain, PositiveFloat
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig
from lit_transformers.precision import full_precision
from lit_transformers.tasks.counter_based import draw, random_numbers, uniform
from lit_transformers.tasks.masked_lm import HIDDEN, MaskedLMConfig, read_rows, two_sided, without_order
from lit_transformers.tasks.pair_metric import PairMetric, pair_units
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig

Predicts = Literal["replaced", "replaced_at_masks", "symbols", "symbols_at_masks"]


class SymbolGeneratorConfig(Config):
    """The network that fills hidden symbols, and how what it draws is made.

    width: the share of the model's dim and heads; None for all. A quarter to a half serves best (arXiv:2003.10555,
    section 3.2). overrides: of the model besides, as paths below it: {"depth": 3}. tie: which weights are those of the
    discriminator; "embeddings" are those of symbols, positions and segments. draws: from the generator's probabilities,
    or any symbol with the same probability.
    """

    overrides: dict[str, Plain] = field(default_factory=dict)
    tie: Literal["none", "embeddings", "all"] = "embeddings"
    draws: Literal["generator", "uniform"] = "generator"
    width: Annotated[float, Field(gt=0, le=1)] | None = None

    def conflicts(self) -> Iterator[str]:
        if self.tie == "all" and (self.overrides or self.width):
            yield (
                "a generator that is the discriminator cannot differ from it; drop overrides and width, "
                "or set tie: embeddings"
            )

    def model(self, discriminator: ModelConfig) -> ModelConfig:
        """Returns the config of the generator. Raises ConfigError where heads do not divide what width makes of dim."""
        narrow: dict[str, Plain] = {}
        if self.width:
            heads = max(round(self.width * discriminator.heads), 1)
            narrow = {"dim": round(self.width * discriminator.dim), "heads": heads}
        return discriminator.override(narrow | self.overrides)


class ReplacedTokensConfig(TaskConfig, kind="replaced_tokens"):
    """Hidden symbols are replaced by draws of a generator, and the network is trained beside it.

    predicts: whether each symbol was replaced (ELECTRA); the same at positions that were hidden alone ("ELECTRA 15%");
    the original symbol at these ("Replace MLM"); or that of all positions, from a softmax that is mixed with a copy of
    what is read ("All-Tokens MLM"; arXiv:2003.10555, section 3.4).
    weight: of the network's loss; the generator's counts 1. The paper has 50 for detection. Where symbols are
    predicted, 1 makes the losses alike.
    A draw that is the original symbol counts as original (section 2). Draws follow from the generator's probabilities,
    the ordinal of a row, what is hidden in it and the number of the update alone (``counter_based``), so that they are
    the same on all ranks; in evaluation, from the same numbers at every update.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    generator: SymbolGeneratorConfig = SymbolGeneratorConfig()
    predicts: Predicts = "replaced"
    weight: PositiveFloat = 50.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> ReplacedTokens:
        return ReplacedTokens(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of both networks in training, with all that they predict; shared weights count once."""
        rows = RowDescription.of(data, self.kind)
        network_cost = cost(two_sided(model, self.kind), data, data.length, continued=False)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            task = ReplacedTokens(self, model, data)
        generator = MaskedLMConfig().cost(self.generator.model(model), replace(rows, relations=0))
        scored = rows.predictions if self.predicts.endswith("at_masks") else rows.length
        predictions = 0 if self.predicts.startswith("replaced") else scored
        network = task.network
        flops = (
            network.predict_flops(predictions) + network.tokens.flops(predictions) - network.softmax_flops(rows.length)
        )
        if task.head is not None:
            flops += 2 * scored * sum(p.numel() for p in task.head.parameters() if p.dim() > 1)
        trained = {id(p): p.numel() for p in task.parameters() if p.requires_grad}
        generator_flops = 0.0 if task.generator is None else generator.flops_per_token
        return network_cost._replace(
            parameters=sum(trained.values()),
            flops_per_token=network_cost.flops_per_token + flops / rows.length + generator_flops,
        )

    def units(self, data: DataDescription) -> Mapping[str, str]:
        symbol = HIDDEN if self.predicts.endswith("at_masks") else "symbol"
        predicted = f"detected {symbol}" if self.predicts.startswith("replaced") else symbol
        units = dict.fromkeys(("discriminator_nats", "discriminator_accuracy"), predicted)
        units |= {"noticed": f"replaced {HIDDEN}"}
        if self.generator.draws == "generator":
            units |= dict.fromkeys(("generator_nats", "generator_accuracy"), HIDDEN)
        return units | pair_units(RowDescription.of(data, self.kind).rules, ReplacedMetric.pair_nats)

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)


class ReplacedRow(NamedTuple):
    """One row: its ordinal, nats of the network's predictions, their number, bytes (0), how many of them were right;
    the symbols that were replaced and how many of these were noticed; and nats, number and right ones of the symbols
    that the generator predicts."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    replaced: int
    noticed: int
    generator_nats: float
    generator_tokens: int
    generator_correct: int


class ReplacedMetric(PairMetric):
    """Nats and accuracy of the network's predictions, the share of replaced symbols that it notices, and the
    generator's nats and accuracy. Minimal pairs are judged by how likely it is that no symbol of a row was replaced."""

    pair_nats = "original_nats"

    def row(self, document: int, sums: list[float]) -> ReplacedRow:
        nats, tokens, correct, replaced, noticed, generator_nats, *generator = sums
        counts = (int(tokens), 0, int(correct), int(replaced), int(noticed))
        return ReplacedRow(document, nats, *counts, generator_nats, *(int(count) for count in generator))

    def update(self, output: ReplacedOutput, batch: RowBatch) -> None:
        """Adds the predictions of a batch; rows of padding do not count."""
        noticed = output.replaced & output.network.correct
        columns = (
            *output.network,
            output.replaced & output.network.scored,
            noticed,
            *output.generator,
        )
        real = batch.padding_mask.any(dim=1)
        sums = torch.stack([column.double().sum(dim=1) for column in columns], dim=1)
        self.add(batch.example[real], sums[real])

    def compute(self) -> dict[str, float]:
        """Returns discriminator_nats and discriminator_accuracy, "noticed" where something was replaced, and
        generator_nats and generator_accuracy where there is a generator; and the results of minimal pairs."""
        rows = self.rows()
        tokens, hidden = sum(row.tokens for row in rows), sum(row.generator_tokens for row in rows)
        if tokens == 0:
            return {}
        results = {
            "discriminator_nats": math.fsum(row.nats for row in rows) / tokens,
            "discriminator_accuracy": sum(row.correct for row in rows) / tokens,
        }
        if replaced := sum(row.replaced for row in rows):
            results["noticed"] = sum(row.noticed for row in rows) / replaced
        if hidden:
            results["generator_nats"] = math.fsum(row.generator_nats for row in rows) / hidden
            results["generator_accuracy"] = sum(row.generator_correct for row in rows) / hidden
        return results | self.pair_results()


class Predictions(NamedTuple):
    """What a network predicts of a batch, all (b, t): its nats where ``scored`` is True, else 0, and whether what it
    holds for most likely is right."""

    nats: Float[Tensor, "b t"]
    scored: Bool[Tensor, "b t"]
    correct: Bool[Tensor, "b t"]

    @classmethod
    def at(cls, scored: Bool[Tensor, "b t"], nats: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> Predictions:
        """Returns predictions of the n positions where ``scored`` is True, row by row."""
        none = torch.zeros_like(scored)
        return cls(none.to(nats.dtype).masked_scatter(scored, nats), scored, none.masked_scatter(scored, correct))

    @classmethod
    def of_symbols(
        cls, scored: Bool[Tensor, "b t"], log_probabilities: Float[Tensor, "n v"], symbols: Int[Tensor, " n"]
    ) -> Predictions:
        """Returns predictions of the symbols at the n positions where ``scored`` is True, row by row."""
        nats = -log_probabilities.gather(-1, symbols[:, None])[:, 0]
        return cls.at(scored, nats, log_probabilities.argmax(dim=-1) == symbols)


class ReplacedOutput(NamedTuple):
    """The predictions of the network and of the generator; where symbols were ``replaced`` (b, t); and the auxiliary
    losses of both by name."""

    network: Predictions
    generator: Predictions
    replaced: Bool[Tensor, "b t"]
    aux: dict[str, Tensor]


class Drawn(NamedTuple):
    """The rows with draws in place of hidden symbols, and what the generator predicts of these."""

    symbols: Int[Tensor, "b t"]
    predictions: Predictions
    aux: dict[str, Tensor]


class ReplacedTokens(Task):
    """Trains a generator and a network, its discriminator, together; the network is what is used afterwards."""

    config: ReplacedTokensConfig
    network: RowNetwork
    metric: ReplacedMetric

    def __init__(
        self,
        config: ReplacedTokensConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where a network cannot be built or sees one side alone, or weights cannot be shared."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        self.network = without_order(reader.build(data))
        self.generator = self.build_generator(config.generator)
        self.head = None if config.predicts == "symbols_at_masks" else detection_head(model.dim)
        if config.predicts.startswith("replaced"):
            generating = set() if self.generator is None else {id(p) for p in self.generator.parameters()}
            for parameter in self.network.prediction_only():
                parameter.requires_grad_(id(parameter) in generating)
        if self.training_config.compile:
            self.network.compile()
        self.metric = ReplacedMetric(RowDescription.of(data, config.kind).rules)

    def build_generator(self, config: SymbolGeneratorConfig) -> RowNetwork | None:
        """Builds the generator, which is the network itself where all weights are shared; None where any symbol is
        drawn. Raises ConfigError where embeddings cannot be shared."""
        if config.draws == "uniform":
            return None
        if config.tie == "all":
            return self.network
        generator = without_order(two_sided(config.model(self.model_config), self.config.kind).build(self.data))
        if config.tie == "embeddings":
            if self.training_config.strategy == "fsdp":
                raise ConfigError("fsdp cannot share weights between networks; set tie: none", "task.generator.tie")
            generator.share_embeddings(self.network)
        return generator

    def training_step(self, batch: RowBatch, batch_index: int) -> dict[str, Any]:
        output = self.predicted(self.network, batch, self.global_step)
        mean = token_mean(output.network.nats.sum(), output.network.scored)
        generator = token_mean(output.generator.nats.sum(), output.generator.scored)
        return self.training_output(mean._replace(loss=self.config.weight * mean.loss), output.aux, generator.loss)

    def predicted(self, network: RowNetwork, batch: RowBatch, step: int = 0) -> ReplacedOutput:
        """Replaces hidden symbols, and returns what is predicted of the rows that result. step: of the draws."""
        drawn, hidden = self.drawn(batch, step), batch.targets != IGNORED
        original = torch.where(hidden, batch.targets, batch.inputs)
        scored = hidden if self.config.predicts.endswith("at_masks") else batch.padding_mask
        predictions, aux = self.judged(network, batch._replace(inputs=drawn.symbols), original, scored)
        aux |= {f"generator_{name}": loss for name, loss in drawn.aux.items()}
        return ReplacedOutput(predictions, drawn.predictions, drawn.symbols != original, aux)

    def judged(
        self, network: RowNetwork, batch: RowBatch, original: Int[Tensor, "b t"], scored: Bool[Tensor, "b t"]
    ) -> tuple[Predictions, dict[str, Tensor]]:
        """Returns what is predicted at the scored positions of rows, whose original symbols are given, and the
        auxiliary losses of the network."""
        output = read_rows(network, batch)
        vectors = output.hidden[scored]
        if not self.config.predicts.startswith("replaced"):
            log_probabilities = self.log_probabilities(network, vectors, batch.inputs[scored])
            return Predictions.of_symbols(scored, log_probabilities, original[scored]), dict(output.aux)
        logits, targets = self.detection(vectors), (batch.inputs != original)[scored]
        nats = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return Predictions.at(scored, nats, (logits > 0) == targets), dict(output.aux)

    def drawn(self, batch: RowBatch, step: int = 0) -> Drawn:
        """Draws a symbol for every hidden one, without gradient, and measures the generator, if there is one."""
        hidden, targets = batch.targets != IGNORED, batch.targets[batch.targets != IGNORED]
        chance = uniform(random_numbers(batch.example, hidden, step)[hidden])
        if self.generator is None:
            draws = (chance * self.data.vocabulary.size).long()
            none = torch.zeros_like(hidden)
            return Drawn(batch.inputs.masked_scatter(hidden, draws), Predictions(none.float(), none, none), {})
        output = read_rows(self.generator, batch)
        log_probabilities = self.generator.tokens.log_probabilities(self.generator.predict(output.hidden[hidden]))
        predictions = Predictions.of_symbols(hidden, log_probabilities, targets)
        symbols = batch.inputs.masked_scatter(hidden, draw(log_probabilities, chance))
        return Drawn(symbols, predictions, output.aux)

    def detection(self, hidden: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Returns the logit that each symbol was replaced, or of "All-Tokens MLM", that it is copied."""
        assert self.head is not None
        return full_precision(self.head(hidden)).squeeze(-1)

    def log_probabilities(
        self, network: RowNetwork, hidden: Float[Tensor, "n d"], symbols: Int[Tensor, " n"]
    ) -> Float[Tensor, "n v"]:
        """Returns log probabilities of the original symbols: of the softmax, or of its mixture with a copy of what is
        read, which has the weight sigmoid(logit)."""
        from_softmax = network.tokens.log_probabilities(network.predict(hidden))
        if self.head is None:
            return from_softmax
        logits = self.detection(hidden)
        copied = (F.one_hot(symbols, from_softmax.size(-1)) * logits.sigmoid()[..., None]).clamp(min=1e-30).log()
        return torch.logaddexp(from_softmax + F.logsigmoid(-logits)[..., None], copied)

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "b t"]:
        return self.predicted(self.evaluator(), batch).network.nats

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        if batch.rule is None:
            self.metric.update(self.predicted(self.evaluator(), batch), batch)
        else:
            self.metric.update_pairs(self.log_likelihood_of_originals(batch), batch)

    def log_likelihood_of_originals(self, batch: RowBatch) -> Float[Tensor, " b"]:
        """Returns for each row the sum over its targets, which stand in it, of the log probability that they are the
        original symbols, all of which one pass reads."""
        predictions, _ = self.judged(self.evaluator(), batch, batch.inputs, batch.targets != IGNORED)
        return -predictions.nats.double().sum(dim=1)


def detection_head(dim: int) -> nn.Sequential:
    """Builds the discriminator's output: a map with GELU and a linear map to one logit, as in the authors' code."""
    return nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))
