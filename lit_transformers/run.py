"""A run: one model on one kind of data, from a config to a record. The one place where a model meets its data.

``fit`` may be stopped at any moment and called again: it resumes from its checkpoint, and on a CPU ends with the same
record, bit for bit, as if it had never stopped.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

import lightning as L
import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from datamodules import Data, DataConfig, DataError, LanguageDataConfig
from lit_transformers import gates
from lit_transformers.averaging import Averager
from lit_transformers.batch import LanguageDescription
from lit_transformers.callbacks import (
    Checkpointer,
    Curves,
    Interrupted,
    Progress,
    ProgressReporter,
    Report,
    measured,
)
from lit_transformers.checkpoints import read
from lit_transformers.code import code_hash
from lit_transformers.config import Config, ConfigError, Plain, Seed, canonical_hash
from lit_transformers.cost import flops_by_length
from lit_transformers.files import CHECKPOINT, CURVES, DOCUMENTS, OUTPUTS, RECORD, RUN, replace_file, write_json
from lit_transformers.folder import TRAINING, Identity, claim
from lit_transformers.models import LanguageModelConfig, ModelConfig
from lit_transformers.observe import observe
from lit_transformers.pruning import Bars, Pruned, Pruner
from lit_transformers.ranks import is_first_rank
from lit_transformers.record import (
    VERSION,
    environment,
    is_disk_full,
    peak_memory,
    quiet,
    reason,
    write_documents,
    write_outputs,
)
from lit_transformers.stopping import Stop, stop_requests
from lit_transformers.tasks import CausalLMConfig, Task, TaskConfig
from lit_transformers.training import TrainingConfig
from lit_transformers.wandb_logging import WandbConfig, WandbRun, open_wandb_run, upload_finished_run
from lit_transformers.weight_reuse import offer, take_over

__all__ = ["Interrupted", "Progress", "RunConfig", "describe", "evaluate", "fit", "load", "run_key"]


class RunConfig(Config):
    """All that a run depends on. ``seed`` is for the weights and dropout; the order of the data has its own seed."""

    runner: ClassVar[str] = "lit_transformers.runs.runner:RUNNER"

    model: ModelConfig = LanguageModelConfig()
    task: TaskConfig = CausalLMConfig()
    data: DataConfig = LanguageDataConfig()
    training: TrainingConfig = TrainingConfig()
    seed: Seed = 0

    def conflicts(self) -> Iterator[str]:
        try:
            self.model.override(self.task.evaluation)
        except ConfigError as error:
            yield f"task.evaluation changes what model does not have: {error}"
        if self.training.precision == "bf16" and self.training.device == "cpu":
            yield "training.precision bf16 needs CUDA, and training.device is cpu"
        if self.training.strategy == "fsdp" and self.task.evaluation:
            yield (
                "training.strategy fsdp cannot measure another network than it trains: "
                "empty task.evaluation, or set training.strategy to ddp"
            )
        if self.training.devices > 1:
            yield from (f"data.{reason}" for reason in self.data.rank_conflicts(self.training.devices))
        if self.data.describes is not self.task.reads:
            kinds = {k: data for k, data in DataConfig.kinds.items() if issubclass(data, DataConfig)}
            suitable = [kind for kind, data in kinds.items() if data.describes is self.task.reads]
            yield (
                f"task {self.task.kind} does not learn from data {self.data.kind}, whose batches are of another type; "
                f"set data to {' or '.join(suitable)}, or another task"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update, over all its batches and ranks; rows may hold padding."""
        return self.training.accumulate * self.data.tokens_per_step

    def build_task(self, data: Data) -> Task:
        """Builds the LightningModule for the description of the data."""
        return self.task.build(self.model, data.description, self.training)


class Description(NamedTuple):
    """The cost of a run, computed without training. ``flops_per_token`` is for a forward pass in training, and
    ``train_flops`` counts three times that for every token; evaluations are not included."""

    parameters: int
    embedding_parameters: int
    flops_per_token: float
    train_flops: float
    tokens: int
    state_bytes: int


def describe(config: RunConfig, data: Data | None = None) -> Description:
    """Returns the parameters, FLOPs, tokens and state of a run. ``data``: the config's data, where already built."""
    cost = config.task.cost(config.model, (data or config.data.build()).description)
    tokens = config.training.steps * config.tokens_per_step
    train_flops = 3 * cost.flops_per_token * tokens
    return Description(
        cost.parameters, cost.embedding_parameters, cost.flops_per_token, train_flops, tokens, cost.state_bytes
    )


def run_key(config: RunConfig, data: Data | None = None) -> str:
    """Returns the key of a run: a hash of its config, of its data's content and of the code it uses."""
    content = (data or config.data.build()).fingerprint
    return canonical_hash({"config": config.to_dict(), "data": content, "code": code_of(config)})


