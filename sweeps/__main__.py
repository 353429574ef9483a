"""``python -m sweeps``: the commands for the ledger that several machines share. They work with any study."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

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

TABLE = (
    ListedCommand(
        "status",
        "ledger_command:status",
        "Show the runs in progress of all studies, with their workers and the time left.",
    ),
    ListedCommand(
        "serve",
        "ledger_command:serve",
        "Serve the ledger as a proxy, so that hundreds of workers share one connection to its database.",
    ),
)
PROGRAM = Program(
    "sweeps",
    TABLE,
    help=HELP,
    epilog=EXAMPLES,
    elsewhere={name: f"It takes a study: python -m ablations {name}" for name in STUDY_COMMANDS},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
