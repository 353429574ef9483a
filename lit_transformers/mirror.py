"""A copy of a run for Weights & Biases, to look at. Nothing reads it back: the run directory is the source of truth.

A run's id there is its key, so one that was stopped continues its curve. Offline, every attempt leaves a folder of its
own, ``wandb/offline-run-TIME-KEY``, under the same id. Each begins with the points that the checkpoint carries, so the
newest folder holds the whole curve; ``wandb sync`` uploads them in order of time, as one run.

It costs a run one to two seconds, nearly all of it for wandb's own imports, and nothing that shows for each step.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import lightning as L
from lightning.pytorch.callbacks import Callback

from lit_transformers.callbacks import Curves
from lit_transformers.config import Plain
from lit_transformers.files import CURVES, DOCUMENTS, OUTPUTS
from lit_transformers.ranks import is_first_rank
from lit_transformers.record import first_line

if TYPE_CHECKING:
    import wandb

__all__ = ["Copy", "Mirror", "mirrored", "replay"]

CONNECT_SECONDS = 15.0
"""How long an online run waits for the network before it goes offline."""
SAMPLES = 32
"""Outputs that are shown of a run that writes."""
SAMPLED: list[str | int] = ["document", "hypothesis", "reference"]


class Mirror(NamedTuple):
    """Whether and where a run is mirrored. It changes no number, so it is no part of a run's config or key.

    study: shown as the group; arm: as the job type. Both are tags too.
    """

    mode: Literal["disabled", "offline", "online"] = "offline"
    project: str = "lit-transformers"
    study: str | None = None
    arm: str | None = None


class Copy:
    """One run's mirror. Where it breaks it says so once and falls silent: it must not cost the run."""

    def __init__(self, run: wandb.Run, directory: Path) -> None:
        self.run: wandb.Run | None = run
        self.directory = directory

    def callback(self, curves: Curves) -> Callback:
        """Sends every point of the curves, those of a checkpoint included."""
        return _Sender(self, curves)

    def log(self, values: dict[str, float], step: int) -> None:
        """Points of one step; of a step that was sent before the run was stopped, nothing."""
        run = self.run
        if run is not None and step >= run.step:
            self._guarded(lambda: run.log(values, step=step))

    def close(self, record: dict[str, Plain], exit_code: int) -> None:
        """Sends what the record says besides the curves, and ends."""
        run = self.run
        if run is not None:
            # Committed, or the last step's values would come after the summary's.
            self._guarded(lambda: run.log(_tables(self.directory), commit=True))
            self._guarded(lambda: run.summary.update(summary(record)))
            self._guarded(lambda: run.finish(exit_code=exit_code))

    def _guarded(self, act: Callable[[], object]) -> None:
        if self.run is None:
            return
        try:
            act()
        except Exception as error:  # whatever it is, training goes on
            self.run = None
            _say(f"the mirror broke off, the run goes on without: {first_line(error)}")


class _Sender(Callback):
    """Hands new points to the mirror after the step that made them."""

    def __init__(self, copy: Copy, curves: Curves) -> None:
        self.copy, self.curves, self.sent = copy, curves, 0

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._send()

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        self._send()

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._send()

    def _send(self) -> None:
        if self.sent == len(self.curves.points):
            return
        fresh, self.sent = self.curves.points[self.sent :], len(self.curves.points)
        for (step, tokens), points in groupby(fresh, key=lambda point: point[:2]):
            self.copy.log({"tokens": tokens, **{name: value for _, _, name, value in points}}, step)


@contextmanager
def mirrored(mirror: Mirror | None, directory: Path, record: dict[str, Plain]) -> Iterator[Copy | None]:
    """Opens the mirror of a run, and closes it with what ``record`` says then. None where there is nothing to do."""
    if mirror is None or mirror.mode == "disabled" or not is_first_rank():
        yield None
        return
    copy = _open(mirror, directory, record)
    if copy is None:
        yield None
        return
    code = 1
    try:
        yield copy
        code = 0 if record["outcome"] in ("finished", "pruned") else 1
    finally:
        copy.close(record, code)


def _open(mirror: Mirror, directory: Path, record: dict[str, Plain]) -> Copy | None:
    import wandb

    wandb.setup(wandb.Settings(silent=True))  # else it asks for a key where there is a terminal
    if mirror.mode == "online":
        try:
            return _start(mirror, directory, record)
        except Exception as error:
            wandb.teardown()  # or the next attempt inherits what is left of this one
            why, files = first_line(error).rstrip("."), directory / "wandb" / "offline-run-*"
            _say(f"{why}; the run goes on, mirrored offline: wandb sync {files} uploads it")
    try:
        return _start(mirror._replace(mode="offline"), directory, record)
    except Exception as error:
        _say(f"the run goes on without a mirror: {first_line(error)}")
        return None


def _start(mirror: Mirror, directory: Path, record: dict[str, Plain]) -> Copy:
    import wandb

    # What is measured and how is sent; no code, no output, no name of a person, a machine or a folder.
    settings = wandb.Settings(
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
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=CONNECT_SECONDS,
    )
    run = wandb.init(
        project=mirror.project,
        mode=mirror.mode,
        dir=directory,
        id=record["key"],
        name=f"{mirror.arm or 'run'}-{record['seed']}",
        group=mirror.study,
        job_type=mirror.arm,
        tags=[tag for tag in (mirror.study, mirror.arm) if tag],
        config=record["config"] | {"run_key": record["key"], "data_fingerprint": record["data"]["fingerprint"]},
        resume="allow" if mirror.mode == "online" else None,
        reinit="create_new",
        settings=settings,
    )
    return Copy(run, directory)


def replay(mirror: Mirror | None, directory: Path, record: dict[str, Plain]) -> None:
    """Mirrors a run that is over from what it left in its directory."""
    with mirrored(mirror, directory, record) as copy:
        if copy is None:
            return
        points = _rows(directory / CURVES)
        for (step, tokens), same in groupby(points, key=lambda point: (int(point["step"]), int(point["tokens"]))):
            copy.log({"tokens": tokens, **{point["name"]: float(point["value"]) for point in same}}, step)


def _tables(directory: Path) -> dict[str, Any]:
    """The loss of every document or example, as a table to sort, and beside it some of what the run wrote; nothing for
    a run that was not measured."""
    import wandb

    rows = _rows(directory / DOCUMENTS)
    if not rows:
        return {}
    columns: list[str | int] = list(rows[0])
    cells: list[Any] = [[text if name == "name" else float(text) for name, text in row.items()] for row in rows]
    tables = {"documents": wandb.Table(columns=columns, data=cells)}
    outputs = _samples(directory / OUTPUTS)
    samples: list[Any] = [[one["id"], one["hypothesis"], one["references"][0]] for one in outputs]
    return tables | ({"samples": wandb.Table(columns=SAMPLED, data=samples)} if samples else {})


def _samples(path: Path) -> list[dict[str, Any]]:
    """The first outputs of a run that writes; none of another."""
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in islice(file, SAMPLES)]
    except FileNotFoundError:
        return []


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def summary(record: dict[str, Plain]) -> dict[str, Plain]:
    """What stands beside the curves: outcome, metrics, cost, protocol, gates."""
    found: dict[str, Plain] = {"outcome": record["outcome"], "reason": record["reason"]} | record["metrics"]
    for part in ("cost", "protocol"):
        found |= {f"{part}/{name}": value for name, value in record[part].items()}
    return found | {f"gates/{gate['name']}": gate["passed"] for gate in record["gates"]}


def _say(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
