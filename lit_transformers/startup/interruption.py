"""Imported by every command before anything else that takes long: Ctrl-C during imports ends in one line."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["end_in_a_line"]


def end_in_a_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints one line for Ctrl-C, by which Python then ends the process, and Python's traceback for other errors."""
    if issubclass(kind, KeyboardInterrupt):
        print("stopped before anything was begun", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = end_in_a_line
