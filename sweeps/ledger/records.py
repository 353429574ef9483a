"""Run records on disk: ``runs/<key>/record.json`` is authoritative, the ledger only assigns runs to workers."""

from __future__ import annotations

import json
import reprlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import ConfigError
from lit_transformers.records.files import RECORD, set_aside, write_json
from sweeps.ledger.ticket import Ticket

__all__ = [
    "OUTCOMES",
    "RECORD_VERSION",
    "ReadRecord",
    "is_resumable",
    "read_record",
    "write_failure",
]

RECORD_VERSION = 1
OUTCOMES = ("finished", "pruned", "failed", "invalid")


class ReadRecord(NamedTuple):
    """A record, or None; and a note that a damaged record was moved aside, or None."""

    record: dict[str, Any] | None
    note: str | None


def read_record(directory: Path) -> ReadRecord:
    """Reads the record of a run directory. A damaged or foreign one is moved aside, so that the run is repeated.

    Raises ConfigError where the file cannot be read.
    """
    path = directory / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        fault = _find_fault(record, directory.name)
    except FileNotFoundError:
        return ReadRecord(None, None)
    except (ValueError, RecursionError) as error:
        fault = f"not JSON ({error.__class__.__name__})"
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    if fault is None:
        return ReadRecord(record, None)
    moved_file = set_aside(path)
    return ReadRecord(None, f"{path}: {fault}; moved to {moved_file.name}, the run is repeated")


def _find_fault(record: Any, key: str) -> str | None:
    """Returns what is wrong with a record, or None."""
    if not isinstance(record, dict):
        return "not a record"
    if record.get("version") != RECORD_VERSION:
        return f"made by another version ({reprlib.repr(record.get('version'))}, this one reads {RECORD_VERSION})"
    if record.get("key") != key:
        return f"the record of another run ({reprlib.repr(record.get('key'))})"
    if record.get("outcome") not in OUTCOMES:
        return f"no known outcome ({reprlib.repr(record.get('outcome'))})"
    if not isinstance(record.get("metrics"), dict):
        return "a record without metrics"
    for name, value in record["metrics"].items():
        if not _is_number(value):
            return f"no number in metrics under {reprlib.repr(name)}: {reprlib.repr(value)}"
    reason = record.get("reason")
    return None if reason is None or isinstance(reason, str) else "a reason that is no text"


def _is_number(value: Any) -> bool:
    """Whether a JSON value is null, or a number that a float can hold."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < sys.float_info.max)


def is_resumable(record: dict[str, Any], time_limit: float | None = 0.0) -> bool:
    """Whether a failed run was cut off from outside, so that running it again may succeed.

    One that was cut off by a time limit is resumable under a longer one, ``time_limit`` in seconds, or None.
    """
    if record["outcome"] != "failed":
        return False
    earlier_limit = record.get("time_limit")
    if isinstance(earlier_limit, int | float):
        return time_limit is None or time_limit > earlier_limit
    return record.get("resumable") is True


def write_failure(
    runs: Path, ticket: Ticket, reason: str, *, resumable: bool, time_limit: float | None = None
) -> dict[str, Any]:
    """Writes and returns the record of a run that could not write its own, since its process died or never got so far.

    time_limit: its limit in seconds, where it exceeded that.
    """
    record = {
        "version": RECORD_VERSION,
        "key": ticket.key,
        "outcome": "failed",
        "reason": reason,
        "resumable": resumable,
        "seed": ticket.seed,
        "config": ticket.config,
        "data": {},
        "metrics": {},
        "protocol": {},
        "cost": {},
        "gates": [],
        "environment": {},
        "measured": {},
    }
    if time_limit is not None:
        record["time_limit"] = time_limit
    write_json(ticket.directory(runs) / RECORD, record)
    return record
