"""``python -m reports compare``: two runs or two studies, path by path and arm by arm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.records.files import PUBLISHED
from reports.options import Folder, out, print_path
from sweeps.options import Runs

__all__ = ["compare"]

Side = Annotated[str, typer.Argument(help="A run's key, a study's name, or the folder of either.")]


def compare(
    one: Side,
    other: Side,
    runs: Runs = Path("runs"),
    folder: Folder = PUBLISHED,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.md", help="Write it as Markdown, too.")] = None,
) -> None:
    """Compare two runs or two studies: configs path by path, metrics with intervals, costs as ratios."""
    from lit_transformers.records.files import write_text
    from reports.compare import compare as compare_sides
    from reports.compare import find_side, to_page
    from reports.show.tables import to_rich

    sides = find_side(one, runs, folder), find_side(other, runs, folder)
    tables, notes = compare_sides(*sides)
    for table in tables:
        out.print(to_rich(table, out.width))
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    if to is not None:
        write_text(to, to_page(*sides, tables, notes))
        print_path(to)
