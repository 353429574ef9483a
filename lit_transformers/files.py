"""The names of the files that runs and studies write, and how a file is replaced as a whole.

Imports nothing heavy: a finished study is shown without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from lit_transformers.config import ConfigError, Plain

RUN = "run.yaml"
"""The config of a run."""

RECORD = "record.json"
"""A run's outcome, metrics, measured costs and surroundings."""

CHECKPOINT = "checkpoint.ckpt"
"""The last state of a run, from which it goes on."""

CURVES = "metrics.csv"
"""A run's metrics by step."""

DOCUMENTS = "documents.csv"
"""The loss of every document or example of a run's last evaluation."""

OUTPUTS = "outputs.jsonl"
"""What a run wrote for every example of its last evaluation."""

PLAN = "plan.json"
"""The arms of a study and the keys of their runs."""


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Has ``write`` make the file under another name, and puts it in place when it is on disk."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, plain: Plain) -> None:
    """Writes plain data as JSON, in a folder that is made where it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8, with the line ends that it has."""
    replace_file(path, lambda fresh: fresh.write_text(text, encoding="utf-8", newline=""))


def set_aside(path: Path) -> Path:
    """Moves a damaged file to a free name beside it, ``<name>.damaged`` or ``<name>.damaged-2``; returns that name."""
    for number in range(1, 1_000_000):
        moved = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not moved.exists():
            path.rename(moved)
            return moved
    raise ConfigError("too many damaged files beside it; delete them", str(path))
