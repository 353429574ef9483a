"""Replaced token detection (ELECTRA, Clark et al. 2020, arXiv:2003.10555), and the alternatives in its table 5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, ClassVar, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import Config, ConfigError, Plain, PositiveFloat
from lit_transformers.heads.head import Head, HeadConfig, Representation
from lit_transformers.heads.hidden_symbols import hidden_positions
from lit_transformers.heads.replaced_symbols import (
    DrawnSymbols,
    DrawnSymbolsConfig,
    Predictions,
    Predicts,
    ReplacedSymbols,
    ReplacedSymbolsConfig,
)
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure
from lit_transformers.tasks.counter_based import draw, random_numbers, uniform
from lit_transformers.tasks.masked_lm import MaskedLMConfig, read_rows, two_sided, without_order
from lit_transformers.tasks.pair_metric import PairMetric, pair_measures
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig


class SymbolGeneratorConfig(Config):
    """The network that fills hidden symbols, and how it draws them.

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
        """Returns the config of the generator. Raises ConfigError where its heads do not divide its dim."""
        narrow: dict[str, Plain] = {}
        if self.width:
            heads = max(round(self.width * discriminator.heads), 1)
            narrow = {"dim": round(self.width * discriminator.dim), "heads": heads}
        return discriminator.override(narrow | self.overrides)


class ReplacedTokensConfig(TaskConfig, kind="replaced_tokens"):
    """Hidden symbols are replaced by draws of a generator, and the network is trained together with it.

    predicts: whether each symbol was replaced (ELECTRA); the same at positions that were hidden alone ("ELECTRA 15%");
    the original symbol at these ("Replace MLM"); or that of all positions, from a softmax that is mixed with a copy of
    the symbol that is read ("All-Tokens MLM"; arXiv:2003.10555, section 3.4).
    weight: of the network's loss; the generator's counts 1. The paper has 50 for detection. Where symbols are
    predicted, 1 makes the losses alike.
    A draw that is the original symbol counts as original (section 2). Draws follow from the generator's probabilities,
    the ordinal of a row, the symbols hidden in it and the number of the update alone (``counter_based``), so that they
    are the same on all ranks; in evaluation, from the same numbers at every update.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    generator: SymbolGeneratorConfig = SymbolGeneratorConfig()
    predicts: Predicts = "replaced"
    weight: PositiveFloat = 50.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> ReplacedTokens:
        return ReplacedTokens(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        heads: dict[str, HeadConfig] = {}
        heads["discriminator"] = ReplacedSymbolsConfig(weight=self.weight, predicts=self.predicts)
        return heads | ({"generator": DrawnSymbolsConfig()} if self.generator.draws == "generator" else {})

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        return super().measures(data) | pair_measures(
            RowDescription.of(data, self.kind).rules, ReplacedMetric.pair_nats
        )

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)


class ReplacedMetric(PairMetric):
    """The measures of heads on rows, with the same columns with and without a generator. Minimal pairs are judged by
    the likelihood that no symbol of a row was replaced."""

    pair_nats = "original_nats"

    def __init__(self, heads: Mapping[str, Head], rules: Sequence[str] = ()) -> None:
        super().__init__(heads, rules, {"generator": DrawnSymbols})


class Drawn(NamedTuple):
    """The rows with draws in place of hidden symbols, the generator's predictions of these symbols, and its auxiliary
    losses by name."""

    symbols: Int[Tensor, "b t"]
    predictions: Predictions | None
    aux: dict[str, Tensor]


class ReplacedTokens(Task):
    """Trains a generator and a network, its discriminator, together; the network is used afterwards."""

    config: ReplacedTokensConfig
    network: RowNetwork
    metric: ReplacedMetric
    parts: ClassVar[tuple[str, ...]] = ("drawn", "original", "generator")
    former_names: ClassVar[Mapping[str, str]] = {"head.": "heads.discriminator.map."}

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
        if config.predicts.startswith("replaced"):
            generating = set() if self.generator is None else {id(p) for p in self.generator.parameters()}
            for parameter in self.network.prediction_only():
                parameter.requires_grad_(id(parameter) in generating)
        rules = RowDescription.of(data, config.kind).rules
        self.add_heads(lambda heads: ReplacedMetric(heads, rules))

    def networks(self) -> list[Network]:
        return [self.network, *([] if self.generator in (None, self.network) else [self.generator])]

    def unused(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if not parameter.requires_grad]

    def other_flops(self, length: int) -> float:
        """Returns the FLOPs of the generator and of its predictions."""
        generator = self.generator
        if generator is None:
            return 0
        predictions = RowDescription.of(self.data, self.config.kind).predictions
        predicted = generator.predict_flops(predictions) + generator.tokens.flops(predictions)
        return generator.flops(length) - generator.softmax_flops(length) + predicted

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

    def training_reading(self, batch: RowBatch) -> Representation:
        return self.read(self.network, batch, self.global_step)

    def read(self, network: RowNetwork, batch: RowBatch, step: int = 0) -> Representation:
        """Replaces hidden symbols, and runs the network on the rows that result. step: of the draws."""
        drawn, hidden = self.drawn(batch, step), batch.targets != IGNORED
        original = torch.where(hidden, batch.targets, batch.inputs)
        reading = self.judged(network, batch._replace(inputs=drawn.symbols), original)
        aux = {**reading.aux, **{f"generator_{name}": loss for name, loss in drawn.aux.items()}}
        return reading._replace(aux=aux, parts={**reading.parts, "generator": drawn.predictions})

    def judged(self, network: RowNetwork, batch: RowBatch, original: Int[Tensor, "b t"]) -> Representation:
        """Runs the network on rows whose original symbols are given."""
        output = read_rows(network, batch)
        parts = {"drawn": batch.inputs, "original": original}
        return Representation(network, output.hidden, aux=output.aux, parts=parts)

    def drawn(self, batch: RowBatch, step: int = 0) -> Drawn:
        """Draws a symbol for every hidden one, without gradient, and measures the generator, if there is one."""
        hidden, positions = batch.targets != IGNORED, hidden_positions(batch)
        chance = uniform(positions.of_rows(random_numbers(batch.example, hidden, step)))
        if self.generator is None:
            draws = (chance * self.data.vocabulary.size).long()
            return Drawn(torch.where(hidden, positions.in_rows(draws), batch.inputs), None, {})
        output, tokens = read_rows(self.generator, batch), self.generator.tokens
        log_probabilities = tokens.log_probabilities(self.generator.predict(positions.of_rows(output.hidden)))
        predictions = Predictions.of_symbols(positions, log_probabilities, positions.of_rows(batch.targets))
        symbols = torch.where(hidden, positions.in_rows(draw(log_probabilities, chance)), batch.inputs)
        return Drawn(symbols, predictions, output.aux)

    @property
    def discriminator(self) -> ReplacedSymbols:
        """The head that judges rows."""
        return cast("ReplacedSymbols", self.heads["discriminator"])

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "b t"]:
        head = self.discriminator
        return head.predictions(self.evaluation_reading(batch), head.at(batch)).nats

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        if batch.rule is None:
            super().validation_step(batch, batch_index)
        else:
            self.metric.update_pairs(self.log_likelihood_of_originals(batch), batch)

    def log_likelihood_of_originals(self, batch: RowBatch) -> Float[Tensor, " b"]:
        """Returns for each row the sum over its targets, which stand in it, of the log probability that they are the
        original symbols, all of which one pass reads."""
        reading = self.judged(self.evaluator(), batch, batch.inputs)
        return -self.discriminator.predictions(reading, hidden_positions(batch)).nats.double().sum(dim=1)
