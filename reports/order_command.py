"""``python -m reports order``: whether the levels of a factor have the same order in two studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.cli.pairs import pairs_of
from lit_transformers.records.files import PUBLISHED
from reports.options import Folder, out, print_path
from reports.read.study import ReportError
from sweeps.options import Runs

__all__ = ["order"]

StudyName = Annotated[str, typer.Argument(help="A study's name, or its folder.")]


def order(
    one: StudyName,
    other: StudyName,
    factor: Annotated[
        str | None,
        typer.Option(
            "--factor",
            metavar="NAME",
            help="Order the levels of this factor; ONE=OTHER where the second has another name for it. By default "
            "the first factor that both have.",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match", metavar="LEVEL=LEVEL", help="Name a level of the first study in the second. Repeatable."
        ),
    ] = None,
    runs: Runs = Path("runs"),
    folder: Folder = PUBLISHED,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.csv", help="Write the table as CSV, too.")] = None,
) -> None:
    """Compare the order of a factor's levels in two studies: ranks, their correlation, pairs that both decide.

    The metrics of the studies may differ: each study states which direction is better.
    """
    from lit_transformers.records.files import write_text
    from reports.compare import find_side
    from reports.judge.order import order_of
    from reports.show.order import order_table
    from reports.show.tables import to_csv, to_rich

    sides = [find_side(name, runs, folder) for name in (one, other)]
    for side in sides:
        if side.kind == "run":
            raise ReportError(f"{side.name} is a run; name two studies")
    studies = [side.study for side in sides]
    first, _, second = (factor or "").partition("=")
    ordered = order_of(studies[0], studies[1], first or None, second or None, pairs_of("--match", match))
    table = order_table(ordered, studies[0], studies[1])
    out.print(to_rich(table, out.width))
    if to is not None:
        write_text(to, to_csv([table]))
        print_path(to)
