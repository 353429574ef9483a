"""Sends runs to Weights & Biases for display. Nothing reads them back: the run directory is the source of truth.

A run's id there is its key, so a resumed run continues its curve. Offline, every attempt leaves a separate folder,
``wandb/offline-run-TIME-KEY``, under the same id. Each begins with the points in the checkpoint, so the newest folder
holds the whole curve; ``wandb sync`` uploads them in order of time, as one run. Learning rate, norm of the gradient,
throughput and memory are in the checkpoint too, if the attempts before were sent, and in ``updates.csv``, with which a
run is sent from its files.

It costs a run one to two seconds, nearly all of it for wandb's own imports; the cost of each step is negligible.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from lit_transformers.config import Plain
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.cells import text_of
from lit_transformers.records.files import CURVES, DOCUMENTS, OUTPUTS, SENT_UPDATES, replace_file
from lit_transformers.records.record import Record
from lit_transformers.runs.environment import peak_memory
from lit_transformers.runs.wandb_artifacts import log_artifacts
from lit_transformers.training.callbacks import Curves
from lit_transformers.training.ranks import is_first_rank
from lit_transformers.training.training_log import values_of_update
from lit_transformers.wandb_target import TAG_LETTERS, WandbTarget

if TYPE_CHECKING:
    import wandb

__all__ = [
    "TrainingSender",
    "UpdateSender",
    "WandbConfig",
    "WandbRun",
    "open_wandb_run",
    "private_settings",
    "upload_finished_run",
]

CONNECT_SECONDS = 15.0
"""Seconds that an online run waits for the network before it goes offline."""
TOKENS, MEMORY = "tokens", "train/peak_memory_bytes"
UPDATES = ("train/learning_rate", "train/gradient_norm", "train/tokens_per_second")
"""The values that a task logs of its updates (``training_log``) and that no curve of the run holds."""
UPDATE_RATE = "train/updates_per_second"
"""The metric that is sent in place of tokens a second of a module whose tokens are not known."""
KEY_LETTERS = 8
"""How much of a run's key its name shows: two runs of an arm and a seed may differ in their data."""
SAMPLES = 32
"""The most outputs that are sent of a run that generates text."""
SAMPLED: list[str | int] = ["document", "hypothesis", "reference"]


class WandbConfig(NamedTuple):
    """Whether and where a run is sent, and as which run. It changes no number, so it is no part of a run's config or
    key.

    study: the folder of its plan, shown as the group; arm: as the job type. Both are tags too. levels: the arm's level
    of every factor, which are keys of the run's config there, below factors.
    """

    target: WandbTarget
    study: str | None = None
    arm: str | None = None
    levels: Mapping[str, str] = {}

    @property
    def sends(self) -> bool:
        """Whether the run is sent."""
        return self.target.mode != "disabled"


class WandbRun:
    """A run at Weights & Biases. After a failure it prints a message and stops sending, so that training continues."""

    def __init__(self, run: wandb.Run, directory: Path, wandb_config: WandbConfig) -> None:
        self.run: wandb.Run | None = run
        self.directory = directory
        self._config = wandb_config
        self._is_over_tokens = False
        self._curves: Curves | None = None

    def callback(self, curves: Curves) -> Callback:
        """Returns a callback that sends every point of the curves, those of a checkpoint included."""
        self._curves = curves
        return _Sender(self, curves)

    def log(self, values: dict[str, float], step: int) -> None:
        """Sends the points of one step, unless they were sent before the run was stopped. Once tokens are counted, they
        are the axis of everything."""
        run = self.run
        if run is None or step < run.step:
            return
        if TOKENS in values and not self._is_over_tokens:
            self._is_over_tokens = True
            self._guarded(lambda: run.define_metric("*", step_metric=TOKENS))
            self.define_goal(TOKENS)
        self._guarded(lambda: run.log(values, step=step))

    def define_goal(self, axis: str | None = None) -> None:
        """Makes W&B show the best value of the metric that judges, until the run has ended: then its summary is that of
        the record. axis: the metric on the horizontal axis of its plot; None for steps."""
        run, metric, goal = self.run, self._config.target.metric, self._config.target.goal
        if run is not None and metric is not None and goal is not None:
            best = "min" if goal == "minimize" else "max"
            self._guarded(lambda: run.define_metric(metric, step_metric=axis, summary=best))

    def log_update(self, values: dict[str, float], step: int) -> None:
        """Sends values of an update with the points of its step, and stores them for later attempts at the run."""
        if self._curves is not None:
            self._curves.updates += [(step, name, value) for name, value in values.items()]
        self.log(values, step)

    def close(self, record: Record, exit_code: int) -> None:
        """Sends the tables and the summary of the record, and ends the run."""
        if self._curves is not None and self._curves.updates:
            _write_updates(self.directory / SENT_UPDATES, self._curves.updates)
        run = self.run
        if run is not None:
            # Commits, or the last step's values would be applied after the summary's.
            self._guarded(lambda: run.log(_tables(self.directory), commit=True))
            self._guarded(lambda: run.summary.update(summary(record)))
            if self._config.target.artifacts is not None and record.outcome == "finished":
                study_file = self._config.target.artifacts
                self._guarded(lambda: log_artifacts(run, self.directory, record, study_file))
            self._guarded(lambda: run.finish(exit_code=exit_code))

    def _guarded(self, action: Callable[[], object]) -> None:
        if self.run is None:
            return
        try:
            action()
        except Exception as error:  # training continues after any error
            self.run = None
            _print_message(f"sending broke off, the run continues without: {first_line(error)}")


