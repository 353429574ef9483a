"""Language modelling from left to right, over segments with memory."""

from __future__ import annotations

import time
from dataclasses import field
from typing import Any, Literal

import lightning as L
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, TextBatch, Vocabulary
from lit_transformers.config import Config, ConfigError, Plain, PositiveFloat
from lit_transformers.mixer import detach, empty_rows, full_precision, map_state
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig, Read
from lit_transformers.ranks import from_all_ranks, mean_over_ranks
from lit_transformers.tasks.language_metric import LanguageMetric
from lit_transformers.training import TrainingConfig


class CausalLMConfig(Config):
    """The objective, and how its result is measured.

    loss: of every position; of the second half of each segment (arXiv:1901.02860, table 6, "half"); or of the last one
    alone, which is arXiv:1808.04444 without its multiple positions.
    intermediate: every layer predicts too; layer l of N stops after l / 2N of training (arXiv:1808.04444, section 3.2).
    future: weights of the losses of targets further ahead, each from a softmax of its own; (0.5,) is the paper's
    next-but-one character (section 3.4).
    evaluation: what differs in the model when it is measured, as paths below model: {"mixer.memory": 640}.
    None of the added losses enters a reported number.
    """

    loss: Literal["full", "half", "last"] = "full"
    intermediate: bool = False
    future: tuple[PositiveFloat, ...] = ()
    evaluation: dict[str, Plain] = field(default_factory=dict)


