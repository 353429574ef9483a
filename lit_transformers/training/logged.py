"""The values that a module has logged so far, for checkpoints; Lightning's own checkpoints leave them out.

Schedules that wait for a monitored value, hooks and callbacks read the metrics that were last logged; those of an epoch
are means over all of its batches, of which a run that was stopped has seen some; and metrics of torchmetrics count
in states that are no part of a module's ``state_dict``.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from lightning.pytorch.utilities import move_data_to_device
from torchmetrics import Metric, MetricCollection

__all__ = ["logged_state", "set_logged_state"]

METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""Where Lightning keeps the values that were last logged."""
PLACE = ("_first_loop_iter", "_current_fx")
"""Where Lightning keeps whether an epoch has begun, and the hook that has logged last: then sums are not begun anew."""
COUNTS = ("_update_count", "_computed", "_forward_cache")
"""The attributes of a metric besides its states."""
BUILTIN = (min, max, sum)


def logged_state(trainer: L.Trainer, task: L.LightningModule) -> dict[str, Any]:
    """Returns all that was logged, as tensors on the CPU and plain data."""
    connector = trainer._logger_connector
    results = trainer.fit_loop.epoch_loop._results
    state = {
        **{name: dict(getattr(connector, name)) for name in METRICS},
        **{name: getattr(connector, name) for name in PLACE},
        "results": {key: _result_state(result) for key, result in results.items()},
        "metrics": {name: _metric_state(metric) for name, metric in _metrics_of(task)},
    }
    cpu: dict[str, Any] = move_data_to_device(state, "cpu")
    return cpu


def set_logged_state(trainer: L.Trainer, task: L.LightningModule, state: Mapping[str, Any]) -> None:
    """Sets the state that ``logged_state`` returned."""
    state = move_data_to_device(dict(state), trainer.strategy.root_device)
    connector = trainer._logger_connector
    for name in METRICS:
        getattr(connector, name).update(state[name])
    for name in PLACE:
        setattr(connector, name, state[name])
    for name, metric in _metrics_of(task):
        if name in state["metrics"]:
            _set(metric, state["metrics"][name])
    results = trainer.fit_loop.epoch_loop._results
    for key, result in state["results"].items():
        results[key] = _result(result, trainer, task)


def _metrics_of(task: L.LightningModule) -> Iterator[tuple[str, Metric]]:
    """Yields the metrics of torchmetrics below a module, by name."""
    for _, collection in task.named_modules():
        if isinstance(collection, MetricCollection):
            collection.items(copy_state=False)  # metrics that share their states have the newest ones
    yield from ((name, metric) for name, metric in task.named_modules() if isinstance(metric, Metric))


def _metric_state(metric: Metric) -> dict[str, Any]:
    states = {name: getattr(metric, name) for name in metric._defaults}
    return {**states, **{name: getattr(metric, name) for name in COUNTS}}


def _set(metric: Metric, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        setattr(metric, name, value)


def _result_state(result: _ResultMetric) -> dict[str, Any]:
    meta = result.meta
    names = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
    return {
        "meta": {name: getattr(meta, name) for name in (*names, "dataloader_idx", "metric_attribute")},
        "reduced_by": (meta.reduce_fx.__name__, meta.reduce_fx in BUILTIN),
        "sync": {"_should": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only},
        "is_tensor": result.is_tensor,
        "state": {**_metric_state(result), "has_reset": result.has_reset},
    }


def _result(plain: Mapping[str, Any], trainer: L.Trainer, task: L.LightningModule) -> _ResultMetric:
    name, is_builtin = plain["reduced_by"]
    meta = _Metadata(**plain["meta"], reduce_fx=getattr(builtins if is_builtin else torch, name))
    meta.sync = _Sync(fn=trainer.strategy.reduce, **plain["sync"])
    result = _ResultMetric(meta, plain["is_tensor"])
    if not plain["is_tensor"]:
        result.value = task.get_submodule(str(meta.metric_attribute))
    _set(result, plain["state"])
    return result
