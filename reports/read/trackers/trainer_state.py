"""Folders of the Trainer of transformers: ``trainer_state.json`` of a run, or of the last of its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reports.read.trackers.tracked_run import CUT_OFF, RunsAddress, TrackedRun, TrackerReader, flat, of_folder, value_of

__all__ = ["TRAINER_STATE"]

_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_PLACES = ("step", "epoch")


def _runs(address: RunsAddress, metric: str) -> Iterator[TrackedRun]:
    states: dict[Path, list[Path]] = {}
    for file in address.named(_STATE):
        is_checkpoint = _CHECKPOINT.fullmatch(file.parent.name) is not None and not address.path.is_file()
        states.setdefault(file.parent.parent if is_checkpoint else file.parent, []).append(file)
    for folder, files in states.items():
        is_below = folder != address.path and folder.is_relative_to(address.path)
        within = folder.relative_to(address.path).as_posix() if is_below else ""
        yield _run(within or folder.name, within, [_state(file) for file in files], metric)


def _state(file: Path) -> Mapping[str, Any] | None:
    """Returns the state in a file, None where the file is cut off."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return state if isinstance(state, dict) and isinstance(state.get("log_history"), list) else None


def _run(name: str, within: str, states: list[Mapping[str, Any] | None], metric: str) -> TrackedRun:
    """Returns the run by the latest of its states."""
    named, labels = of_folder(within)
    whole = [state for state in states if state is not None]
    if not whole:
        return TrackedRun(name, named, labels, CUT_OFF)
    state = max(whole, key=lambda one: one.get("global_step", 0))
    logs = [entry for entry in state["log_history"] if isinstance(entry, dict)]
    values = [(entry, value) for entry in logs if (value := value_of(entry.get(metric))) is not None]
    seconds = next((entry["train_runtime"] for entry in reversed(logs) if "train_runtime" in entry), None)
    return TrackedRun(
        name=name,
        config=named | flat(state.get("trial_params") or {}),
        labels=labels,
        status="finished" if _has_ended(state) else "unfinished",
        metrics=frozenset(key for entry in logs for key in entry if key not in _PLACES),
        points=tuple((float(entry.get("step", place)), value) for place, (entry, value) in enumerate(values)),
        seconds=seconds,
    )


def _has_ended(state: Mapping[str, Any]) -> bool:
    """Whether the run took all its steps, or a callback ended it."""
    control = (state.get("stateful_callbacks") or {}).get("TrainerControl") or {}
    is_stopped = bool((control.get("args") or {}).get("should_training_stop"))
    return is_stopped or state.get("global_step", 0) >= state.get("max_steps", 0) > 0


TRAINER_STATE = TrackerReader(
    "transformers", "the Trainer of transformers", lambda address: bool(address.named(_STATE)), _runs
)
