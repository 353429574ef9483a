"""The base of every objective: a LightningModule that trains and measures, and the config that describes it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from keyword import iskeyword
from typing import Any, ClassVar, Self, cast

import lightning as L
import torch
from jaxtyping import Int
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.enums import GradClipAlgorithmType
from torch import Tensor, nn

from lit_transformers.batch import GROUP, DataDescription, Vocabulary
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.heads.head import Head, HeadConfig, HeadDict, HeadLoss, Representation
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.maps import MapPairs, paired_maps, share_quantisers
from lit_transformers.mixer import Mixer
from lit_transformers.models.cost import ModelCost
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.quantisation import restore_quantisers
from lit_transformers.records.measure import Measure
from lit_transformers.stacks.block import add_losses
from lit_transformers.stacks.carried import Carried
from lit_transformers.tasks.cost import task_cost
from lit_transformers.tasks.update import Update, real_tokens, source_tokens
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import ParameterGroups, with_groups
from lit_transformers.training.loop import batches_ahead
from lit_transformers.training.ranks import mean_over_ranks
from lit_transformers.training.recomputation import recompute_layers
from lit_transformers.training.shards import complete_moments, number_by_network, put_together, shard
from lit_transformers.training.training_log import TrainingLog


class TaskConfig(Config):
    """Base of every objective's config; the table TASKS lists the kinds.

    ``reads`` is the kind of the data that an objective learns from.
    heads: predictions that are learned besides those of the kind, each with its loss and its measures.
    evaluation: overrides of the model when it is measured, as paths below model: {"mixer.memory": 640}.
    """

    reads: ClassVar[type[DataDescription]]

    evaluation: dict[str, Plain] = field(default_factory=dict)
    heads: tuple[HeadConfig, ...] = ()

    def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(kind, **kwargs)
        if "units" in vars(cls):
            remedy = "measures, which returns minimized('nats', per='symbol') of lit_transformers.records.measure"
            raise ConfigError(f"{cls.__name__} defines units, which state no goal; define {remedy}", "units")

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        """Returns the heads that make this kind of objective, by name, the first of which gives its measures their
        names. Raises ConfigError for data that they cannot learn from."""
        raise NotImplementedError

    def all_heads(self, data: DataDescription) -> dict[str, HeadConfig]:
        """Returns ``own_heads`` and those that ``heads`` adds, by name. Raises ConfigError where two have one name, or
        one reads other data."""
        heads = dict(self.own_heads(data))
        for number, head in enumerate(self.heads):
            name, place = head.name or head.kind, f"task.heads.{number}"
            if name in heads:
                raise ConfigError(f"there is a head {name} already; give this one another name", f"{place}.name")
            if not name.isidentifier() or name.startswith("_") or iskeyword(name) or name in dir(HeadDict()):
                raise ConfigError(f"{name!r} cannot be the name of a head; use another word", f"{place}.name")
            if not isinstance(data, head.reads):
                raise ConfigError(f"{head.kind} does not learn from data of kind {data.kind}", place)
            heads[name] = head
        return heads

    def data_of(self, head: str, data: DataDescription) -> DataDescription:
        """Hook: returns the description of the data that a head learns from. head: its name in ``all_heads``. By
        default all heads learn from the same data."""
        return data

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Task:
        """Builds the LightningModule. Raises ConfigError where the model cannot be built, or not for this objective."""
        raise NotImplementedError

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        """Returns the cost in training on such data: of the passes of the task's networks, and of its heads."""
        return task_cost(self, model, data)

    def counted_lengths(self, data: DataDescription) -> tuple[int, int]:
        """Returns the lengths of a source, 0 if there is none, and of a row for which costs are reported."""
        return 0, data.length

    def random_batch(self, data: DataDescription) -> Any:
        """Returns two rows of ``data.length`` random symbols, for probes."""
        raise NotImplementedError

    def random_batches(self, data: DataDescription) -> list[Any]:
        """Hook: returns random batches that together have targets for every head. By default one ``random_batch``."""
        return [self.random_batch(data)]

    def probe_data(self, vocabulary: Vocabulary, length: int) -> DataDescription:
        """Hook: returns a description of data for the task, for random rows of ``length`` tokens. By default
        ``reads.for_probe``."""
        return self.reads.for_probe(vocabulary, length)

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        """Hook: returns, for each metric that a run on such data has, by its name without a split, the unit that it is
        a mean over and its goal. Comparisons need one unit, plans a metric that is there, and searches, early stopping
        and verdicts the goal. By default the measures of its heads."""
        measures: dict[str, Measure] = {}
        for number, (head, config) in enumerate(self.all_heads(data).items()):
            named = config.measures(self.data_of(head, data))
            measures |= {f"{head}_{name}" if number else name: of for name, of in named.items()}
        of_groups = {f"{group}_{name}": of for group in data.groups for name, of in measures.items()}
        return measures | of_groups

    def protocol(self) -> dict[str, Plain]:
        """Hook: returns the settings that a reported number depends on besides network and data. None by default."""
        return {}

    def of_data(self, summaries: bool) -> Self:
        """Hook: returns the config with the fields that are not set and follow from the data. summaries: whether the
        data are known to be summaries. The config itself by default."""
        return self

    def of_language(self, language: str | None) -> Self:
        """Hook: returns the config with the fields that are not set and follow from the language of the targets.
        language: None where the data do not name it. The config itself by default."""
        return self

    def fewest_layers(self) -> int:
        """Returns the smallest number of layers of a network that the task can read."""
        return 1

    @property
    def learned_of_teacher(self) -> frozenset[str]:
        """Hook: names the parts of the teacher (``start.teacher`` of a run) that enter the loss: "outputs" of its
        heads, "states" of its network. By default none."""
        return frozenset()

    def teach_probe(self, task: Task) -> None:
        """Hook: sets a teacher with random weights for a task that a probe has built from this config. By default there
        is no teacher."""

    def require_packages(self) -> None:
        """Hook: raises ConfigError where a package is missing that measuring needs. Nothing by default."""

    def measured_as(self, metric: str) -> str:
        """Hook: returns the name of a metric with the settings that its value depends on besides the data, for floors,
        which compute the metric too. The name itself by default."""
        return metric

    def averaged(self, metric: str, data: DataDescription) -> Mapping[str, Measure]:
        """Hook: returns the measures of which a metric is the mean, each as a share of its perfect score, by their
        names. By default nothing: it is no mean of others."""
        return {}

    def advice(self, source_symbols: float, target_symbols: float) -> str | None:
        """Hook: returns a line where the config does not seem to fit texts of such mean lengths. None by default."""
        return None

    def text_advice(self, targets: Sequence[str]) -> str | None:
        """Hook: returns a line where the config does not seem to fit targets such as these. None by default."""
        return None


