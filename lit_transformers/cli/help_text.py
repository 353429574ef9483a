"""The text of --help."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from typer import Context

__all__ = ["filled"]


def filled(command: Any) -> Any:
    """Returns a command whose help fills the lines of a terminal: a paragraph is one line, wherever its source breaks
    it, and flags name no value."""
    if command.help:
        paragraphs = (" ".join(paragraph.split()) for paragraph in cleandoc(command.help).split("\n\n"))
        command.help = "\n\n".join(paragraphs)
    for option in command.get_params(Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return command
