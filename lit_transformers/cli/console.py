"""The console of commands, which outlives its reader: ``run | head`` ends the output, and nothing else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from rich.console import Console

__all__ = ["SteadyConsole"]


class SteadyConsole(Console):
    """A console that becomes silent when nobody reads it any more, lets the work continue, and says so on standard
    error."""

    def on_broken_pipe(self) -> None:
        """Is called by rich, which would end the process, and with it the runs that it does."""
        self.quiet = True
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)
        if not self.stderr:
            with suppress(OSError):
                print("nobody reads the output any more; the work continues", file=sys.stderr, flush=True)
