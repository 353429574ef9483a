"""Trains and measures: all that computes the numbers of a run, and nothing that only shows or checks them.

A run's key covers this module and all that it imports (``keys.ROOTS``), so a change here trains every run again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import ModelParallelStrategy

from datamodules import Data, Split
from lit_transformers.batch import LabelledDescription, LanguageDescription
from lit_transformers.compression.callback import CompressionCallback
from lit_transformers.config import ConfigError, Plain
from lit_transformers.models.cost import flops_by_length
from lit_transformers.packing.packed_file import packed_bytes
from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS, OUTPUTS
from lit_transformers.records.measurement import PREFIXES
from lit_transformers.runs.code import stamps_of_plugins
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.document_losses import write_documents, write_outputs
from lit_transformers.runs.features import cached_features
from lit_transformers.runs.metrics import stopping_goal
from lit_transformers.runs.narrowed_weights import narrowed_weights
from lit_transformers.runs.observe import observe
from lit_transformers.runs.pass_times import first_batches, starting_network, time_ratios
from lit_transformers.runs.shared_weights import smaller_weights
from lit_transformers.runs.starting_weights import LICENCES, load_teacher, read_weights, start_from
from lit_transformers.runs.trained_symbols import unknown_lines
from lit_transformers.runs.weight_reuse import offer, take_over, takes_over
from lit_transformers.tasks import Task
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.training.arithmetic import arithmetic
from lit_transformers.training.averaging import Averager
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck, TokensRead
from lit_transformers.training.checkpoints import CODE, TRAINING, read
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.loop import UpdateLoop
from lit_transformers.training.ranks import is_first_rank, node_count
from lit_transformers.training.search_pruning import Bars, Pruned, Pruner
from lit_transformers.training.selection import Selection
from lit_transformers.training.stopping import Stop

__all__ = ["contents", "make_trainer", "measure", "quiet", "train", "usable"]

SELECTED_ON: Split = "validation"
"""The split that ends a run early and selects its weights, whichever one is measured."""


def train(
    config: RunConfig,
    data: Data,
    directory: Path,
    training_key: str,
    stopping: Stop,
    keep_every: float = 30.0,
    observers: Callable[[Curves], list[L.Callback]] = lambda curves: [],
    loggers: Sequence[Logger] = (),
    starts: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[dict[str, float], dict[str, Plain], dict[str, Plain]]:
    """Trains from the checkpoint, if there is one, and measures. Returns the metrics, the measurements of training
    (``tokens`` that were read, times and speeds), and the observations of the network.

    training_key: of all runs with identical training, whose weights are taken over. keep_every: seconds between
    checkpoints. observers: returns callbacks that show the run, and its curves, and change nothing of it. loggers:
    receive the values that the task logs. starts: the files of the weights that training starts from, by the parts of
    ``start``.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    held = {**contents(config, data, training_key), LICENCES: licences_of(data, starts.values())}
    donor = take_over(directory, training_key, CHECKPOINT, held) if takes_over(config) else None
    task, started_from = starting_task(config, data, starts)
    task.reports_training = bool(loggers)
    curves, reading = Curves(config.training.log_every, config.tokens_per_step), TokensRead()
    keeps = config.training.keep_optimizer
    checkpointer = Checkpointer(directory / CHECKPOINT, keep_every, held, stopping, keep_optimizer=keeps)
    selection = _selection(config, data)
    data.selection_split = None if selection is None else SELECTED_ON
    compression = CompressionCallback(config.compression, task, data.train_dataloader)
    acting = [*acting_callbacks(config.training, Bars.read(directory), checkpointer), compression]
    callbacks = [curves, reading, *observers(curves), DivergenceCheck(), *acting, *([selection] if selection else [])]
    with quiet(), arithmetic(config.training), cached_features(config, task, data) as feature_seconds:
        evaluation_seconds = 0.0
        trainer = make_trainer(config.training, directory, [*callbacks, checkpointer], loggers)
        try:
            if config.training.steps:
                trainer.fit(task, data, ckpt_path=usable(directory / CHECKPOINT), weights_only=True)
            else:
                task.to(trainer.strategy.root_device)
                compression.finish()
        except Pruned as end:
            end.tokens = reading.count.total()
            if is_first_rank():
                curves.write(directory / CURVES)
            raise
        steps, validated_split, data.selection_split = trainer.global_step, data.validated_split, None
        measured_step = steps if selection is None else selection.measured_step(steps)
        is_other_split = data.measured_split != validated_split
        is_measured = task.evaluation_seconds > 0 and bool(task.metric.per_document())  # in this process, in time
        if checkpointer.validated_at != measured_step or is_other_split or not is_measured:
            measure(trainer, task, data)
            evaluation_seconds = task.evaluation_seconds
        if not config.training.steps:
            checkpointer.save(trainer)
    losses, outputs = task.metric.per_document(), task.metric.outputs()  # which all ranks gather together
    if is_first_rank():
        _write_files(directory, curves, data, losses, outputs)
        if config.training.validate_every is None and config.training.steps:
            offer(directory, training_key)
    training_seconds, tokens = checkpointer.spent(), reading.count.total()
    timings = {
        "tokens": tokens,
        "seconds": training_seconds + evaluation_seconds,
        **_speeds(steps, tokens, config.examples_per_step, training_seconds),
        "evaluation_tokens_per_second": sum(loss.tokens for loss in losses) / task.evaluation_seconds,
        "trained_by": donor,
    }
    optional: dict[str, Plain | None] = {
        "feature_seconds": feature_seconds or None,
        "steps": steps if steps < config.training.steps else None,
        "measured_step": None if selection is None else measured_step,
        "ranks": list(checkpointer.ranks) if len(checkpointer.ranks) > 1 else None,
        "started_from": started_from if starts else None,
    }
    timings |= {name: value for name, value in optional.items() if value is not None}
    timings |= _sizes(config, held, task, data) | _time_ratios(config, task, starts, data, trainer)
    metrics = {f"{PREFIXES[data.measured_split]}/{name}": value for name, value in task.metric.compute().items()}
    return metrics, timings, _observations(config, task, data)


