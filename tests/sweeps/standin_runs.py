"""Runs of the stand-in and a launcher for them, which the tests of this folder share."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import psutil
from rich.console import Console
from standin.run import RunConfig, fit, run_key

from sweeps.launchers.local import Options, Summary, launch
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.survey import survey

OPTIONS = Options("standin.run:RUNNER", Share(workers=2, threads=1), metric="val/bpb")


def tickets(count: int = 3, **training: object) -> list[Ticket]:
    configs = [
        RunConfig().override({"seed": seed} | {f"training.{k}": v for k, v in training.items()})
        for seed in range(count)
    ]
    return [Ticket(run_key(config), "plain", config.seed, config.to_dict()) for config in configs]


def go(runs: Path, run_tickets: list[Ticket], options: Options = OPTIONS, console: Console | None = None) -> Summary:
    rows, notes = survey(
        runs, run_tickets, options.metric, retry_failed=options.retry_failed, time_limit=options.time_limit
    )
    ledger = Ledger(runs, heartbeat=1, grace=4)
    board = Board(console or Console(file=StringIO()), options.metric)
    try:
        for note in notes:
            board.say(note)
        return launch(runs, ledger, board, rows, options)
    finally:
        ledger.close()


def states(summary: Summary) -> list[State]:
    return [row.state for row in summary.rows]


def finishes(runs: Path, ticket: Ticket) -> int:
    path = ticket.directory(runs) / "finishes.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def metrics(runs: Path, run_tickets: list[Ticket]) -> list[object]:
    return [json.loads((ticket.directory(runs) / "record.json").read_text())["metrics"] for ticket in run_tickets]


def never_interrupted(runs: Path, run_tickets: list[Ticket]) -> list[object]:
    for ticket in run_tickets:
        ticket.directory(runs).mkdir(parents=True)
        fit(
            RunConfig.from_dict(ticket.config).override({"training.pause": 0.0, "training.fault": "none"}),
            ticket.directory(runs),
        )
    return metrics(runs, run_tickets)


def workers_of(runs: Path) -> list[psutil.Process]:
    """Processes that write to a run's log: the workers, however they came to be."""
    workers = []
    for process in psutil.process_iter():
        try:
            output = Path(f"/proc/{process.pid}/fd/1").readlink()
            if output.name == "log.txt" and output.is_relative_to(runs):
                workers.append(process)
        except OSError:
            continue
    return workers
