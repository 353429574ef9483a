"""Language models of rows from left to right and from right to left (BiLM of ELMo, Peters et al. 2018,
arXiv:1802.05365, section 3.1), or from left to right alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, Plain
from lit_transformers.heads.head import Head, HeadConfig, Representation
from lit_transformers.heads.one_sided_symbols import (
    BackwardSymbols,
    OneSidedSymbols,
    OneSidedSymbolsConfig,
    Predicted,
    Represented,
)
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure
from lit_transformers.stacks.block import add_losses
from lit_transformers.tasks.masked_lm import MaskedLMConfig, read_rows
from lit_transformers.tasks.pair_metric import PairMetric, pair_measures
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig


class BiLMConfig(TaskConfig, kind="bilm"):
    """Every symbol of a row is predicted from those before it, and by a second network from those after it.

    directions: both: two networks of one config share the embeddings of symbols and the softmax, and nothing else; the
    loss is the sum of those of both, each the mean over its predictions. forward: the first network alone, a language
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

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        heads: dict[str, HeadConfig] = {"symbols": OneSidedSymbolsConfig()}
        return heads | ({"backward": OneSidedSymbolsConfig(backward=True)} if self.directions == "both" else {})

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        return super().measures(data) | pair_measures(RowDescription.of(data, self.kind).rules, BiLMMetric.pair_nats)

    def protocol(self) -> dict[str, Plain]:
        return {"directions": self.directions}


class BiLMMetric(PairMetric):
    """Nats and accuracy of a symbol in each direction, with the same columns for one direction and for both. Minimal
    pairs are judged by the log likelihood of a row, the sum of those of all directions."""

    pair_nats = "obeying_nats"

    def __init__(self, heads: Mapping[str, Head], rules: Sequence[str] = ()) -> None:
        super().__init__(heads, rules, {"backward": BackwardSymbols})


class BiLM(Task):
    """Trains and measures language models of rows, ``network`` from left to right and ``backward_network`` from right
    to left, if there is one. Both start from the same weights."""

    config: BiLMConfig
    metric: BiLMMetric
    network: RowNetwork
    data: RowDescription
    parts: ClassVar[tuple[str, ...]] = ("forward", "backward")

    def __init__(
        self, config: BiLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built or sees the symbols that it is to predict, where rows are
        not read as they are, or where weights cannot be shared."""
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
        self.add_heads(lambda heads: BiLMMetric(heads, self.data.rules))

    def networks(self) -> list[Network]:
        return [self.network, *([] if self.backward_network is None else [self.backward_network])]

    def other_flops(self, length: int) -> float:
        """Returns those of the second network."""
        network = self.backward_network
        return 0 if network is None else network.flops(length) - network.softmax_flops(length)

    def training_reading(self, batch: RowBatch) -> Representation:
        return self.read(self.network, batch, with_nats=True)

    def read(self, network: RowNetwork, batch: RowBatch, with_nats: bool = False) -> Representation:
        """Runs the network of each direction on rows as it reads them. The parts of the reading are the representations
        of the symbols, by direction."""
        parts, hidden, aux = {}, [], dict[str, Tensor]()
        for reader, head in zip((network, self.backward_network), self.directed(), strict=False):
            assert reader is not None
            rows = head.rows(batch)
            output = read_rows(reader, rows)
            targets = rows.targets[:, 1:]
            positions = PredictedPositions.of(targets != IGNORED)
            vectors, symbols = reader.predict(positions.of_rows(output.hidden[:, :-1])), positions.of_rows(targets)
            nats = reader.tokens.nll(vectors, symbols) if with_nats else None
            parts[head.direction] = Represented(reader, vectors, symbols, positions, nats)
            hidden.append(output.hidden)
            aux = add_losses(aux, output.aux)
        return Representation(network, hidden[0], aux=aux, parts=parts)

    def directed(self) -> list[OneSidedSymbols]:
        """Returns the heads of the directions, each of which has its own network."""
        names = ("symbols",) if self.backward_network is None else ("symbols", "backward")
        return [cast("OneSidedSymbols", self.heads[name]) for name in names]

    def predicted(self, batch: RowBatch) -> list[Predicted]:
        """Returns the predictions of each direction in evaluation."""
        reading = self.evaluation_reading(batch)
        return [head.predicted(reading) for head in self.directed()]

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, " n"]:
        return torch.cat([direction.positions.scored_alone(direction.nats) for direction in self.predicted(batch)])

    def validation_step(self, batch: RowBatch, batch_index: int) -> None:
        if batch.rule is None:
            super().validation_step(batch, batch_index)
            return
        scores = torch.zeros(len(batch.inputs), dtype=torch.float64, device=batch.inputs.device)
        for direction in self.predicted(batch):
            scores = scores.index_add(0, direction.positions.row, -direction.nats.double())
        self.metric.update_pairs(scores, batch)


def one_sided(model: ModelConfig, task: str) -> RowModelConfig:
    """Returns the model. Raises ConfigError where it reads no whole rows, or a position sees both sides; ``task`` needs
    a model whose positions see only the symbols before them."""
    reader = require(model, RowModelConfig, f"{task} trains")
    if reader.first_sees_all:
        raise ConfigError(
            f"{model.kind} sees the symbols that {task} predicts; set model.causal: true of an encoder, "
            "or model to language_model",
            "model",
        )
    return reader
