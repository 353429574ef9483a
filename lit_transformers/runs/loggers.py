"""Shows a run in Lightning's own loggers. Nothing reads them back: the run directory is the source of truth.

A run that was stopped or killed resumes in the same run of each logger. Steps that it repeats are not logged twice: a
point that a logger has stays as it is, and a point of the checkpoint's curves that the logger lacks is logged then.
Weights & Biases, which takes over curves, tables and summaries, is in ``wandb_logging``.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import MLFLOW_RUN, replace_file, write_text
from lit_transformers.records.record import Record
from lit_transformers.training.callbacks import Curves
from lit_transformers.training.ranks import is_first_rank

__all__ = ["LoggerConfig", "MissingPoints", "open_loggers"]

MLFLOW_ADDRESS = "MLFLOW_TRACKING_URI"
"""The variable that says where MLflow is; without it, it is a database in the run's directory."""
LoggedPoint = tuple[str, int]
"""A metric's name and the step that a logger has a value of it for."""


class LoggerConfig(NamedTuple):
    """Which loggers a run has: csv, mlflow, tensorboard, trackio. They change no number, so they are no part of a run's
    config or key. study and arm name the run in them."""

    names: Sequence[str] = ()
    study: str | None = None
    arm: str | None = None


class OpenLogger(NamedTuple):
    """A logger, and the points that its run has from earlier attempts at this run."""

    logger: Logger
    logged: set[LoggedPoint]


def open_loggers(config: LoggerConfig | None, directory: Path, record: Record) -> list[Logger]:
    """Returns the loggers of a run, each with the run's config. Loggers that write files do so in folders of their name
    in the run's directory, where a later attempt at the run continues them.

    Raises ConfigError where the package of one is not installed.
    """
    loggers = []
    for name in config.names if config else ():
        try:
            logger, logged = _open(name, config or LoggerConfig(), directory, record)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"needs {error.name}: pip install 'lit-transformers[loggers]'", f"logger {name}"
            ) from None
        if logged:
            _go_on(logger, logged)
        rest = {part: value for part, value in record.config.items() if part not in ("model", "task", "training")}
        logger.log_hyperparams({"run_key": record.key, **rest})  # the task logs the rest of the config by itself
        loggers.append(logger)
    return loggers


class MissingPoints(Callback):
    """Logs the points of a checkpoint's curves that loggers lack, as where a run was killed before they were written.
    Learning rate, norm of the gradient and tokens are no such points."""

    def __init__(self, curves: Curves, loggers: Sequence[Logger]) -> None:
        self.curves, self.loggers = curves, loggers

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        for step, points in groupby(self.curves.points, key=lambda point: point[0]):
            values = {name: value for _, _, name, value in points}
            for logger in self.loggers:
                logger.log_metrics(values, step - 1)  # loggers count updates from 0
        for logger in self.loggers if self.curves.points else ():
            logger.save()


def _go_on(logger: Logger, logged: set[LoggedPoint]) -> None:
    """Makes a logger leave out points that its run has, and the config, which was logged before any of them."""
    log_metrics: Callable[..., None] = logger.log_metrics
    spelled = {(_spelling(name), step) for name, step in logged}

    def log_missing(metrics: Mapping[str, float], step: int | None = None) -> None:
        missing = {name: value for name, value in metrics.items() if (_spelling(name), step) not in spelled}
        if missing:
            log_metrics(missing, step)

    def log_no_config(*_: Any, **__: Any) -> None:
        """MLflow refuses parameters that have changed, as the number of ranks may."""

    logger.log_metrics, logger.log_hyperparams = log_missing, log_no_config  # type: ignore[method-assign]


def _spelling(name: str) -> str:
    """Returns the letters and digits of a name: loggers replace other characters, each its own, or leave them out."""
    return re.sub(r"[\W_]+", "", name)


