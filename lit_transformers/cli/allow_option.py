"""The option ``--allow-module``, of every command that reads the file of a run."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowedModules"]


def enter(names: list[str] | None) -> None:
    """Allows the modules that were typed."""
    from lit_transformers.trust import allow_modules

    allow_modules(*(names or ()))


AllowedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        metavar="NAME",
        help="Trust a module: files of runs may name its classes (docs/trust.md). Repeatable.",
        callback=enter,
        expose_value=False,
    ),
]
