"""Names of arms in tables of a terminal: a long one is broken between its words, never within one."""

from __future__ import annotations

import re
from typing import final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

__all__ = ["BreakableName"]

_PART = re.compile(r"[^=_/+,.\s]*[=_/+,.\s]*")
_WORD = re.compile(r"\S*\s*")


@final
class BreakableName:
    """A name that a table breaks at spaces where its column is narrow, and a word that is longer than the column after
    ``=``, ``_``, ``/``, ``+``, a dot or a comma."""

    def __init__(self, name: str) -> None:
        self.name = name

    def lines(self, width: int) -> list[str]:
        """Returns the lines of the name in a column of ``width`` characters; a longer part has a separate line."""
        lines = [""]
        for word in _WORD.findall(self.name):
            for part in [word] if len(word.rstrip()) <= width else _PART.findall(word):
                if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
                    lines.append("")
                lines[-1] += part
        return [line.rstrip() for line in lines]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(self.lines(options.max_width)), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(len(part.rstrip()) for part in _PART.findall(self.name))
        return Measurement(min(longest, options.max_width), min(len(self.name), options.max_width))
