"""Whether a run may begin: the runs that it starts from have finished, and the one that trains for it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lit_transformers.records.record import Record
from sweeps.ledger.run_records import read_record, write_failure
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Row

__all__ = ["Readiness", "fail", "readiness"]


class Readiness(NamedTuple):
    """ready: whether a run may begin. failure: why it never will in this command, None while it may. missing: the key
    of a source that this command does not do and that has left no record."""

    ready: bool
    failure: str | None = None
    missing: str | None = None


def readiness(runs: Path, ticket: Ticket, rows: Mapping[str, Row]) -> Readiness:
    """Returns whether a run may begin.

    rows: those of the command, by the keys of their runs. The record of a source decides, and of one that the command
    does itself its row: a run that has failed may be on its way again.
    """
    for key in ticket.sources:
        row = rows.get(key)
        if row is not None and not row.state.over:
            return Readiness(False)
        record = read_record(ticket.directory(runs).parent / key).record
        if record is not None and record.outcome == "finished":
            continue
        if row is None and record is None:
            return Readiness(False, missing=key)
        if row is not None and row.state == State.STOPPED:
            return Readiness(False)
        return Readiness(False, _failure(key, row, record))
    donor = rows.get(ticket.donor or "")
    return Readiness(donor is None or donor.state.over)


def _failure(key: str, row: Row | None, record: Record | None) -> str:
    """Returns why a run cannot start from another one, that has ended."""
    if row is not None and row.state == State.FINISHED:
        return f"its source {key} has finished in another folder ({row.reason}); let all workers share one --runs"
    ended = row.state.value if row is not None else record.outcome if record is not None else "is missing"
    why = row.reason if row is not None else record.reason if record is not None else None
    return f"its source {key} {ended}" + (f": {why}" if why else "")


def fail(runs: Path, row: Row, reason: str) -> None:
    """Ends a run that has not begun. It is done when the command is run again after its source has finished."""
    row.state, row.reason = State.FAILED, reason
    write_failure(runs, row.ticket, reason, resumable=True)
