"""Reads trained models from checkpoints, and measures them again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import lightning as L

from datamodules import Data, DataConfig, TrainedSymbols, with_errors_of
from lit_transformers.class_path import class_path_of
from lit_transformers.config import ConfigError, Plain, paths_within, plain_leaves
from lit_transformers.machine.cores import machine_memory
from lit_transformers.models.cost import require_held
from lit_transformers.plugins import load_plugins
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.measurement import named_on
from lit_transformers.runs.code import changed_since
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.train import measure, quiet
from lit_transformers.runs.trained_symbols import read_with, symbols_of_checkpoint, what_is_read
from lit_transformers.tasks import Task
from lit_transformers.training.arithmetic import arithmetic
from lit_transformers.training.callbacks import measured
from lit_transformers.training.checkpoints import CODE, TRAINING, read
from lit_transformers.trust import require_allowed

__all__ = ["evaluate", "load", "open_data", "require_numbers", "shared_networks"]

Loaded = tuple[Task, RunConfig, dict[str, Plain]]

REMEDY = "read it with the code that has trained it, that of its plug-ins too, and without changes to the network"
"""The way out where code builds another network than that of a checkpoint."""
CHOOSE_A_TOKENIZER = ("tokenizer", "source_tokenizer", "learned_from")
"""The fields of data that say by which tokenizer they are read."""


def evaluate(checkpoint: Path, changes: dict[str, Plain] | None = None) -> dict[str, float]:
    """Measures a trained model again and returns the metrics. ``changes`` overrides paths of its run's config:
    {"task.evaluation": ...}."""
    task, config, extra = load(checkpoint, changes)
    config.measured_task.require_packages()
    data = open_data(checkpoint, task, config, extra)
    with quiet(), arithmetic(config.training):
        trainer = L.Trainer(
            accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=sys.stderr.isatty(), enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        measure(trainer, task, data)
    return {named_on(name, data.measured_split): value for name, value in measured(trainer).items()}


def open_data(checkpoint: Path, task: Task, config: RunConfig, extra: dict[str, Plain]) -> Data:
    """Opens the data of a config for a trained task, as ``load`` returns them: they are read with the tokenizers and
    labels of its training. Prints how much of them it does not know. Raises ConfigError or DataError where they cannot
    be read so."""
    data = config.data.build()
    trained, content = TrainedSymbols.of(extra), extra.get("content")
    for line in read_with(data, trained, task.data, content, checkpoint.name):
        print(line, file=sys.stderr, flush=True)
    return data


NETWORKS: ContextVar[dict[tuple[Path, str, str], Loaded] | None] = ContextVar("NETWORKS", default=None)
"""The networks of ``shared_networks``, by their checkpoint and changes; None outside of its block."""


@contextmanager
def shared_networks() -> Iterator[None]:
    """Within the block, ``load`` reads a checkpoint once for the same changes, and then returns the same network."""
    token = NETWORKS.set({})
    try:
        yield
    finally:
        NETWORKS.reset(token)


def load(
    checkpoint: Path,
    changes: Mapping[str, Plain] | None = None,
    *,
    is_own: bool = False,
    wished: Mapping[str, Plain] | None = None,
) -> Loaded:
    """Returns a trained task, its run's config, and the metadata of its data. Plug-ins are imported, for it may have
    parts of theirs; a line names those whose files have changed since. Nothing in the checkpoint is executed.

    is_own: whether it is of a study in this process, which is trusted. wished: changes that are made only if the
    network can have them. The file is read once in either case. Raises ConfigError for a file that is damaged or
    is no checkpoint of this suite, where its run has parts that are not known in this process, or names a class that a
    file may not.
    """
    changes, wished = changes or {}, wished or {}
    kept, key = NETWORKS.get(), (checkpoint, repr(sorted(changes.items())), repr(sorted(wished.items())))
    if kept is None:
        return loaded(checkpoint, changes, wished, is_own)
    if key not in kept:
        kept[key] = loaded(checkpoint, changes, wished, is_own)
    return kept[key]


def loaded(checkpoint: Path, changes: Mapping[str, Plain], wished: Mapping[str, Plain], is_own: bool) -> Loaded:
    """Reads the result of ``load`` from the file."""
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
    if (warning := changed_since(extra.get(CODE, {}), checkpoint.name)) is not None:
        print(warning, file=sys.stderr, flush=True)
    symbols = symbols_of_checkpoint(checkpoint_data, str(checkpoint))
    trained, extra = config.data, extra | with_errors_of(changed(config, changes).data, symbols).to_dict()
    try:
        task, config = built(changed(config, {**changes, **wished}), trained, extra)
    except ConfigError as error:
        if not any(path.rpartition(".")[2] in f"{error.path} {error.reason}" for path in wished):
            raise
        task, config = built(changed(config, changes), trained, extra)
    try:
        task.load_state_dict(checkpoint_data["state_dict"])
    except RuntimeError as error:
        raise ConfigError(f"{other_weights(error)}; {REMEDY}", str(checkpoint)) from None
    for compression in config.compression:
        compression.prepare(task)
    task.trained_symbols = TrainedSymbols.of(extra).to_dict()
    return task.eval(), config, {name: value for name, value in extra.items() if name not in ("config", CODE, TRAINING)}


def built(config: RunConfig, trained: DataConfig, extra: Mapping[str, Plain]) -> tuple[Task, RunConfig]:
    """Returns the task of a config, without the weights of the checkpoint, and the config. trained: the data that the
    network was trained on. Raises ConfigError where its data have other symbols or labels."""
    with paths_within(config):
        description = config.data.description_from(extra)
        if what_is_read(description) != what_is_read(trained.description_from(extra)):
            raise ConfigError(
                f"the symbols or labels of {config.data.name} are not those that the network was trained on; restore "
                "the settings that decide them, or train anew",
                "data",
            )
        require_held(config.task.cost(config.model, description).parameters, machine_memory())
        return config.measured_task.build(config.model, description, config.training), config


def require_numbers(task: Task, checkpoint: Path) -> None:
    """Raises ConfigError where weights are not finite, which write no text."""
    for name, weight in task.named_parameters():
        if not weight.isfinite().all():
            reason = f"{name} holds a number that is not finite, so its training has diverged"
            raise ConfigError(f"{reason}; take an earlier checkpoint, or train anew with a lower rate", str(checkpoint))


def other_weights(error: RuntimeError) -> str:
    """Returns the first difference that ``load_state_dict`` names between weights and the network for them."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()[1:] if line.strip()]
    return f"does not fit the network that today's code builds: {lines[0].rstrip('.') if lines else first_line(error)}"


def changed(config: RunConfig, changes: Mapping[str, Plain]) -> RunConfig:
    """Returns the config of a trained run with changes. Raises ConfigError where these are of a tokenizer: a network
    reads the symbols that it was trained on."""
    new = config.override(changes)
    for path, value in plain_leaves(changes):
        parts = path.split(".")
        ends = [index + 1 for index, part in enumerate(parts) if part in CHOOSE_A_TOKENIZER]
        if not ends or parts[-1] == "errors":
            continue
        tokenizer = ".".join(parts[: ends[0]])
        if new.get(tokenizer) != config.get(tokenizer):
            raise ConfigError(f"{value!r}: a trained network reads with its own tokenizer; leave it out", path)
    return new