def _open(name: str, config: LoggerConfig, directory: Path, record: Record) -> OpenLogger:
    project, title = config.study or "lit-transformers", f"{config.arm or 'run'}-{record.seed}"
    match name:
        case "csv":
            return _open_csv(CSVLogger(directory, name, version=0))
        case "tensorboard":
            return _open_tensorboard(TensorBoardLogger(directory, name, version=0))
        case "mlflow":
            return _open_mlflow(project, title, directory)
        case "trackio":
            return _open_trackio(TrackioLogger(project, title, record.key))
    raise ConfigError(f"no logger {name!r}; there are csv, mlflow, tensorboard and trackio", "logger")


def _open_csv(logger: CSVLogger) -> OpenLogger:
    """Lightning's logger deletes the table of an earlier attempt. It is out of its way meanwhile, and whole in one of
    both places at any moment, but for a line that was being written when a process was killed."""
    if not is_first_rank():
        return OpenLogger(logger, set())
    path = Path(logger.log_dir, ExperimentWriter.NAME_METRICS_FILE)
    aside = path.with_suffix(".earlier")
    if path.exists() and not aside.exists():
        path.replace(aside)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*exists and is not empty.*")
        writer = logger.experiment
    if not aside.exists():
        return OpenLogger(logger, set())
    lines = aside.read_bytes().rpartition(b"\n")
    replace_file(path, lambda fresh: fresh.write_bytes(lines[0] + lines[1]))
    aside.unlink()
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        writer.metrics_keys = [*(rows.fieldnames or ())]
        return OpenLogger(logger, {(name, int(row["step"])) for row in rows for name, cell in row.items() if cell})


def _open_tensorboard(logger: TensorBoardLogger) -> OpenLogger:
    """A later attempt writes another file of events into the same folder, which TensorBoard shows as one run."""
    if not is_first_rank() or not Path(logger.log_dir).exists():
        return OpenLogger(logger, set())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(logger.log_dir, size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag != "hp_metric"]
    return OpenLogger(logger, {(tag, event.step) for tag in tags for event in events.Scalars(tag)})


def _open_mlflow(project: str, title: str, directory: Path) -> OpenLogger:
    """The id of the run in MLflow is in a file of the run's directory. One that has no point yet is replaced."""
    given, path = os.environ.get(MLFLOW_ADDRESS), directory / MLFLOW_RUN
    address = given or f"sqlite:///{directory.resolve() / 'mlflow.db'}"
    if not is_first_rank():
        return OpenLogger(MLFlowLogger(project, title, tracking_uri=address), set())
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client, run_id, logged = MlflowClient(address), None, set[LoggedPoint]()
    if path.exists():
        run_id = path.read_text(encoding="utf-8").strip()
        try:
            names = client.get_run(run_id).data.metrics
            logged = {(name, point.step) for name in names for point in client.get_metric_history(run_id, name)}
            client.update_run(run_id, status="RUNNING" if logged else "KILLED")
        except MlflowException:  # there is no such run at this address
            logged = set()
    logger = MLFlowLogger(project, title, tracking_uri=address, run_id=run_id if logged else None)
    write_text(path, f"{logger.run_id}\n")
    if given is None:  # MLflow has set it meanwhile, and the next run of this process has a separate database
        os.environ.pop(MLFLOW_ADDRESS, None)
    return OpenLogger(logger, logged)


def _open_trackio(logger: TrackioLogger) -> OpenLogger:
    """The points that were logged to a server or a Space are not known here, so repeated steps stand there twice."""
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs(logger.name, logger.title) if is_first_rank() else []
    return OpenLogger(logger, {(name, row["step"]) for row in rows for name in row})


class TrackioLogger(Logger):
    """Logs to Trackio, whose calls are those of Weights & Biases, in its folder on this machine (TRACKIO_DIR)."""

    def __init__(self, project: str, name: str, key: str) -> None:
        super().__init__()
        self._project, self._key, self.title = project, key, f"{name}-{key}"
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
            self._run = self._trackio.init(
                self._project, self.title, config=self._hyperparameters, resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        self._run.log(dict(metrics), step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
