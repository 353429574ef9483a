"""How commands end: with an exit status, and with one line on standard error where the input is bad."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lit_transformers.cli.console import SteadyConsole
from lit_transformers.cli.program import program_name

if TYPE_CHECKING:
    from lit_transformers.cli.command_table import Program

__all__ = ["complain", "message_of", "run_command"]

OWN = ("lit_transformers", "datamodules", "ablations", "sweeps", "reports", "claims", "docs")
"""Packages whose ValueErrors are about the typed input; those of others are faults, which keep their traceback."""


NO_UTF_8 = re.compile("[^\\s\"']*[\udc80-\udcff][^\\s\"']*")
"""A path with bytes that are no UTF-8, as Python writes them."""


def run_command(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Runs a command of a program and returns its exit status. Bad input ends in one line on standard error.

    arguments: the words behind the program; without them, those that were typed.
    """
    try:
        program.main(arguments, prog_name=program_name(str(program.name)))
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else 0
    except (ValueError, OSError) as error:
        message = message_of(error)
        if message is None:
            raise
        from lit_transformers.cli.plugin_option import without_plugins

        hint = without_plugins() if "no kind" in message else ""
        return complain(f"{message}; {hint}" if hint else message)
    return 0


def message_of(error: ValueError | OSError) -> str | None:
    """Returns the line that a command prints for an error that the typed input, a file or the machine has caused; None
    for a fault of the program."""
    from lit_transformers.config import shortened

    if isinstance(error, UnicodeEncodeError) and (path := NO_UTF_8.search(error.object)):
        name = path[0].encode("utf-8", "backslashreplace").decode()
        return shortened(f"{name}: holds a name that is no UTF-8; rename the folder or the file")
    if isinstance(error, OSError):
        cause = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        not_there = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
        rest = "" if not_there else "; nothing that was finished is lost"
        return shortened(f"{error.filename or 'output'}: {cause}{rest}")
    return shortened(str(error)) if type(error).__module__.split(".")[0] in OWN else None


def complain(message: str) -> int:
    """Prints one line on standard error and returns exit status 2."""
    from lit_transformers.config import shortened

    SteadyConsole(stderr=True).print(f"error: {shortened(message)}", markup=False, highlight=False, soft_wrap=True)
    return 2
