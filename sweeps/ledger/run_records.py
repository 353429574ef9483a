"""Run records on disk: ``runs/<key>/record.json`` is authoritative, the ledger only assigns runs to workers."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from lit_transformers.config import ConfigError
from lit_transformers.records.files import RECORD, set_aside
from lit_transformers.records.record import VERSION, Record, VersionError, load_record, write_record
from lit_transformers.records.schema import first_fault
from sweeps.ledger.ticket import Ticket

__all__ = ["ReadRecord", "read_record", "write_failure"]


class ReadRecord(NamedTuple):
    """A record, or None; and a note that a damaged record was moved aside, or None."""

    record: Record | None
    note: str | None


def read_record(directory: Path) -> ReadRecord:
    """Reads the record of a run directory. A damaged or foreign one is moved aside, so that the run is repeated.

    Raises ConfigError where the file cannot be read.
    """
    path = directory / RECORD
    try:
        record = load_record(path)
        if record.key == directory.name:
            return ReadRecord(record, None)
        fault = f"the record of another run ({reprlib.repr(record.key)})"
    except FileNotFoundError:
        return ReadRecord(None, None)
    except (ValidationError, VersionError) as error:
        fault = first_fault(error)
    except (ValueError, RecursionError) as error:
        fault = f"not JSON ({error.__class__.__name__})"
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    try:
        moved_file = set_aside(path)
    except FileNotFoundError:  # another process that reads it was first
        return ReadRecord(None, None)
    return ReadRecord(None, f"{path}: {fault}; moved to {moved_file.name}, the run is repeated")


def write_failure(
    runs: Path, ticket: Ticket, reason: str, *, resumable: bool, time_limit: float | None = None
) -> Record:
    """Writes and returns the record of a run that could not write its own, since its process died or never got so far.

    time_limit: its limit in seconds, where it exceeded that.
    """
    record = Record(
        version=VERSION,
        key=ticket.key,
        outcome="failed",
        reason=reason,
        seed=ticket.seed,
        config=ticket.config,
        resumable=resumable,
        time_limit=time_limit,
    )
    write_record(ticket.directory(runs), record)
    return record
