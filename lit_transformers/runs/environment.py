"""The parts of a run's record besides its numbers: its environment, its memory and the reason of a failure."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from lit_transformers.config import Plain
from lit_transformers.machine.processor import processor
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.record import NOT_A_NUMBER
from lit_transformers.training.disk_space import what_is_full
from lit_transformers.training.stopping import Diverged


def environment(device: str, library: str, tf32: bool) -> dict[str, Plain]:
    """Returns versions, hardware and code (``library`` is its hash); nothing names a person, a machine or a secret.

    device: the device in the run's config: auto, cpu or cuda. tf32: whether it allows TF32, which CPUs do not have.
    """
    names = ("torch", "lightning", "torchmetrics", "numpy")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "float32": "TF32" if tf32 and device != "cpu" and torch.cuda.is_available() else "IEEE 754",
        "commit": commit(),
        "library": library,
    }


def hardware(device: str) -> str:
    """Returns the name of the device that the run uses."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return processor()


def commit() -> str | None:
    """Returns the commit of the library's checkout, with + where it has changes, or None where there is none."""
    folder = Path(__file__).parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--match="]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def reason(error: Exception) -> str:
    """Returns why a run failed, in a few words that a table can show."""
    if isinstance(error, Diverged):
        return f"{NOT_A_NUMBER}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    return what_is_full(error) or f"{type(error).__name__}: {first_line(error)}"


def peak_memory() -> int:
    """Returns the peak memory in bytes: of the device where CUDA is used, otherwise of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    return resident_peak()


def resident_peak() -> int:
    """Returns the peak resident memory of this process in bytes.

    On Linux it is the process's own high-water mark, since that of getrusage includes the process that started it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
