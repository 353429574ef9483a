"""``python -m docs``: builds the site of the documentation, runs the code blocks of its pages, and checks English."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.command_table import ListedCommand, Program
from lit_transformers.cli.commands import run_command

HELP = "Build the documentation, run the code blocks of its pages, and check the project's English."

TABLE = (
    ListedCommand("build", "site_command:build", "Build the site. Open index.html; no server needed."),
    ListedCommand(
        "picture", "site_command:picture", "Draw the terminal picture of the README from the published demo."
    ),
    ListedCommand(
        "outputs",
        "site_command:outputs",
        "Run the code blocks of pages, and write their output below those that show it.",
    ),
    ListedCommand("lint", "site_command:lint", "Check the English of pages, help and messages."),
)
PROGRAM = Program("docs", TABLE, help=HELP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
