"""``python -m ablations worker STUDY``: joins the workers of a study on this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from ablations.options import (
    Device,
    MemoryLimit,
    MemoryPerRun,
    Retry,
    Scale,
    Seeds,
    Set,
    Study,
    Threads,
    TimeLimit,
    Wandb,
    Workers,
    limits_of,
    options_for,
    out,
    plan_for,
    request_of,
    share_for,
    survey_plan,
    train,
    warn,
)
from ablations.show import summary_line
from sweeps.ledger.ticket import State
from sweeps.live import Row, clock
from sweeps.options import Runs, Storage


def worker(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, retry_failed: Retry = False,
    wandb: Wandb = "disabled", storage: Storage = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None,
) -> None:  # fmt: skip
    """Join a study: do runs that wait, take over those of workers that die, and leave when all are over."""
    start, limits = time.monotonic(), limits_of(time_limit, memory_limit, memory_per_run)
    planned = plan_for(study, runs, request_of(scale, changes, seeds, device), in_server=True)
    rows, notes = survey_plan(planned, runs, retry_failed=retry_failed, time_limit=limits.seconds)
    warn(notes)
    todo = sum(not row.state.over for row in rows)
    try:
        if todo:
            share = share_for(planned, todo, workers, threads, limits.needed)
            train(runs, rows, options_for(planned, share, limits, retry_failed=retry_failed, wandb=wandb), storage)
    finally:
        out.print(_worker_summary(rows, time.monotonic() - start), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(any(row.taken and row.state in (State.FAILED, State.INVALID) for row in rows)))


def _worker_summary(rows: Sequence[Row], seconds: float) -> str:
    """Returns a line about the runs that this worker did and the state of all."""
    own_rows = [row for row in rows if row.taken]
    totals = f"; of all {summary_line(rows)}" if rows else ""
    return (
        f"worker {socket.gethostname()} process {os.getpid()}: took {summary_line(own_rows)}, {clock(seconds)}{totals}"
    )
