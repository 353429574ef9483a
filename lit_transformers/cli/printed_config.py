"""The configs that a command line names, by run or by kind, and how they are printed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.json_schema import required_fields

__all__ = ["Other", "print_config", "print_differences", "read_target", "with_values"]

STUDIES = "ablations.config_command"
"""The module that knows studies, which is imported where a target is neither a run nor a kind."""

Other = Annotated[
    str | None, typer.Option("--diff", metavar="OTHER", help="Only the paths in which OTHER differs, as a table.")
]


def read_target(target: str) -> tuple[str, Config | type[Config]]:
    """Returns the config of a run, with the path "", or the defaults of a kind, with its path in a run's config: its
    class, where it has fields without a default; else the config of a study's baseline, with the path "". Raises
    ConfigError where there is none of them."""
    from lit_transformers.records.files import RUN
    from lit_transformers.run_file import read_run

    place = Path(target)
    if place.is_dir() or (place.is_file() and place.suffix != ".py"):
        return "", read_run(place / RUN if place.is_dir() else place)
    kinds = _kinds()
    if matches := [name for name in kinds if target in (name, name.rpartition("=")[2])]:
        return _defaults(target, {name: kinds[name] for name in matches})
    studies: Any = importlib.import_module(STUDIES)
    return "", studies.baseline_of(target, kinds if "=" in target else {name.rpartition("=")[2] for name in kinds})


def with_values(config: Config | type[Config], values: Mapping[str, Plain]) -> Config:
    """Returns a config with values at paths, of a class made with those of its fields that have no default. Raises
    ConfigError where such a field has none."""
    if isinstance(config, Config):
        return config.override(values)
    required = {name: values[name] for name in required_fields(config) if name in values}
    return config(**required).override({path: value for path, value in values.items() if path not in required})


def _kinds() -> dict[str, type[Config]]:
    """Returns the class of every kind by its path and name, as PATH=KIND."""
    from lit_transformers.kinds import places
    from lit_transformers.runs import RunConfig

    return {f"{place.path}={name}": part for place in places(RunConfig) for name, part in place.kinds.items()}


def _defaults(target: str, matches: Mapping[str, type[Config]]) -> tuple[str, Config | type[Config]]:
    """Returns the path of the kind that a target names, and its defaults or its class. Raises ConfigError where several
    kinds have the name. matches: the class of each by its path and name."""
    if len({*matches.values()}) > 1:
        raise ConfigError(f"several kinds have this name; write one of {', '.join(sorted(matches))}", target)
    name, config = next(iter(matches.items()))
    return name.rpartition("=")[0], config if required_fields(config) else config()


def print_config(config: Config | type[Config], path: str, name: str) -> None:
    """Prints a config as commented YAML, below its path in a run's config. For a class, fields without a default are
    left for the reader to fill in."""
    from lit_transformers.cli.commented_config import INDENT, SCHEMA_FILE, commented_lines
    from lit_transformers.runs import RunConfig

    has_schema = bool(path) or isinstance(config, RunConfig)
    for line in _head(name, SCHEMA_FILE) if has_schema else [name]:
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
