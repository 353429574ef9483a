"""Stores of MLflow: databases, folders of files, and tracking servers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reports.read.study import ReportError
from reports.read.trackers.tracked_run import RunsAddress, TrackedRun, TrackerReader, config_of_yaml, library

__all__ = ["MLFLOW"]

_TITLE = "MLflow"
_TABLES = ("experiments", "runs", "params", "latest_metrics")
_EXPERIMENT = "meta.yaml"
_NAME, _PARENT = "mlflow.runName", "mlflow.parentRunId"
_PAGE = 1000


def _recognises(address: RunsAddress) -> bool:
    return bool(_stores(address))


def _stores(address: RunsAddress) -> list[str]:
    if address.text.startswith(("http://", "https://")):
        return [address.text]
    databases = [f"sqlite:///{path}" for path in address.databases(*_TABLES)]
    return databases or [path.resolve().as_uri() for path in _folders(address)]


def _folders(address: RunsAddress) -> list[Path]:
    """Returns the folders of stores of files: the parents of the folders of experiments."""
    described = {file.parent: config_of_yaml(file) for file in address.named(_EXPERIMENT)}
    experiments = [folder for folder, keys in described.items() if "experiment_id" in keys and "run_id" not in keys]
    return list(dict.fromkeys(folder.parent for folder in experiments))


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    # Versions from 3.10 on read folders of files only with this variable, which is for writers.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    mlflow = library("mlflow", "mlflow-skinny", _TITLE)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    for store in _stores(address):
        client = mlflow.MlflowClient(store)
        try:
            experiments = {one.experiment_id: one.name for one in client.search_experiments()}
            for run in _pages(client, list(experiments)):
                yield _run(client, run, experiments[run.info.experiment_id], metric)
        except mlflow.exceptions.MlflowException as error:
            raise ReportError(f"{store}: MLflow cannot read it ({str(error).splitlines()[0][:160]})") from None


def _pages(client: Any, experiments: list[str]) -> Iterator[Any]:
    token = None
    while experiments:
        page = client.search_runs(
            experiments, max_results=_PAGE, order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def _run(client: Any, run: Any, experiment: str, metric: str) -> TrackedRun:
    info, data = run.info, run.data
    history = client.get_metric_history(info.run_id, metric) if metric in data.metrics else []
    ended, began = info.end_time, info.start_time
    labels = {"experiment": experiment, "parent": data.tags.get(_PARENT, "")}
    return TrackedRun(
        name=data.tags.get(_NAME, info.run_id),
        config=dict(data.params),
        labels={**{name: label for name, label in labels.items() if label}, "name": data.tags.get(_NAME, "")},
        status=info.status.lower(),
        metrics=frozenset(data.metrics),
        points=tuple((float(point.step), point.value) for point in sorted(history, key=lambda one: one.timestamp)),
        seconds=(ended - began) / 1000 if ended and began else None,
    )


MLFLOW = TrackerReader("mlflow", _TITLE, _recognises, _runs)
