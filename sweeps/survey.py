"""The state of runs by their records alone, which is enough for a finished study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_transformers.records.record import Record
from sweeps.ledger.run_records import read_record
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Row

__all__ = ["close", "survey"]


def survey(
    runs: Path, tickets: Sequence[Ticket], metric: str, *, retry_failed: bool, time_limit: float | None = 0.0
) -> tuple[list[Row], list[str]]:
    """Returns a row for every run by its record, and notes about damaged records. A waiting row has to be done.

    time_limit: seconds that a run may take from now on, None for any; a run that failed by a shorter limit waits again.
    """
    rows, notes = [], []
    for ticket in tickets:
        row = Row(ticket)
        record, note = read_record(ticket.directory(runs))
        if note:
            notes.append(note)
        if record and not (record.outcome == "failed" and (retry_failed or record.may_resume(time_limit))):
            close(row, record, metric)
        rows.append(row)
    return rows, notes


def close(row: Row, record: Record, metric: str) -> None:
    """Sets a row's state, reason and metric from the record of its run."""
    value = record.metrics.get(metric)
    row.state, row.reason, row.value = State(record.outcome), record.reason, None if value is None else float(value)
    row.seconds_left = None
