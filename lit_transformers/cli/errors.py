"""Errors in a line of text."""

from __future__ import annotations

__all__ = ["first_line"]


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, at most 200 characters, or its type where it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
