"""The configs that a command line names, by run or by kind, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lit_transformers.config import Config, ConfigError, nearest

__all__ = ["Other", "print_config", "print_differences", "read_target"]

Other = Annotated[
    str | None, typer.Option("--diff", metavar="OTHER", help="Only the paths in which OTHER differs, as a table.")
]


def read_target(target: str) -> tuple[str, Config]:
    """Returns the config of a run, with the path "", or the defaults of a kind, with its path in a run's config.

    Raises ConfigError where there is neither, and where a kind has fields without a default.
    """
    from lit_transformers.records.files import RUN
    from lit_transformers.runs import RunConfig

    place = Path(target)
    if place.is_dir():
        return "", RunConfig.from_yaml(place / RUN)
    if place.is_file():
        return "", RunConfig.from_yaml(place)
    return _kind(target)


def _kind(target: str) -> tuple[str, Config]:
    """Returns the path and the defaults of a kind, named alone or as PATH=KIND."""
    from lit_transformers.kinds import places
    from lit_transformers.runs import RunConfig

    path, equals, kind = target.rpartition("=")
    known = {f"{place.path}={name}": part for place in places(RunConfig) for name, part in place.kinds.items()}
    matches = [name for name in known if (name == target if equals else name.rpartition("=")[2] == kind)]
    if not matches:
        names = known if equals else {name.rpartition("=")[2] for name in known}
        raise ConfigError(f"no run and no kind of this name; {nearest(target, names)}", target)
    classes = {known[name] for name in matches}
    if len(classes) > 1:
        raise ConfigError(f"several kinds have this name; write one of {', '.join(sorted(matches))}", target)
    path = matches[0].rpartition("=")[0]
    try:
        return path, classes.pop()()
    except ConfigError as error:
        raise error.under(path) from None


def print_config(config: Config, path: str, name: str) -> None:
    """Prints a config as commented YAML, below its path in a run's config."""
    from lit_transformers.cli.commented_config import INDENT, SCHEMA_FILE, commented_lines

    for line in _head(name, SCHEMA_FILE):
        print(f"# {line}")
    parents = path.split(".") if path else []
    for depth, parent in enumerate(parents):
        print(f"{INDENT * depth}{parent}:")
    for line in commented_lines(config, len(parents)):
        print(line)


def _head(name: str, schema_file: str) -> Iterator[str]:
    yield f"yaml-language-server: $schema={schema_file}"
    yield name
    yield f"Of the schema, for editors: python -m lit_transformers schema > {schema_file}"


def print_differences(first: tuple[str, Config], second: tuple[str, Config]) -> None:
    """Prints a table of the paths in which two configs differ, each with its name."""
    from rich.console import Console
    from rich.table import Table

    from lit_transformers.cli.commented_config import differences

    rows = differences(first[1], second[1])
    if not rows:
        print(f"{first[0]} and {second[0]} do not differ")
        return
    table = Table("path", first[0], second[0])
    for path, values in rows.items():
        table.add_row(path, *values)
    Console(markup=False, highlight=False).print(table)
