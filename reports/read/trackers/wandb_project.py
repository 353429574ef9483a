"""Projects at W&B, read by its public API: ``wandb:ENTITY/PROJECT`` or ``wandb:ENTITY/PROJECT/GROUP``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reports.read.study import ReportError
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, flat, library, value_of

__all__ = ["WANDB_PROJECT"]

_PREFIX = "wandb:"
_SAMPLES = 10_000
"""The most values of a run that W&B sends at once. Of longer runs it sends as many, evenly drawn."""
_OF_WANDB = ("_step", "_timestamp", "_runtime", "_wandb")


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    project, group = _named(address.text.removeprefix(_PREFIX))
    wandb = library("wandb", "wandb", "W&B")
    try:
        runs = wandb.Api().runs(project, filters={"group": group} if group else None, order="+created_at", lazy=False)
        for run in runs:
            yield _run(run, metric, address.curves)
    except ReportError:
        raise
    except (wandb.errors.Error, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ReportError(f"{address.text}: W&B gives no runs ({reason}); check the name, and `wandb login`") from None


def _named(name: str) -> tuple[str, str | None]:
    parts = name.split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise ReportError(f"wandb:{name}: no project; write wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/GROUP")
    return f"{parts[0]}/{parts[1]}", parts[2] if len(parts) == 3 else None


def _run(run: Any, metric: str, has_curve: bool) -> TrackedRun:
    summary = _plain(run.summary_metrics)
    labels = {"group": run.group, "name": run.name, "sweep": run.sweep_name}
    values = {name: value for name, cell in flat(summary).items() if (value := value_of(cell)) is not None}
    logged = {name: value for name, value in values.items() if name not in _OF_WANDB}
    last = ((values.get("_step", 0.0), logged[metric]),) if metric in logged else ()
    return TrackedRun(
        name=run.name,
        config=flat(_plain(run.config)),
        labels={name: label for name, label in labels.items() if label},
        status=run.state,
        metrics=frozenset(logged),
        points=_curve(run, metric, last) if has_curve else last,
        seconds=values.get("_runtime"),
    )


def _curve(run: Any, metric: str, last: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Returns the curve of a metric. last: its last point, which W&B may not draw among those of a longer run."""
    rows = run.history(samples=_SAMPLES, keys=[metric], pandas=False)
    points = tuple((float(row["_step"]), value) for row in rows if (value := value_of(row.get(metric))) is not None)
    return points if 0 < len(points) < _SAMPLES else (*points, *last)


def _plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key != "_wandb"}


WANDB_PROJECT = TrackerReader("wandb-project", "W&B", lambda address: address.text.startswith(_PREFIX), _runs)