DESCRIPTION = "data_description"
"""The key in a checkpoint of a task's description of its data; loggers receive only the hyperparameters of a task."""
ACCUMULATED = "Trainer.accumulate_grad_batches"
SYMBOLS = "trained_symbols"
"""The key in a checkpoint of the meaning of a task's symbols and labels."""


class Task(L.LightningModule, ABC):
    """Trains and measures a network, independently of its kind.

    ``reports_training``: whether training is logged (``training_log``); a run of this suite records its own curves.
    ``trained_symbols``: the meaning of its symbols and labels, tokenizers and names, as plain data; None before the
    task has data. The data that a trainer first gives it decide this, and other data are read by it.
    """

    config: TaskConfig
    network: Network
    heads: HeadDict
    metric: HeadsMetric
    parts: ClassVar[tuple[str, ...]] = ()
    """The parts of its readings, for heads that need them."""
    former_names: ClassVar[Mapping[str, str]] = {}
    """The beginnings of names that its weights had in older checkpoints, with their present beginnings."""

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
        self._update: Update | None = None
        self._lacks_optimizer = False
        self._groups: ParameterGroups | None = None
        # In a tuple, so that it is not a submodule, for its parameters are the network's; with its buffers' device.
        self._evaluator: tuple[nn.Module, torch.device, MapPairs] | None = None

    def add_heads(self, metric: Callable[[Mapping[str, Head]], HeadsMetric] | None = None) -> None:
        """Builds the heads on the network, and the metric. metric: its class; None for the measures of the heads over
        all rows and over each group of the data. Call it after the network is built. Raises ConfigError if a head
        cannot predict from the network, or cannot be trained as the config says."""
        self.heads = HeadDict()
        for name, config in self.config.all_heads(self.data).items():
            if missing := [part for part in config.parts if part not in self.parts]:
                reason = f"{config.kind} reads {missing[0]} of a task, which a {self.config.kind} has not"
                raise ConfigError(f"{reason}; remove it, or set task to one that has", "task.heads")
            data = self.config.data_of(name, self.data)
            self.heads[name] = config.build(self.head_model(), self.network, data)
            if not config.weight:  # ranks wait for the gradient of each parameter that requires one
                self.heads[name].requires_grad_(False)
        self.require_whole_batches(self.training_config.accumulate, "training.accumulate")
        metric = metric or partial(HeadsMetric, groups=self.data.groups)
        self.metric = metric(dict(self.heads.items()))
        if self.training_config.recompute:
            for network in self.networks():
                recompute_layers(network)
        if self.training_config.compile:
            for network in self.networks():
                network.compile()

    def require_whole_batches(self, accumulated: int, place: str) -> None:
        """Raises ConfigError where an update takes several batches and a loss compares the rows of one."""
        whole = [name for name, head in self.heads.items() if head.whole_batch]
        if whole and accumulated > 1:
            reason = f"compares the rows of a batch, which {accumulated} batches of an update are not; set it to 1, and"
            raise ConfigError(f"the loss {whole[0]} {reason} data.batch_size larger", place)

    def head_model(self) -> ModelConfig:
        """Hook: returns the config from which heads are built. Its ``dim`` is the width of the vectors that they read.
        By default the network's config."""
        return self.model_config

    def networks(self) -> list[Network]:
        """Hook: returns the networks that it trains. By default ``network`` alone."""
        return [self.network]

    def unused(self) -> list[nn.Parameter]:
        """Hook: returns the parameters that no loss depends on, which no cost counts. By default those that a network
        says are unused."""
        return [parameter for network in self.networks() for parameter in network.unused()]

    def current_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights by the names that this task has for them, whichever older task had written them."""
        return {self._current_name(name): tensor for name, tensor in tensors.items()}

    def _current_name(self, name: str) -> str:
        former = next((former for former in self.former_names if name.startswith(former)), "")
        return self.former_names[former] + name.removeprefix(former) if former else name

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        tensors = self.current_names(state_dict)
        restore_quantisers(self, tensors)
        return super().load_state_dict(tensors, *args, **kwargs)

    @abstractmethod
    def read(self, network: Any, batch: Any) -> Representation:
        """Runs a network, that of training or of evaluation, on a batch of either."""

    def training_reading(self, batch: Any) -> Representation:
        """Hook: runs the network on a batch of training. By default by ``read``."""
        return self.read(self.network, batch)

    def evaluation_reading(self, batch: Any) -> Representation:
        """Hook: runs the network on a batch that is measured. By default by ``read``."""
        return self.read(self.evaluator(), batch)

    def carried(self) -> Carried:
        """Hook: returns the size of the state that a row of training leaves to the next. Zero by default."""
        return Carried(0, 0)

    def heads_of(self, batch: Any) -> Mapping[str, Head]:
        """Hook: returns the heads, by name, that have targets in a batch. By default all heads."""
        return dict(self.heads.items())

    def targets(self, head: str, batch: Any) -> Int[Tensor, ""]:
        """Returns the number of a head's targets in a batch, given the name of the head."""
        heads = self.heads_of(batch)
        return heads[head].targets(batch) if head in heads else batch.padding_mask.new_zeros((), dtype=torch.long)

    def flops_of_heads(self, length: int) -> float:
        """Hook: returns the forward FLOPs of the heads for a row of ``length`` tokens in training. By default the sum
        over all trained heads."""
        return sum(head.flops(length) for head in self.trained_heads.values())

    def other_flops(self, length: int) -> float:
        """Hook: returns the forward FLOPs of a row of ``length`` tokens in training besides one pass of ``network`` and
        the heads. None by default."""
        return 0

    def documents(self, batch: Any) -> Int[Tensor, "*n"]:
        """Hook: returns the ordinals of the documents that sums of heads belong to. By default those of rows."""
        return batch.example

    def training_step(self, batch: Any, batch_index: int) -> dict[str, Any]:
        """Returns ``training_output`` of the batch's losses."""
        reading = self.training_reading(batch)._replace(progress=self.progress)
        heads = self.heads_of(batch).items()
        learning = {name: head for name, head in heads if head.weight and head.learns(reading.progress)}
        losses = {name: head(reading, batch) for name, head in learning.items()}
        return self.training_output(losses, reading, batch)

    def validation_step(self, batch: Any, batch_index: int) -> None:
        """Updates ``metric`` with the sums of every head; rows of padding do not count."""
        self.measure(self.evaluation_reading(batch), batch)

    def measure(self, reading: Representation, batch: Any) -> None:
        """Adds to ``metric`` the sums of the heads for the rows of a batch that are not padding."""
        documents, heads = self.documents(batch), self.heads_of(batch)
        sums = {name: head.sums(reading, batch) for name, head in heads.items() if head.measured}
        if documents.dim() == 1:
            padding = ~batch.padding_mask.flatten(1).any(dim=1, keepdim=True)
            sums = {name: values.masked_fill(padding, 0) for name, values in sums.items()}
        self.metric.update(documents, sums)
        if self.metric.groups:
            self.metric.add_groups(documents, batch.columns[GROUP])
        if self.metric.keeping:
            kept = {name: heads[name].kept(reading, batch) for name in self.metric.keeping if name in heads}
            self.metric.keep(kept, documents.device)

    @abstractmethod
    def evaluation_output(self, batch: Any) -> Tensor:
        """Returns the output of the network in evaluation for a batch; in a stream, after the batches before it."""

    @property
    def trained_heads(self) -> Mapping[str, Head]:
        """The heads whose losses are trained, by name."""
        return {name: head for name, head in self.heads.items() if head.weight}

    @property
    def progress(self) -> float:
        """The share of all updates that have been made."""
        return self.global_step / max(1, self.training_config.steps)

    def training_output(self, losses: Mapping[str, HeadLoss], reading: Representation, batch: Any) -> dict[str, Any]:
        """Returns {"loss", "total", "nats", "targets", "heads", "aux", "weighted_aux"}: the loss that is
        differentiated; its part of the loss of the update; the loss that is plotted of the first head, with its number
        of targets; the losses of the other heads by name, with their numbers of targets; and the network's own losses
        by name, without and with their weights.

        Each loss is a sum over its own targets, divided by their number in all batches of the update and on all ranks:
        DDP averages gradients, so that a rank divides by the mean of the counts of ranks. The network's own losses are
        means over the tokens of a batch or of its sources, and are weighted by the batch's share of these in the
        update.
        """
        update, names = self._update, list(losses)
        nats = [losses[name].nats.detach() for name in names]
        read = (real_tokens(batch), source_tokens(batch))
        counts = [*(self.heads[name].targets(batch) for name in names), *read]
        values = mean_over_ranks(torch.stack([*nats, *(count.to(nats[0].dtype) for count in counts)]))
        counted = dict(zip(names, values[len(nats) :], strict=False))
        means = {name: value / counted[name].clamp(min=1) for name, value in zip(names, values, strict=False)}
        of_update = counted if update is None else {name: update.counts[name].to(values) for name in names}
        tokens = values[-2:] if update is None else (update.tokens, update.source_tokens)
        first, *others = (
            self.heads[name].weight * (losses[name].total / of_update[name].clamp(min=1)) for name in names
        )
        share, source_share = (
            (count / of_all.clamp(min=1)).to(values) for count, of_all in zip(read, tokens, strict=True)
        )
        of_sources = {name: loss * source_share for name, loss in reading.source_aux.items()}
        weighted = add_losses(of_sources, {name: loss * share for name, loss in reading.aux.items()})
        others += self.resting(losses)
        start = torch.stack(others).sum() if others else torch.zeros((), device=self.device)
        total = first + sum(weighted.values(), start=start)
        main = names[0]
        return {
            "loss": total if update is None else total * update.factor,
            "total": total.detach(),
            "nats": means[main],
            "targets": counted[main],
            "heads": {name: (means[name], counted[name]) for name in names[1:]},
            "aux": add_losses(reading.source_aux, reading.aux),
            "weighted_aux": weighted,
        }

    def resting(self, losses: Mapping[str, HeadLoss]) -> list[Tensor]:
        """Returns zeros that depend on the weights of the heads that do not learn in this update, so that these have a
        gradient all the same, for which ranks wait."""
        heads = [head for name, head in self.trained_heads.items() if name not in losses]
        return [0.0 * weight.sum() for head in heads for weight in head.parameters() if weight.requires_grad]

    @property
    def groups(self) -> ParameterGroups:
        """The groups of its parameters, of which some are frozen from the moment on that this is read first. Raises
        ConfigError for a role that none has."""
        if self._groups is None:
            self._groups = self.training_config.groups_of(self)
        return self._groups

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._groups is not None:
            self._groups.rest()
        return self

    @property
    def batches_of_update(self) -> int:
        """The number of batches of an update: that of the trainer, and without one that of the config."""
        trainer = self._trainer
        return self.training_config.accumulate if trainer is None else trainer.accumulate_grad_batches

    def begin_update(self, batches: Sequence[Any], factor: int = 1) -> None:
        """Counts the targets of every head in the batches of an update, and their tokens, over all ranks, before the
        first of them is trained. factor: by which losses are multiplied, for a trainer that divides them by it. All
        ranks must call it."""
        counts = {name: partial(self.targets, name) for name in self.trained_heads}
        self._update = Update.of(counts, batches, factor, self.device)

    def on_fit_end(self) -> None:
        self._lacks_optimizer = False

    def on_fit_start(self) -> None:
        """Raises ConfigError for a trainer that accumulates batches where a loss compares the rows of one."""
        self.require_whole_batches(self.trainer.accumulate_grad_batches, ACCUMULATED)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops gradients of parameters that do not learn yet, before their norm is logged and clipped."""
        self.groups.drop_gradients(self, self.trainer.global_step)
        if self.reports_training:
            self.training_log.update(self, optimizer)

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        """Raises ConfigError if training continues from the checkpoint of an ended run that holds no state of the
        optimizer."""
        if self._lacks_optimizer:
            reason = (
                "holds no state of the optimizer, since its run has ended; train again with training.keep_optimizer"
            )
            raise ConfigError(f"{reason}=true, or start a new run from its weights", str(self.trainer.ckpt_path))
        if self.reports_training:
            self.training_log.count(batch)
        batches = self.batches_of_update
        if batches == 1:
            self._update = None
        elif batch_index % batches == 0:
            self.require_whole_batches(batches, ACCUMULATED)
            self.begin_update([batch, *batches_ahead(self.trainer, batches - 1)], batches)

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
            pairs = paired_maps(self.network, network)
            share_quantisers(pairs)
            network.load_state_dict(self.network.state_dict(keep_vars=True), assign=True)
            self._evaluator = (network.eval(), self.device, pairs)
        share_quantisers(self._evaluator[2])  # compressions add them at the end of training
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
        """Returns the task of a checkpoint, of a run or of any trainer, in evaluation mode; ``Task`` builds tasks of
        every kind. Nothing in the file is executed.

        parts: ``config``, ``model``, ``data`` or ``training``, in place of those in the checkpoint. ``hparams_file`` is
        not needed, and ``weights_only`` changes nothing. Raises ConfigError where the file holds no such task, or
        another part is given.
        """
        place = str(checkpoint_path)
        contents = torch.load(checkpoint_path, map_location or "cpu", weights_only=True)
        hyperparameters = with_groups(contents.get(cls.CHECKPOINT_HYPER_PARAMS_KEY) or {}, "config", "training")
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
        checkpoint.update(self.held_weights())
        for state in checkpoint.get("optimizer_states", ()):
            if self.training_config.strategy == "fsdp":
                complete_moments(state, self)
            else:
                number_by_network(state, self.trainer.optimizers[0], self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.training_log.go_on(checkpoint.get("tokens", 0))
        self.hold_weights(checkpoint)
        was_trained, is_trained = checkpoint["global_step"] > 0, self.trainer.state.fn == TrainerFn.FITTING
        self._lacks_optimizer = was_trained and is_trained and checkpoint.get("optimizer_states") == []
        symbols, trainer = checkpoint.get(SYMBOLS), cast("Any", self.trainer)
        if symbols is not None and symbols != self.trained_symbols:
            self.trained_symbols = symbols
            if trainer.datamodule is not None:  # it was set up before this
                trainer.datamodule.setup(None)

    def configure_model(self) -> None:
        """Forms the groups of parameters. If the strategy is fsdp, shards the network and all other trained parts over
        the ranks."""
        _ = self.groups
        if self.training_config.strategy == "fsdp" and self.device_mesh is not None:
            for part in self.trained():
                shard(part, self.device_mesh["data_parallel"])

    def put_together(self) -> None:
        """Gives every rank all weights until the next training step, of which fsdp leaves each a part. All ranks must
        call this before they call a part of the network alone."""
        for part in self.trained():
            put_together(part)

    def trained(self) -> Iterator[nn.Module]:
        """Yields the modules with parameters that this one calls: its networks and heads."""
        for child in self.children():
            parts = child.children() if isinstance(child, nn.ModuleList | nn.ModuleDict) else [child]
            yield from (part for part in parts if next(part.parameters(), None) is not None)

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.training_config.learn(self, self.groups)
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
        self.updated()

    def updated(self) -> None:
        """Hook: runs after every update of the weights."""

    def held_weights(self) -> dict[str, Any]:
        """Hook: returns weights of earlier updates that later updates need, for a checkpoint. By default none."""
        return {}

    def hold_weights(self, held: Mapping[str, Any]) -> None:
        """Hook: restores the weights that ``held_weights`` returned."""

    def predict_step(self, batch: Any, batch_index: int) -> Sequence[Any]:
        """Returns the predictions for the examples of a batch that this rank has read: by default the row of each in
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
        self.metric.add_up()
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
