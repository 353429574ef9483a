"""What launchers share whose runs other machines do: one run as it is done there, and its row here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from sweeps.launchers.local import Options, Summary, launch
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.records import read_record
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row
from sweeps.process.call import call_forked
from sweeps.survey import close, survey

__all__ = ["RemoteRun", "update_rows"]


class RemoteRun(NamedTuple):
    """One run for another machine, which sees the same folder of runs.

    heartbeat and grace: those of the watching command's ledger, so that the other machine does not take a slower one
    for dead.
    """

    runs: Path
    ticket: Ticket
    options: Options
    heartbeat: int
    grace: int

    def perform(self, share: Share, storage: str | None) -> Summary:
        """Does the run here, or what is left of it, as a command on this machine would. storage: of the ledger."""
        options = self.options._replace(share=share, deadline=None)  # which is by the clock of the other machine
        retry, limit = options.retry_failed, options.time_limit
        rows, _ = survey(self.runs, [self.ticket], options.metric, retry_failed=retry, time_limit=limit)
        if rows[0].state.over:
            return Summary(rows, None)
        call_forked(
            options.runner, os.getpid
        )  # imports all that runs need: no heartbeat is sent while a run waits for it
        ledger = Ledger(self.runs, storage, self.heartbeat, self.grace)
        try:
            return launch(self.runs, ledger, Board(Console(width=120), options.metric), rows, options)
        finally:
            ledger.close()


def update_rows(runs: Path, ledger: Ledger, board: Board, rows: Sequence[Row], metric: str) -> set[str]:
    """Updates the rows that are not over by records and ledger; returns the keys of the runs that a worker holds."""
    ledger.reap()
    standings = {standing.key: standing for standing in ledger.standings()}
    for row in (row for row in rows if not row.state.over):
        record, note = read_record(row.ticket.directory(runs))
        if note:
            board.say(note)
        if record is not None:
            close(row, record, metric)
        elif row.ticket.key in standings:
            pulse = standings[row.ticket.key].pulse
            row.state, row.step, row.steps, row.seconds_left = State(pulse.phase), *pulse[1:]
        else:
            row.state = State.WAITING
    return set(standings)
