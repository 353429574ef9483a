"""The config of a run of any LightningModule: which classes, with which arguments, and how they are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import lightning as L

from lit_transformers.attention.kernels import KernelName
from lit_transformers.class_path import import_class, import_module, split_class_path
from lit_transformers.config import Config, ConfigError, Plain, Positive, Seed, nearest
from lit_transformers.lightning_runs.arguments import as_class, build, checked_arguments, expected_classes
from lit_transformers.space import knobs_of
from lit_transformers.training.config import CallbackConfig

__all__ = ["DataModuleConfig", "LightningRunConfig", "LightningTrainingConfig", "ModuleConfig", "SplitConfig"]


class ModuleConfig(Config):
    """A LightningModule: its class, as ``package.module.Class`` or ``package.module:Class``, and its arguments.

    An argument is plain data, or an object again, as {class_path: ..., init_args: {...}}.
    """

    class_path: str
    init_args: dict[str, Plain] = field(default_factory=dict)

    def conflicts(self) -> Iterator[str]:
        _require_class(self.class_path, self.init_args, L.LightningModule)
        yield from ()

    def build(self) -> L.LightningModule:
        """Builds the module."""
        module: L.LightningModule = build(self.class_path, self.init_args)
        return module


class SplitConfig(Config):
    """Which split the metrics of a run are of: those of ``Trainer.validate`` or of ``Trainer.test``."""

    split: Literal["validation", "test"] = "validation"


class DataModuleConfig(Config):
    """A LightningDataModule: its class and its arguments, as those of a module; None where a module has its own."""

    class_path: str | None = None
    init_args: dict[str, Plain] = field(default_factory=dict)
    evaluation: SplitConfig = SplitConfig()

    def conflicts(self) -> Iterator[str]:
        if self.class_path is not None:
            _require_class(self.class_path, self.init_args, L.LightningDataModule)
        elif self.init_args:
            yield "init_args are those of a data module, and class_path names none"

    def build(self) -> L.LightningDataModule | None:
        """Builds the data module, or None."""
        return None if self.class_path is None else build(self.class_path, self.init_args)


class LightningTrainingConfig(Config):
    """The budget of training, and where it is spent.

    steps: updates (the ``max_steps`` of a Trainer; with several optimizers, those of all of them); validate_every:
    updates between validations (None for the end alone); log_every: updates between points of the training curve;
    device: "auto" takes CUDA where there is one; devices: ranks, which train together by DDP; callbacks: of Lightning,
    in addition to those that the module configures. tf32 and attention_kernel: as in the training of the library's own
    runs.
    """

    steps: Positive = 1000
    validate_every: Positive | None = None
    log_every: Positive = 50
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Positive = 1
    tf32: bool = False
    attention_kernel: KernelName = "auto"
    callbacks: tuple[CallbackConfig, ...] = ()


OWNED = {
    **dict.fromkeys(("max_steps", "max_epochs", "min_steps", "min_epochs", "max_time"), "set training.steps"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "set training.validate_every"),
    "log_every_n_steps": "set training.log_every",
    "accelerator": "set training.device",
    **dict.fromkeys(("devices", "num_nodes", "strategy", "plugins"), "set training.devices"),
    "callbacks": "set training.callbacks",
    "logger": "runs are sent to Weights & Biases by --wandb",
    "default_root_dir": "a run has its own folder",
    **dict.fromkeys(("enable_checkpointing", "model_registry"), "a run writes its own checkpoint"),
    **dict.fromkeys(("fast_dev_run", "barebones"), "python -m ablations check trains one batch"),
    **dict.fromkeys(
        ("enable_progress_bar", "enable_model_summary", "num_sanity_val_steps", "enable_autolog_hparams"),
        "a run shows its own progress",
    ),
}
"""The arguments of a Trainer that belong to the suite, and their replacements."""


class LightningRunConfig(Config):
    """All that a run of a LightningModule depends on.

    trainer: further arguments of Lightning's Trainer, by name. seed: of the weights, of dropout, and of the order and
    the augmentation of the training data, which are the same for all arms of a seed.
    search: the values that tuning may try, by path: {"model.init_args.lr": {"low": 1e-4, "high": 1e-1, "log": True}}.
    unused: parameters, or modules of parameters, by name, that may be left without gradient.
    """

    runner: ClassVar[str] = "lit_transformers.lightning_runs.runner:RUNNER"
    absent: ClassVar[Mapping[str, str]] = {
        "start": "runs of LightningModules have no stages; let the module load its weights by a path in init_args"
    }

    model: ModuleConfig
    data: DataModuleConfig = DataModuleConfig()
    training: LightningTrainingConfig = LightningTrainingConfig()
    trainer: dict[str, Plain] = field(default_factory=dict)
    seed: Seed = 0
    search: dict[str, Plain] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "space", knobs_of(self, self.search))

    def conflicts(self) -> Iterator[str]:
        for name in self.trainer:
            if name in OWNED:
                raise ConfigError(f"{name} cannot be set here: {OWNED[name]}", f"trainer.{name}")
        _require_arguments(L.Trainer, self.trainer, "Trainer", "trainer")
        yield from ()

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """The arguments of the Trainer, as it takes them."""
        return checked_arguments(L.Trainer, self.trainer, "Trainer")


def _require_class(class_path: str, init_args: dict[str, Plain], *bases: type[Any]) -> None:
    """Raises ConfigError unless a path names a class below one of ``bases`` that takes these arguments."""
    try:
        named = import_class(class_path)
    except ConfigError as error:
        raise error.under("class_path") from None
    if not _is_below(named, bases):
        members = vars(import_module(split_class_path(class_path)[0])).items()
        classes = {name: member for name, member in members if isinstance(member, type) and member not in bases}
        names = [name for name, member in classes.items() if _is_below(member, bases)]
        expected = " or ".join(base.__name__ for base in bases)
        raise ConfigError(f"{named.__name__} is no {expected}; {nearest(named.__name__, names)}", "class_path")
    _require_arguments(named, init_args, named.__name__, "init_args")


def _is_below(named: type[Any], bases: tuple[type[Any], ...]) -> bool:
    """Whether a class is below one of others; of a protocol that says nothing of classes any is."""
    try:
        return issubclass(named, bases)
    except TypeError:
        return True


def _require_arguments(function: type[Any], arguments: dict[str, Plain], name: str, path: str) -> None:
    """Raises ConfigError, below a path, for arguments that a class does not take, those of arguments included."""
    try:
        checked_arguments(function, arguments, name)
        for argument, value in arguments.items():
            if as_class(value):
                try:
                    bases = expected_classes(function, argument)
                    _require_class(value["class_path"], dict(value.get("init_args", {})), *bases)
                except ConfigError as error:
                    raise error.under(argument) from None
    except ConfigError as error:
        raise error.under(path) from None