def training_key(config: RunConfig, data: Data) -> str:
    """Returns the key that all runs with identical training share, however they are measured."""
    trained_config = config.override({"task.evaluation": {}, "data": config.data.with_default_evaluation()}).to_dict()
    return canonical_hash({"config": trained_config, "data": data.content, "code": code_of(config)})


def code_of(config: RunConfig) -> str:
    """Returns a hash of the library code that the run uses."""
    return code_hash(config, ["lit_transformers.run"])


def fit(
    config: RunConfig,
    directory: Path,
    report: Report | None = None,
    keep_every: float = 30.0,
    wandb_config: WandbConfig | None = None,
) -> dict[str, Plain]:
    """Trains, measures, and writes the record, which is also returned. The record of a finished run is only read.

    An error during the run is an outcome, not an exception: "failed" with the reason, or "invalid" where a gate fails.
    Raises ConfigError or DataError before anything starts, also where the directory holds another run, and Interrupted
    after SIGTERM, with a checkpoint written.
    keep_every: seconds between checkpoints. wandb_config: how the run is sent to Weights & Biases; None for not at all.
    """
    data = config.data.build()
    require_device(config.training)
    identity = Identity(config, run_key(config, data), training_key(config, data), code_of(config))
    finished = claim(directory, identity)
    if finished is not None:
        upload_finished_run(wandb_config, directory, finished)
        return finished
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / RUN, lambda fresh: fresh.write_text(config.to_yaml(), encoding="utf-8"))
    started, start_time = datetime.now(UTC), time.monotonic()
    record: dict[str, Plain] = {
        "version": VERSION,
        "key": identity.key,
        "outcome": "failed",
        "reason": None,
        "seed": config.seed,
        "config": config.to_dict(),
        "data": {"name": config.data.name, "fingerprint": data.content},
        "metrics": {},
        "protocol": protocol(config),
        "cost": describe(config, data)._asdict(),
        "gates": [],
        "environment": environment(config.training, identity.library),
        "measured": {"started": started.isoformat(timespec="seconds")},
    }
    with stop_requests() as stopping, open_wandb_run(wandb_config, directory, record) as wandb_run:
        try:
            gate_results = gates.check(config.model, report)
            record["gates"] = [gate._asdict() for gate in gate_results]
            if all(gate.passed for gate in gate_results):
                results = train(config, data, directory, report, keep_every, stopping, wandb_run)
                record["metrics"], timings, record["observed"] = results
                record["measured"] |= timings
                record["outcome"] = "finished"
            else:
                failures = ", ".join(f"{gate.name} ({gate.detail})" for gate in gate_results if not gate.passed)
                record |= {"outcome": "invalid", "reason": f"a gate failed: {failures}"}
        except (Interrupted, KeyboardInterrupt, ConfigError, DataError):
            raise
        except Pruned as end:
            record |= {"outcome": "pruned", "reason": str(end), "metrics": end.metrics}
            record["measured"] |= {"steps": end.step}
        except Exception as error:
            traceback.print_exc()
            record |= {"reason": reason(error), "resumable": is_disk_full(error)}
    ended_at = datetime.now(UTC).isoformat(timespec="seconds")
    record["measured"] |= {"ended": ended_at, "peak_memory_bytes": peak_memory()}
    record["measured"].setdefault("seconds", time.monotonic() - start_time)
    if is_first_rank():
        write_json(directory / RECORD, record)
    return record


def train(
    config: RunConfig,
    data: Data,
    directory: Path,
    report: Report | None,
    keep_every: float,
    stopping: Stop,
    wandb_run: WandbRun | None = None,
) -> tuple[dict[str, float], dict[str, Plain], dict[str, Plain]]:
    """Trains from the checkpoint, if there is one, and measures. Returns the metrics, the measured times and speeds,
    and the observations of the network."""
    L.seed_everything(config.seed, workers=True, verbose=False)
    shared_key = training_key(config, data)
    is_single = config.training.devices == 1  # several ranks would have to agree on the donor
    donor = (
        take_over(directory, shared_key, CHECKPOINT) if is_single and config.training.validate_every is None else None
    )
    task = config.build_task(data)
    curves = Curves(config.training.log_every, config.tokens_per_step)
    checkpointer = Checkpointer(directory / CHECKPOINT, keep_every, contents(config, data), stopping)
    callbacks: list[L.Callback] = [
        curves,
        *([wandb_run.callback(curves)] if wandb_run else []),
        ProgressReporter(report),
    ]
    bars = Bars.read(directory)
    if bars:
        callbacks.append(Pruner(bars, checkpointer))
    if config.training.average:
        callbacks.append(Averager(config.training.average))
    with quiet():
        evaluation_seconds = 0.0
        trainer = make_trainer(config.training, directory, [*callbacks, checkpointer])
        try:
            trainer.fit(task, data, ckpt_path=usable(directory / CHECKPOINT), weights_only=True)
        except Pruned:
            if is_first_rank():
                curves.write(directory / CURVES)
            raise
        if checkpointer.validated_at != config.training.steps or not task.metric.per_document():
            if report:
                report(Progress(config.training.steps, config.training.steps, float("nan"), {}, None, "evaluate"))
            trainer.validate(task, data, verbose=False)
            evaluation_seconds = task.evaluation_seconds
    losses, outputs = task.metric.per_document(), task.metric.outputs()
    if is_first_rank():
        curves.write(directory / CURVES)
        write_documents(directory / DOCUMENTS, losses, data.example_name)
        if outputs:
            write_outputs(directory / OUTPUTS, outputs)
        if config.training.validate_every is None:
            offer(directory, shared_key)
    training_seconds = checkpointer.spent()
    timings = {
        "seconds": training_seconds + evaluation_seconds,
        "tokens_per_second": config.training.steps * config.tokens_per_step / training_seconds,
        "evaluation_tokens_per_second": sum(loss.tokens for loss in losses) / task.evaluation_seconds,
        "trained_by": donor,
    }
    metrics = {f"val/{name}": value for name, value in task.metric.compute().items()}
    continued = config.data.describes is LanguageDescription
    source, length = config.task.counted_lengths(data.description)
    lengths = flops_by_length(task.network, length, continued, source)
    observations = observe(task, data.val_dataloader()) | {"flops_by_length": [list(row) for row in lengths]}
    return metrics, timings, observations


