"""Folders of Lightning's CSVLogger: ``metrics.csv`` with the values, and ``hparams.yaml`` with the config."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from reports.read.trackers.tracked_run import (
    CUT_OFF,
    RunsAddress,
    TrackedRun,
    TrackerReader,
    config_of_yaml,
    of_folder,
    value_of,
)

__all__ = ["LIGHTNING_CSV"]

_METRICS = "metrics.csv"
_STEPS = ("step", "epoch")


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    for file in address.named(_METRICS):
        folder = address.folder_of(file)
        named, labels = of_folder(folder)
        try:
            logged, points, is_whole = _points(file, metric)
            status = None if is_whole else CUT_OFF
        except (UnicodeDecodeError, csv.Error):
            logged, points, status = frozenset(), (), "unreadable"
        yield TrackedRun(
            name=folder or file.parent.name,
            config=named | config_of_yaml(file.with_name("hparams.yaml")),
            labels=labels,
            status=status,
            metrics=logged,
            points=points,
        )


def _points(file: Path, metric: str) -> tuple[frozenset[str], tuple[tuple[float, float], ...], bool]:
    """Returns the metrics, the points of one of them, and whether the file ends with a whole line."""
    with file.open(encoding="utf-8", newline="") as lines:
        text = lines.read()
    rows = list(csv.reader(text.splitlines(keepends=True)))
    ends_within_a_line = bool(text) and not text.endswith("\n")
    if ends_within_a_line:
        del rows[-1]
    if not rows:
        return frozenset(), (), not ends_within_a_line
    header, *rows = rows
    is_whole = not ends_within_a_line and all(len(row) == len(header) for row in rows)
    whole = [row for row in rows if len(row) == len(header)]
    logged = frozenset(
        name for place, name in enumerate(header) if name not in _STEPS and any(row[place] for row in whole)
    )
    if metric not in logged:
        return logged, (), is_whole
    column, step = header.index(metric), next((header.index(name) for name in _STEPS if name in header), None)
    points = tuple(
        (float(order if step is None else row[step] or order), value)
        for order, row in enumerate(whole)
        if (value := _number(row[column])) is not None
    )
    return logged, points, is_whole


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return value_of(cell)


LIGHTNING_CSV = TrackerReader(
    "lightning", "Lightning's CSVLogger", lambda address: bool(address.named(_METRICS)), _runs
)
