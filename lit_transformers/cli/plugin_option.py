"""The option ``--plugin``, which every command has."""

from __future__ import annotations

from typing import Any

import typer

from lit_transformers.plugins import add_plugins, leave_out_project, load_plugins, plugins_left_out

__all__ = ["with_plugins", "without_plugins"]

HELP = "A file or module with your mixers, data or tasks. Repeatable."


def with_plugins(command: Any, load: bool = False, only_reads: bool = False) -> Any:
    """Returns a command that takes ``--plugin``. load: whether plug-ins are imported before it runs; else that is done
    where a study or a runner is loaded. only_reads: whether it imports none of the project file."""
    command.params.append(_plugin_option(load, only_reads))
    return command


def without_plugins() -> str:
    """Returns how the plug-ins are included that a command has left out, or "" where there are none."""
    options = " ".join(f"--plugin {plugin.name}" for plugin in plugins_left_out())
    return f"plug-ins of the project file are left out here; include them by {options}" if options else ""


def _plugin_option(load: bool, only_reads: bool) -> Any:
    """Returns the option. Typer makes options only as parameters of a command, here of one that does nothing."""

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
