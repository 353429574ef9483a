"""What an agent of a W&B sweep is told, and one run made of it: by its key, once, on one rank or several.

W&B hands a program its parameters as ``--path=value``, or in a file that WANDB_SWEEP_PARAM_PATH names. Where ranks
train together the first one's count: it puts them into the store through which the ranks find each other.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lit_transformers.config import Config, ConfigError, Plain, parse_assignments
from lit_transformers.files import RECORD
from lit_transformers.mirror import Mirror, replay
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.ranks import is_first_rank
from sweeps.lock import locked
from sweeps.records import is_resumable, read_record

__all__ = ["carry_out", "parameters"]

FILE = "WANDB_SWEEP_PARAM_PATH"
NAME = "lit_transformers/agent"


class Runner(Protocol):
    """What the module of a RunConfig offers here."""

    def run_key(self, config: Any) -> str: ...
    def fit(self, config: Any, directory: Path, report: None, *, mirror: Mirror) -> dict[str, Plain]: ...


def parameters(arguments: Sequence[str]) -> dict[str, Plain]:
    """What W&B wants to be tried, the same on all ranks: ``--path=value`` words, and what its file says besides.

    Raises ConfigError for what is neither.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _given(arguments)
    store, rank, ranks = next(iter(rendezvous("env://")))
    shared = PrefixStore(NAME, store)
    if rank == 0:
        try:
            shared.set("parameters", json.dumps({"given": _given(arguments)}))
        except ConfigError as error:  # the others would wait for ever
            shared.set("parameters", json.dumps({"error": str(error)}))
    told = json.loads(shared.get("parameters"))
    # The store may live in the first rank's process: that one stays until all have read.
    if rank == 0:
        shared.wait([f"read by {other}" for other in range(1, ranks)])
    else:
        shared.set(f"read by {rank}", "")
    if "error" in told:
        raise ConfigError(told["error"])
    given: dict[str, Plain] = told["given"]
    return given


def _given(arguments: Sequence[str]) -> dict[str, Plain]:
    for word in arguments:
        if not word.startswith("--") or "=" not in word:
            raise ConfigError(f"W&B gives parameters as --path=value, not as {word!r}")
    return _from_file(os.environ.get(FILE)) | parse_assignments(word[2:] for word in arguments)


def _from_file(name: str | None) -> dict[str, Plain]:
    """The file maps each name to {value: ...}, and has a version of its own format."""
    if not name:
        return {}
    try:
        plain = read_yaml(Path(name).read_text(encoding="utf-8"))
        return {path: about["value"] for path, about in plain.items() if path != "wandb_version"}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"cannot be read as W&B's parameters, {{path: {{value: ...}}}}; it is what {FILE} names", name
        ) from None


def carry_out(config: Config, runner: str, runs: Path, mirror: Mirror) -> dict[str, Plain]:
    """The record of the run that the config stands for. One that is finished is read, and mirrored from its files.

    Raises BusyError where another process is at it, and what the run itself raises.
    """
    module = cast(Runner, importlib.import_module(runner))
    directory = runs / module.run_key(config)
    with locked(directory / "lock") if is_first_rank() else nullcontext():
        record = read_record(directory).record if is_first_rank() else _peek(directory)
        if record is not None and record["outcome"] != "failed":
            replay(mirror, directory, record)
            return record
        if record is not None and is_first_rank() and is_resumable(record):
            (directory / RECORD).unlink()
        return module.fit(config, directory, None, mirror=mirror)


def _peek(directory: Path) -> dict[str, Plain] | None:
    """A record as the other ranks see it, who change nothing."""
    try:
        plain: dict[str, Plain] = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return plain


def describe(values: Mapping[str, Plain]) -> str:
    """Parameters in a line."""
    return ", ".join(f"{path}={value}" for path, value in values.items()) or "none"