def measure(trainer: L.Trainer, task: Task, data: Data) -> None:
    """Measures a task on the split of its data's config."""
    run = trainer.test if data.measured_split == "test" else trainer.validate
    run(task, data, verbose=False)


def _speeds(steps: int, tokens: int, examples: int | None, seconds: float) -> dict[str, Plain]:
    """Returns the tokens, and where an update has a number of examples these, of a second of training."""
    if not steps:
        return {}
    of_examples = {"examples_per_second": steps * examples / seconds} if examples else {}
    return {"tokens_per_second": tokens / seconds, **of_examples}


def _sizes(config: RunConfig, held: Mapping[str, Plain], task: Task, data: Data) -> dict[str, Plain]:
    """Returns the bytes of the packed checkpoint, and of the states of the longest passage of a row, where the run
    measures them."""
    sizes: dict[str, Plain] = {}
    if config.is_packed and is_first_rank():
        sizes["packed_bytes"] = len(packed_bytes(held, task.state_dict())[0])
    described = data.description
    if config.reads_passages_apart and isinstance(described, LabelledDescription):
        sizes["passage_bytes"] = config.model.passage_bytes(described.length - (described.question_width or 0))
    return sizes


def _time_ratios(
    config: RunConfig, task: Task, starts: Mapping[str, Path], data: Data, trainer: L.Trainer
) -> dict[str, Plain]:
    """Returns the time of the network's passes next to that of the network that it starts from; nothing for runs that
    do not measure it."""
    if not config.timed:
        return {}
    sources = {part: read_weights(path) for part, path in starts.items() if part != "teacher"}
    other, device = starting_network(config, task, sources), trainer.strategy.root_device
    was_training = task.training
    task.eval().to(device)
    ratios = time_ratios(task, other.to(device), first_batches(data.measured_dataloader(), task))
    task.train(was_training)
    return {**ratios}


