"""How fast the ledger gives runs to workers: ``python -m benchmarks.ledger [--storage ADDRESS] [--json NAME]``.

The ledger of a study of many runs that have ended is filled once. Then processes read it, and claim and end further
runs side by side: all of them go through the same runs, so that each run is wanted by all and must be given out once.

Goals: 50 claims a second in all with 16 processes, and none twice.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from sweeps.ledger.ledger import Ending, Ledger
from sweeps.ledger.ticket import Ticket

GOAL = 50.0
BATCH = 500
"""How many ended runs are entered between two steps of the progress bar."""
WAIT_SECONDS = 600.0


class Claims(NamedTuple):
    """What one process did: the runs that it claimed, the moments of its first claim and of its last end, its
    processor seconds of reading the ledger first, and of claims and ends."""

    keys: tuple[str, ...]
    begun: float
    ended: float
    reading: float
    claiming: float


def ticket(prefix: str, number: int) -> Ticket:
    """Returns a run that nobody will do."""
    return Ticket(f"{prefix}{number:06d}", "arm", number, {})


def fill(runs: Path, storage: str | None, count: int, console: Console) -> None:
    """Enters runs that have ended."""
    ledger = Ledger(runs, storage)
    try:
        for first in track(range(0, count, BATCH), "entering ended runs", console=console, transient=True):
            numbers = range(first, min(first + BATCH, count))
            ledger.enter(Ending(ticket("ended", number), "finished", None, 1.0) for number in numbers)
    finally:
        ledger.close()


def claim_all(runs: Path, storage: str | None, count: int, first: int, ready: Barrier) -> Claims:
    """Claims and ends whatever is free of ``count`` runs, beginning at the one with the number ``first``."""
    start = time.process_time()
    ledger = Ledger(runs, storage)
    try:
        ledger.standings()
        reading, keys = time.process_time() - start, list[str]()
        ready.wait(WAIT_SECONDS)
        begun, start = time.time(), time.process_time()
        for number in range(first, first + count):
            wanted = ticket("wanted", number % count)
            record = runs / wanted.key  # as a worker looks for a record before it claims a run, and after
            claim = None if record.exists() else ledger.claim(wanted)
            if claim is not None and record.exists():
                ledger.release(claim, "done before")
            elif claim is not None:
                keys.append(wanted.key)
                record.touch()
                ledger.settle(claim, "finished", None, 1.0)
        return Claims(tuple(keys), begun, time.time(), reading, time.process_time() - start)
    finally:
        ledger.close()


def _child(sender: Any, *arguments: Any) -> None:
    sender.send(claim_all(*arguments))


def measure(runs: Path, storage: str | None, workers: int, wanted: int) -> list[Claims]:
    """Lets so many processes claim ``wanted`` runs. Raises RuntimeError where a run was given out twice or never."""
    context = multiprocessing.get_context("spawn")
    ready, receivers, processes = context.Barrier(workers), [], []
    for worker in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        first = worker * wanted // workers
        process = context.Process(target=_child, args=(sender, runs, storage, wanted, first, ready))
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    claims: list[Claims] = [receiver.recv() for receiver in receivers]
    for process in processes:
        process.join()
    keys = [key for one in claims for key in one.keys]
    if len(keys) != len({*keys}) or len(keys) != wanted:
        raise RuntimeError(f"{len({*keys})} of {wanted} runs were given out, in {len(keys)} claims")
    return claims


def main(
    ended: Annotated[int, typer.Option("--ended", min=0, help="Runs that have ended before.")] = 10_000,
    wanted: Annotated[int, typer.Option("--wanted", min=1, help="Runs to claim.")] = 800,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that claim side by side.")] = 16,
    storage: Annotated[
        str | None, typer.Option("--storage", help="The address of an empty database, in place of a file.")
    ] = None,
    name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Count the claims a second of processes that share a ledger."""
    out = Console()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        fill(runs, storage, ended, out)
        claims = measure(runs, storage, workers, wanted)
    seconds = max(one.ended for one in claims) - min(one.begun for one in claims)
    reading = sum(one.reading for one in claims) / workers
    claiming = sum(one.claiming for one in claims) / wanted
    table = Table("", "", "goal", title=f"{workers} processes, {ended:,} ended runs", title_justify="left")
    table.add_row("claims and ends a second, all processes", f"{wanted / seconds:.0f}", f"{GOAL:.0f}")
    table.add_row("processor milliseconds a claim and its end", f"{1000 * claiming:.1f}", "")
    table.add_row("processor seconds of a process until it has read the ledger", f"{reading:.2f}", "")
    out.print(table)
    if name:
        results = describe(("optuna", "sqlalchemy")) | {"workers": workers, "ended": ended, "wanted": wanted}
        results |= {"seconds": seconds, "claims_per_second": wanted / seconds, "reading": reading, "claiming": claiming}
        out.print(f"kept: {save(name, results)}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