def make_trainer(training: TrainingConfig, directory: Path, callbacks: list[L.Callback]) -> L.Trainer:
    """Returns a Trainer that follows the config, with Lightning's optional features switched off."""
    return L.Trainer(
        max_steps=training.steps,
        accelerator={"cuda": "gpu"}.get(training.device, training.device),
        devices=training.devices,
        num_nodes=1,
        strategy=strategy_of(training),
        precision="bf16-mixed" if training.precision == "bf16" else "32-true",
        gradient_clip_val=training.clip,
        accumulate_grad_batches=training.accumulate,
        val_check_interval=training.accumulate * (training.validate_every or training.steps + 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def strategy_of(training: TrainingConfig) -> str | ModelParallelStrategy:
    """Returns Lightning's strategy for sharing the work between ranks."""
    if training.strategy == "fsdp":
        return ModelParallelStrategy(training.devices, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return "ddp" if training.devices > 1 else "auto"


def evaluate(checkpoint: Path, changes: dict[str, Plain] | None = None) -> dict[str, float]:
    """Measures a trained model again and returns the metrics. ``changes`` overrides paths of its run's config:
    {"task.evaluation": ...}."""
    task, config, _ = load(checkpoint, changes)
    with quiet():
        trainer = L.Trainer(
            accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=sys.stderr.isatty(), enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.validate(task, config.data.build(), verbose=False)
    return measured(trainer)


def load(checkpoint: Path, changes: dict[str, Plain] | None = None) -> tuple[Task, RunConfig, dict[str, Plain]]:
    """Returns a trained task, its run's config, and the metadata of its data. Nothing in the file is executed.

    Raises ConfigError for a file that is damaged or is no checkpoint of this suite.
    """
    checkpoint_data = read(checkpoint)
    extra = checkpoint_data["lit_transformers"]
    config = RunConfig.from_dict(extra["config"]).override(changes or {})
    task = config.task.build(config.model, config.data.description_from(extra), config.training)
    task.load_state_dict(checkpoint_data["state_dict"])
    return task.eval(), config, {name: value for name, value in extra.items() if name not in ("config", TRAINING)}


def contents(config: RunConfig, data: Data) -> dict[str, Plain]:
    """Returns the plain data that a checkpoint needs to be used without the data, and its training key."""
    return {"config": config.to_dict(), TRAINING: training_key(config, data), **data.checkpoint_metadata()}


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


def protocol(config: RunConfig) -> dict[str, Plain]:
    """Returns how the reported metrics are measured, for the record."""
    model = config.model.override(config.task.evaluation)
    memory = dict(model.leaves()).get("mixer.memory")
    settings = config.data.protocol() | config.task.protocol()
    return settings | {"changes": dict(config.task.evaluation), "memory": memory}


def require_device(training: TrainingConfig) -> None:
    """Raises ConfigError where the config requires a device or ranks that are not available."""
    if training.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is to be found; set training.device=cpu or auto", "training.device")
    if training.precision == "bf16" and not torch.cuda.is_available():
        raise ConfigError(
            "bf16 needs CUDA, and no such device is to be found; set training.precision=32", "training.precision"
        )
    if training.devices > 1 and int(os.environ.get("WORLD_SIZE", "1")) != training.devices:
        command = f"torchrun --nproc-per-node {training.devices} -m lit_transformers fit RUN.yaml"
        raise ConfigError(f"{training.devices} ranks are started by: {command}", "training.devices")
