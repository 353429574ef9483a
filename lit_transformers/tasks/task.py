"""The base of every objective: a LightningModule that trains and measures, and the config that describes it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, NamedTuple, Self, cast

import lightning as L
import torch
from jaxtyping import Bool, Float
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.enums import GradClipAlgorithmType
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.mixer import Mixer
from lit_transformers.models.cost import ModelCost
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.ranks import mean_over_ranks
from lit_transformers.training.shards import number_by_network, put_together, shard
from lit_transformers.training.training_log import TrainingLog


class TokenMean(NamedTuple):
    """loss: the loss of this rank, which is differentiated; nats: the loss that is plotted, over all ranks; targets:
    the number that both are divided by."""

    loss: Tensor
    nats: Tensor
    targets: Tensor


def token_mean(
    total: Float[Tensor, ""], scored: Bool[Tensor, "*n"], nats: Float[Tensor, ""] | None = None
) -> TokenMean:
    """Divides a sum of losses by the number of its targets, over all ranks.

    DDP averages gradients, so a rank divides its sum by the mean count, which gives the mean over all tokens.
    nats: the sum that is plotted, if it differs from ``total``.
    """
    reported = total if nats is None else nats
    reported_mean, count = mean_over_ranks(torch.stack([reported, scored.sum().to(reported.dtype)]))
    count = count.clamp(min=1)
    return TokenMean(total / count, reported_mean / count, count)


class TaskConfig(Config):
    """Base of every objective's config; the table TASKS lists the kinds.

    ``reads`` is the kind of the data that an objective learns from.
    evaluation: overrides of the model when it is measured, as paths below model: {"mixer.memory": 640}.
    """

    reads: ClassVar[type[DataDescription]]

    evaluation: dict[str, Plain] = field(default_factory=dict)

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Task:
        """Builds the LightningModule. Raises ConfigError where the model cannot be built, or not for this objective."""
        raise NotImplementedError

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost of the network in training on such data."""
        raise NotImplementedError

    def counted_lengths(self, data: DataDescription) -> tuple[int, int]:
        """Returns the lengths of a source, 0 if there is none, and of a row for which costs are reported."""
        return 0, data.length

    def random_batch(self, data: DataDescription) -> Any:
        """Returns two rows of ``data.length`` random symbols, for probes."""
        raise NotImplementedError

    def passes(self) -> int:
        """Hook: returns the FLOPs of a training step as a multiple of those of its forward pass. Three by default: a
        backward pass takes two forward ones."""
        return 3

    def units(self, data: DataDescription) -> Mapping[str, str]:
        """Hook: returns by the name of each metric that a run on such data has, without its split, what it is a mean
        over, such as "symbol"; comparisons ask for one unit, and plans for a metric that is there. Empty by default:
        nothing is known of the metrics."""
        return {}

    def protocol(self) -> dict[str, Plain]:
        """Hook: returns what a reported number depends on besides the network and the data. Nothing by default."""
        return {}

    def of_data(self, summaries: bool) -> Self:
        """Hook: returns the config with what follows from the data where it is not set: whether they are known to be
        summaries. The config itself by default."""
        return self

    def of_language(self, language: str | None) -> Self:
        """Hook: returns the config with what follows from the language of the targets, None where the data do not name
        it, and is not set. The config itself by default."""
        return self

    def require_packages(self) -> None:
        """Hook: raises ConfigError where a package is missing that measuring needs. Nothing by default."""

    def measured_as(self, metric: str) -> str:
        """Hook: returns the name of a metric with what its value depends on besides the data, for those who compute it
        too: floors. The name itself by default."""
        return metric

    def advice(self, source_symbols: float, target_symbols: float) -> str | None:
        """Hook: returns a line where the config does not seem to fit texts of such mean lengths. None by default."""
        return None

    def text_advice(self, targets: Sequence[str]) -> str | None:
        """Hook: returns a line where the config does not seem to fit targets such as these. None by default."""
        return None


DESCRIPTION = "data_description"
"""The key in a checkpoint of what a task knows of its data, beside its hyperparameters, which loggers receive."""
SYMBOLS = "trained_symbols"
"""The key in a checkpoint of what the symbols and labels of a task stand for."""