class CausalLM(L.LightningModule):
    """Trains and measures a language model.

    Each stream of lanes has a state of its own, without gradient, emptied in the rows where a document starts.
    Validation begins with empty states and leaves those of training alone.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocabulary: Vocabulary,
        max_length: int,
        task: CausalLMConfig | None = None,
        training: TrainingConfig | None = None,
    ) -> None:
        """max_length: length of a training segment. Raises ConfigError where the model cannot be built."""
        super().__init__()
        self.config, self.training_config = task or CausalLMConfig(), training or TrainingConfig()
        if not isinstance(model, LanguageModelConfig):
            raise ConfigError(f"causal_lm trains a language_model, not a {model.kind}", "model")
        self.model_config, self.vocabulary, self.max_length = model, vocabulary, max_length
        self.network = model.build(vocabulary.size, max_length)
        self.future = nn.ModuleList(nn.Linear(model.dim, vocabulary.size) for _ in self.config.future)
        if self.training_config.compile:
            self.network.compile()
        lengths = None if vocabulary.byte_lengths is None else torch.tensor(vocabulary.byte_lengths)
        self.metric = LanguageMetric(lengths)
        self.states: dict[int, Any] = {}
        self.kept_states: list[dict[int, Any]] = []
        self.evaluation_states: dict[int, Any] = {}
        self.evaluation_seconds = self._evaluation_began = 0.0
        self._evaluator: tuple[LanguageModel, ...] = ()  # in a tuple: its parameters are the network's own

    def forward(self, symbols: Int[Tensor, "b t"], state: Any = None) -> Read:
        read: Read = self.network(symbols, state)
        return read

    def training_step(self, batch: TextBatch, batch_index: int) -> dict[str, Tensor]:
        wanted = self.wanted(batch.targets)
        read = self.read(self.network, self.states, batch, keep_layers=self.config.intermediate)
        total = self.network.tokens.nats(read.hidden, wanted).sum()
        # DDP averages gradients, so a rank divides its sum by the mean count: together, the mean over all tokens.
        mean_total, count = mean_over_ranks(torch.stack([total, (wanted != IGNORED).sum().to(total.dtype)]))
        count = count.clamp(min=1)
        added = sum(read.aux.values(), start=self.added(read, batch, wanted) / count)
        return {"loss": total / count + added, "nats": mean_total / count}

    def wanted(self, targets: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """The targets that this loss counts."""
        match self.config.loss:
            case "full":
                return targets
            case "half":
                return torch.cat(
                    [torch.full_like(targets, IGNORED)[:, : targets.size(1) // 2], targets[:, targets.size(1) // 2 :]],
                    dim=1,
                )
            case "last":
                real = (targets != IGNORED).long()
                return targets.masked_fill((real.cumsum(1) != real.sum(1, keepdim=True)) | (real == 0), IGNORED)

    def added(self, read: Read, batch: TextBatch, wanted: Int[Tensor, "b t"]) -> Tensor:
        """The sum of the auxiliary losses of arXiv:1808.04444."""
        total = read.hidden.new_zeros((), dtype=torch.float32)
        progress = self.global_step / self.training_config.steps
        depth = len(read.layers) + 1
        for layer, hidden in enumerate(read.layers, start=1):
            if progress < layer / (2 * depth):
                total = total + self.network.tokens.nats(self.network.read_layer(hidden), wanted).sum()
        for steps, (head, weight) in enumerate(zip(self.future, self.config.future, strict=True), start=1):
            logits = full_precision(head(read.hidden[:, :-steps])).flatten(0, 1)
            further = self.further(batch, wanted, steps)
            total = total + weight * F.cross_entropy(logits, further.flatten(), ignore_index=IGNORED, reduction="sum")
        return total

    def further(self, batch: TextBatch, wanted: Int[Tensor, "b t"], steps: int) -> Int[Tensor, "b s"]:
        """Targets ``steps`` further ahead, where they belong to the same document."""
        same = batch.document[:, steps:] == batch.document[:, :-steps]
        return torch.where(same & (wanted[:, :-steps] != IGNORED), batch.targets[:, steps:], IGNORED)

    def read(self, network: nn.Module, states: dict[int, Any], batch: TextBatch, keep_layers: bool = False) -> Read:
        """One segment of a stream, with its state carried on."""
        state = states.get(batch.stream)
        if state is not None:
            state = empty_rows(state, batch.fresh)
        read: Read = network(batch.inputs, state, batch.keep, keep_layers)
        states[batch.stream] = detach(read.state)
        return read

    def on_validation_epoch_start(self) -> None:
        self.evaluation_states = {}
        self.metric.reset()
        self._evaluation_began = time.perf_counter()

    def validation_step(self, batch: TextBatch, batch_index: int) -> None:
        evaluator = self.evaluator()
        nats = evaluator.tokens.nats(self.read(evaluator, self.evaluation_states, batch).hidden, batch.targets)
        self.metric.update(nats, batch.targets, batch.document)

    def on_validation_epoch_end(self) -> None:
        self._end_evaluation("val")

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        self._end_evaluation("test")

    def _end_evaluation(self, name: str) -> None:
        self.evaluation_states = {}
        found = self.metric.compute()  # reads the sums, so a device is through with its work
        self.evaluation_seconds = time.perf_counter() - self._evaluation_began
        self.log_dict({f"{name}/{key}": value for key, value in found.items()}, rank_zero_only=True)

    def evaluator(self) -> LanguageModel:
        """The network as it is measured: with the same parameters, and what ``evaluation`` changes."""
        if not self.config.evaluation:
            return self.network
        if not self._evaluator:
            with torch.random.fork_rng(devices=[]), self.device:
                changed = self.model_config.override(self.config.evaluation)
                network = changed.build(self.vocabulary.size, self.max_length)
            network.load_state_dict(self.network.state_dict(keep_vars=True), assign=True)
            self._evaluator = (network.eval(),)
        return self._evaluator[0]

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.training_config.learn(self)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["states"] = from_all_ranks(map_state(Tensor.cpu, self.states))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept_states = checkpoint["states"]

    def on_train_start(self) -> None:
        """Takes up this rank's states: only now is it known where the network lies."""
        if self.kept_states:
            if len(self.kept_states) != self.trainer.world_size:
                raise ConfigError(
                    f"the checkpoint is of {len(self.kept_states)} ranks, and {self.trainer.world_size} would go on "
                    "with it; set training.devices back or start anew",
                    "training.devices",
                )
            self.states = map_state(lambda part: part.to(self.device), self.kept_states[self.trainer.global_rank])
            self.kept_states = []
