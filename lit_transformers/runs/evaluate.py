"""Reads trained models from checkpoints, and measures them again."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L

from lit_transformers.class_path import class_path_of
from lit_transformers.cli.cores import machine_memory
from lit_transformers.cli.errors import first_line
from lit_transformers.config import ConfigError, Plain, paths_within
from lit_transformers.models.cost import require_held
from lit_transformers.plugins import load_plugins
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.train import quiet
from lit_transformers.tasks import Task
from lit_transformers.training.callbacks import measured
from lit_transformers.training.checkpoints import TRAINING, read
from lit_transformers.trust import require_allowed

__all__ = ["evaluate", "load", "require_numbers"]


REMEDY = "read it with the code that has trained it, that of its plug-ins too, and without changes to the network"
"""The way out where code builds another network than that of a checkpoint."""


def evaluate(checkpoint: Path, changes: dict[str, Plain] | None = None) -> dict[str, float]:
    """Measures a trained model again and returns the metrics. ``changes`` overrides paths of its run's config:
    {"task.evaluation": ...}."""
    task, config, _ = load(checkpoint, changes)
    config.measured_task.require_packages()
    with quiet():
        trainer = L.Trainer(
            accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=sys.stderr.isatty(), enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.validate(task, config.data.build(), verbose=False)
    return measured(trainer)


def load(
    checkpoint: Path, changes: dict[str, Plain] | None = None, *, is_own: bool = False
) -> tuple[Task, RunConfig, dict[str, Plain]]:
    """Returns a trained task, its run's config, and the metadata of its data. Plug-ins are imported, for it may have
    parts of theirs; nothing in the file is executed.

    is_own: whether it is of a study in this process, which is trusted. Raises ConfigError for a file that is damaged or
    is no checkpoint of this suite, where its run has parts that are not known in this process, or names a class that a
    file may not.
    """
    load_plugins()
    checkpoint_data = read(checkpoint)
    extra = checkpoint_data["lit_transformers"]
    class_path = class_path_of(extra["config"])
    if class_path is not None:
        raise ConfigError(f"holds a {class_path}, which its own load_from_checkpoint reads", str(checkpoint))
    if not is_own:
        require_allowed(extra["config"], str(checkpoint))
    try:
        config = RunConfig.from_dict(extra["config"])
    except ConfigError as error:
        way_out = "; if a plug-in has it, name that with --plugin" if error.path.endswith("kind") else ""
        raise ConfigError(f"{error.reason}{way_out}", f"{checkpoint}: {error.path}") from None
    config = config.override(changes or {})
    with paths_within(config):
        description = config.data.description_from(extra)
        require_held(config.task.cost(config.model, description).parameters, machine_memory())
        task = config.measured_task.build(config.model, description, config.training)
    try:
        task.load_state_dict(checkpoint_data["state_dict"])
    except RuntimeError as error:
        raise ConfigError(f"{other_weights(error)}; {REMEDY}", str(checkpoint)) from None
    return task.eval(), config, {name: value for name, value in extra.items() if name not in ("config", TRAINING)}


def require_numbers(task: Task, checkpoint: Path) -> None:
    """Raises ConfigError where weights are not finite, which write no text."""
    for name, weight in task.named_parameters():
        if not weight.isfinite().all():
            reason = f"{name} holds what is no finite number, so that its training has diverged"
            raise ConfigError(f"{reason}; take an earlier checkpoint, or train anew with a lower rate", str(checkpoint))


def other_weights(error: RuntimeError) -> str:
    """Returns the first difference that ``load_state_dict`` names between weights and the network for them."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()[1:] if line.strip()]
    return f"does not fit the network that today's code builds: {lines[0].rstrip('.') if lines else first_line(error)}"
