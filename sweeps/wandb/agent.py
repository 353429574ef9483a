"""Reads the parameters that a W&B sweep gives its agent, and does the run once, by its key, on one rank or several.

W&B passes parameters as ``--path=value``, or in a file that WANDB_SWEEP_PARAM_PATH names. Where ranks train together
those of the first rank are used: it writes them into the store of the ranks' rendezvous.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lit_transformers.config import Config, ConfigError, Plain, parse_assignments
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.records.files import RECORD
from lit_transformers.records.record import Record, load_record, parse_record
from lit_transformers.runner import Runner, load_runner
from lit_transformers.runs.wandb_logging import WandbConfig, upload_finished_run
from lit_transformers.startup.quick_imports import quick_imports
from lit_transformers.training.ranks import is_first_rank
from sweeps.ledger.lock import locked
from sweeps.ledger.run_records import read_record
from sweeps.object_store import store_of

__all__ = ["carry_out", "measure_retention", "parameters"]

FILE = "WANDB_SWEEP_PARAM_PATH"
NAME = "lit_transformers/agent"
WAIT = 7 * 24 * 3600.0
"""For how many seconds an agent waits for another one to do a run that its own starts from."""


def parameters(arguments: Sequence[str]) -> dict[str, Plain]:
    """Returns the trial's parameters, the same on all ranks: those of W&B's file and of ``--path=value`` arguments.

    Raises ConfigError for an argument of another form, or a file that cannot be read.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _parse_parameters(arguments)
    store, rank, ranks = next(iter(rendezvous("env://")))
    shared = PrefixStore(NAME, store)
    if rank == 0:
        try:
            shared.set("parameters", json.dumps({"given": _parse_parameters(arguments)}))
        except ConfigError as error:  # the other ranks would wait for ever
            shared.set("parameters", json.dumps({"error": str(error)}))
    message = json.loads(shared.get("parameters"))
    # The store may be part of the first rank's process, which therefore waits until all ranks have read.
    if rank == 0:
        shared.wait([f"read by {peer}" for peer in range(1, ranks)])
    else:
        shared.set(f"read by {rank}", "")
    if "error" in message:
        raise ConfigError(message["error"])
    values: dict[str, Plain] = message["given"]
    return values


def _parse_parameters(arguments: Sequence[str]) -> dict[str, Plain]:
    for word in arguments:
        if not word.startswith("--") or "=" not in word:
            raise ConfigError(f"W&B gives parameters as --path=value, not as {word!r}")
    return _from_file(os.environ.get(FILE)) | parse_assignments(word[2:] for word in arguments)


def _from_file(name: str | None) -> dict[str, Plain]:
    """Reads W&B's file, which maps each path to {value: ...} and also holds a version; empty without a file."""
    if not name:
        return {}
    try:
        contents = read_yaml(Path(name).read_text(encoding="utf-8"))
        return {path: entry["value"] for path, entry in contents.items() if path != "wandb_version"}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"cannot be read as W&B's parameters, {{path: {{value: ...}}}}; {FILE} names this file", name
        ) from None


def carry_out(config: Config, runner_name: str, runs: Path, wandb_config: WandbConfig) -> Record:
    """Does the run of a config and returns its record. A finished run is read, and uploaded from its files.

    The runs that it starts from are done first, by this agent or by another one, for which this one waits. Raises
    BusyError where another process does the run, ConfigError where a run that it starts from has failed, and the errors
    of the run itself.
    """
    with quick_imports():
        runner = load_runner(runner_name)
    _carry_out_sources(config, runner, runs)
    return _carried_out(config, runner, runs, wandb_config)


def measure_retention(config: Config, measured: Iterable[Config], runner_name: str, runs: Path) -> Iterator[Record]:
    """Does the runs that measure how much a run forgets, before and after it, and yields their records. Finished ones
    are read. measured: the config of each measurement of the study. Raises the errors of ``carry_out``."""
    with quick_imports():
        runner = load_runner(runner_name)
    for measurement in measured:
        for one in runner.retention(config, measurement) or ():
            _carry_out_sources(one, runner, runs)
            yield _carried_out(one, runner, runs, None, WAIT)


def _carry_out_sources(config: Config, runner: Runner, runs: Path) -> None:
    """Does the runs that a run starts from. Raises ConfigError if one of them has failed."""
    for stage in runner.earlier(config):
        record = _carried_out(stage, runner, runs, None, WAIT)
        if record.outcome != "finished":
            raise ConfigError(f"its source {record.key} {record.outcome}: {record.reason}", "start")


def _carried_out(
    config: Config, runner: Runner, runs: Path, wandb_config: WandbConfig | None, patience: float = 0.0
) -> Record:
    """Does one run and returns its record.

    wandb_config: None for one that others start from, since the run of the agent's trial there is that of another.
    patience: for how many seconds another process may be at it.
    """
    directory = runs / runner.run_key(config)
    store = store_of(runs) if is_first_rank() else None
    with locked(directory / "lock", patience) if is_first_rank() else nullcontext():
        if store is not None:
            for source in runner.sources(config).values():
                store.pull_source(runner.run_key(source))
            store.pull_run(directory.name)
        record = read_record(directory).record if is_first_rank() else _read_unchanged(directory)
        if record is not None and record.outcome != "failed":
            upload_finished_run(wandb_config, directory, record)
            return record
        if record is not None and is_first_rank() and record.may_resume():
            (directory / RECORD).unlink()
        with nullcontext() if store is None else store.mirrored(directory.name):
            return parse_record(runner.fit(config, directory, None, wandb_config=wandb_config))


def _read_unchanged(directory: Path) -> Record | None:
    """Reads a record for the ranks other than the first, without moving a damaged one; None where it is unreadable."""
    try:
        return load_record(directory / RECORD)
    except (OSError, ValueError, RecursionError):
        return None


def describe(values: Mapping[str, Plain]) -> str:
    """Returns the parameters as a line of text."""
    return ", ".join(f"{path}={value}" for path, value in values.items()) or "none"
