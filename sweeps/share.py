"""How one machine is shared out among runs: cores, memory and CUDA devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["Share", "cuda_devices", "share_machine"]

WORKER_BYTES = 1 << 30
"""What a worker with torch and a small model is expected to need of memory."""


class Share(NamedTuple):
    """So many workers at a time, so many threads each, and the CUDA devices they take turns on."""

    workers: int
    threads: int
    devices: tuple[str, ...] = ()

    def place(self, taken: Iterable[str | None]) -> str | None:
        """The device that fewest workers are on; None where there is none."""
        busy = list(taken)
        return min(self.devices, key=busy.count) if self.devices else None


def share_machine(todo: int, workers: int | None = None, threads: int | None = None, *, cuda: bool = False) -> Share:
    """One worker a CUDA device; without one a worker a core, as far as cores, memory and runs go.

    Small models gain little from a second thread and runs are many, so processes come before threads.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    devices = cuda_devices() if cuda else ()
    room = len(devices) or min(cores // (threads or 1), psutil.virtual_memory().available // WORKER_BYTES)
    workers = workers or max(1, min(room, todo))
    return Share(workers, threads or max(1, cores // workers), devices)


def cuda_devices() -> tuple[str, ...]:
    """The CUDA devices that may be used, by what CUDA_VISIBLE_DEVICES calls them; found without importing torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return tuple(name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))
