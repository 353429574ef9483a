"""Does a run, from a config to a record.

``fit`` may be stopped at any moment and called again: it resumes from its checkpoint, and on a CPU ends with the same
record, bit for bit, as if it had never stopped. The computation of the run's numbers is in ``train``, and the work
around every run in ``recording``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from datamodules import Data, DataError
from lit_transformers.attention.kernels import cuda_only
from lit_transformers.config import ConfigError, Memory, Plain
from lit_transformers.gates import gates
from lit_transformers.records.measurement import Measurement
from lit_transformers.records.record import VERSION, Gate, Record
from lit_transformers.runs.config import RunConfig, describe, spent
from lit_transformers.runs.environment import environment
from lit_transformers.runs.held_out import held_out_gates
from lit_transformers.runs.keys import identity_of, source_keys
from lit_transformers.runs.loggers import LoggerConfig, MissingPoints
from lit_transformers.runs.recording import Results, recorded
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.runs.required_memory import require_memory
from lit_transformers.runs.stages import digests, origins, spent_before, with_chain
from lit_transformers.runs.train import train
from lit_transformers.runs.wandb_logging import TrainingSender, WandbConfig, WandbRun
from lit_transformers.tasks import TaskConfig
from lit_transformers.training.callbacks import Curves
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.reporting import ProgressReporter, Report
from lit_transformers.training.search_pruning import Pruned
from lit_transformers.training.stopping import Stop

__all__ = ["fit", "measurement", "observers", "require_device", "require_kernel", "require_machine"]


def fit(
    config: RunConfig,
    directory: Path,
    report: Report | None = None,
    keep_every: float = 30.0,
    wandb_config: WandbConfig | None = None,
    logger_config: LoggerConfig | None = None,
) -> dict[str, Plain]:
    """Trains, measures, and writes the record, and returns it as its file holds it. That of a finished run is read.

    An error during the run is an outcome, not an exception: "failed" with the reason, or "invalid" where a gate fails.
    The runs that it starts from have been done, each in a folder next to this one that is named by its key.
    Raises ConfigError or DataError before anything starts, also where the directory holds another run, Interrupted
    after SIGTERM, with a checkpoint written, and LoaderDied where a process that loads data was killed.
    keep_every: seconds between checkpoints. wandb_config: how the run is sent to Weights & Biases; None for not at all.
    logger_config: the loggers that it has besides.
    """
    data = config.build_data()
    require_device(config.training)
    identity = identity_of(config, data)
    description = describe(config, data)
    require_memory(config, description.parameters)
    rehearse(config, data)

    def blank() -> Record:
        return Record(
            version=VERSION,
            key=identity.key,
            outcome="failed",
            seed=config.seed,
            config=config.to_dict(),
            data={"name": config.data.name, "fingerprint": data.content},
            protocol=protocol(config) | {"split": data.measured_split},
            measurement=measurement(config, data),
            cost=description._asdict(),
            environment=environment(config.training.device, identity.library, config.training.tf32),
        )

    def work(stopping: Stop, wandb_run: WandbRun | None, loggers: Sequence[Logger]) -> Results:
        def watching(curves: Curves) -> list[L.Callback]:
            logged = [MissingPoints(curves, loggers)] if loggers else []
            shown = observers(report, wandb_run, curves, examples=config.examples_per_step)
            return [*shown, *logged, Advice(config.measured_task, data)]

        senders = [TrainingSender(wandb_run)] if wandb_config and wandb_config.sends else []
        starting = origins(config, directory.parent, source_keys(config))
        starts = {part: origin.path for part, origin in starting.items()}
        senders_and_loggers = [*loggers, *senders]
        try:
            metrics, measured, observed = train(
                config,
                data,
                directory,
                identity.training_key,
                stopping,
                keep_every,
                watching,
                senders_and_loggers,
                starts,
            )
        except Pruned as end:
            end.cost = None if end.tokens is None else spent(description, config, end.step, end.tokens)
            raise
        if cut := data.shares_cut():
            measured["cut"] = cut
        steps = measured.get("steps", config.training.steps)
        cost = spent(description, config, steps, measured.pop("tokens"))
        if starting:
            measured |= {"start": digests(starting), "chain": spent_before(starting)}
            cost = with_chain(cost, measured["chain"])
        return Results(metrics, measured, observed, cost)

    def check() -> tuple[Gate, ...]:
        return (*gates.check(config.model, report), *held_out_gates(config, data))

    return recorded(directory, identity, blank, check, work, wandb_config, logger_config, (DataError,))


class Advice(L.Callback):
    """Prints a line where a task does not seem to fit its data, once these are prepared."""

    def __init__(self, task: TaskConfig, data: Data) -> None:
        self.task, self.data = task, data

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        lengths, targets = self.data.mean_lengths(), self.data.some_targets()
        for advice in (lengths and self.task.advice(*lengths), targets and self.task.text_advice(targets)):
            if advice:
                print(advice, file=sys.stderr, flush=True)


def observers(
    report: Report | None,
    wandb_run: WandbRun | None,
    curves: Curves,
    loss: str = "nats",
    examples: int | None = None,
) -> list[L.Callback]:
    """Returns the callbacks that show a run while it trains. loss: its name in the output of a training step. examples:
    the number of examples of an update; None if speed is not shown in examples."""
    reporter = ProgressReporter(report, loss=loss, examples=examples)
    return [*([wandb_run.callback(curves)] if wandb_run else []), reporter]


def protocol(config: RunConfig) -> dict[str, Plain]:
    """Returns how the reported metrics are measured, for the record, but for the split."""
    model = config.model.override(config.task.evaluation)
    memory = next((length for _, length in model.mixer.leaves_with(Memory)), None)
    settings = config.data.protocol() | config.measured_task.protocol()
    return settings | {"changes": dict(config.task.evaluation), "memory": memory}


def measurement(config: RunConfig, data: Data) -> Measurement:
    """Returns the split and the documents that the metrics of a run are measured on, and the meaning of the metrics."""
    measures, documents = config.task.measures(data.description), data.documents_measured()
    return Measurement.of(data.measured_split, documents, None, measures, data.definitions())


def require_device(training: TrainingConfig) -> None:
    """Raises ConfigError where the config requires a device or ranks that are not available."""
    require_machine(
        training.device,
        training.devices,
        f"torchrun --nproc-per-node {training.devices} -m lit_transformers fit RUN.yaml",
    )
    if training.precision == "bf16" and training.steps and not torch.cuda.is_available():
        raise ConfigError(
            "bf16 needs CUDA, and no such device is to be found; set training.precision=32", "training.precision"
        )
    require_kernel(training.attention_kernel)


def require_kernel(kernel: str) -> None:
    """Raises ConfigError where there is no device for a kernel of attention."""
    if cuda_only(kernel) and not torch.cuda.is_available():
        reason = "needs CUDA, and no such device is to be found; set training.attention_kernel=auto"
        raise ConfigError(f"{kernel} {reason}", "training.attention_kernel")


def require_machine(device: str, ranks: int, command: str) -> None:
    """Raises ConfigError where there is no such device, or this process is none of n ranks, which ``command``
    starts."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is to be found; set training.device=cpu or auto", "training.device")
    if ranks > 1 and int(os.environ.get("WORLD_SIZE", "1")) != ranks:
        raise ConfigError(f"{ranks} ranks are started by: {command}", "training.devices")
