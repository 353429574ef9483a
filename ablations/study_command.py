"""``python -m ablations list | show | new``: the studies that there are, one of them, and a new one."""

from __future__ import annotations

from typing import Annotated

import typer

from ablations import catalog
from ablations.options import Study, out
from lit_transformers.config import ConfigError

__all__ = ["list_studies", "new", "show"]

OfCommand = Annotated[
    str | None,
    typer.Option("--command", metavar="LINE", help='Study a command, e.g. "python train.py --lr 0.1 --seed 0".'),
]
TryCommand = Annotated[
    bool, typer.Option("--try", help="Run the command once, as typed, to see which numbers it prints.")
]


def list_studies() -> None:
    """List all studies with their questions."""
    from ablations.show import study_list

    own = [catalog.headline(catalog.own_folder() / f"{name}.py") for name in catalog.own_names()]
    out.print(study_list([*own, *(catalog.headline(catalog.STUDIES / f"{name}.py") for name in catalog.names())]))


def show(study: Study) -> None:
    """Show a study: factors, levels, scales and published numbers."""
    from ablations.show import study_view

    path = catalog.find(study)
    out.print(study_view(path.stem, catalog.load(path)))


def new(
    name: Annotated[str, typer.Argument(help="The study's name, or the path of a .py file.")],
    command: OfCommand = None, run: TryCommand = False,
) -> None:  # fmt: skip
    """Write a commented study file, ready to run: of networks of this suite, or of any command.

    With --command, the options in the line become parameters. Its --help names further ones, and the seed.
    """
    if run and command is None:
        raise ConfigError("goes with --command", "--try")
    path = catalog.write_new(name, command, run=run)
    out.print(f"{path} written; edit it, then: python -m ablations plan {name}", markup=False, soft_wrap=True)
