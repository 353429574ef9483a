"""Divides one machine among runs: cores, memory and CUDA devices."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import psutil

from lit_transformers.config import ConfigError
from lit_transformers.machine.cores import requested_threads, usable_cores
from sweeps.launchers.devices import cuda_devices

__all__ = ["Share", "memory_of", "require_cores", "share_machine"]

WORKER_BYTES = 1 << 30
"""The bytes of memory that a worker with torch and a small model is expected to need."""
PARAMETER_BYTES = 16
"""Bytes per parameter in training: weight, gradient and two moments, in float32."""


class Share(NamedTuple):
    """The number of workers at a time, the threads of each rank, and the CUDA devices that they share."""

    workers: int
    threads: int
    devices: tuple[str, ...] = ()

    def place(self, assigned: Iterable[str | None], ranks: int = 1) -> str | None:
        """Returns the least used devices, one per rank, separated by commas; None where there are none."""
        busy = [device for names in assigned if names for device in names.split(",")]
        least_busy = sorted(self.devices, key=busy.count)[:ranks]
        return ",".join(sorted(least_busy, key=self.devices.index)) if least_busy else None


def memory_of(parameters: int) -> int:
    """Returns the bytes that a run on a CPU is expected to need, where it does not declare them."""
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
    """Returns a worker per core, as far as memory and runs go; on CUDA one per device, or as many as its memory holds.

    Small models gain little from a second thread and runs are many, so processes come before threads.
    threads: None for the value of OMP_NUM_THREADS or, if it has none, an equal part of the cores.
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
        capacity = min(_runs_on_devices(devices, memory), max(len(devices), cores)) // ranks
    else:
        free_bytes = psutil.virtual_memory().available
        capacity = min(cores // ((threads or 1) * ranks), free_bytes // (memory or WORKER_BYTES * ranks))
    workers = workers or max(1, min(capacity, todo))
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


def _runs_on_devices(devices: Sequence[str], memory: int | None) -> int:
    """Returns how many runs the devices hold at once: one each, where their memory is not declared or not known."""
    if memory is None:
        return len(devices)
    free_bytes = _free_device_memory()
    return sum(max(1, free_bytes.get(device, memory) // memory) for device in devices)


def _free_device_memory() -> dict[str, int]:
    """Returns the free bytes of every CUDA device, by its index and by its UUID; empty where nvidia-smi fails."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    free_bytes: dict[str, int] = {}
    for line in output.splitlines():
        index, name, free = (part.strip() for part in line.split(","))
        if free.isdigit():
            free_bytes[index] = free_bytes[name] = int(free) << 20
    return free_bytes
