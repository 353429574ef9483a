"""Run records on disk: ``runs/<key>/record.json`` is the truth, the ledger only hands runs out."""

from __future__ import annotations

import json
import reprlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import ConfigError
from lit_transformers.files import RECORD, set_aside, write_json
from sweeps.ticket import Ticket

__all__ = [
    "OUTCOMES",
    "RECORD_VERSION",
    "Found",
    "is_resumable",
    "read_record",
    "write_failure",
]

RECORD_VERSION = 1
OUTCOMES = ("finished", "pruned", "failed", "invalid")


class Found(NamedTuple):
    """A record, or None; and what had to be done to a damaged one, or None."""

    record: dict[str, Any] | None
    note: str | None


def read_record(directory: Path) -> Found:
    """The record of a run directory. A damaged or foreign one is moved aside, so that the run is repeated."""
    path = directory / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        fault = _fault(record, directory.name)
    except FileNotFoundError:
        return Found(None, None)
    except (ValueError, RecursionError) as error:
        fault = f"not JSON ({error.__class__.__name__})"
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    if fault is None:
        return Found(record, None)
    moved = set_aside(path)
    return Found(None, f"{path}: {fault}; moved to {moved.name}, the run is repeated")


def _fault(record: Any, key: str) -> str | None:
    """What is wrong with a record, if anything."""
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
    """Whether JSON means a number, or none, and a float can hold it."""
    return value is None or type(value) is float or (type(value) is int and abs(value) < sys.float_info.max)


def is_resumable(record: dict[str, Any], time_limit: float | None = 0.0) -> bool:
    """Whether a failed run was cut off from outside, so that running it again may well end better.

    One that was cut off by a limit of time is resumable under a longer one, ``time_limit`` in seconds, or None.
    """
    if record["outcome"] != "failed":
        return False
    earlier = record.get("time_limit")
    if isinstance(earlier, int | float):
        return time_limit is None or time_limit > earlier
    return record.get("resumable") is True


def write_failure(
    runs: Path, ticket: Ticket, reason: str, *, resumable: bool, time_limit: float | None = None
) -> dict[str, Any]:
    """The record of a run that could not write its own: its process died, or it never got as far.

    time_limit: the seconds it was given, where that is why.
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
