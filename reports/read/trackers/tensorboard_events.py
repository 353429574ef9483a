"""Folders of TensorBoard: event files with scalars, and the config by the plugin of hyperparameters or hparams.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reports.read.table_rows import Cell
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, config_of_yaml, library, of_folder

__all__ = ["TENSORBOARD"]

_TITLE = "TensorBoard"
_EVENTS = "*tfevents*"
_PROCESSING = "tensorboard.backend.event_processing.plugin_event_accumulator"
_NAME_BY_TIME = re.compile(r"\d+(?:\.\d+)?")
"""``SummaryWriter.add_hparams`` writes into a folder below the run's, which it names by the time."""


@dataclass
class _Session:
    """The events of one folder."""

    config: dict[str, Cell] = field(default_factory=dict)
    status: str | None = None
    metrics: frozenset[str] = frozenset()
    points: tuple[tuple[float, float], ...] = ()
    seconds: float | None = None


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    folders = dict.fromkeys(file.parent for file in address.named(_EVENTS))
    sessions = {folder: _session(folder, metric) for folder in folders}
    for folder, session in sessions.items():
        below = _NAME_BY_TIME.fullmatch(folder.name) is not None
        if below and folder.parent in sessions and metric not in session.metrics:
            sessions[folder.parent].config |= session.config
            sessions[folder.parent].status = session.status
    for folder, session in sessions.items():
        if folder.parent in sessions and metric not in session.metrics:
            continue
        within = "" if address.path.is_file() else folder.relative_to(address.path).as_posix().removeprefix(".")
        named, labels = of_folder(within)
        yield TrackedRun(
            name=within or folder.name,
            config=named | config_of_yaml(folder / "hparams.yaml") | session.config,
            labels=labels,
            status=session.status,
            metrics=session.metrics,
            points=session.points,
            seconds=session.seconds,
        )


def _session(folder: Path, metric: str) -> _Session:
    processing = library(_PROCESSING, "tensorboard", _TITLE)
    array = library("tensorboard.util.tensor_util", "tensorboard", _TITLE).make_ndarray
    events = processing.EventAccumulator(
        str(folder), size_guidance={processing.TENSORS: 1}, tensor_size_guidance={"scalars": 0, "hparams": 1}
    )
    events.Reload()
    metrics = frozenset(_content(events, "scalars"))
    logged = events.Tensors(metric) if metric in metrics else []
    times = [event.wall_time for event in logged]
    config, status = _hyperparameters(_content(events, "hparams"))
    return _Session(
        config,
        status,
        metrics,
        tuple((float(event.step), float(array(event.tensor_proto))) for event in logged),
        max(times) - min(times) if len(times) > 1 else None,
    )


def _content(events: object, plugin: str) -> dict[str, bytes]:
    try:
        content: dict[str, bytes] = events.PluginTagToContent(plugin)  # type: ignore[attr-defined]
    except KeyError:
        return {}
    return content


def _hyperparameters(content: dict[str, bytes]) -> tuple[dict[str, Cell], str | None]:
    """Returns the config and the status that the plugin of hyperparameters keeps."""
    if not content:
        return {}, None
    metadata = library("tensorboard.plugins.hparams.metadata", "tensorboard", _TITLE)
    statuses = library("tensorboard.plugins.hparams.api_pb2", "tensorboard", _TITLE).Status
    config: dict[str, Cell] = {}
    status = None
    if (start := content.get(metadata.SESSION_START_INFO_TAG)) is not None:
        for name, value in metadata.parse_session_start_info_plugin_data(start).hparams.items():
            kind = value.WhichOneof("kind")
            config[name] = None if kind in (None, "null_value") else getattr(value, kind)
    if (end := content.get(metadata.SESSION_END_INFO_TAG)) is not None:
        name = statuses.Name(metadata.parse_session_end_info_plugin_data(end).status)
        status = {"STATUS_SUCCESS": "finished", "STATUS_FAILURE": "failed", "STATUS_RUNNING": "running"}.get(name)
    return config, status


TENSORBOARD = TrackerReader("tensorboard", _TITLE, lambda address: bool(address.named(_EVENTS)), _runs)
