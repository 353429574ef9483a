"""``python -m lit_transformers config | schema | kinds``: a whole config with its docs, two configs side by side, the
schema for editors, and the kinds of parts."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.cli.printed_config import Other, print_config, print_differences, read_target, with_values
from lit_transformers.config import parse_assignments

__all__ = ["config", "kinds", "schema"]

Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a path of it. Repeatable.")
]


def config(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|KIND|STUDY", help="A run's folder, a YAML file, a kind, or a study."),
    ],
    other: Other = None,
    changes: Changes = None,
    allowed: AllowedModules = None,
) -> None:
    """Print a whole config with every default, type, range and doc, as YAML that fit takes.

    Of a KIND only the part is printed, at its path, and of a STUDY its baseline at the scale demo; other arms and
    scales, and a study that has the name of a kind, are printed by: python -m ablations config STUDY. With --diff
    OTHER: a table of the paths in which both differ.

    Example: python -m lit_transformers config runs/3f2a9c0e11d2b470 > mine.yaml

    Example: python -m lit_transformers config model.mixer=window

    Example: python -m lit_transformers config --diff runs/A runs/B
    """
    values = parse_assignments(changes or [])
    path, first = read_target(target)
    if other is None:
        print_config(with_values(first, values) if values else first, path, target)
    else:
        print_differences((other, with_values(read_target(other)[1], values)), (target, with_values(first, values)))


def schema() -> None:
    """Print the JSON schema of a run's config, with which editors complete fields and kinds and mark errors.

    Example: python -m lit_transformers schema > run.schema.json
    """
    from lit_transformers.cli.plugin_option import without_plugins
    from lit_transformers.json_schema import config_schema
    from lit_transformers.runs import RunConfig

    if hint := without_plugins():
        print(hint, file=sys.stderr)
    print(json.dumps(config_schema(RunConfig), indent=1, ensure_ascii=False))


def kinds(
    path: Annotated[str | None, typer.Argument(help="A path of a run's config, such as data.generator.")] = None,
) -> None:
    """List the kinds of model, mixer, task, data and other parts, by their path in the config.

    Example: python -m lit_transformers kinds model.mixer
    """
    from lit_transformers.cli.plugin_option import without_plugins
    from lit_transformers.kinds import described
    from lit_transformers.runs import RunConfig

    if hint := without_plugins():
        print(hint, file=sys.stderr)
    for line in described(RunConfig, path):
        print(line)
