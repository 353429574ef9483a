"""Errors in a line of text."""

from __future__ import annotations

__all__ = ["IMPORT_ERRORS", "first_line"]

IMPORT_ERRORS = (Exception, SystemExit)
"""The errors of importing a user's file: a script that ends the process is reported as an error in a line, too."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, at most 200 characters, or its type where it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
