"""Texts in tables of comma-separated values, which a spreadsheet may take for a formula.

A spreadsheet computes a cell that begins with ``= + - @``, a tab or a line end, and a formula can start a program or
send the contents of other cells elsewhere. A quote before it makes it text (OWASP, *CSV injection*), and is removed
when the table is read. Numbers are written as they are.
"""

from __future__ import annotations

import re

__all__ = ["cell_of", "text_of"]

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def cell_of(text: str) -> str:
    """Returns a text as it is written into a cell."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if _FORMULA.match(text) else text
    return text


def text_of(cell: str) -> str:
    """Returns the text that ``cell_of`` has written into a cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