class TrainingSender(Logger):
    """Sends the values that a task logs of its updates, and the peak of memory, with the points of the curves.

    All ranks have one, so that all count tokens together; that of the first one has the run.
    """

    def __init__(self, wandb_run: WandbRun | None) -> None:
        super().__init__()
        self._wandb_run = wandb_run

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The run's config was sent when it was opened."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {name: float(metrics[name]) for name in UPDATES if name in metrics}
        if self._wandb_run is not None and step is not None and values:
            self._wandb_run.log_update(values | {MEMORY: float(peak_memory())}, step + 1)  # Lightning counts from 0


class UpdateSender(Callback):
    """Sends learning rate, norm of the gradient, updates a second and the peak of memory of a module that does not log
    its updates itself, with the points of the curves. Of several optimizers the values are those of the last one."""

    def __init__(self, wandb_run: WandbRun, every: int) -> None:
        self._wandb_run, self._every = wandb_run, every
        self._values: dict[str, float] = {}
        self._step, self._since = -1, 0.0

    def on_before_optimizer_step(
        self, trainer: L.Trainer, task: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if (trainer.global_step + 1) % self._every == 0:
            self._values = {name: float(value) for name, value in values_of_update(task, optimizer).items()}

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        if self._step < 0:  # the first update, which prepares much, is not timed
            self._step, self._since = trainer.global_step, time.monotonic()
        if not self._values:
            return
        values, self._values = self._values | {MEMORY: float(peak_memory())}, {}
        now = time.monotonic()
        if trainer.global_step > self._step:
            values[UPDATE_RATE] = (trainer.global_step - self._step) / (now - self._since)
        self._step, self._since = trainer.global_step, now
        self._wandb_run.log_update(values, trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._step, self._since = trainer.global_step, time.monotonic()  # validations are no part of the rate


class _Sender(Callback):
    """Sends new points of the curves after the step that added them, and first the values of updates in a
    checkpoint."""

    def __init__(self, wandb_run: WandbRun, curves: Curves) -> None:
        self.wandb_run, self.curves, self.sent = wandb_run, curves, 0
        self.has_begun = False

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._send()

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        self._send()

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._send()

    def _send(self) -> None:
        if self.sent == len(self.curves.points):
            return
        points = [(step, name, value) for step, _, name, value in self.curves.points[self.sent :]]
        points += [] if self.has_begun else self.curves.updates
        self.has_begun, self.sent = True, len(self.curves.points)
        for step, values in _by_step(points):
            self.wandb_run.log(_counted(step * self.curves.tokens_per_step) | values, step)


@contextmanager
def open_wandb_run(wandb_config: WandbConfig | None, directory: Path, record: Record) -> Iterator[WandbRun | None]:
    """Opens a run at Weights & Biases, and closes it with the contents of ``record`` at the end of the block. Yields
    None where nothing is to be sent."""
    if wandb_config is None or not wandb_config.sends or not is_first_rank():
        yield None
        return
    wandb_run = _open(wandb_config, directory, record)
    if wandb_run is None:
        yield None
        return
    code = 1
    try:
        yield wandb_run
        code = 0 if record.outcome in ("finished", "pruned") else 1
    finally:
        wandb_run.close(record, code)


def _open(wandb_config: WandbConfig, directory: Path, record: Record) -> WandbRun | None:
    import wandb

    wandb.setup(wandb.Settings(silent=True))  # otherwise it prompts for a key on a terminal
    if wandb_config.target.mode == "online":
        try:
            return _start(wandb_config, directory, record)
        except Exception as error:
            wandb.teardown()  # or the next attempt inherits the state of this one
            reason, files = first_line(error).rstrip("."), directory / "wandb" / "offline-run-*"
            _print_message(f"{reason}; the run continues, logged offline: wandb sync {files} uploads it")
    try:
        return _start(wandb_config._replace(target=wandb_config.target._replace(mode="offline")), directory, record)
    except Exception as error:
        _print_message(f"the run continues without W&B: {first_line(error)}")
        return None


def private_settings(system_metrics: bool = False) -> wandb.Settings:
    """Returns settings that limit the sent data to measurements and the way of measuring: no code, no output, no name
    of a person, a machine or a folder. system_metrics: whether the load of processors, memory and devices is sent
    too."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        disable_job_creation=True,
        host="",
        username="",
        email="",
        program="",
        x_disable_meta=True,
        x_disable_stats=not system_metrics,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=CONNECT_SECONDS,
    )


def _start(wandb_config: WandbConfig, directory: Path, record: Record) -> WandbRun:
    import wandb

    target = wandb_config.target
    tags = (wandb_config.study, wandb_config.arm, *target.tags)
    run = wandb.init(
        project=target.project,
        entity=target.entity,
        mode=target.mode,
        dir=directory,
        id=record.key,
        name=f"{wandb_config.arm or 'run'}-{record.seed}-{record.key[:KEY_LETTERS]}",
        group=wandb_config.study,
        job_type=wandb_config.arm,
        tags=[*dict.fromkeys(tag[:TAG_LETTERS] for tag in tags if tag)],
        config={
            **record.config,
            "factors": dict(wandb_config.levels),
            "run_key": record.key,
            "data_fingerprint": record.data["fingerprint"],
        },
        resume="allow" if target.mode == "online" else None,
        reinit="create_new",
        settings=private_settings(system_metrics=target.system_metrics),
    )
    wandb_run = WandbRun(run, directory, wandb_config)
    wandb_run.define_goal()
    return wandb_run


def upload_finished_run(wandb_config: WandbConfig | None, directory: Path, record: Record) -> None:
    """Sends a finished run from the files in its directory."""
    with open_wandb_run(wandb_config, directory, record) as wandb_run:
        if wandb_run is None:
            return
        rows = _rows(directory / CURVES)
        tokens = {int(row["step"]): int(row["tokens"]) for row in rows}
        rows += _rows(directory / SENT_UPDATES)
        points = [(int(row["step"]), row["name"], float(row["value"])) for row in rows]
        for step, values in _by_step(points):
            wandb_run.log(_counted(tokens.get(step, 0)) | values, step)


def _by_step(points: Iterable[tuple[int, str, float]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields the values of each step by name, in order of the steps."""
    for step, group in groupby(sorted(points, key=lambda point: point[0]), key=lambda point: point[0]):
        yield step, {name: value for _, name, value in group}


def _write_updates(path: Path, updates: Iterable[tuple[int, str, float]]) -> None:
    """Writes the values that were sent of updates as a CSV table with the columns step, name, value."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("step", "name", "value"), *updates])

    replace_file(path, write)


def _counted(tokens: int) -> dict[str, float]:
    """Returns the tokens of a point, unless the run counts none."""
    return {TOKENS: tokens} if tokens else {}


def _tables(directory: Path) -> dict[str, Any]:
    """Returns a table with the loss of every document or example, and one with some of the run's outputs; nothing for a
    run that was not measured."""
    import wandb

    rows = _rows(directory / DOCUMENTS)
    if not rows:
        return {}
    columns: list[str | int] = list(rows[0])
    cells: list[Any] = [[text if name == "name" else float(text) for name, text in row.items()] for row in rows]
    tables = {"documents": wandb.Table(columns=columns, data=cells)}
    outputs = _samples(directory / OUTPUTS)
    samples: list[Any] = [[output["id"], output["hypothesis"], output["references"][0]] for output in outputs]
    return tables | ({"samples": wandb.Table(columns=SAMPLED, data=samples)} if samples else {})


def _samples(path: Path) -> list[dict[str, Any]]:
    """Returns the first outputs of a run that generates text, or an empty list."""
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in islice(file, SAMPLES)]
    except FileNotFoundError:
        return []


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [{column: text_of(cell) for column, cell in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def summary(record: Record) -> dict[str, Plain]:
    """Returns the summary of a run, which is sent besides its curves: outcome, metrics, cost, protocol, gates."""
    values: dict[str, Plain] = {"outcome": record.outcome, "reason": record.reason, **record.metrics}
    for part, amounts in (("cost", record.cost), ("protocol", record.protocol)):
        values |= {f"{part}/{name}": value for name, value in amounts.items()}
    return values | {f"gates/{gate.name}": gate.passed for gate in record.gates}


def _print_message(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
