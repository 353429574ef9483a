"""The commands of a program in a table: each is imported when it is used, so that ``--help`` imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_install_completion_arguments

from lit_transformers.cli.help_text import filled
from lit_transformers.cli.program import is_script

__all__ = ["ListedCommand", "Program"]


class ListedCommand(NamedTuple):
    """A command of a program.

    place: its function, as "module:function" of the package; line: its entry in the list of commands, the first
    paragraph of the docstring; only_reads: whether it imports no plug-in of the project file; open: whether it also
    takes options that it does not know.
    """

    name: str
    place: str
    line: str
    only_reads: bool = False
    open: bool = False


class Program(TyperGroup):
    """The commands of a package, with the help of all. ``commands`` holds their names and lines, and ``command``
    imports one.

    package: the package that ``python -m`` starts; table: the commands, in the order of the help; epilog: examples;
    load_plugins: whether plug-ins are imported before any command runs, else where a study or a runner is loaded;
    elsewhere: commands of other programs by name, with the sentence that says where they are.
    """

    def __init__(
        self,
        package: str,
        table: Sequence[ListedCommand],
        *,
        help: str,
        epilog: str = "",
        load_plugins: bool = False,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            name=package,
            commands=[TyperCommand(listed.name, help=listed.line) for listed in table],
            help=help,
            epilog=epilog,
            no_args_is_help=True,
        )
        if is_script(package):
            self.params += get_install_completion_arguments()
        self._table = {listed.name: listed for listed in table}
        self._load_plugins = load_plugins
        self._elsewhere = elsewhere
        filled(self)

    def command(self, name: str) -> TyperCommand:
        """Returns a command with its arguments and options, for which its module is imported."""
        from lit_transformers.cli.plugin_option import with_plugins

        listed = self._table[name]
        module, _, function = listed.place.partition(":")
        app = typer.Typer(add_completion=False)
        settings = {"allow_extra_args": listed.open, "ignore_unknown_options": listed.open}
        app.command(name, context_settings=settings)(getattr(import_module(f"{self.name}.{module}"), function))
        command: Any = typer.main.get_command(app)
        return filled(with_plugins(command, self._load_plugins, listed.only_reads))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the name, the command and its words. For a command of another program, the error names that."""
        if args[0] in self._elsewhere:
            ctx.fail(f"No such command {args[0]!r}. {self._elsewhere[args[0]]}")
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and self.command(str(listed.name)), rest
