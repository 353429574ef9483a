"""The option ``--plugin``, which every command has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import typer

from lit_transformers.plugins import add_plugins, leave_out_project, load_plugins, plugins_left_out

__all__ = ["with_plugins", "without_plugins"]

HELP = "A file or module with your mixers, data or tasks. Repeatable."


def with_plugins(command: Any, load: bool = False, reading: Collection[str] = ()) -> Any:
    """Returns a command whose inner commands take ``--plugin``. load: whether plug-ins are imported before any of them
    runs; else that is done where a study or a runner is loaded. reading: the names of those that only read."""
    inner_commands = getattr(command, "commands", None)
    if inner_commands is None:
        command.params.append(_plugin_option(load, command.name in reading))
    for inner in (inner_commands or {}).values():
        with_plugins(inner, load, reading)
    return command


def without_plugins() -> str:
    """Returns how the plug-ins are included that a command has left out, or "" where there are none."""
    options = " ".join(f"--plugin {plugin.name}" for plugin in plugins_left_out())
    return f"plug-ins of the project file are left out here; include them by {options}" if options else ""


def _plugin_option(load: bool, only_reads: bool) -> Any:
    """Returns the option, which typer makes as that of a command without a function of its own."""

    def enter(names: list[str] | None) -> None:
        leave_out_project(only_reads)
        add_plugins(names or ())
        if load:
            load_plugins()

    def carry(
        plugin_names: list[str] | None = typer.Option(  # noqa: B008
            None, "--plugin", metavar="FILE", help=HELP, callback=enter, expose_value=False
        ),
    ) -> None:
        """Does nothing."""

    app = typer.Typer(add_completion=False)
    app.command()(carry)
    command: Any = typer.main.get_command(app)
    return command.params[0]
