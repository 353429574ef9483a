"""``python -m sweeps status | serve``: the runs in progress, and the ledger as a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.cli.console import SteadyConsole
from sweeps.options import Runs, Storage

__all__ = ["serve", "status"]

out = SteadyConsole()

Host = Annotated[
    str, typer.Option("--host", help="Address to listen at. The proxy checks no password: use a private network.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port to listen at.")]


def status(runs: Runs = Path("runs"), storage: Storage = None) -> None:
    """Show the runs in progress of all studies, with their workers and the time left."""
    from sweeps.status import standings, work_table

    active_runs = standings(runs, storage)
    if active_runs:
        out.print(work_table(active_runs.values()))
    out.print(f"{len(active_runs)} {'run' if len(active_runs) == 1 else 'runs'} in progress", highlight=False)


def serve(runs: Runs = Path("runs"), storage: Storage = None, host: Host = "localhost", port: Port = 13000) -> None:
    """Serve the ledger as a proxy, so that hundreds of workers share one connection to its database."""
    from sweeps.ledger.serve import serve as listen

    listen(runs, storage, host, port, lambda line: out.print(line, markup=False, highlight=False, soft_wrap=True))
