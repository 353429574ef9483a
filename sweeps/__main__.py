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

HELP = """Many machines, one ledger: who does what, in all studies, and a proxy for hundreds of workers."""

EXAMPLES = """Examples, for a study on several machines that share the folder of runs:

export LIT_TRANSFORMERS_STORAGE=postgresql+psycopg://me@db.example.org/ledger   what --storage would say

python -m ablations run xl_recurrence --scale gpu      on one machine: train, then report

python -m ablations worker xl_recurrence --scale gpu   on any other, at any time: does runs that wait

python -m ablations status xl_recurrence --scale gpu   where every run stands, and who is at it

python -m sweeps status                                who does what, in all studies

python -m sweeps serve --host 10.0.0.5 --port 13000    hundreds of workers: a proxy in front of the database,

python -m ablations worker xl_recurrence --storage grpc://10.0.0.5:13000   and a worker that goes through it

A password belongs into ~/.pgpass or the environment, not on a command line. The folder of runs is best shared: a run
whose worker died goes on from its checkpoint elsewhere. So it does in an object store, --runs s3://bucket/prefix. Where
neither is shared, no run is done twice, and each machine keeps the records of its own.

Exit status: 0 all is well, 2 bad input, 130 or 143 stopped.
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
    str, typer.Option("--host", help="Where to listen. The proxy asks for no password: a private network.")
]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Where to listen.")]


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
    from sweeps.ledger.serve import serve as listen

    listen(runs, storage, host, port, lambda line: out.print(line, markup=False, highlight=False, soft_wrap=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    return run_command(app, program_name("sweeps"), arguments)


if __name__ == "__main__":
    sys.exit(main())
