"""Decides which run a folder belongs to. A folder holds one run, so its measurements are never those of another.

A run is identified by its key, which is in its record; before there is a record, by its config in ``run.yaml`` and by
the training key in its checkpoint. A file that cannot be read identifies no run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import Config, ConfigError, Plain, plain_leaves
from lit_transformers.records.files import CHECKPOINT, RECORD, RUN, set_aside
from lit_transformers.records.record import Record, load_record
from lit_transformers.training.checkpoints import TRAINING, read
from lit_transformers.training.ranks import is_first_rank
from lit_transformers.trust import class_paths_in, require_allowed_in

__all__ = ["Identity", "claim"]

CHANGED = "the code or the data have changed since"
"""The cause of another key that a record or a checkpoint does not tell apart."""
SHOWN = 3
"""The most differences that an error names."""


class Identity(NamedTuple):
    """The identity of a run. training_key: shared by runs that only differ in how they are measured. free: fields in
    which it may differ from the config in its folder."""

    config: Config
    key: str
    training_key: str
    library: str
    free: tuple[str, ...] = ()


def claim(directory: Path, run: Identity) -> Record | None:
    """Returns the run's record where it has finished in this folder, or None where it may start or resume there.

    Raises ConfigError, before anything is written, where the folder holds another run: one with another config, other
    data or other code. A record that cannot be read is moved aside.
    """
    record = _record(directory / RECORD)
    if record is not None and record.key != run.key:
        raise _occupied(directory, _describe_difference(record.config, run), _changed_since(record, run))
    _require_same_config(directory, run)
    extra = _checkpoint(directory / CHECKPOINT)
    if extra is not None and extra.get(TRAINING) != run.training_key:
        raise _occupied(directory, _describe_difference(extra.get("config"), run), CHANGED)
    if record is None and (directory / RECORD).exists() and is_first_rank():
        new_path = set_aside(directory / RECORD)
        print(f"{directory / RECORD} cannot be read; it is now {new_path.name}, and the run is done again", flush=True)
    return record if record is not None and record.outcome == "finished" else None


def _checkpoint(path: Path) -> dict[str, Plain] | None:
    """Returns the plain data that a checkpoint holds besides its weights, or None where no checkpoint can be read."""
    try:
        extra: dict[str, Plain] = read(path, mmap=True)["lit_transformers"]
    except ConfigError:
        return None
    return extra


def _record(path: Path) -> Record | None:
    """Returns a record, or None where none can be read."""
    try:
        return load_record(path)
    except (OSError, ValueError, RecursionError):
        return None


def _require_same_config(directory: Path, run: Identity) -> None:
    path = directory / RUN
    if not path.exists():
        return
    try:
        require_allowed_in(path, {*class_paths_in(run.config)})
        existing = type(run.config).from_yaml(path)
    except ConfigError as error:
        raise _occupied(directory, f"its {RUN} cannot be read by this version ({error})") from None
    if difference := _describe_difference(existing.to_dict(), run):
        if not any((directory / name).exists() for name in (RECORD, CHECKPOINT)):
            way_out = f"choose another folder (--to), or edit {path.name}, of which nothing was trained yet"
            raise ConfigError(f"holds the config of another run: {difference}; {way_out}", str(directory))
        raise _occupied(directory, difference)


def _changed_since(record: Record, run: Identity) -> str:
    """Returns a sentence that names the change where the configs are equal and the keys are not."""
    library = record.environment.get("library")
    if library is None:
        return CHANGED
    return "the data have changed since" if library == run.library else "the code has changed since"


def _describe_difference(existing: Any, run: Identity) -> str:
    """Returns the first paths at which the configs differ, with both values; "" if they are equal."""
    differences = (
        [row for row in _differences(existing, run.config.to_dict()) if row[0] not in run.free]
        if isinstance(existing, dict)
        else []
    )
    message = "; ".join(f"{path} is {there} there and {here} here" for path, there, here in islice(differences, SHOWN))
    remainder = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return message + remainder


def _differences(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    existing_leaves, requested_leaves = dict(plain_leaves(existing)), dict(plain_leaves(requested))
    for path in dict.fromkeys([*existing_leaves, *requested_leaves]):
        values = tuple(
            json.dumps(leaves[path]) if path in leaves else "absent" for leaves in (existing_leaves, requested_leaves)
        )
        if values[0] != values[1]:
            yield path, values[0], values[1]


def _occupied(directory: Path, difference: str, change: str = "") -> ConfigError:
    """Returns the error of a folder with another run. difference: of the configs. change: the cause if they are equal;
    the folder may then hold the only copy of the config, and is not to be removed."""
    way_out = "remove this one" if difference else f"remove its {RECORD} and {CHECKPOINT} to train it again here"
    reason = f"holds another run: {difference or change}; choose another folder (--to), or {way_out}"
    return ConfigError(reason, str(directory))
