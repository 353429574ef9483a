"""How one machine is shared out among runs: cores, memory and CUDA devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from lit_transformers.config import ConfigError
from lit_transformers.cores import requested_threads, usable_cores

__all__ = ["Share", "cuda_devices", "memory_of", "require_cores", "share_machine"]

WORKER_BYTES = 1 << 30
"""What a worker with torch and a small model is expected to need of memory."""
PARAMETER_BYTES = 16
"""A parameter in training: weight, gradient and two moments, in float32."""


class Share(NamedTuple):
    """So many workers at a time, so many threads each (a rank), and the CUDA devices they take turns on."""

    workers: int
    threads: int
    devices: tuple[str, ...] = ()

    def place(self, taken: Iterable[str | None], ranks: int = 1) -> str | None:
        """The devices that fewest workers are on, one a rank, with commas between; None where there are none."""
        busy = [device for places in taken if places for device in places.split(",")]
        free = sorted(self.devices, key=busy.count)[:ranks]
        return ",".join(sorted(free, key=self.devices.index)) if free else None


def memory_of(parameters: int) -> int:
    """Bytes that a run on a CPU is expected to need, where it does not declare them."""
    return WORKER_BYTES + PARAMETER_BYTES * parameters


def share_machine(
    todo: int,
    workers: int | None = None,
    threads: int | None = None,
    *,
    cuda: bool = False,
    ranks: int = 1,
    memory: int | None = None,
) -> Share:
    """A worker a core, as far as cores, memory and runs go; on CUDA one a device, or as many as its free memory holds.

    Small models gain little from a second thread and runs are many, so processes come before threads.
    threads: None for what OMP_NUM_THREADS asks for, else an equal part of the cores.
    ranks: processes of one run; memory: bytes that one run declares to need, on its device where that is CUDA.
    Raises ConfigError where a run has more ranks than there are devices.
    """
    cores, threads = usable_cores(), threads or requested_threads()
    devices = cuda_devices() if cuda else ()
    if devices and ranks > len(devices):
        raise ConfigError(
            f"asks for {ranks} devices, and {len(devices)} can be found; give --devices {len(devices)} or fewer",
            "training.devices",
        )
    if devices:
        room = min(_places(devices, memory), max(len(devices), cores)) // ranks
    else:
        free = psutil.virtual_memory().available
        room = min(cores // ((threads or 1) * ranks), free // (memory or WORKER_BYTES * ranks))
    workers = workers or max(1, min(room, todo))
    return Share(workers, threads or max(1, cores // (workers * ranks)), devices)


def require_cores(ranks: int) -> None:
    """Raises ConfigError where a run that trains on this machine's CPU asks for more ranks than there are cores."""
    cores = usable_cores()
    if ranks > cores:
        raise ConfigError(
            f"asks for {ranks} ranks on a CPU of which {cores} cores may be used; give --devices {cores} or fewer, "
            "or take a machine with CUDA devices",
            "training.devices",
        )


def cuda_devices() -> tuple[str, ...]:
    """The CUDA devices that may be used, by what CUDA_VISIBLE_DEVICES calls them; found without importing torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return tuple(name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1"))
    return tuple(str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))


def _places(devices: Sequence[str], memory: int | None) -> int:
    """How many runs the devices hold side by side: one each, where nothing is declared or known."""
    if memory is None:
        return len(devices)
    free = _free_device_memory()
    return sum(max(1, free.get(device, memory) // memory) for device in devices)


def _free_device_memory() -> dict[str, int]:
    """Free bytes of every CUDA device, by its number and by its name; empty where nobody can tell."""
    ask = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, int] = {}
    for line in told.splitlines():
        number, name, free = (part.strip() for part in line.split(","))
        if free.isdigit():
            found[number] = found[name] = int(free) << 20
    return found
