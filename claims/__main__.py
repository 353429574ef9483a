"""``python -m claims``: which numbers in README and docs are older than the code, and measuring them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

HELP = """Check and measure the numbers in README and docs.

Every number stands between marks that name a claim. Results, commands and commits are in claims/results.
"""

EXAMPLES = """Examples:

python -m claims status              list claims that are older than the code

python -m claims measure             measure these again, and update the text

python -m claims measure multi30k    measure one claim

python -m claims write               write measured numbers into the text

Exit status: 0 success, 1 a claim is older than the code, 2 bad input or a failed measurement.
"""


TABLE = (
    ListedCommand(
        "status",
        "claims_command:status",
        "List every claim with its commit and date, and whether its code has changed since.",
    ),
    ListedCommand(
        "measure",
        "claims_command:measure",
        "Measure claims again and update the text. A failed measurement changes nothing.",
    ),
    ListedCommand(
        "write",
        "claims_command:write",
        "Write measured numbers into README and docs, and list marks without a measurement.",
    ),
)
PROGRAM = Program("claims", TABLE, help=HELP, epilog=EXAMPLES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
