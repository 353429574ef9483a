"""How weights are learned: optimizers, schedules, and the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, Checkpoint
from pydantic import Field
from torch import nn

from lit_transformers.attention.kernels import KernelName
from lit_transformers.class_path import import_class, split_class_path
from lit_transformers.config import (
    Config,
    ConfigError,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Plain,
    Positive,
    PositiveFloat,
    table,
)
from lit_transformers.models.roles import vectors
from lit_transformers.space import Interval, Space
from lit_transformers.training.groups import ParameterGroupConfig, ParameterGroups, UnfreezingConfig


class OptimizerConfig(Config):
    """Base of every optimizer's config; the table OPTIMIZERS lists the kinds. learning_rate: at the schedule's peak.

    ``zero_moments``: whether all that its optimizer holds of a parameter are tensors that begin as zeros.
    """

    zero_moments: ClassVar[bool] = False
    space: ClassVar[Space] = {"learning_rate": Interval(1e-4, 1e-2, log=True)}

    learning_rate: PositiveFloat = 1e-3

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        raise NotImplementedError


class AdamWConfig(OptimizerConfig, kind="adamw"):
    """Adam with decoupled weight decay (arXiv:1711.05101); biases, norms and other vectors are not decayed, also where
    each head has its own. Tables of vectors are: of symbols, positions, segments and distances."""

    zero_moments: ClassVar[bool] = True

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        groups = decay_groups(network, self.weight_decay)
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=betas, eps=self.epsilon, fused=True)


class AdamConfig(OptimizerConfig, kind="adam"):
    """Adam (arXiv:1412.6980)."""

    zero_moments: ClassVar[bool] = True

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: PositiveFloat = 1e-8

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(trained(network), lr=self.learning_rate, betas=betas, eps=self.epsilon, fused=True)


class AdagradConfig(OptimizerConfig, kind="adagrad"):
    """Adagrad (Duchi et al. 2011)."""

    zero_moments: ClassVar[bool] = True

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(trained(network), lr=self.learning_rate)


class SGDConfig(OptimizerConfig, kind="sgd"):
    """Stochastic gradient descent with momentum (arXiv:1808.04444 trains with 0.99)."""

    zero_moments: ClassVar[bool] = True
    space: ClassVar[Space] = {"learning_rate": Interval(1e-3, 1.0, log=True)}

    momentum: Fraction = 0.9

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(trained(network), lr=self.learning_rate, momentum=self.momentum)


OPTIMIZERS = table(OptimizerConfig, AdamWConfig, AdamConfig, AdagradConfig, SGDConfig)


def trained(network: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters that require gradients, each once."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def decay_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns parameter groups in which matrices have weight decay and ``vectors`` do not."""
    parameters, without = trained(network), vectors(network)
    return [
        {"params": [p for p in parameters if id(p) not in without], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in without], "weight_decay": 0.0},
    ]


