"""Does the work around any run: claims its folder, listens for a request to stop, sends the run to Weights & Biases,
and leaves a record that names its surroundings and the reason of a failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from lightning.pytorch.loggers import Logger

from lit_transformers.attention.kernels import used_kernels
from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import LOG, RUN, replace_file
from lit_transformers.records.measurement import Measurement
from lit_transformers.records.record import Gate, Record, record_to_plain, write_record
from lit_transformers.runs.environment import peak_memory, reason
from lit_transformers.runs.folder import Identity, claim
from lit_transformers.runs.loggers import LoggerConfig, open_loggers
from lit_transformers.runs.wandb_logging import WandbConfig, WandbRun, open_wandb_run, upload_finished_run
from lit_transformers.training.disk_space import checkpoint_bytes, lack_of_space, what_is_full
from lit_transformers.training.loader_processes import loader_death, name_loader_deaths
from lit_transformers.training.ranks import is_first_rank
from lit_transformers.training.search_pruning import Pruned
from lit_transformers.training.stopping import Interrupted, ProcessKilled, Stop, stop_requests

__all__ = ["Results", "recorded"]

ATTENTION = "attention"
"""The entry of a record's environment with the kernels of torch that computed attention."""


class Results(NamedTuple):
    """The measurements of a finished run: its metrics, its times and speeds, and the observations of its network.

    cost: the cost of the run, where it differs from the planned cost. measurement: the description of the measurement,
    where it is known only afterwards.
    """

    metrics: dict[str, float]
    measured: dict[str, Plain]
    observed: dict[str, Plain]
    cost: dict[str, Plain] | None = None
    measurement: Measurement | None = None


def recorded(
    directory: Path,
    identity: Identity,
    blank: Callable[[], Record],
    check: Callable[[], tuple[Gate, ...]],
    work: Callable[[Stop, WandbRun | None, Sequence[Logger]], Results],
    wandb_config: WandbConfig | None,
    logger_config: LoggerConfig | None,
    faults: tuple[type[Exception], ...] = (),
) -> dict[str, Plain]:
    """Does a run and writes its record, and returns it as its file holds it. That of a finished run is read.

    blank: returns the record of a run that has only begun. check: returns its gates. work: trains and measures.
    An error during the run is an outcome, not an exception: "failed" with the reason, or "invalid" where a gate fails.
    Raises ConfigError and ``faults``, which are errors of the input, also where the directory holds another run or its
    disk has no room for a checkpoint, Interrupted after SIGTERM, with a checkpoint written, and ProcessKilled.
    """
    finished = claim(directory, identity)
    if finished is not None:
        upload_finished_run(wandb_config, directory, finished)
        return record_to_plain(finished)
    record = blank()
    if lack := lack_of_space(directory, checkpoint_bytes(record.cost.get("parameters"), record.config["training"])):
        raise ConfigError(lack)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / RUN, lambda fresh: fresh.write_text(identity.config.to_yaml(), encoding="utf-8"))
    raised: tuple[type[BaseException], ...] = (Interrupted, ProcessKilled, KeyboardInterrupt, ConfigError, *faults)
    started, start_time = datetime.now(UTC), time.monotonic()
    record.measured = {"started": started.isoformat(timespec="seconds")}
    loggers = open_loggers(logger_config, directory, record)
    with (
        name_loader_deaths(),
        stop_requests() as stopping,
        open_wandb_run(wandb_config, directory, record) as wandb_run,
    ):
        try:
            record.gates = check()
            if all(gate.passed for gate in record.gates):
                with used_kernels() as kernels:
                    results = work(stopping, wandb_run, loggers)
                if kernels:
                    record.environment = {**record.environment, ATTENTION: ", ".join(sorted(kernels))}
                record.metrics, record.observed = results.metrics, results.observed
                record.measured |= results.measured
                record.cost = results.cost or record.cost
                record.measurement = results.measurement or record.measurement
                record.outcome = "finished"
            else:
                failures = ", ".join(f"{gate.name} ({gate.detail})" for gate in record.gates if not gate.passed)
                record.outcome, record.reason = "invalid", f"a gate failed: {failures}"
        except raised:
            raise
        except Pruned as end:
            record.outcome, record.reason, record.metrics = "pruned", str(end), end.metrics
            record.measured |= {"steps": end.step}
            record.cost = end.cost or record.cost
        except Exception as error:
            if loader_death(error) is not None:
                raise
            _log_traceback(directory, error)
            record.reason, record.resumable = reason(error), what_is_full(error) is not None
    ended_at = datetime.now(UTC).isoformat(timespec="seconds")
    record.measured |= {"ended": ended_at}
    record.measured.setdefault("peak_memory_bytes", peak_memory())
    record.measured.setdefault("seconds", time.monotonic() - start_time)
    if is_first_rank():
        write_record(directory, record)
    return record_to_plain(record)


def _log_traceback(directory: Path, error: Exception) -> None:
    """Writes the traceback of a run's error to its log, as far as there is room for it."""
    with suppress(OSError), (directory / LOG).open("a", encoding="utf-8") as log:
        traceback.print_exception(error, file=log)
