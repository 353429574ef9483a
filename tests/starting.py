"""A task with the weights of a file in all of its parts, as ``start: FILE`` of a run has it."""

from __future__ import annotations

from pathlib import Path

from lit_transformers.runs.starting_weights import read_weights, start_from
from lit_transformers.tasks import Task


def start_from_file(task: Task, path: Path) -> list[str]:
    """Copies the weights of a file into a task; returns a line for each part that starts anew or is left out."""
    return start_from(task, dict.fromkeys(("network", "heads"), read_weights(path)))