def _write_files(directory: Path, curves: Curves, data: Data, losses: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Writes curves, and the losses and outputs of each document."""
    curves.write(directory / CURVES)
    write_documents(directory / DOCUMENTS, losses, data.example_name)
    if outputs:
        write_outputs(directory / OUTPUTS, outputs)


def _observations(config: RunConfig, task: Task, data: Data) -> dict[str, Plain]:
    """Returns the observations of a trained network, and its FLOPs at several lengths. All ranks must call it."""
    continued = config.data.describes is LanguageDescription
    source, length = config.task.counted_lengths(data.description)
    task.put_together()
    with arithmetic(config.training):
        lengths = flops_by_length(task.network, length, continued, source)
        observed = observe(task, data.measured_dataloader())
    return observed | {"flops_by_length": [list(row) for row in lengths]}


def _selection(config: RunConfig, data: Data) -> Selection | None:
    """Returns the selection that ends training early or keeps its best weights; None where there is none."""
    stop = config.training.stop
    if stop is None:
        return None
    goal = stopping_goal(stop.metric, config.task, data.description)
    return Selection(stop, goal, config.training.keep == "best")


def starting_task(config: RunConfig, data: Data, starts: Mapping[str, Path]) -> tuple[Task, list[Plain]]:
    """Builds the task with the weights that training starts from, and returns a line for each part that starts anew or
    is left out."""
    assert starts.keys() == config.start.sources().keys()
    with torch.random.fork_rng(devices=[]):  # draws of building do not change the draws of dropout and sampling
        task = config.build_task(data)
    files = {path: read_weights(path) for path in dict.fromkeys(starts.values())}
    lines = []
    sources = {part: files[path] for part, path in starts.items() if part != "teacher"}
    if "network" in sources:
        sources["network"] = smaller_weights(sources["network"], config.start, task)
    if config.start.narrow is not None:
        sources["network"] = narrowed_weights(config, task, sources, data.train_dataloader)
    if sources:
        lines = start_from(task, sources, config.start.head)
    if "teacher" in starts:
        assert isinstance(task, LabelledTask)
        with torch.random.fork_rng(devices=[]):
            teacher = config.build_teacher(data.description)
        load_teacher(teacher, files[starts["teacher"]], "outputs" in config.task.learned_of_teacher)
        task.learn_from(teacher)
    if is_first_rank():
        for line in (*lines, *(line for path in files for line in reading_lines(data, path))):
            print(line, flush=True)
    return task, [*lines]


def reading_lines(data: Data, path: Path) -> Iterator[str]:
    """Yields how the data of a run are read that starts from weights."""
    if data.trained is None:
        yield f"{path.name} does not define its symbols; the symbols of the run must be those of its training"
    else:
        yield from unknown_lines(data, ["train", data.measured_split], path.name)


def acting_callbacks(training: TrainingConfig, bars: Bars | None, checkpointer: Checkpointer) -> Iterator[L.Callback]:
    """Yields the callbacks that end training or change its weights, and those of others."""
    if bars:
        yield Pruner(bars, checkpointer)
    if training.average:
        yield Averager(training.average)
    yield from (callback.build() for callback in training.callbacks)


def make_trainer(
    training: TrainingConfig, directory: Path, callbacks: list[L.Callback], loggers: Sequence[Logger] = ()
) -> L.Trainer:
    """Returns a Trainer that follows the config, with Lightning's optional features switched off."""
    trainer = L.Trainer(
        max_steps=training.steps,
        accelerator={"cuda": "gpu"}.get(training.device, training.device),
        devices=training.devices // node_count(),
        num_nodes=node_count(),
        strategy=strategy_of(training),
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        gradient_clip_val=training.clip,
        accumulate_grad_batches=training.accumulate,
        val_check_interval=training.accumulate * (training.validate_every or training.steps + 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        default_root_dir=directory,
        logger=list(loggers) or False,
        log_every_n_steps=training.log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit_loop.epoch_loop = UpdateLoop(trainer, training.validate_every)
    return trainer


def strategy_of(training: TrainingConfig) -> str | ModelParallelStrategy:
    """Returns Lightning's strategy for sharing the work between ranks."""
    if training.strategy == "fsdp":
        return ModelParallelStrategy(training.devices, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return "ddp" if training.devices > 1 else "auto"


def contents(config: RunConfig, data: Data, training_key: str) -> dict[str, Plain]:
    """Returns the plain data that a checkpoint needs to be used without the data, and its training key."""
    stamps = stamps_of_plugins(config.override({"training.callbacks": ()}))
    return {"config": config.to_dict(), TRAINING: training_key, CODE: stamps, **data.checkpoint_metadata()}


def licences_of(data: Data, starts: Iterable[Path]) -> dict[str, Plain]:
    """Returns the licences of the starting weights and of the data, by their names; unknown licences are omitted."""
    licences = {name: of for path in starts for name, of in read_weights(path, whole=False).licences.items()}
    return {**licences, **{f"data {name}": of for name, of in data.licences.items()}}


def usable(path: Path) -> Path | None:
    """Returns the path of an intact checkpoint, or None. A damaged one is moved aside, with a message."""
    if not path.exists():
        return None
    try:
        read(path, mmap=True)
    except ConfigError as error:
        if not is_first_rank():
            return None
        damaged_path = path.with_suffix(".damaged")
        path.replace(damaged_path)
        print(
            f"{path} cannot be read: it {error.reason}. It is now {damaged_path.name}, and the run starts anew",
            flush=True,
        )
        return None
    return path


ADVICE = (
    "does not have many workers",
    "GPU available but not",
    "treespec, LeafSpec",
    "`srun` command is available",
    "is smaller than the logging interval",
    "in eval mode at the start of training",
)
"""Of each warning of Lightning that a run does not show, a part of its text."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Lightning's advice within the block, which concerns choices that the config makes on purpose."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for text in ADVICE:
                warnings.filterwarnings("ignore", f".*{text}.*")
            yield
    finally:
        logger.setLevel(level)