class ScheduleConfig(Config):
    """Base of every schedule's config; the table SCHEDULES lists the kinds.

    warmup: steps over which the learning rate rises linearly from zero to its peak.
    """

    space: ClassVar[Space] = {"warmup": Interval(10, 4000, log=True)}

    warmup: NonNegative = 0

    def factor(self, step: int, steps: int) -> float:
        """Returns the factor of the peak learning rate at update ``step`` (from 0) of ``steps``."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.after(step - self.warmup, max(1, steps - self.warmup))

    def after(self, step: int, steps: int) -> float:
        """Returns the factor ``step`` updates after the warm-up, of the ``steps`` that follow it."""
        raise NotImplementedError


class ConstantConfig(ScheduleConfig, kind="constant"):
    """The learning rate stays at its peak."""

    def after(self, step: int, steps: int) -> float:
        return 1.0


class CosineConfig(ScheduleConfig, kind="cosine"):
    """The learning rate falls along half a cosine (arXiv:1608.03983, equation 5, one cycle) to ``floor`` times its
    peak."""

    floor: Annotated[float, Field(ge=0, le=1)] = 0.0

    def after(self, step: int, steps: int) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


class LinearDecayConfig(ScheduleConfig, kind="linear"):
    """The learning rate falls linearly to ``floor`` times the peak."""

    floor: Annotated[float, Field(ge=0, le=1)] = 0.0

    def after(self, step: int, steps: int) -> float:
        return self.floor + (1 - self.floor) * (1 - min(1.0, step / steps))


class InverseSquareRootConfig(ScheduleConfig, kind="inverse_square_root"):
    """The learning rate falls with the inverse root of the step (arXiv:1706.03762, equation 3: with warmup, the paper's
    learning_rate is dim^-0.5 warmup^-0.5, which its n-th update reaches at n = warmup)."""

    def after(self, step: int, steps: int) -> float:
        return math.sqrt(max(1, self.warmup) / (self.warmup + step + 1))


class SlantedTriangularConfig(ScheduleConfig, kind="slanted_triangular"):
    """The learning rate rises linearly over a share ``rise`` of the updates, and falls linearly over the others
    (ULMFiT, arXiv:1801.06146, equation 3, where ``rise`` is cut_frac). ratio: the peak divided by the smallest rate.
    The rise takes at least one update. Unlike in the equation, no rate is below the smallest rate if ``rise`` does not
    divide the updates."""

    rise: Fraction = 0.1
    ratio: Annotated[float, Field(ge=1)] = 32.0

    def conflicts(self) -> Iterator[str]:
        if not self.rise:
            yield "a rise of 0 has no peak; set rise to a share of the updates, such as 0.1, or kind to linear"

    def after(self, step: int, steps: int) -> float:
        cut = max(1, math.floor(steps * self.rise))
        height = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / self.rise - 1))
        return (1 + max(0.0, height) * (self.ratio - 1)) / self.ratio


SCHEDULES = table(
    ScheduleConfig, ConstantConfig, CosineConfig, LinearDecayConfig, InverseSquareRootConfig, SlantedTriangularConfig
)


class AverageConfig(Config):
    """The final weights are the mean of the last few weights of training (arXiv:1706.03762, section 6.1: 5 or 20). The
    mean over the weights of all steps is the self-ensemble of arXiv:2002.10345.

    last: how many weights are averaged; every: updates between two of them, the newest being those of the last update.
    Validations before the end measure the weights that are not averaged.
    """

    last: Positive = 5
    every: Positive = 100

    def places(self, steps: int) -> range:
        """Returns the updates, of ``steps``, after which the weights are averaged."""
        return range(steps - (self.last - 1) * self.every, steps + 1, self.every)


class StopConfig(Config):
    """By which validations a run ends early, or selects its weights. They read the validation split, even if another
    one is measured at the end.

    metric: by its name in records; the objective says whether less or more of it is better. patience: number of
    validations in a row without an improvement by more than ``min_delta`` after which training ends; None: it never
    ends early.
    """

    metric: Annotated[str, Field(pattern=r"^val/.+")] = "val/nats"
    patience: Positive | None = 3
    min_delta: NonNegativeFloat = 0.0


class CallbackConfig(Config):
    """A Lightning callback that this library does not know. It may change every number of a run, so its class, its
    arguments and the source of its class are part of the run's key.

    class_path: module:Class or module.Class, which can be imported; init_args: the arguments of the class, by name.
    """

    former: ClassVar[Mapping[str, str]] = {"path": "class_path", "arguments": "init_args"}

    class_path: str
    init_args: dict[str, Plain] = field(default_factory=dict)

    def conflicts(self) -> Iterator[str]:
        split_class_path(self.class_path)
        yield from ()

    @property
    def callback_type(self) -> type[Callback]:
        """The class. Raises ConfigError where it cannot be imported, or is no callback that a run can have."""
        try:
            named = import_class(self.class_path)
        except ConfigError as error:
            raise ConfigError(f"{self.class_path} cannot be imported: {error}", "training.callbacks") from None
        if not issubclass(named, Callback):
            raise ConfigError(f"{self.class_path} is no class of Lightning callbacks", "training.callbacks")
        refuse_checkpoints(named, self.class_path, "training.callbacks")
        return named

    def build(self) -> Callback:
        """Makes the callback. Raises ConfigError where its class refuses the arguments."""
        try:
            return self.callback_type(**self.init_args)
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise ConfigError(f"{self.class_path} refuses its arguments: {error}", "training.callbacks") from None


def refuse_checkpoints(callback_type: type[Callback], name: str, path: str) -> None:
    """Raises ConfigError, at a path, for a class of callbacks that write checkpoints. A run resumes only from its own
    checkpoint and measures the weights in it: it would do neither with the checkpoint of a callback."""
    if issubclass(callback_type, Checkpoint):
        reason = "a run writes its own checkpoint, which it resumes from and measures; leave it out"
        raise ConfigError(f"{name} writes checkpoints, and {reason}", path)


class TrainingConfig(Config):
    """The budget of training and how it is spent.

    steps: updates; 0 for a run that only measures its starting weights; accumulate: batches of an update, whose
    gradient is the mean over all their targets; average: average the final weights over several updates; groups:
    parameters that learn at another rate, later or not at all; unfreezing: gradual unfreezing of the layers from the
    top (None: all learn from the start); clip: largest norm of the gradient (None for any), over the parameters that
    learn in the update; precision: training in "bf16" needs CUDA; tf32: round the factors of float32 products,
    convolutions and LSTMs to 10 bits on CUDA; attention_kernel: the only kernel by which torch may compute
    scaled_dot_product_attention
    ("auto" for all; "efficient" and "cudnn" need CUDA); recompute: store only the inputs of each layer, and compute the
    layer again in the backward pass, which saves memory, takes one more forward pass and changes no number (gradient
    checkpointing, arXiv:1604.06174); compile: run the network through torch.compile; validate_every: steps between
    validations (None for the end alone); log_every: steps between points of the training curve; device: "auto" takes
    CUDA where there is one; devices: ranks, which change no batch, so that a run may resume with another number of
    them; strategy: whether each rank holds the whole network ("ddp") or, between passes, a part of it ("fsdp"), and a
    run of either may resume as the other; stop: by which validations training ends early or weights are selected; keep:
    measure and store the last weights, or the weights of the best validation by ``stop``; keep_optimizer: store the
    state of the optimizer in the checkpoint of an ended run too, so that other trainers can continue it (the moments of
    Adam take twice the space of the weights); callbacks: further Lightning callbacks; cache_features: compute the
    outputs of a frozen network once for all rows of training and validation, and read them from LIT_CACHE, in all runs
    with the same weights, texts and layers. Groups must freeze the whole network in mode eval. The cache takes 4 bytes
    for each channel of each token of each layer that is read, and saves time if a row is read more than once: in
    several epochs, seeds or arms; cached_layers: compute the outputs of the lowest n layers once, in the same way, and
    train the layers above from these. Groups must freeze the embeddings and these layers in mode eval.
    """

    steps: NonNegative = 1000
    accumulate: Positive = 1
    average: AverageConfig | None = None
    optimizer: OptimizerConfig = AdamWConfig()
    groups: tuple[ParameterGroupConfig, ...] = ()
    unfreezing: UnfreezingConfig | None = None
    schedule: ScheduleConfig = CosineConfig()
    clip: PositiveFloat | None = 1.0
    precision: Literal["32", "bf16"] = "32"
    tf32: bool = False
    attention_kernel: KernelName = "auto"
    recompute: bool = False
    compile: bool = False
    validate_every: Positive | None = None
    log_every: Positive = 50
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Positive = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    stop: StopConfig | None = None
    keep: Literal["last", "best"] = "last"
    keep_optimizer: bool = False
    callbacks: tuple[CallbackConfig, ...] = ()
    cache_features: bool = False
    cached_layers: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        yield from self._selection_conflicts()
        if self.cache_features and self.precision != "32":
            yield "cache_features holds outputs in float32; set precision to 32, or cache_features to false"
        if self.cached_layers and self.precision != "32":
            yield "cached_layers holds outputs in float32; set precision to 32, or cached_layers to 0"
        if self.cached_layers and self.cache_features:
            yield "cache_features caches the whole network; set it to false, or cached_layers to 0"
        for number, group in enumerate(self.groups):
            if group.from_step >= self.steps:
                never = f"groups.{number} learns from step {group.from_step} on, but there are {self.steps} steps"
                yield f"{never}; set its from_step lower, or freeze it"
        begins_later = self.unfreezing is not None or any(group.from_step for group in self.groups)
        if begins_later and self.strategy == "fsdp" and not self.optimizer.zero_moments:
            reason = f"strategy fsdp restores moments of all parameters, but {self.optimizer.kind} has none before "
            yield f"{reason}from_step or unfreezing; set strategy to ddp, or optimizer to adamw"
        if self.strategy == "fsdp" and self.devices == 1:
            yield "strategy fsdp cuts a network over several devices; set devices too, or strategy to ddp"
        if self.strategy == "fsdp" and self.compile:
            yield "strategy fsdp and compile do not go together; set compile to false"
        if self.recompute and self.compile:
            yield "recompute and compile do not go together; set one of them to false"
        if self.strategy == "fsdp" and self.average:
            yield "average takes whole weights, of which strategy fsdp leaves each rank a part; set average to null"
        if self.average and self.average.places(self.steps).start < 1:
            yield (
                f"average takes the weights of {self.average.last} updates, every {self.average.every}, and there are "
                f"{self.steps} in total; set average.last or average.every lower"
            )

    def _selection_conflicts(self) -> Iterator[str]:
        if self.keep == "best" and self.stop is None:
            yield "keep best is by the metric of stop; set stop too, with patience null to train to the end"
        if self.stop and (self.validate_every is None or self.validate_every > self.steps):
            yield f"stop looks at validations, and there are none in {self.steps} steps; set validate_every lower"
        if self.stop and self.average:
            yield "average takes the last weights of all steps, which stop may end or replace; set one of both to null"
        if self.keep == "best" and self.strategy == "fsdp":
            yield "keep best takes whole weights, of which strategy fsdp leaves each rank a part; set keep to last"

    def groups_of(self, module: nn.Module) -> ParameterGroups:
        """Forms the parameter groups of a module, and freezes the parameters of frozen groups. Raises ConfigError for a
        role that no parameter has, and if a part would never learn."""
        return ParameterGroups(module, self.groups, self.unfreezing, self.steps)

    def learn(
        self, network: nn.Module, groups: ParameterGroups | None = None
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Returns the optimizer and its schedule; each takes one step for every update.

        groups: those of the network's parameters, where they are formed; else they are, by ``groups`` of this config.
        Raises ConfigError for a role that no parameter has, and for an optimizer that cannot be divided into groups.
        """
        formed = groups or self.groups_of(network)
        optimizer = self.optimizer.build(network)
        formed.divide(optimizer, network, self.optimizer.kind)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule.factor(step, self.steps)
        )
