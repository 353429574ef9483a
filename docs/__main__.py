"""``python -m docs``: builds the site of the documentation, and runs the code blocks of its pages."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from docs import site
from docs.blocks import blocks_of, run_page, with_output
from docs.pictures import write_terminal
from lit_transformers.cli.commands import run_command
from lit_transformers.records.files import write_text
from reports.gallery import write_site

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
out, err = Console(), Console(stderr=True)


@app.callback()
def documentation() -> None:
    """Builds the site of the documentation, and runs the code blocks of its pages."""


@app.command()
def build(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the site is written.")] = site.ROOT / "site",
    gallery: Annotated[
        bool, typer.Option(help="Also the interactive page of every published study, which takes minutes.")
    ] = True,
) -> None:
    """Builds the site; open its index.html, without any server."""
    if gallery:
        with err.status("") as status:
            write_site(site.ROOT / "published", to / site.GALLERY, lambda name: status.update(f"rendering {name}"))
    out.print(str(site.build(to)), markup=False, highlight=False, soft_wrap=True)


@app.command()
def picture() -> None:
    """Draws the terminal that the README shows, from what is published of the demo."""
    out.print(str(write_terminal(site.ROOT)), markup=False, highlight=False, soft_wrap=True)


@app.command()
def outputs(
    pages: Annotated[list[Path], typer.Argument(help="Pages of docs.")],
    folder: Annotated[Path | None, typer.Option("--in", help="Where they run; without it, in one that is removed.")] = None,
) -> None:
    """Runs the code blocks of pages and puts what they print into the pages, below each that shows it."""
    for page in pages:
        with TemporaryDirectory(prefix="docs-") as temporary:
            blocks = blocks_of(page.resolve(), site.ROOT)
            printed = list(run_page(blocks, folder or Path(temporary)))
        write_text(page, with_output(page.read_text(encoding="utf-8"), printed))


def main() -> int:
    """Runs the command and returns its exit status. Bad input ends in one line on standard error."""
    return run_command(app, "python -m docs", None)


if __name__ == "__main__":
    sys.exit(main())
