"""Folders of Hydra's multirun: the arms by ``.hydra/overrides.yaml`` of each job, the values from a file in its folder.

Where no file is named, the values are read as the tracker that wrote into the folders of the jobs keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lit_transformers.plain_yaml import read_yaml
from reports.read.study import ReportError
from reports.read.table_rows import read_rows
from reports.read.trackers.tracked_run import CUT_OFF, RunsAddress, TrackedRun, TrackerReader, flat, value_of

__all__ = ["hydra_reader"]

_OVERRIDES = ".hydra/overrides.yaml"
_STEPS = ("step", "global_step", "iteration", "epoch")


def hydra_reader(trackers: Sequence[TrackerReader]) -> TrackerReader:
    """Returns the reader, which lets one of ``trackers`` read the folders of jobs where no file is named."""

    def runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
        for file in address.named(_OVERRIDES):
            folder = file.parent.parent
            name = folder.relative_to(address.path).as_posix()
            run = _named_file(folder, address.values, metric) if address.values else _tracked(folder, trackers, metric)
            yield replace(run, name=name, config={**run.config, **_overrides(file)})

    return TrackerReader("hydra", "Hydra's multirun", lambda address: bool(address.named(_OVERRIDES)), runs)


def _overrides(file: Path) -> dict[str, Any]:
    """Returns the overrides of a job. Raises ReportError for a file that is no list of overrides."""
    try:
        entries = read_yaml(file.read_text(encoding="utf-8")) or []
    except ValueError:
        entries = None
    if not isinstance(entries, list):
        raise ReportError(f"{file}: is no list of overrides; run that job again, or remove its folder")
    pairs = [str(entry).lstrip("+").partition("=") for entry in entries if not str(entry).startswith("~")]
    return {key: value for key, _, value in pairs}


def _tracked(folder: Path, trackers: Sequence[TrackerReader], metric: str) -> TrackedRun:
    """Returns the run that a tracker keeps in the folder of a job, one without values where none does."""
    address = RunsAddress(str(folder))
    reader = next((one for one in trackers if one.recognises(address)), None)
    runs = list(reader.runs(address, metric)) if reader is not None else []
    if len(runs) > 1:
        raise ReportError(f"{folder}: {len(runs)} runs in one job; name the file with its values: --values FILE")
    return runs[0] if runs else TrackedRun(folder.name, {}, status="without values")


def _named_file(folder: Path, values: str, metric: str) -> TrackedRun:
    """Returns the run whose values stand in a file: a table of its steps, or an object with its metrics."""
    file = next(iter(sorted(folder.glob(values))), None)
    if file is None:
        return TrackedRun(folder.name, {}, status=f"without {values}")
    try:
        entries = _entries(file)
    except (ReportError, UnicodeDecodeError):
        return TrackedRun(folder.name, {}, status=CUT_OFF)
    numbers = [
        {name: value for name, cell in entry.items() if (value := _number(cell)) is not None} for entry in entries
    ]
    points = tuple(
        (next((entry[step] for step in _STEPS if step in entry and step != metric), float(order)), entry[metric])
        for order, entry in enumerate(numbers)
        if metric in entry
    )
    logged = frozenset(name for entry in numbers for name in entry if name not in _STEPS)
    return TrackedRun(folder.name, {}, metrics=logged, points=points)


def _entries(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8")
    if text.lstrip().startswith("{"):
        try:
            return [dict(flat(json.loads(text)))]
        except json.JSONDecodeError:
            pass
    return [dict(row.cells) for row in read_rows(file)]


def _number(cell: Any) -> float | None:
    if isinstance(cell, str):
        try:
            return float(cell)
        except ValueError:
            return None
    return value_of(cell)
