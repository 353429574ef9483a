"""``python -m docs build | picture | outputs | lint``: the site, its pictures and outputs, and its English."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from docs.blocks import blocks_of, run_page, with_output
from lit_transformers.records.files import write_text

__all__ = ["build", "lint", "outputs", "picture"]

ROOT = Path(__file__).parents[1]
out, err = Console(), Console(stderr=True)


def build(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write into.")] = Path("site"),
    gallery: Annotated[bool, typer.Option(help="Include the page of every published study (takes a minute).")] = True,
) -> None:
    """Build the site. Open index.html; no server needed."""
    from docs.site import GALLERY
    from docs.site import build as build_site
    from reports.gallery import write_site
    from reports.show.html import ParentPage

    if gallery:
        with err.status("") as status:
            parent = ParentPage("Documentation", "../index.html")
            write_site(ROOT / "published", to / GALLERY, lambda name: status.update(f"rendering {name}"), parent)
    out.print(str(build_site(to, ROOT)), markup=False, highlight=False, soft_wrap=True)


def picture() -> None:
    """Draw the terminal picture of the README from the published demo."""
    from docs.pictures import write_terminal

    out.print(str(write_terminal(ROOT)), markup=False, highlight=False, soft_wrap=True)


def outputs(
    pages: Annotated[list[Path], typer.Argument(help="Pages to run.")],
    folder: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Folder to run them in. Default: a temporary one.")
    ] = None,
) -> None:
    """Run the code blocks of pages, and write their output below those that show it."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        with TemporaryDirectory(prefix="docs-") as temporary:
            printed = list(run_page(blocks_of(text, str(page)), folder or Path(temporary)))
        write_text(page, with_output(text, printed))


def lint() -> None:
    """Check the English of pages, help and messages."""
    from docs.prose import faults

    found = list(faults(ROOT))
    for line in found:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if found:
        raise typer.Exit(1)
