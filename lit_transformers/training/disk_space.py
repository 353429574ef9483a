"""The room that a run needs on a disk for its checkpoint, and errors that say that there is none."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["checkpoint_bytes", "lack_of_space", "what_is_full"]

FLOAT_BYTES = 4
OTHER_BYTES = 1 << 16
"""The bytes that a run writes besides its weights: random numbers, log, record and curves."""
MOMENTS = {"sgd": 1, "adagrad": 1}
"""How many numbers an optimizer keeps of each parameter, where they are not two."""
SHARED_MEMORY = "/dev/shm"
TORCH_SHARED = re.compile("shm|/torch_")
FULL = (errno.ENOSPC, errno.EDQUOT)


def checkpoint_bytes(parameters: float | None, training: Mapping[str, Any]) -> int:
    """Returns the bytes that a run needs for one checkpoint while it trains: its weights, the moments of its
    optimizer, and its averaged or best weights. The optimizer of a LightningModule is unknown.

    training: of the run's config, as plain data.
    """
    optimizer = training.get("optimizer")
    moments = 0
    if isinstance(optimizer, Mapping):
        moments = MOMENTS.get(str(optimizer.get("kind")), 2) if optimizer.get("momentum", 1) else 0
    copies = 1 + moments + bool(training.get("average")) + (training.get("keep") == "best")
    return OTHER_BYTES + FLOAT_BYTES * copies * int(parameters or 0)


def lack_of_space(folder: Path, needed: int) -> str | None:
    """Returns a sentence where the disk of a folder, which need not exist yet, has less than n bytes left, or None."""
    there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    disk = os.statvfs(there)
    free = disk.f_bavail * disk.f_frsize
    if not disk.f_blocks or free >= needed:  # some file systems do not say how large they are
        return None
    return (
        f"{folder}: the disk has {_megabytes(free)} left and a checkpoint takes about {_megabytes(needed)}; "
        "make room and run the same command again, nothing that was finished is lost"
    )


def _megabytes(amount: int) -> str:
    return f"{amount / 1e6:,.1f} MB"


def what_is_full(error: BaseException | None) -> str | None:
    """Returns that the disk or shared memory is full, if this caused an error, or None. Such a run resumes when there
    is room again.

    torch's own writer only reports that a write failed, so its error is recognised by its message. The data that
    processes exchange is in shared memory, and a worker that lacks room there dies by a signal, without such an error.
    """
    while error is not None:
        text = str(error)
        is_full = isinstance(error, OSError) and error.errno in FULL
        if "out of shared memory" in text or (_is_exchange(error) and is_full):
            return _shared_memory()
        if isinstance(error, RuntimeError) and "No space left on device" in text and TORCH_SHARED.search(text):
            return _shared_memory()
        if is_full or (isinstance(error, RuntimeError) and "PytorchStreamWriter failed writing" in text):
            return "the disk is full"
        error = error.__cause__ or error.__context__
    return None


def _shared_memory() -> str:
    return f"shared memory is full ({SHARED_MEMORY}); make room there, or set data.workers=0"


def _is_exchange(error: BaseException) -> bool:
    """Whether an error was raised where processes create the data that they exchange."""
    *_, last = ("", *_files(error))
    return "multiprocessing" in Path(last).parts or str(getattr(error, "filename", "")).startswith(SHARED_MEMORY)


def _files(error: BaseException) -> Iterator[str]:
    return (frame.filename for frame in traceback.extract_tb(error.__traceback__))
