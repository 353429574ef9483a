"""Shows a run in Lightning's own loggers. Nothing reads them back: the run directory is the source of truth.

Weights & Biases, which takes over curves, tables and summaries, is in ``wandb_logging``.
"""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.record import Record

__all__ = ["LoggerConfig", "open_loggers"]


class LoggerConfig(NamedTuple):
    """Which loggers a run has: csv, mlflow, tensorboard, trackio. They change no number, so they are no part of a run's
    config or key. study and arm name the run in them."""

    names: Sequence[str] = ()
    study: str | None = None
    arm: str | None = None


def open_loggers(config: LoggerConfig | None, directory: Path, record: Record) -> list[Logger]:
    """Returns the loggers of a run, each with the run's config. Those that write files do so in folders of their name
    in the run's directory, each attempt at the run in one of its own.

    Raises ConfigError where the package of one is not installed.
    """
    loggers = []
    for name in config.names if config else ():
        try:
            logger = _open(name, config or LoggerConfig(), directory, record)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"needs {error.name}: pip install 'lit-transformers[loggers]'", f"logger {name}"
            ) from None
        rest = {part: value for part, value in record.config.items() if part not in ("model", "task", "training")}
        logger.log_hyperparams({"run_key": record.key, **rest})  # the task logs the rest of the config by itself
        loggers.append(logger)
    return loggers


def _open(name: str, config: LoggerConfig, directory: Path, record: Record) -> Logger:
    project, title = config.study or "lit-transformers", f"{config.arm or 'run'}-{record.seed}"
    match name:
        case "csv":
            return CSVLogger(directory, name)
        case "tensorboard":
            return TensorBoardLogger(directory, name)
        case "mlflow":
            address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{directory.resolve() / 'mlflow.db'}"
            return MLFlowLogger(project, title, tracking_uri=address)
        case "trackio":
            return TrackioLogger(project, title, record.key)
    raise ConfigError(f"no logger {name!r}; there are csv, mlflow, tensorboard and trackio", "logger")


class TrackioLogger(Logger):
    """Logs to Trackio, whose calls are those of Weights & Biases, in its folder on this machine (TRACKIO_DIR)."""

    def __init__(self, project: str, name: str, key: str) -> None:
        super().__init__()
        self._project, self._name, self._key = project, name, key
        self._trackio: Any = importlib.import_module("trackio")
        self._run: Any = None
        self._hyperparameters: dict[str, Plain] = {}

    @property
    def name(self) -> str:
        return self._project

    @property
    def version(self) -> str:
        return self._key

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        self._hyperparameters |= vars(params) if isinstance(params, Namespace) else params

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if self._run is None:
            name = f"{self._name}-{self._key}"
            self._run = self._trackio.init(
                self._project, name, config=self._hyperparameters, resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        self._run.log(dict(metrics), step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
