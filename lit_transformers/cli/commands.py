"""How commands end: with an exit status, and with one line on standard error where the input is bad."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import typer
from rich.console import Console

from lit_transformers.cli.help_text import filled
from lit_transformers.cli.plugin_option import with_plugins

__all__ = ["complain", "run_command"]

OWN = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports", "claims", "docs")
"""Packages whose ValueErrors are about what was typed; others are faults, which keep their traceback."""


def run_command(commands: typer.Typer, name: str, arguments: Sequence[str] | None) -> int:
    """Runs a command and returns its exit status. Bad input ends in one line on standard error."""
    try:
        filled(with_plugins(typer.main.get_command(commands))).main(arguments, prog_name=name)
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else 0
    except ValueError as error:
        if type(error).__module__.split(".")[0] not in OWN:
            raise
        return complain(str(error))
    except OSError as error:
        cause = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        return complain(f"{error.filename or 'output'}: {cause}; nothing that was finished is lost")
    return 0


def complain(message: str) -> int:
    """Prints one line on standard error and returns exit status 2."""
    Console(stderr=True).print(f"error: {' '.join(message.split())}", markup=False, highlight=False, soft_wrap=True)
    return 2
