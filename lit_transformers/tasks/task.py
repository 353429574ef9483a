"""What a run asks of any objective: a LightningModule that trains, measures, and says what a batch of it looks like."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

import lightning as L
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, Plain
from lit_transformers.cost import Cost
from lit_transformers.mixer import Mixer
from lit_transformers.models.encoder_decoder import EncoderDecoderConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.ranks import mean_over_ranks
from lit_transformers.shards import put_together, shard
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.training import TrainingConfig


class Mean(NamedTuple):
    """loss: of which this rank takes gradients; nats: what a curve shows, over all ranks; targets: what both are
    divided by."""

    loss: Tensor
    nats: Tensor
    targets: Tensor


def averaged(total: Float[Tensor, ""], scored: Bool[Tensor, "*n"], nats: Float[Tensor, ""] | None = None) -> Mean:
    """A sum of losses divided by the number of targets that it is of, over all ranks.

    DDP averages gradients, so a rank divides its sum by the mean count: together, the mean over all tokens.
    nats: the sum that a curve shows, where it is another one.
    """
    shown = total if nats is None else nats
    mean_shown, count = mean_over_ranks(torch.stack([shown, scored.sum().to(shown.dtype)]))
    count = count.clamp(min=1)
    return Mean(total / count, mean_shown / count, count)


class TaskConfig(Config):
    """Base of every objective's config; the table TASKS lists the kinds.

    A kind says in ``batches`` of which type the batches are that it learns from.
    evaluation: what differs in the model when it is measured, as paths below model: {"mixer.memory": 640}.
    """

    batches: ClassVar[type]

    evaluation: dict[str, Plain] = field(default_factory=dict)

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Task:
        """The LightningModule. Raises ConfigError where the model cannot be built, or not for this objective."""
        raise NotImplementedError

    def cost(self, model: ModelConfig, data: DataDescription) -> Cost:
        """What the network costs in training on such data."""
        raise NotImplementedError

    def counted_lengths(self, data: DataDescription) -> tuple[int, int]:
        """Tokens of a source, 0 where there is none, and of a row, for which costs are told."""
        return 0, data.length

    def random_batch(self, data: DataDescription) -> Any:
        """Two rows of random symbols, ``data.length`` long, for probes."""
        raise NotImplementedError

    def protocol(self) -> dict[str, Plain]:
        """Hook: what of it a reported number depends on, beside the network and the data. Nothing by default."""
        return {}


class Task(L.LightningModule, ABC):
    """Trains and measures a network; names no variant of it."""

    config: TaskConfig
    network: nn.Module
    metric: ExampleMetric

    def __init__(
        self, config: TaskConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None
    ) -> None:
        super().__init__()
        self.model_config, self.data = model, data
        self.config, self.training_config = config, training or TrainingConfig()
        self.evaluation_seconds = self._evaluation_began = 0.0
        self._random: list[Tensor] = []
        self._targets: Tensor | None = None
        # In a tuple, for its parameters are the network's own; with the device that its buffers lie on.
        self._evaluator: tuple[nn.Module, torch.device] | None = None

    @abstractmethod
    def training_step(self, batch: Any, batch_index: int) -> dict[str, Any]:
        """What ``learned`` makes of the batch's losses."""

    @abstractmethod
    def validation_step(self, batch: Any, batch_index: int) -> None:
        """Hands the losses of every example to ``metric``."""

    @abstractmethod
    def measured(self, batch: Any) -> Tensor:
        """What the network, as it is measured, makes of a batch; of a stream, after the batches before it."""

    def learned(self, mean: Mean, aux: Mapping[str, Tensor], added: Tensor | None = None) -> dict[str, Any]:
        """{"loss", "total", "nats", "aux", "targets"}: what is differentiated; the loss with those added to it; what a
        curve shows; auxiliary losses by name; and the number of targets.

        Where an update takes several batches, what is differentiated is the sum over targets, not the mean: the
        gradient is divided once, by the targets of all of them.
        """
        total = mean.loss + sum(aux.values(), start=torch.zeros((), device=self.device) if added is None else added)
        loss, batches = total, self.training_config.accumulate
        if batches > 1:
            loss = total * mean.targets * batches  # the trainer divides by the number of batches
            self._targets = mean.targets + (0 if self._targets is None else self._targets)
        return {"loss": loss, "total": total.detach(), "nats": mean.nats, "aux": dict(aux), "targets": mean.targets}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the mean of gradients that are sums, before their norm is clipped."""
        if self._targets is not None:
            count, self._targets = float(self._targets), None
            torch._foreach_div_([p.grad for p in self.parameters() if p.grad is not None], count)

    def build_network(self, model: ModelConfig) -> nn.Module:
        """The network of this or of a slightly different config."""
        if isinstance(model, EncoderDecoderConfig):
            return model.build_pairs(self.data)
        return model.build(self.data.vocabulary.size, self.data.length)

    def evaluator(self) -> Any:
        """The network as it is measured: with the same parameters, and what ``evaluation`` changes."""
        if not self.config.evaluation:
            return self.network
        if self._evaluator is None or self._evaluator[1] != self.device:  # a task that moves leaves them behind
            with torch.random.fork_rng(devices=[]), self.device:
                network = self.build_network(self.model_config.override(self.config.evaluation))
            network.load_state_dict(self.network.state_dict(keep_vars=True), assign=True)
            self._evaluator = (network.eval(), self.device)
        return self._evaluator[0]

    def begin_evaluation(self) -> None:
        """Called before the first batch that is measured and after the last."""

    def configure_model(self) -> None:
        """Cuts the network into parts, where ranks are to hold one each."""
        if self.training_config.strategy == "fsdp" and self.device_mesh is not None:
            shard(self.network, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.training_config.learn(self)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def optimizer_step(self, *given: Any, **named: Any) -> None:
        """Here and not at the end of the batch: callbacks that keep a checkpoint come before that."""
        super().optimizer_step(*given, **named)
        self.after_step()

    def after_step(self) -> None:
        """Lets every mixer do what must hold after an update of the weights."""
        for module in self.network.modules():
            if isinstance(module, Mixer):
                module.after_step()

    def on_validation_epoch_start(self) -> None:
        """A mixer that draws as it is measured (where it hashes to, say) draws the same for the same weights, and
        leaves the random numbers of training alone."""
        self._random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.device.type == "cuda" else [])]
        torch.manual_seed(0)
        self.begin_evaluation()
        put_together(self.network)
        self.metric.reset()
        self._evaluation_began = time.perf_counter()

    def on_validation_epoch_end(self) -> None:
        self._end_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self.on_validation_epoch_start()

    def test_step(self, batch: Any, batch_index: int) -> None:
        self.validation_step(batch, batch_index)

    def on_test_epoch_end(self) -> None:
        self._end_evaluation("test")

    def _end_evaluation(self, name: str) -> None:
        for restore, state in zip((torch.set_rng_state, torch.cuda.set_rng_state), self._random, strict=False):
            restore(state)
        self.begin_evaluation()
        found = self.metric.compute()  # reads the sums, so a device is through with its work
        self.evaluation_seconds = time.perf_counter() - self._evaluation_began
        self.log_dict({f"{name}/{key}": value for key, value in found.items()}, rank_zero_only=True)
