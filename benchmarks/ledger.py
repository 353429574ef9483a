"""How the ledger and the commands stand 10,000 runs: ``python -m benchmarks.ledger [--store postgresql]``.

The ledger of a study of many runs that have ended is filled once. Then processes read it, and claim and end further
runs side by side: all of them go through the same runs, so that each run is wanted by all and must be given out once.
The commands are timed on a study of as many runs, whose records are there.

Goals: 50 claims a second in all with 16 processes, and none twice; 2 s of CPU a command.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers.machine.processor import processor
from lit_transformers.records.record import VERSION, Record, write_record
from sweeps.ledger.ledger import Ending, Ledger
from sweeps.ledger.ticket import Ticket

GOAL = 50.0
COMMAND_GOAL = 2.0
SERVER = Path(__file__).parents[1] / "tests" / "services" / "postgres.sh"
PORT = "54399"
SEEDS = 1000
STUDY = """
from ablations.ablation import Ablation
from ablations.baselines import BITS_PER_BYTE, CHARACTERS

ABLATION = Ablation(
    question="How long do commands take?",
    baseline=CHARACTERS,
    factors={{"dropout": {{"0": {{}}}} | {{str(n): {{"model.dropout": n / 1000}} for n in range(1, {arms})}}}},
    seeds={seeds},
    metric=BITS_PER_BYTE,
)
"""
COMMANDS = ("list", "status many.py", "plan many.py", "report --help")
BATCH = 500
"""How many ended runs are entered between two steps of the progress bar."""
WAIT_SECONDS = 600.0


class Claims(NamedTuple):
    """The work of one process: the runs that it claimed, the moments of its first claim and of its last end, its
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
    """Claims and ends all free runs of ``count``, beginning at the one with the number ``first``."""
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
    """Lets ``workers`` processes claim ``wanted`` runs. Raises RuntimeError for a run given out twice or never."""
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


class Database(StrEnum):
    """The databases that a ledger is measured in."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@contextmanager
def opened(store: Database) -> Iterator[tuple[Path, str | None]]:
    """Yields a folder of runs, and the address of an empty database of a server that runs meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        if store == Database.SQLITE:
            yield Path(folder), None
            return
        place = Path(tempfile.mkdtemp(prefix="ledger-"))
        place.chmod(0o755)  # started by root, the server runs as another user
        try:
            started = subprocess.run([SERVER, "start", place, PORT], check=True, stdout=subprocess.PIPE, text=True)
            yield Path(folder), started.stdout.strip()
        finally:
            subprocess.run([SERVER, "stop", place], check=False)
            shutil.rmtree(place, ignore_errors=True)


def measure_ledger(store: Database, storage: str | None, ended: int, wanted: int, workers: int, out: Console) -> Any:
    """Returns the claims a second, and the processor seconds of the first read and of a claim and its end."""
    with opened(store) if storage is None else tempfile.TemporaryDirectory() as place:
        runs, address = (Path(place), storage) if isinstance(place, str) else place
        fill(runs, address, ended, out)
        claims = measure(runs, address, workers, wanted)
    seconds = max(one.ended for one in claims) - min(one.begun for one in claims)
    return {
        "claims_per_second": wanted / seconds,
        "reading": sum(one.reading for one in claims) / workers,
        "claiming": sum(one.claiming for one in claims) / wanted,
    }


def cpu_seconds(words: Sequence[str], folder: Path) -> float:
    """Returns the processor seconds of a command and of the processes that it waits for."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "ablations", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def write_study(folder: Path, count: int) -> None:
    """Writes a study of ``count`` runs, has it planned, and writes a record of every run. Raises RuntimeError where its
    plan is not in the cache."""
    seeds = min(count, SEEDS)
    (folder / "many.py").write_text(STUDY.format(arms=max(count // seeds, 2), seeds=seeds), encoding="utf-8")
    cpu_seconds(["plan", "many.py"], folder)
    for path in (folder / "runs" / "studies" / "many" / "plans").glob("*.json"):
        plan = json.loads(path.read_text(encoding="utf-8"))["plan"]["plan"]
        for arm in plan["arms"]:
            for run in arm["runs"]:
                write_record(folder / "runs" / run["key"], _record(run["key"], run["seed"]))
        return
    raise RuntimeError("the plan of the study is not in the cache of plans")


def _record(key: str, seed: int) -> Record:
    """Returns a record as long as one of a small language model, of which observations are the most."""
    return Record(
        version=VERSION,
        key=key,
        outcome="finished",
        seed=seed,
        config={"model": {f"field {number}": "value" for number in range(150)}, "seed": seed},
        metrics={"val/bpb": 2.0 + seed / 10_000},
        cost={"parameters": 120_000, "train_flops": 1e12, "tokens": 1_500_000},
        environment={"hardware": processor()},
        measured={"seconds": 50.0, "tokens_per_second": 30_000.0},
        observed={"layers": {f"layer {number}": [number / 7] * 10 for number in range(40)}},
    )


def measure_commands(count: int) -> dict[str, float]:
    """Returns the processor seconds of each command on a study of ``count`` runs that have ended."""
    with tempfile.TemporaryDirectory() as folder:
        write_study(Path(folder), count)
        return {command: cpu_seconds(command.split(), Path(folder)) for command in COMMANDS}


def main(
    ended: Annotated[int, typer.Option("--ended", min=0, help="Set how many runs have ended before.")] = 10_000,
    wanted: Annotated[int, typer.Option("--wanted", min=1, help="Set how many runs are claimed.")] = 800,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Set how many processes claim side by side.")] = 16,
    store: Annotated[
        list[Database] | None,
        typer.Option("--store", help="Measure this database, of a server that is started for it. Repeatable."),
    ] = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="Use the empty database at this address, e.g. of your own server.")
    ] = None,
    commands: Annotated[
        bool, typer.Option("--commands/--no-commands", help="Also time list, status and plan on a study of many runs.")
    ] = True,
    name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Count the claims a second of processes that share a ledger, and time the commands that read many runs.

    Claims a second depend on other load on the machine; processor times hardly do. PostgreSQL has to be installed for
    --store postgresql: apt-get install postgresql.
    """
    out = Console()
    ledgers = {
        str(one): measure_ledger(one, storage, ended, wanted, workers, out) for one in store or [Database.SQLITE]
    }
    times = measure_commands(ended) if commands else {}
    table = Table(
        "", "", "goal", title=f"{workers} process{'es' * (workers > 1)}, {ended:,} ended runs", title_justify="left"
    )
    for one, measured in ledgers.items():
        table.add_row(f"{one}: claims and ends a second", f"{measured['claims_per_second']:.0f}", f"{GOAL:.0f}")
        table.add_row(f"{one}: CPU ms a claim and its end", f"{1000 * measured['claiming']:.1f}", "")
        table.add_row(f"{one}: CPU s of a process until it has read the ledger", f"{measured['reading']:.2f}", "")
    for command, seconds in times.items():
        table.add_row(f"python -m ablations {command}: CPU s", f"{seconds:.2f}", f"{COMMAND_GOAL:.0f}")
    out.print(table)
    if name:
        results = describe(("optuna", "sqlalchemy")) | {"workers": workers, "ended": ended, "wanted": wanted}
        out.print(f"kept: {save(name, results | {'ledgers': ledgers, 'commands': times})}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
