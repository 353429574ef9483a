"""The names of the files that runs and studies write, and how a file is replaced as a whole.

Imports nothing heavy, so that a finished study can be shown without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from lit_transformers.config import ConfigError, Plain

PUBLISHED = Path("published")
"""The folder of the working folder in which studies are published: in a checkout, that of the repository."""

RUN = "run.yaml"
"""The config of a run."""

RECORD = "record.json"
"""A run's outcome, metrics, measured costs and environment."""

CHECKPOINT = "checkpoint.ckpt"
"""The last state of a run, from which it can be resumed."""

LOG = "log.txt"
"""The output of a run's processes, and the traceback of its error."""

CURVES = "metrics.csv"
"""A run's metrics by step."""

SENT_UPDATES = "updates.csv"
"""The values of a run's updates that were sent besides its curves, by step: learning rate, norm of the gradient,
speed, memory."""

DOCUMENTS = "documents.csv"
"""The loss of every document or example of a run's last evaluation."""

OUTPUTS = "outputs.jsonl"
"""The text that a run generated for every example of its last evaluation."""

COMMAND_OUTPUT = "output.txt"
"""The standard output of a run's command."""

COMMAND_ERRORS = "errors.txt"
"""The error output of a run's command."""

CALIBRATION = "calibration.json"
"""The file with the temperature that calibrates the probabilities of a run's checkpoint."""

MLFLOW_RUN = "mlflow.run"
"""The id of a run's run in MLflow, which a resumed run continues."""

PLAN = "plan.json"
"""The arms of a study and the keys of their runs."""

RESULTS = "results.jsonl"
"""A study in one file: its plan, and the records, curves and documents of its runs."""


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write`` with a temporary path, and renames that file to ``path`` once it is on disk."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_json(path: Path, plain: Plain) -> None:
    """Writes plain data as JSON, and creates the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8, with its line ends unchanged."""
    replace_file(path, lambda fresh: fresh.write_text(text, encoding="utf-8", newline=""))


def set_aside(path: Path) -> Path:
    """Moves a damaged file to a free name next to it, ``<name>.damaged`` or ``<name>.damaged-2``; returns that name."""
    for number in range(1, 1_000_000):
        free_path = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not free_path.exists():
            path.rename(free_path)
            return free_path
    raise ConfigError("too many damaged copies of it; delete them", str(path))
