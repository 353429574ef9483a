"""Databases of Trackio, one for each project. SQLite reads them without Trackio."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from reports.read.study import ReportError
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, flat, value_of

__all__ = ["TRACKIO"]

_TABLES = ("metrics", "configs", "system_metrics")


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    for path in address.databases(*_TABLES):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            yield from _project(path, database, metric)
        except (sqlite3.Error, ValueError) as error:
            raise ReportError(f"{path}: is no whole database of Trackio ({error})") from None
        finally:
            database.close()


def _project(path: Path, database: sqlite3.Connection, metric: str) -> Iterator[TrackedRun]:
    columns = {name for _, name, *_ in database.execute("PRAGMA table_info(metrics)")}
    key = "run_id" if "run_id" in columns else "run_name"
    configs = {run: json.loads(config) for run, config in database.execute(f"SELECT {key}, config FROM configs")}
    runs = f"SELECT {key}, run_name, MIN(timestamp), MAX(timestamp) FROM metrics GROUP BY {key} ORDER BY MIN(id)"
    for run, name, began, ended in database.execute(runs).fetchall():
        logged: set[str] = set()
        points: list[tuple[float, float]] = []
        for step, entry in database.execute(f"SELECT step, metrics FROM metrics WHERE {key} = ? ORDER BY id", (run,)):
            values = {one: value for one, cell in json.loads(entry).items() if (value := value_of(cell)) is not None}
            logged.update(values)
            if metric in values:
                points.append((float(step), values[metric]))
        config = configs.get(run, {})
        yield TrackedRun(
            name=name,
            config=flat({key: value for key, value in config.items() if not key.startswith("_")}),
            labels={"group": config.get("_Group") or "", "project": path.stem, "name": name},
            metrics=frozenset(logged),
            points=tuple(points),
            seconds=(datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() or None,
        )


TRACKIO = TrackerReader("trackio", "Trackio", lambda address: bool(address.databases(*_TABLES)), _runs)
