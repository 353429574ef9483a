"""The options of every command that works with the ledger of a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweeps.object_store import is_address, opened

__all__ = ["Runs", "Storage"]


def _path_or_address(typed: str | Path) -> str | Path:
    """Returns an address as it was typed, which a path would change, and anything else as a path."""
    return typed if is_address(typed) else Path(typed)


def _open(context: typer.Context, runs: Any) -> Path:
    """Returns the folder of runs; that of a store is open until the command ends."""
    return Path(runs) if context.resilient_parsing else context.with_resource(opened(runs))


Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        metavar="DIR",
        help="Where runs, ledger and reports are kept: a folder, or a store such as s3://bucket/prefix.",
        parser=_path_or_address,
        callback=_open,
    ),
]
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
