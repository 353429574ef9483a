"""The text of --help."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

__all__ = ["filled"]


def filled(command: Any) -> Any:
    """Returns a command whose help, and that of the commands in it, fills the lines of a terminal: a paragraph is one
    line, wherever its source breaks it."""
    if command.help:
        paragraphs = (" ".join(paragraph.split()) for paragraph in cleandoc(command.help).split("\n\n"))
        command.help = "\n\n".join(paragraphs)
    for inner in getattr(command, "commands", {}).values():
        filled(inner)
    return command
