"""Does a run, from a config to a record.

``fit`` may be stopped at any moment and called again: it resumes from its checkpoint, and on a CPU ends with the same
record, bit for bit, as if it had never stopped. What computes the run's numbers is in ``train``.
"""

from __future__ import annotations

import os
import time
import traceback
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import lightning as L
import torch

from datamodules import DataError
from lit_transformers.checks import gates
from lit_transformers.config import ConfigError, Memory, Plain
from lit_transformers.records.files import RUN, replace_file
from lit_transformers.records.record import VERSION, Record, record_to_plain, write_record
from lit_transformers.runs.config import RunConfig, describe, spent
from lit_transformers.runs.environment import environment, is_disk_full, peak_memory, reason
from lit_transformers.runs.folder import claim
from lit_transformers.runs.keys import identity_of
from lit_transformers.runs.loggers import LoggerConfig, open_loggers
from lit_transformers.runs.train import train
from lit_transformers.runs.wandb_logging import WandbConfig, WandbRun, open_wandb_run, upload_finished_run
from lit_transformers.training.callbacks import Curves, Interrupted
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.pruning import Pruned
from lit_transformers.training.ranks import is_first_rank
from lit_transformers.training.reporting import ProgressReporter, Report
from lit_transformers.training.stopping import stop_requests

__all__ = ["fit", "require_device"]


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
    Raises ConfigError or DataError before anything starts, also where the directory holds another run, and Interrupted
    after SIGTERM, with a checkpoint written.
    keep_every: seconds between checkpoints. wandb_config: how the run is sent to Weights & Biases; None for not at all.
    logger_config: the loggers that it has besides.
    """
    data = config.data.build()
    require_device(config.training)
    identity = identity_of(config, data)
    finished = claim(directory, identity)
    if finished is not None:
        upload_finished_run(wandb_config, directory, finished)
        return record_to_plain(finished)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / RUN, lambda fresh: fresh.write_text(config.to_yaml(), encoding="utf-8"))
    started, start_time, description = datetime.now(UTC), time.monotonic(), describe(config, data)
    record = Record(
        version=VERSION,
        key=identity.key,
        outcome="failed",
        seed=config.seed,
        config=config.to_dict(),
        data={"name": config.data.name, "fingerprint": data.content},
        protocol=protocol(config),
        cost=description._asdict(),
        environment=environment(config.training, identity.library),
        measured={"started": started.isoformat(timespec="seconds")},
    )
    loggers = open_loggers(logger_config, directory, record)
    with stop_requests() as stopping, open_wandb_run(wandb_config, directory, record) as wandb_run:
        try:
            record.gates = tuple(gates.check(config.model, report))
            if all(gate.passed for gate in record.gates):
                observers = partial(_observers, report, wandb_run)
                results = train(
                    config, data, directory, identity.training_key, stopping, keep_every, observers, loggers
                )
                record.metrics, timings, record.observed = results
                record.measured |= timings
                if "steps" in timings:
                    record.cost = spent(description, config, timings["steps"])._asdict()
                record.outcome = "finished"
            else:
                failures = ", ".join(f"{gate.name} ({gate.detail})" for gate in record.gates if not gate.passed)
                record.outcome, record.reason = "invalid", f"a gate failed: {failures}"
        except (Interrupted, KeyboardInterrupt, ConfigError, DataError):
            raise
        except Pruned as end:
            record.outcome, record.reason, record.metrics = "pruned", str(end), end.metrics
            record.measured |= {"steps": end.step}
        except Exception as error:
            traceback.print_exc()
            record.reason, record.resumable = reason(error), is_disk_full(error)
    ended_at = datetime.now(UTC).isoformat(timespec="seconds")
    record.measured |= {"ended": ended_at, "peak_memory_bytes": peak_memory()}
    record.measured.setdefault("seconds", time.monotonic() - start_time)
    if is_first_rank():
        write_record(directory, record)
    return record_to_plain(record)


def _observers(report: Report | None, wandb_run: WandbRun | None, curves: Curves) -> list[L.Callback]:
    """Returns the callbacks that show a run while it trains."""
    return [*([wandb_run.callback(curves)] if wandb_run else []), ProgressReporter(report)]


def protocol(config: RunConfig) -> dict[str, Plain]:
    """Returns how the reported metrics are measured, for the record."""
    model = config.model.override(config.task.evaluation)
    memory = next((length for _, length in model.mixer.leaves_with(Memory)), None)
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
