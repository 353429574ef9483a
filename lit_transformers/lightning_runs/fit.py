"""Does a run of a LightningModule, from a config to a record, as ``lit_transformers.runs.fit`` does the library's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from lit_transformers.config import Plain
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.lightning_runs.first_batch import check, describe
from lit_transformers.lightning_runs.keys import data_content, identity_of
from lit_transformers.lightning_runs.measured_batches import MeasuredBatches
from lit_transformers.lightning_runs.train import LOSS, train
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.records.record import VERSION, Gate, Record
from lit_transformers.runs.environment import environment
from lit_transformers.runs.fit import observers, require_kernel, require_machine
from lit_transformers.runs.loggers import LoggerConfig
from lit_transformers.runs.recording import Results, recorded
from lit_transformers.runs.train import quiet, usable
from lit_transformers.runs.wandb_logging import UpdateSender, WandbConfig, WandbRun
from lit_transformers.training.callbacks import Curves
from lit_transformers.training.reporting import Report
from lit_transformers.training.stopping import Stop

__all__ = ["fit", "require_device"]


def fit(
    config: LightningRunConfig,
    directory: Path,
    report: Report | None = None,
    keep_every: float = 30.0,
    wandb_config: WandbConfig | None = None,
    logger_config: LoggerConfig | None = None,
) -> dict[str, Plain]:
    """Trains, measures, and writes the record, and returns it as its file holds it. That of a finished run is read.

    An error during the run is an outcome, not an exception: "failed" with the reason, or "invalid" where a gate fails.
    Raises ConfigError before anything starts, also where the first batch cannot be trained or the directory holds
    another run, Interrupted after SIGTERM, with a checkpoint written, and LoaderDied where a process that loads data
    was killed. keep_every: seconds between checkpoints.
    """
    require_device(config)
    identity = identity_of(config)

    def blank() -> Record:
        return Record(
            version=VERSION,
            key=identity.key,
            outcome="failed",
            seed=config.seed,
            config=config.to_dict(),
            data={"name": config.data.class_path or config.model.class_path, "fingerprint": data_content(config)},
            protocol={"split": config.data.evaluation.split, "FLOPs": "of one batch, by torch.utils.flop_counter"},
            cost=describe(config)._asdict(),
            environment=environment(config.training.device, identity.library, config.training.tf32),
        )

    def work(stopping: Stop, wandb_run: WandbRun | None, loggers: Sequence[Logger]) -> Results:
        def shown(curves: Curves) -> list[Callback]:
            every = config.training.log_every
            sender = [UpdateSender(wandb_run, every)] if wandb_run else []
            return [*observers(report, wandb_run, curves, loss=LOSS), *sender]

        with quiet():
            checkpoint, batches = usable(directory / CHECKPOINT), MeasuredBatches()
            results = Results(
                *train(
                    config, directory, identity.training_key, checkpoint, stopping, keep_every, shown, batches, loggers
                )
            )
        return results._replace(measurement=batches.measurement(config.data.evaluation.split))

    def gates() -> tuple[Gate, ...]:
        return tuple(check(config))

    return recorded(directory, identity, blank, gates, work, wandb_config, logger_config)


def require_device(config: LightningRunConfig) -> None:
    """Raises ConfigError where the config requires a device or ranks that are not available."""
    training = config.training
    require_machine(training.device, training.devices, f"python -m ablations run STUDY --devices {training.devices}")
    require_kernel(training.attention_kernel)
