"""What a run leaves behind besides its numbers: its surroundings, why it failed, and its losses by document."""

from __future__ import annotations

import csv
import errno
import json
import logging
import platform
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lit_transformers.callbacks import Diverged
from lit_transformers.config import Plain
from lit_transformers.files import replace_file
from lit_transformers.machine import processor
from lit_transformers.training import TrainingConfig

VERSION = 1


def environment(training: TrainingConfig, library: str) -> dict[str, Plain]:
    """Versions, hardware and code (``library`` is its hash); nothing that names a person, a machine or a secret."""
    names = ("torch", "lightning", "torchmetrics", "numpy")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "hardware": hardware(training),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "library": library,
    }


def hardware(training: TrainingConfig) -> str:
    """The device that the run uses."""
    if training.device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return processor()


def commit() -> str | None:
    """The commit of the checkout that the library stands in, with + where it has changes."""
    here = Path(__file__).parent
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12", "--match="]
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def reason(error: Exception) -> str:
    """Why a run failed, in a few words that a table can show."""
    if isinstance(error, Diverged):
        return f"not-a-number: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    if is_disk_full(error):
        return "the disk is full"
    return f"{type(error).__name__}: {first_line(error)}"


def is_disk_full(error: Exception) -> bool:
    """Whether a person can mend it by making room: such a run goes on when it is asked for again.

    torch's own writer says no more than that a write failed, so what it raises is looked at by its words.
    """
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return full or (isinstance(error, RuntimeError) and "PytorchStreamWriter failed writing" in str(error))


def first_line(error: Exception) -> str:
    """An error in one line of a table's or a terminal's length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def peak_memory() -> int:
    """The most memory held: on the device where CUDA is used, else by this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    return resident_peak()


def resident_peak() -> int:
    """The most memory that this process held, in bytes.

    On Linux by its own high-water mark: what getrusage tells begins with that of the process it was started from.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice, which is about choices that the config has made on purpose."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for text in (".*does not have many workers.*", ".*GPU available but not.*", ".*treespec, LeafSpec.*"):
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        logger.setLevel(level)


def write_documents(path: Path, losses: Sequence[Any], name: Callable[[int], str]) -> None:
    """The loss of every document or example of the last evaluation; ``name``: what the one of an ordinal is called."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            for place, loss in enumerate(losses):
                ordinal, *sums = loss
                if place == 0:
                    rows.writerow(["document", "name", *loss._fields[1:]])
                rows.writerow([ordinal, name(ordinal), *(repr(value) for value in sums)])

    replace_file(path, write)


def write_outputs(path: Path, outputs: Sequence[dict[str, Plain]]) -> None:
    """What was written for every example of the last evaluation: {"id", "hypothesis", "references"}, one a line."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(output, ensure_ascii=False)}\n" for output in outputs)

    replace_file(path, write)
