"""``python -m sweeps``: the commands for the ledger that several machines share, whatever studies it is of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.commands import run_command
from lit_transformers.cli.console import SteadyConsole
from lit_transformers.cli.program import is_script, program_name
from sweeps.options import Runs, Storage

HELP = """Watch the ledger that machines share, and serve it to hundreds of workers."""

EXAMPLES = """Examples, for machines that share the folder of runs:

export LIT_TRANSFORMERS_STORAGE=postgresql+psycopg://me@db.example.org/ledger   default of --storage

python -m ablations run xl_recurrence --scale gpu                               on one machine: train, then report

python -m ablations worker xl_recurrence --scale gpu                            on any other: take waiting runs

python -m ablations status xl_recurrence --scale gpu                            show every run of one study

python -m sweeps status                                                         show the runs in progress of all studies

python -m sweeps serve --host 10.0.0.5 --port 13000                             start a proxy in front of the database

python -m ablations worker xl_recurrence --storage grpc://10.0.0.5:13000        take waiting runs through the proxy

Keep passwords in ~/.pgpass or the environment, never on a command line. Share the folder of runs, or use an object
store (--runs s3://bucket/prefix): a run whose worker died then resumes elsewhere from its checkpoint. Without either,
no run is repeated, and each machine keeps its own records.

Exit status: 0 success, 2 bad input, 130 or 143 stopped.
"""

STUDY_COMMANDS = ("agent", "dashboard", "tune", "wandb", "worker")
"""Commands of ``ablations`` that one might look for here."""


class LedgerCommands(TyperGroup):
    """The commands of the ledger. For one that takes a study, the error names where it is."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in STUDY_COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. It takes a study: python -m ablations {args[0]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LedgerCommands,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=is_script("sweeps"),
    pretty_exceptions_enable=False,
)

out = SteadyConsole()

Host = Annotated[
    str, typer.Option("--host", help="Address to listen at. The proxy checks no password: use a private network.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=1, max=65535, help="Port to listen at.")]


@app.command()
def status(runs: Runs = Path("runs"), storage: Storage = None) -> None:
    """Show the runs in progress of all studies, with their workers and the time left."""
    from sweeps.status import standings, work_table

    active_runs = standings(runs, storage)
    if active_runs:
        out.print(work_table(active_runs.values()))
    out.print(f"{len(active_runs)} {'run' if len(active_runs) == 1 else 'runs'} in progress", highlight=False)


@app.command()
def serve(runs: Runs = Path("runs"), storage: Storage = None, host: Host = "localhost", port: Port = 13000) -> None:
    """Serve the ledger as a proxy, so that hundreds of workers share one connection to its database."""
    from sweeps.ledger.serve import serve as listen

    listen(runs, storage, host, port, lambda line: out.print(line, markup=False, highlight=False, soft_wrap=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, program_name("sweeps"), arguments)


if __name__ == "__main__":
    sys.exit(main())
