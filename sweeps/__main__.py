"""``python -m sweeps``: the commands for a study that several machines share.

No module imports this one, so it may import ``ablations``, whose plans list the runs of a study.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ablations.__main__ import (
    Device,
    MemoryLimit,
    MemoryPerRun,
    Retry,
    Runs,
    Scale,
    Seeds,
    Set,
    Storage,
    Study,
    Threads,
    TimeLimit,
    Wandb,
    Workers,
    limits_of,
    look,
    options_for,
    out,
    plan_for,
    request_of,
    run_command,
    share_for,
    train,
    warn,
)
from ablations.show import summary_line
from ablations.tune_command import tune
from ablations.wandb_command import agent, dashboard, wandb
from sweeps.live import Row, clock
from sweeps.ticket import State

HELP = """Many machines, one study: workers that join at any time, the ledger that they share, and who does what."""

EXAMPLES = """Examples, for a study on several machines that share the folder of runs:

export LIT_TRANSFORMERS_STORAGE=postgresql+psycopg://me@db.example.org/ledger   what --storage would say

python -m ablations run xl_recurrence --scale gpu      on one machine: train, then report

python -m sweeps worker xl_recurrence --scale gpu      on any other, at any time: does runs that wait

python -m ablations status xl_recurrence --scale gpu   where every run stands, and who is at it

python -m sweeps status                                who does what, in all studies

python -m sweeps serve --host 10.0.0.5 --port 13000    hundreds of workers: a proxy in front of the database,

python -m sweeps worker xl_recurrence --storage grpc://10.0.0.5:13000   and a worker that goes through it

python -m sweeps tune xl_recurrence --trials 16        every arm at its best, with the same budget, then the report

python -m sweeps wandb xl_recurrence                   a W&B sweep; its agents run: python -m sweeps agent

A password belongs into ~/.pgpass or the environment, not on a command line. The folder of runs is best shared: a run
whose worker died goes on from its checkpoint elsewhere. Where it is not, no run is done twice, and each machine keeps
the records of its own.

Exit status: 0 all is well, 1 runs failed, 2 bad input, 130 or 143 stopped.
"""

app = typer.Typer(
    help=HELP, epilog=EXAMPLES, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

app.command()(tune)
app.command()(wandb)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(agent)
app.command()(dashboard)

Host = Annotated[
    str, typer.Option("--host", help="Where to listen. The proxy asks for no password: a private network.")
]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Where to listen.")]


@app.command()
def worker(
    study: Study, runs: Runs = Path("runs"), scale: Scale = "demo", changes: Set = None, seeds: Seeds = None,
    device: Device = None, workers: Workers = None, threads: Threads = None, retry_failed: Retry = False,
    wandb: Wandb = "disabled", storage: Storage = None, time_limit: TimeLimit = None, memory_limit: MemoryLimit = None,
    memory_per_run: MemoryPerRun = None,
) -> None:  # fmt: skip
    """Join a study: do runs that wait, take over those of workers that die, and leave when all are over."""
    start, limits = time.monotonic(), limits_of(time_limit, memory_limit, memory_per_run)
    planned = plan_for(study, runs, request_of(scale, changes, seeds, device), warm_up=True)
    rows, notes = look(planned, runs, retry_failed=retry_failed, time_limit=limits.seconds)
    warn(notes)
    todo = sum(not row.state.over for row in rows)
    try:
        if todo:
            share = share_for(planned, todo, workers, threads, limits.needed)
            train(runs, rows, options_for(planned, share, limits, retry_failed=retry_failed, wandb=wandb), storage)
    finally:
        out.print(_worker_summary(rows, time.monotonic() - start), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(any(row.taken and row.state in (State.FAILED, State.INVALID) for row in rows)))


@app.command()
def status(runs: Runs = Path("runs"), storage: Storage = None) -> None:
    """Who does what, since when, and the time left: every run that is in somebody's hands, of all studies."""
    from sweeps.status import standings, work_table

    active_runs = standings(runs, storage)
    if active_runs:
        out.print(work_table(active_runs.values()))
    out.print(f"{len(active_runs)} {'run' if len(active_runs) == 1 else 'runs'} at work", highlight=False)


@app.command()
def serve(runs: Runs = Path("runs"), storage: Storage = None, host: Host = "localhost", port: Port = 13000) -> None:
    """Stand in front of the ledger's database, so that hundreds of workers need no connection each."""
    from sweeps.serve import serve as listen

    listen(runs, storage, host, port, lambda line: out.print(line, markup=False, highlight=False, soft_wrap=True))


def _worker_summary(rows: Sequence[Row], seconds: float) -> str:
    """Returns a line about the runs that this worker did and the state of all."""
    own_rows = [row for row in rows if row.taken]
    totals = f"; of all {summary_line(rows)}" if rows else ""
    return (
        f"worker {socket.gethostname()} process {os.getpid()}: took {summary_line(own_rows)}, {clock(seconds)}{totals}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, "python -m sweeps", arguments)


if __name__ == "__main__":
    sys.exit(main())
