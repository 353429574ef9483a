"""The options of every command that works with the ledger of a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Runs", "Storage"]

Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs, ledger and reports are kept.")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        envvar="LIT_TRANSFORMERS_STORAGE",
        help="The ledger that machines share; for addresses see: python -m sweeps --help.",
        show_default="runs/ledger.db",
    ),
]
