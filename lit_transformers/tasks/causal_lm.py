"""Language modelling from left to right, over segments with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, LanguageDescription, TextBatch
from lit_transformers.config import PositiveFloat
from lit_transformers.mixer import detach, empty_rows, join_rows, map_state, take_rows
from lit_transformers.models.capabilities import CausalModelConfig, CausalNetwork, require
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.precision import full_precision
from lit_transformers.tasks.language_metric import LanguageMetric
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.ranks import from_all_ranks


class CausalLMConfig(TaskConfig, kind="causal_lm"):
    """Every symbol of a text is predicted from those before it.

    loss: over every position; over the second half of each segment (arXiv:1901.02860, table 6, "half"); or at the last
    position alone, which is arXiv:1808.04444 without its multiple positions.
    intermediate: whether every layer predicts; layer l of N until l / 2N of training (arXiv:1808.04444, section 3.2).
    future: weights of the losses of targets further ahead, each with its own softmax; (0.5,) is the paper's
    next-but-one character (section 3.4).
    None of the added losses enters a reported number.
    """

    reads: ClassVar[type[DataDescription]] = LanguageDescription

    loss: Literal["full", "half", "last"] = "full"
    intermediate: bool = False
    future: tuple[PositiveFloat, ...] = ()

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> CausalLM:
        return CausalLM(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        return cost(model, data, data.length)

    def units(self, data: DataDescription) -> Mapping[str, str]:
        per_byte = {} if data.vocabulary.byte_lengths is None else {"bpb": "byte"}
        return {"nats": "symbol", "perplexity": "symbol"} | per_byte

    def random_batch(self, data: DataDescription) -> TextBatch:
        """Returns two lanes of random symbols in which no document begins or ends."""
        text = torch.randint(1, data.vocabulary.size, (2, data.length + 1))
        real = torch.ones(2, data.length, dtype=torch.bool)
        document, fresh = torch.zeros(2, data.length, dtype=torch.long), torch.zeros(2, dtype=torch.bool)
        return TextBatch(text[:, :-1], text[:, 1:], real, document, fresh, None)


class CausalLM(Task):
    """Trains and measures a language model.

    The state of the lanes, without gradient, is emptied in rows where a document starts. Validation begins with an
    empty state and does not change that of training. A checkpoint holds the state of the lanes of all ranks.
    """

    config: CausalLMConfig
    network: CausalNetwork

    def __init__(
        self, config: CausalLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, or the data are of another kind."""
        super().__init__(config, model, data, training)
        self.network = require(model, CausalModelConfig, "causal_lm trains").build(data)
        self.future = nn.ModuleList(nn.Linear(model.dim, data.vocabulary.size) for _ in config.future)
        if self.training_config.compile:
            self.network.compile()
        lengths = data.vocabulary.byte_lengths
        self.metric = LanguageMetric(None if lengths is None else torch.tensor(lengths))
        self.state: Any = None
        self.loaded_state: Any = None
        self.evaluation_state: Any = None
        self.evaluation_lanes: Tensor | None = None

    def forward(self, symbols: Int[Tensor, "b t"], state: Any = None) -> ModelOutput:
        output: ModelOutput = self.network(symbols, state)
        return output

    def training_step(self, batch: TextBatch, batch_index: int) -> dict[str, Any]:
        targets = self.counted_targets(batch.targets)
        output, self.state = self.read(self.network, self.state, batch, keep_layers=self.config.intermediate)
        total = self.network.tokens.nll(output.hidden, targets).sum()
        mean = token_mean(total, targets != IGNORED)
        return self.training_output(mean, output.aux, self.auxiliary_losses(output, batch, targets) / mean.targets)

    def counted_targets(self, targets: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """Returns the targets, IGNORED where this loss does not count them."""
        match self.config.loss:
            case "full":
                return targets
            case "half":
                return torch.cat(
                    [torch.full_like(targets, IGNORED)[:, : targets.size(1) // 2], targets[:, targets.size(1) // 2 :]],
                    dim=1,
                )
            case "last":
                is_real = (targets != IGNORED).long()
                return targets.masked_fill(
                    (is_real.cumsum(1) != is_real.sum(1, keepdim=True)) | (is_real == 0), IGNORED
                )

    def auxiliary_losses(self, output: ModelOutput, batch: TextBatch, targets: Int[Tensor, "b t"]) -> Tensor:
        """Returns the sum of the auxiliary losses of arXiv:1808.04444."""
        total = output.hidden.new_zeros((), dtype=torch.float32)
        progress = self.global_step / self.training_config.steps
        depth = len(output.layers) + 1
        for layer, hidden in enumerate(output.layers, start=1):
            if progress < layer / (2 * depth):
                total = total + self.network.tokens.nll(self.network.read_layer(hidden), targets).sum()
        for steps, (head, weight) in enumerate(zip(self.future, self.config.future, strict=True), start=1):
            logits = full_precision(head(output.hidden[:, :-steps])).flatten(0, 1)
            future_targets = self.future_targets(batch, targets, steps)
            total = total + weight * F.cross_entropy(
                logits, future_targets.flatten(), ignore_index=IGNORED, reduction="sum"
            )
        return total

    def future_targets(self, batch: TextBatch, targets: Int[Tensor, "b t"], steps: int) -> Int[Tensor, "b s"]:
        """Returns targets ``steps`` further ahead, IGNORED where they are of another document or are not counted."""
        same = batch.document[:, steps:] == batch.document[:, :-steps]
        return torch.where(same & (targets[:, :-steps] != IGNORED), batch.targets[:, steps:], IGNORED)

    def read(
        self, network: nn.Module, state: Any, batch: TextBatch, keep_layers: bool = False
    ) -> tuple[ModelOutput, Any]:
        """Runs the network on one segment of the lanes. Returns its output and the state of the lanes after it."""
        if state is not None:
            state = empty_rows(state, batch.fresh)
        output: ModelOutput = network(batch.inputs, state, batch.padding_mask, keep_layers)
        return output, detach(output.state)

    def begin_evaluation(self) -> None:
        self.evaluation_state = self.evaluation_lanes = None

    def evaluation_output(self, batch: TextBatch) -> Float[Tensor, "b t d"]:
        output, self.evaluation_state = self.read(self.evaluator(), self.evaluation_state, batch)
        return output.hidden

    def of_open_lanes(self, batch: TextBatch) -> TextBatch:
        """Returns the rows of a batch whose lanes have not ended, and takes those that have out of the state: nothing
        follows the padding of a whole row. A device would have to be waited for, so all rows stay; so do those of a
        batch of padding, which a rank reads that has no document left."""
        if batch.padding_mask.device.type != "cpu":
            return batch
        lanes = batch.padding_mask.any(dim=1).nonzero().squeeze(1)
        before = torch.arange(batch.padding_mask.size(0)) if self.evaluation_lanes is None else self.evaluation_lanes
        lanes = self.evaluation_lanes = lanes if len(lanes) else before
        if self.evaluation_state is not None and len(lanes) < len(before):
            self.evaluation_state = take_rows(self.evaluation_state, torch.searchsorted(before, lanes))
        inputs, targets, padding_mask, document, fresh = (part[lanes] for part in batch[:5])
        return TextBatch(inputs, targets, padding_mask, document, fresh, batch.cursor)

    def validation_step(self, batch: TextBatch, batch_index: int) -> None:
        batch = self.of_open_lanes(batch)
        nats = self.evaluator().tokens.nll(self.evaluation_output(batch), batch.targets)
        self.metric.update(nats, batch.targets, batch.document)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["state"] = join_rows(from_all_ranks(map_state(Tensor.cpu, self.state)))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.loaded_state = checkpoint["state"]

    def on_train_start(self) -> None:
        """Takes the state of this rank's lanes out of the checkpoint's; the device of the network is known only now."""
        ranks = slice(self.trainer.global_rank, None, self.trainer.world_size)
        if self.loaded_state is not None:
            self.state = map_state(lambda part: part[ranks].to(self.device), self.loaded_state)
            self.loaded_state = None