class Task(L.LightningModule, ABC):
    """Trains and measures a network, independently of its kind.

    ``reports_training``: whether training is logged (``training_log``); a run of this suite keeps curves of its own.
    ``trained_symbols``: what its symbols and labels stand for, tokenizers and names, as plain data. The data that a
    trainer first gives it with decide that, and others are read by it; None before.
    """

    config: TaskConfig
    network: Network
    metric: ExampleMetric

    def __init__(
        self, config: TaskConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None
    ) -> None:
        """Raises ConfigError where the data are of another kind than the objective reads."""
        super().__init__()
        self.model_config, self.data = model, config.reads.of(data, config.kind)
        self.config, self.training_config = config, training or TrainingConfig()
        parts = {"config": self.config, "model": self.model_config, "training": self.training_config}
        self.save_hyperparameters({name: part.to_dict() for name, part in parts.items()})
        self.reports_training, self.training_log = True, TrainingLog()
        self.trained_symbols: dict[str, Plain] | None = None
        self.evaluation_seconds = self._evaluation_began = 0.0
        self._random: list[Tensor] = []
        self._targets: Tensor | None = None
        # In a tuple, so that it is not a submodule, for its parameters are the network's; with its buffers' device.
        self._evaluator: tuple[nn.Module, torch.device] | None = None

    @abstractmethod
    def training_step(self, batch: Any, batch_index: int) -> dict[str, Any]:
        """Returns ``training_output`` of the batch's losses."""

    @abstractmethod
    def validation_step(self, batch: Any, batch_index: int) -> None:
        """Updates ``metric`` with the losses of every example."""

    @abstractmethod
    def evaluation_output(self, batch: Any) -> Tensor:
        """Returns the output of the network in evaluation for a batch; in a stream, after the batches before it."""

    def training_output(
        self, mean: TokenMean, aux: Mapping[str, Tensor], added_loss: Tensor | None = None
    ) -> dict[str, Any]:
        """Returns {"loss", "total", "nats", "aux", "targets"}: the loss that is differentiated; the loss with added and
        auxiliary losses; the loss that is plotted; auxiliary losses by name; and the number of targets.

        If an update takes several batches, the sum over targets is differentiated, not the mean: the gradient is
        divided once, by the targets of all batches.
        """
        total = mean.loss + sum(
            aux.values(), start=torch.zeros((), device=self.device) if added_loss is None else added_loss
        )
        loss, batches = total, self.batches_of_update
        if batches > 1:
            loss = total * mean.targets * batches  # the trainer divides by the number of batches
            self._targets = mean.targets + (0 if self._targets is None else self._targets)
        return {"loss": loss, "total": total.detach(), "nats": mean.nats, "aux": dict(aux), "targets": mean.targets}

    @property
    def batches_of_update(self) -> int:
        """The number of batches of an update: that of the trainer, and without one that of the config."""
        trainer = self._trainer
        return self.training_config.accumulate if trainer is None else trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides gradients that are sums by the number of targets, before their norm is logged and clipped."""
        if self._targets is not None:
            count, self._targets = float(self._targets), None
            torch._foreach_div_([p.grad for p in self.parameters() if p.grad is not None], count)
        if self.reports_training:
            self.training_log.update(self, optimizer)

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        if self.reports_training:
            self.training_log.count(batch)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        if self.reports_training:
            self.training_log.batch(self, outputs)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips gradients. Lightning refuses to under mixed precision where the optimizer is fused, because float16
        gradients are scaled until its step; those of bfloat16 are not."""
        plugin = self.trainer.precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.scaler is None:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or GradClipAlgorithmType.NORM)
            Precision.clip_gradients(plugin, optimizer, gradient_clip_val or 0.0, algorithm)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def evaluator(self) -> Any:
        """Returns the network for evaluation: with the same parameters, and with the overrides in ``evaluation``."""
        if not self.config.evaluation:
            return self.network
        if self._evaluator is None or self._evaluator[1] != self.device:  # buffers do not move with the task
            with torch.random.fork_rng(devices=[]), self.device:
                network = self.model_config.override(self.config.evaluation).build(self.data)
            network.load_state_dict(self.network.state_dict(keep_vars=True), assign=True)
            self._evaluator = (network.eval(), self.device)
        return self._evaluator[0]

    def begin_evaluation(self) -> None:
        """Hook: called before the first batch that is measured and after the last."""

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **parts: Any,
    ) -> Self:
        """Returns the task of a checkpoint, of a run or of any trainer, in evaluation mode; ``Task`` builds that of
        whatever kind. Nothing in the file is executed.

        parts: ``config``, ``model``, ``data`` or ``training``, in place of those in the checkpoint. ``hparams_file`` is
        not needed, and ``weights_only`` changes nothing. Raises ConfigError where the file holds no such task, or
        another part is given.
        """
        place = str(checkpoint_path)
        contents = torch.load(checkpoint_path, map_location or "cpu", weights_only=True)
        hyperparameters = contents.get(cls.CHECKPOINT_HYPER_PARAMS_KEY) or {}
        if not {"config", "model", "training"} <= hyperparameters.keys() or DESCRIPTION not in contents:
            way_out = "of a run before there were any: lit_transformers.runs.load reads it"
            raise ConfigError(f"holds no hyperparameters of a task; it is not of one, or is {way_out}", place)
        given: dict[str, Any] = {
            "config": TaskConfig.from_dict(hyperparameters["config"]),
            "model": ModelConfig.from_dict(hyperparameters["model"]),
            "data": DataDescription.from_dict(contents[DESCRIPTION]),
            "training": TrainingConfig.from_dict(hyperparameters["training"]),
        }
        if unknown := parts.keys() - given.keys():
            raise ConfigError(f"takes {', '.join(given)}, not {', '.join(sorted(unknown))}", "load_from_checkpoint")
        given |= parts
        task = given["config"].build(given["model"], given["data"], given["training"])
        if not isinstance(task, cls):
            raise ConfigError(f"holds a {type(task).__name__}, not a {cls.__name__}; load it by Task", place)
        task.load_state_dict(contents["state_dict"], strict=strict is not False)
        task.trained_symbols = contents.get(SYMBOLS)
        first = next(iter(contents["state_dict"].values()), None)
        return task.to(first.device).eval() if first is not None else task.eval()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[DESCRIPTION] = self.data.to_dict()
        checkpoint[SYMBOLS] = self.trained_symbols
        if self.reports_training:
            checkpoint["tokens"] = self.training_log.tokens()
        if self.training_config.strategy != "fsdp":
            for state in checkpoint.get("optimizer_states", ()):
                number_by_network(state, self.trainer.optimizers[0], self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.training_log.go_on(checkpoint.get("tokens", 0))
        symbols, trainer = checkpoint.get(SYMBOLS), cast("Any", self.trainer)
        if symbols is not None and symbols != self.trained_symbols:
            self.trained_symbols = symbols
            if trainer.datamodule is not None:  # it was set up before this
                trainer.datamodule.setup(None)

    def configure_model(self) -> None:
        """Shards the network, and what is trained beside it, over the ranks if the strategy is fsdp."""
        if self.training_config.strategy == "fsdp" and self.device_mesh is not None:
            for part in self.trained():
                shard(part, self.device_mesh["data_parallel"])

    def put_together(self) -> None:
        """Gives every rank all weights until the next training step, of which fsdp leaves each a part. All ranks must
        call this before they call a part of the network alone."""
        for part in self.trained():
            put_together(part)

    def trained(self) -> Iterator[nn.Module]:
        """Yields the modules with parameters that this one calls: its network, heads, and the members of its lists."""
        for child in self.children():
            parts = child.children() if isinstance(child, nn.ModuleList) else [child]
            yield from (part for part in parts if next(part.parameters(), None) is not None)

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.training_config.learn(self)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Calls ``after_step`` here and not at the end of the batch, for callbacks write checkpoints before that."""
        super().optimizer_step(*args, **kwargs)
        self.after_step()

    def after_step(self) -> None:
        """Calls ``after_step`` of every mixer, after an update of the weights."""
        for module in self.modules():
            if isinstance(module, Mixer):
                module.after_step()

    def predict_step(self, batch: Any, batch_index: int) -> Sequence[Any]:
        """Returns what is predicted of the examples of a batch that this rank has read: by default the row of each in
        ``metric``, its losses and counts by name, with its ordinal as ``document``.

        A document that lies in several batches has a row of each; ``ExampleMetric.joined`` adds them up.
        """
        self.metric.reset()
        self.validation_step(batch, batch_index)
        return self.metric.rows()

    def on_predict_epoch_start(self) -> None:
        self.on_validation_epoch_start()

    def on_predict_epoch_end(self) -> None:
        self._restore_random_numbers()
        self.metric.reset()

    def on_validation_epoch_start(self) -> None:
        """Seeds the random numbers, so that a mixer that draws some in evaluation (for hashing, say) draws the same for
        the same weights, and those of training are not affected."""
        self._random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.device.type == "cuda" else [])]
        torch.manual_seed(0)
        self.begin_evaluation()
        self.put_together()
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
        self._restore_random_numbers()
        results = self.metric.compute()  # reads the sums, so the device has finished its work
        self.evaluation_seconds = time.perf_counter() - self._evaluation_began
        self.training_log.leave_out(self.evaluation_seconds)
        # All ranks have computed the same values. Their maximum is that value to the last bit, and a callback that
        # monitors one finds it on every rank.
        named = {f"{name}/{key}": value for key, value in results.items()}
        self.log_dict(named, reduce_fx="max", sync_dist=self.trainer.world_size > 1)

    def _restore_random_numbers(self) -> None:
        for restore, state in zip((torch.set_rng_state, torch.cuda.set_rng_state), self._random, strict=False):
            restore(state)
        self.begin_evaluation()
