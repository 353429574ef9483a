"""The common part of launchers that do runs on other machines: options, one run as it is done there, and its row
here."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from lit_transformers.config import ConfigError, nearest
from lit_transformers.records.files import RECORD
from lit_transformers.runner import load_runner
from sweeps.launchers.local import Options, Summary, launch
from sweeps.launchers.share import Share, share_machine
from sweeps.launchers.sources import fail, readiness
from sweeps.ledger.ledger import DISK_SECONDS, Ledger
from sweeps.ledger.run_records import read_record, write_failure
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row
from sweeps.object_store import address_of, prepared, store_of
from sweeps.process.call import call_forked
from sweeps.process.order import Spread
from sweeps.survey import close, survey

__all__ = [
    "STORAGE",
    "RemoteRun",
    "able_to_begin",
    "named_values",
    "node_share",
    "remove_failed_records",
    "require_equal_parts",
    "update_rows",
]

STORAGE = "LIT_TRANSFORMERS_STORAGE"
"""The variable that gives other machines the ledger's address. It may hold a password, so it is written to no file."""


class RemoteRun(NamedTuple):
    """One run for another machine, which sees the same folder of runs, or the store that it is a working copy of.

    heartbeat and grace: those of the watching command's ledger, so that the other machine does not take a slower one
    for dead. address: of the store.
    """

    runs: Path
    ticket: Ticket
    options: Options
    heartbeat: int
    grace: int
    address: str | None = None

    def perform(self, share: Share, storage: str | None, spread: Spread) -> Summary:
        """Does the run here, or the rest of it, as a command on this machine would. storage: the address of the ledger;
        spread: the nodes of its ranks, of which this is the first."""
        if self.address is None:
            return self._perform(self.runs, share, storage, spread)
        store = prepared(self.address)
        for source in self.ticket.sources:
            store.pull_record(source)
        store.pull_run(self.ticket.key)
        try:
            return self._perform(store.folder, share, storage, spread)
        finally:
            store.push_run(self.ticket.key)  # also a failure that no process of the run has put there

    @property
    def resumes(self) -> bool:
        """Whether a run that was stopped resumes from its checkpoint."""
        runner = load_runner(self.options.runner)
        return runner.resumes(runner.config.from_dict(self.ticket.config))

    def fail(self, reason: str) -> None:
        """Ends the run as failed, so that another command does it again."""
        store = None if self.address is None else prepared(self.address)
        write_failure(store.folder if store else self.runs, self.ticket, reason, resumable=True)
        if store is not None:
            store.push_run(self.ticket.key)

    def _sources_have_ended(self, runs: Path) -> bool:
        """Whether all runs that it starts from have left a record, which a network disk shows after a while. Otherwise
        a job of theirs was lost, and the command that watches submits both again."""
        deadline = time.monotonic() + DISK_SECONDS
        while readiness(runs, self.ticket, {}).missing is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(1.0)
        return True

    def _perform(self, runs: Path, share: Share, storage: str | None, spread: Spread) -> Summary:
        """Does the run in a folder of this machine."""
        options = self.options._replace(share=share, spread=spread, deadline=None)  # by the other machine's clock
        retry, limit = options.retry_failed, options.time_limit
        rows, _ = survey(runs, [self.ticket], options.metric, retry_failed=retry, time_limit=limit)
        if rows[0].state.over or not self._sources_have_ended(runs):
            return Summary(rows, None)
        call_forked(
            options.runner, os.getpid
        )  # imports all that runs need: no heartbeat is sent while a run waits for it
        ledger = Ledger(runs, storage, self.heartbeat, self.grace)
        try:
            return launch(runs, ledger, Board(Console(width=120), options.metric), rows, options)
        finally:
            ledger.close()


def named_values(
    assignments: Iterable[str], names: Collection[str], noun: str, option: str
) -> Iterator[tuple[str, str]]:
    """Yields name and text of each ``name=text``. Raises ConfigError for anything else, and for a name that is not in
    ``names``. noun: the things that have these names; option: the option behind which they were typed."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not text:
            raise ConfigError(f"write name=value, not {assignment!r}", option)
        if name not in names:
            raise ConfigError(f"no {noun} {name!r}; {nearest(name, names)}", option)
        yield name, text


def node_share(ticket: Ticket, threads: int, ranks: int) -> Share:
    """Returns the whole of a node for one run, of which ``ranks`` ranks are there, each with ``threads`` threads."""
    training = ticket.config.get("training")
    device = training.get("device") if isinstance(training, dict) else None
    return share_machine(1, 1, threads, cuda=device in ("auto", "cuda"), ranks=ranks)


def require_equal_parts(runs: Path, nodes: int, rows: Iterable[Row], options: Options, option: str) -> None:
    """Raises ConfigError if the ranks of a run cannot be divided equally among the nodes, if a memory limit would be
    watched on the first node alone, or if only the first node would have the checkpoint, which all ranks read. option:
    the option behind which the options of the cluster are typed."""
    for ranks in {row.ticket.ranks for row in rows}:
        if ranks % nodes:
            reason = f"{nodes} nodes cannot share {ranks} ranks of a run equally; give --devices {nodes}, or a multiple"
            raise ConfigError(reason, f"{option} nodes")
    if nodes > 1 and options.memory_limit is not None:
        raise ConfigError(
            "is watched on one node alone, and runs are spread over several; leave it out", "--memory-limit"
        )
    if nodes > 1 and address_of(runs) is not None:
        reason = "ranks on several nodes read the checkpoint of their run in one folder, which a store is not"
        raise ConfigError(f"{reason}; name a folder that all nodes see", "--runs")


def remove_failed_records(runs: Path, rows: Iterable[Row]) -> None:
    """Removes the records of failed runs that are to be repeated, so that they are not read as the new attempts'.
    Other records stay: another worker may have finished the run meanwhile."""
    for directory in (row.ticket.directory(runs) for row in rows if not row.state.over):
        record = read_record(directory).record
        if record is not None and record.outcome == "failed":
            (directory / RECORD).unlink(missing_ok=True)
            if (store := store_of(runs)) is not None:
                store.remove_failure(directory.name)


def able_to_begin(runs: Path, waiting: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Returns those of the waiting rows whose runs may begin. Those whose source has failed have failed, too.

    rows: all of the command."""
    by_key, able = {row.ticket.key: row for row in rows}, []
    for row in (row for row in waiting if not row.state.over):
        state = readiness(runs, row.ticket, by_key)
        if state.failure is not None:
            fail(runs, row, state.failure)
        elif state.ready:
            able.append(row)
    return able


def update_rows(
    runs: Path, ledger: Ledger, board: Board, rows: Sequence[Row], metric: str, gone: Collection[str] = ()
) -> set[str]:
    """Updates the rows that are not over by records and ledger; returns the keys of the runs that a worker holds, or
    whose store does not say whether they have ended.

    gone: the keys of the runs that were given away and that nobody has any more. Their records are brought at once.
    """
    unknown = set[str]()
    if (store := store_of(runs)) is not None:
        keys = [row.ticket.key for row in rows if not row.state.over]
        store.pull_records(keys)
        for key in (key for key in keys if key in gone):
            try:
                replace(store, patience=0.0).pull_record(key)
            except ConfigError:
                unknown.add(key)
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
    return unknown.union(standings)
