"""The table of the checks of the parts of a plug-in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lit_transformers.checks.contract import CheckedPart

__all__ = ["contract_view"]


def contract_view(parts: Iterable[CheckedPart]) -> Group:
    """Returns a table for each part, headed by its kind and its claims, with a row for each check and its
    measurement."""
    tables: list[Text | Table] = []
    for part in parts:
        title = Text(f"{part.config.kind} ({part.config.__name__})", style="bold")
        tables.append(title.append(f": {part.claims}" if part.claims else "", style="not bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for check in part.checks:
            mark = Text("ok", style="green") if check.passed else Text("failed", style="red")
            table.add_row(Text(check.name), mark, Text(check.detail, overflow="fold"))
        tables += [table, Text()]
    return Group(*tables[:-1])
