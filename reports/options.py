"""The options and the consoles that the commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.cli.console import SteadyConsole

__all__ = ["Folder", "err", "out", "print_path"]

out, err = SteadyConsole(), SteadyConsole(stderr=True)

Folder = Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of the publications.")]


def print_path(path: Path) -> None:
    """Prints where something was written, to be copied whole."""
    out.print(str(path), markup=False, highlight=False, soft_wrap=True)
