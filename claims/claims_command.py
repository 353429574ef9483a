"""``python -m claims status | measure | write``: the claims, measured again and written into the text."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from claims.catalog import CLAIMS
from claims.claim import Claim, ClaimError, values_of
from claims.text import filled, pages, unmeasured
from lit_transformers.records.files import write_text

__all__ = ["measure", "status", "write"]

out, err = Console(), Console(stderr=True)


def status() -> None:
    """List every claim with its commit and date, and whether its code has changed since."""
    older = older_than_code()
    show_standings(older)
    raise typer.Exit(int(bool(older)))


def measure(
    names: Annotated[list[str] | None, typer.Argument(help="Claims. Default: those older than the code.")] = None,
    folder: Annotated[Path | None, typer.Option("--in", help="Folder for the runs. Default: a temporary one.")] = None,
) -> None:
    """Measure claims again and update the text. A failed measurement changes nothing."""
    selected = [claim_of(name) for name in names or ()]
    if not names:
        selected = older_than_code()
        show_standings(selected)
    minutes = sum(claim.minutes for claim in selected)
    err.print(f"{len(selected)} to measure, about {minutes:.0f} minutes on two cores", highlight=False)
    with TemporaryDirectory(prefix="claims-") as temporary:
        for claim in selected:
            err.print(f"measuring {claim.name}, about {claim.minutes:.0f} minutes", highlight=False)
            claim.measure_and_write((folder or Path(temporary)) / claim.name)
            write()


def write() -> None:
    """Write measured numbers into README and docs, and list marks without a measurement."""
    from claims.benchmarks import benchmark_tables

    values = values_of(CLAIMS) | benchmark_tables()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name in unmeasured(text, values):
            claim, _, _ = name.partition(".")
            err.print(f"{page.name}: {name} was not measured; python -m claims measure {claim}", soft_wrap=True)
        if (updated := filled(text, values)) != text:
            write_text(page, updated)
            out.print(f"{page.name} is written anew", highlight=False)


def older_than_code() -> list[Claim]:
    """Returns the claims whose code has changed since they were measured, and those that were never measured."""
    return [claim for claim in CLAIMS.values() if claim.is_older_than_code()]


def show_standings(older: list[Claim]) -> None:
    """Prints the standing of every claim and of every published study."""
    from claims.published import published_standings
    from claims.show import standing_table

    out.print(standing_table(CLAIMS.values(), older, published_standings()))


def claim_of(name: str) -> Claim:
    """Returns the claim of that name. Raises ClaimError, which lists the names there are, where there is none."""
    if name not in CLAIMS:
        raise ClaimError(f"{name} is no claim; there are {', '.join(CLAIMS)}")
    return CLAIMS[name]
