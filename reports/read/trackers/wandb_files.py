"""Folders of W&B: the files ``run-ID.wandb`` of runs that were logged offline, or whose folder is still there.

A file is a log of records in the format of LevelDB (leveldb/doc/log_format.md) after a header of seven bytes. The
records are messages of wandb's own package, which decodes them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.read.study import ReportError
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, flat, library, value_of

__all__ = ["WANDB_FILES"]

_TITLE = "W&B, from their files"
_FILES = "run-*.wandb"
_START = b":W&B"
_START_BYTES, _HEADER_BYTES, _BLOCK_BYTES = 7, 7, 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class _Log:
    """The records of one run, in one file or, if it was resumed, in several."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    points: list[tuple[float, float]] = field(default_factory=list)
    status: str = "unfinished"
    seconds: float | None = None


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    messages = library("wandb.proto.wandb_internal_pb2", "wandb", "W&B")
    logs: dict[str, _Log] = {}
    for file in address.named(_FILES):
        log = logs.setdefault(file.stem, _Log(file.stem))
        log.status = "unfinished"
        for record in _records(file):
            _add(log, messages.Record.FromString(record), metric)
    for log in logs.values():
        yield TrackedRun(
            name=log.name,
            config=flat(log.config),
            labels=log.labels,
            status=log.status,
            metrics=frozenset(log.metrics),
            points=tuple(log.points),
            seconds=log.seconds,
        )


def _records(file: Path) -> Iterator[bytes]:
    """Yields the whole records of a file; a record that a killed run left half written ends it."""
    content = file.read_bytes()
    if not content.startswith(_START):
        raise ReportError(f"{file}: is no file of W&B, or an empty one; remove it, or copy it again")
    place, parts = _START_BYTES, b""
    while place + _HEADER_BYTES <= len(content):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        place += _HEADER_BYTES
        if place + length > len(content) or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        parts = content[place : place + length] if kind in (_WHOLE, _FIRST) else parts + content[place : place + length]
        place += length
        if kind in (_WHOLE, _LAST):
            yield parts


def _add(log: _Log, record: Any, metric: str) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        log.name = record.run.display_name or log.name
        labels = {"group": record.run.run_group, "project": record.run.project, "name": record.run.display_name}
        log.labels |= {name: label for name, label in labels.items() if label}
        _configure(log.config, record.run.config)
    elif kind == "config":
        _configure(log.config, record.config)
    elif kind == "history":
        _log_values(log, record.history, metric)
    elif kind == "exit":
        log.status = "finished" if record.exit.exit_code == 0 else "failed"
        log.seconds = float(record.exit.runtime) or None


def _configure(config: dict[str, Any], changes: Any) -> None:
    for item in changes.update:
        *folders, name = item.nested_key or [item.key]
        target = config
        for folder in folders:
            target = target.setdefault(folder, {})
        if name != "_wandb":
            target[name] = json.loads(item.value_json)


def _log_values(log: _Log, history: Any, metric: str) -> None:
    values: dict[str, float] = {}
    step = float(history.step.num)
    for item in history.item:
        name = ".".join(item.nested_key) or item.key
        value = value_of(json.loads(item.value_json))
        if name == "_step" and value is not None:
            step = value
        elif not name.startswith("_") and value is not None:
            values[name] = value
    log.metrics.update(values)
    if metric in values:
        log.points.append((step, values[metric]))


WANDB_FILES = TrackerReader("wandb", _TITLE, lambda address: bool(address.named(_FILES)), _runs)
