"""``python -m ablations worker STUDY``: joins the workers of a study on this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from ablations import catalog
from ablations.options import (
    Artifacts,
    Device,
    Entity,
    MemoryLimit,
    MemoryPerRun,
    Project,
    RateSeeds,
    Retry,
    Scale,
    Seeds,
    Set,
    Study,
    SystemMetrics,
    Tags,
    Threads,
    TimeLimit,
    Wandb,
    Workers,
    ends_when_stopped,
    exit_of,
    out,
    plan_for,
    request_of,
)
from ablations.show import summary_line
from ablations.training import LaunchSettings, limits_of, survey_to_train, train_left, train_rates
from lit_transformers.wandb_target import wandb_target
from sweeps.live import Row, clock
from sweeps.options import Runs, Storage


def worker(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, retry_failed: Retry = False,
    wandb: Wandb = "disabled", storage: Storage = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None, rates: RateSeeds = None, project: Project = None, entity: Entity = None,
    tags: Tags = None, artifacts: Artifacts = False, system_metrics: SystemMetrics = False,
) -> None:  # fmt: skip
    """Join a study: do runs that wait, take over those of workers that die, and leave when all are over."""
    start, limits = time.monotonic(), limits_of(time_limit, memory_limit, memory_per_run)
    file = catalog.find(study) if artifacts else None
    target = wandb_target(wandb, project, entity, tags, file, system_metrics)
    settings = LaunchSettings(workers, threads, limits, retry_failed, target, storage=storage)
    planned = plan_for(study, runs, request_of(scale, changes, seeds, device), in_server=True).with_rates(rates)
    rows = survey_to_train(planned, runs, settings)
    try:
        with ends_when_stopped():
            train_left(planned, runs, rows, settings, out)
            if all(row.state.over for row in rows):
                train_rates(planned, runs, settings, out)
    finally:
        out.print(_worker_summary(rows, time.monotonic() - start), markup=False, highlight=False, soft_wrap=True)
    raise exit_of(row for row in rows if row.taken)


def _worker_summary(rows: Sequence[Row], seconds: float) -> str:
    """Returns a line about the runs that this worker did and the state of all."""
    own_rows = [row for row in rows if row.taken]
    totals = f"; of all {summary_line(rows)}" if rows else ""
    return (
        f"worker {socket.gethostname()} process {os.getpid()}: took {summary_line(own_rows)}, {clock(seconds)}{totals}"
    )
