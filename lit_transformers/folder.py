"""Whom the folder of a run belongs to. A folder holds one run: what was measured there is never another's.

A run is known by its key, which its record holds; before there is a record, by its config in ``run.yaml`` and by what
its checkpoint says of its training. A file that cannot be read belongs to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.checkpoints import read
from lit_transformers.config import Config, ConfigError, Plain, plain_leaves
from lit_transformers.files import CHECKPOINT, RECORD, RUN, set_aside
from lit_transformers.ranks import is_first_rank

__all__ = ["TRAINING", "Identity", "claim"]

TRAINING = "training_key"
"""What a checkpoint calls the name of its training, among the plain data that it carries."""
SHOWN = 3
"""How many differences an error names."""


class Identity(NamedTuple):
    """What a run is known by. training_key: shared by runs that only differ in how they are measured."""

    config: Config
    key: str
    training_key: str
    library: str


def claim(directory: Path, run: Identity) -> dict[str, Plain] | None:
    """The record of the run where it has finished in this folder; None where it may begin there, or go on.

    Raises ConfigError where the folder is another run's, before anything is written: that of another config, of other
    data or of other code. A record that cannot be read is moved aside.
    """
    record = _record(directory / RECORD)
    if record is not None and record["key"] != run.key:
        raise _occupied(directory, _why(record["config"], run, _changed_since(record, run)))
    _require_same_config(directory, run)
    kept = _checkpoint(directory / CHECKPOINT)
    if kept is not None and kept.get(TRAINING) != run.training_key:
        raise _occupied(directory, _why(kept.get("config"), run, "the code or the data have changed since"))
    if record is None and (directory / RECORD).exists() and is_first_rank():
        moved = set_aside(directory / RECORD)
        print(f"{directory / RECORD} cannot be read; it is now {moved.name}, and the run is done again", flush=True)
    return record if record is not None and record["outcome"] == "finished" else None


def _checkpoint(path: Path) -> dict[str, Plain] | None:
    """The plain data that a checkpoint carries beside its weights; None where there is none that can be read."""
    try:
        found: dict[str, Plain] = read(path, mmap=True)["lit_transformers"]
    except ConfigError:
        return None
    return found


def _record(path: Path) -> dict[str, Plain] | None:
    """A record as far as it is needed here; None where there is none that can be read."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    wanted = {"key": str, "outcome": str, "config": dict, "metrics": dict}
    is_whole = isinstance(plain, dict) and all(isinstance(plain.get(name), kind) for name, kind in wanted.items())
    return plain if is_whole else None


def _require_same_config(directory: Path, run: Identity) -> None:
    path = directory / RUN
    if not path.exists():
        return
    try:
        theirs = type(run.config).from_yaml(path)
    except ConfigError as error:
        raise _occupied(directory, f"its {RUN} cannot be read by this version ({error})") from None
    if theirs != run.config:
        raise _occupied(directory, _why(theirs.to_dict(), run, ""))


def _changed_since(record: Mapping[str, Any], run: Identity) -> str:
    """What has changed where the configs are equal and the keys are not."""
    about = record.get("environment")
    library = about.get("library") if isinstance(about, dict) else None
    if library is None:
        return "the code or the data have changed since"
    return "the data have changed since" if library == run.library else "the code has changed since"


def _why(theirs: Any, run: Identity, otherwise: str) -> str:
    """The first paths at which the configs differ, with both values; ``otherwise`` where they do not."""
    differing = list(_differences(theirs, run.config.to_dict())) if isinstance(theirs, dict) else []
    told = "; ".join(f"{path} is {one} there and {other} here" for path, one, other in islice(differing, SHOWN))
    more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return told + more if told else otherwise


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    one, other = dict(plain_leaves(theirs)), dict(plain_leaves(ours))
    for path in dict.fromkeys([*one, *other]):
        values = tuple(json.dumps(side[path]) if path in side else "absent" for side in (one, other))
        if values[0] != values[1]:
            yield path, values[0], values[1]


def _occupied(directory: Path, why: str) -> ConfigError:
    return ConfigError(f"holds another run: {why}; choose another folder (--to), or remove this one", str(directory))
