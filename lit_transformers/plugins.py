"""Plug-ins: modules of users whose configs are kinds in addition to the kinds of this library.

A plug-in is named by ``--plugin``, by the project file of the working folder, or by an entry point of an installed
package. The names that were typed stand in an environment variable, which every process that a command starts inherits:
workers, ranks, jobs. Each of them imports the plug-ins where it first needs a study or a runner.

The project file may be somebody else's. A command that only reads imports the plug-ins that it names only for a study
of its folder, which is code as well, and says so.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from lit_transformers.class_path import module_spec
from lit_transformers.config import Config, ConfigError, register
from lit_transformers.printing.error_lines import IMPORT_ERRORS
from lit_transformers.project import read_project
from lit_transformers.startup.quick_imports import quick_imports

__all__ = [
    "GROUP",
    "READING",
    "VARIABLE",
    "Plugin",
    "add_plugins",
    "configs_of",
    "import_plugin",
    "include_project",
    "leave_out_project",
    "load_plugins",
    "local_folders",
    "locate",
    "plugin_arguments",
    "plugins",
    "plugins_left_out",
    "source_files",
    "table_of",
]

VARIABLE = "LIT_TRANSFORMERS_PLUGINS"
"""The environment variable of the plug-ins that were typed: absolute paths or names of modules, as PATH joins them."""
READING = "LIT_TRANSFORMERS_READING"
"""The environment variable by which a command that only reads leaves out the plug-ins of the project file."""
GROUP = "lit_transformers.plugins"
"""The group of entry points of installed plug-ins."""


class Plugin(NamedTuple):
    """A plug-in by its name in messages, its module, and the file or the package's __init__ file it is read from.

    folder: where it is imported from, which is put at the end of the search path; None for an installed module.
    """

    name: str
    module: str
    file: Path | None
    folder: Path | None

    @property
    def address(self) -> str:
        """The name by which another process imports it."""
        if self.file is None or self.folder is None:
            return self.module
        return str(self.file.parent if self.file.name == "__init__.py" else self.file)


def locate(name: str) -> Plugin:
    """Returns the plug-in of a path, or of a module's name. Raises ConfigError where there is none."""
    path = Path(name)
    for file in (path, path / "__init__.py", path.with_name(f"{path.name}.py") if path.name else path):
        if file.is_file() and file.suffix == ".py":
            file = file.resolve()
            home = file.parent if file.name == "__init__.py" else file
            if not home.stem.isidentifier():
                raise ConfigError(f"its name {home.stem!r} is no name of a Python module; rename it", f"plug-in {name}")
            return Plugin(name, home.stem, file, home.parent)
    if not name.endswith(".py") and os.sep not in name:
        spec = module_spec(name)
        if spec is not None:
            return Plugin(name, name, Path(spec.origin) if spec.origin else None, None)
    missing = "there is no such file" if name.endswith(".py") or os.sep in name else "there is no such module"
    raise ConfigError(missing, f"plug-in {name}")


def add_plugins(names: Iterable[str]) -> None:
    """Enters plug-ins into the environment of this process and of those it starts. Raises ConfigError for one that does
    not exist."""
    addresses = [*typed(), *(locate(name).address for name in names)]
    if addresses:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(addresses))
    for plugin in plugins():
        if plugin.folder is not None and str(plugin.folder) not in sys.path:
            sys.path.append(str(plugin.folder))


def typed() -> list[str]:
    """Returns the plug-ins that were typed, here or by the command that started this process."""
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def plugin_arguments() -> list[str]:
    """Returns the options that name the plug-ins that were typed, for a command that does the same later."""
    folder = Path.cwd()
    shown = (Path(name).relative_to(folder) if Path(name).is_relative_to(folder) else name for name in typed())
    return [word for name in shown for word in ("--plugin", str(name))]


def plugins() -> list[Plugin]:
    """Returns all plug-ins of this process, each once: typed ones, those of the project file, and installed ones."""
    return list({plugin.address: plugin for plugin in (*_installed(), *_named())}.values())


def _named() -> list[Plugin]:
    return [locate(name) for name in (*typed(), *read_project().plugins)]


def leave_out_project(is_left_out: bool) -> None:
    """Sets whether this process and those that it starts leave out the plug-ins that the project file alone names."""
    os.environ.pop(READING, None)
    if is_left_out:
        os.environ[READING] = "1"


def plugins_left_out() -> list[Plugin]:
    """Returns the plug-ins that are not imported, for the project file alone names them."""
    others = {*typed(), *(plugin.address for plugin in _installed())}
    named = map(locate, read_project().plugins) if os.environ.get(READING) else ()
    return [plugin for plugin in named if plugin.address not in others]


def include_project() -> None:
    """Has the plug-ins of the project file imported, too, by a command that reads a study of its folder, which says
    so."""
    for plugin in plugins_left_out():
        reason = "is imported, for a study of this folder may use its parts"
        print(f"the plug-in {plugin.name} of the project file {reason}", file=sys.stderr, flush=True)
    leave_out_project(False)


@cache
def _installed() -> tuple[Plugin, ...]:
    """Returns the plug-ins of installed packages, whose metadata take long to read."""
    return tuple(
        Plugin(f"{point.name} of {point.dist.name if point.dist else 'an installed package'}", point.module, None, None)
        for point in entry_points(group=GROUP)
    )


def local_folders() -> set[Path]:
    """Returns the folders of plug-ins that are files. Helper modules of these plug-ins lie in the same folders."""
    return {p.folder for p in _named() if p.folder is not None and p.file is not None and p.file.name != "__init__.py"}


def source_files() -> Iterator[Path]:
    """Yields the source files of the plug-ins that are given as paths: those in a package, or those next to a file."""
    for plugin in plugins():
        if plugin.file is not None and plugin.folder is not None:
            is_package = plugin.file.name == "__init__.py"
            yield from sorted(plugin.file.parent.rglob("*.py") if is_package else plugin.folder.glob("*.py"))


def load_plugins() -> None:
    """Imports all plug-ins but those that are left out, and enters their configs into the tables; those that are there
    already stay as they are.

    Raises ConfigError of one line that names the plug-in, and the file and line at fault.
    """
    left_out = plugins_left_out()
    for plugin in plugins():
        if plugin not in left_out:
            import_plugin(plugin)


def import_plugin(plugin: Plugin) -> ModuleType:
    """Imports a plug-in, and enters each of its final configs into the table of the abstract config above it."""
    place = f"plug-in {plugin.name}"
    _require_its_own_name(plugin, place)
    with quick_imports():
        importlib.import_module("lit_transformers.runs.config")  # fills all tables
        try:
            module = importlib.import_module(plugin.module)
        except SyntaxError as error:
            raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}", place) from None
        except IMPORT_ERRORS as error:
            raise ConfigError(f"{_position(error, plugin)}{type(error).__name__}: {error}", place) from None
    for config in configs_of(plugin):
        kinds = table_of(config)
        if kinds is None or kinds.get(config.kind) is config:
            continue
        if config.kind in kinds:
            other = kinds[config.kind]
            line = inspect.getsourcelines(config)[1]
            raise ConfigError(
                f"{inspect.getfile(config)}, line {line}: the kind {config.kind!r} is taken by "
                f"{other.__module__}.{other.__name__}; give {config.__name__} another one",
                place,
            )
        register(kinds, config)
    return module


def _require_its_own_name(plugin: Plugin, place: str) -> None:
    """Raises ConfigError where another module has the name of a plug-in that is given as a path."""
    if plugin.folder is None:
        return
    if str(plugin.folder) not in sys.path:
        sys.path.append(str(plugin.folder))
        importlib.invalidate_caches()
    loaded = sys.modules.get(plugin.module)
    spec = importlib.util.find_spec(plugin.module) if loaded is None else None
    origin = getattr(loaded, "__file__", None) if loaded else spec.origin if spec else None
    if origin is None or Path(origin).resolve() != plugin.file:
        raise ConfigError(f"another module has its name, {origin or plugin.module}; rename it", place)


def _position(error: BaseException, plugin: Plugin) -> str:
    """Returns the file and line of a plug-in, or of a module next to it, where an error was raised."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (frame.filename == str(plugin.file) if plugin.folder is None else _lies_in(plugin.folder, frame.filename))
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""


def _lies_in(folder: Path, file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts


def configs_of(plugin: Plugin) -> list[type[Config]]:
    """Returns the final configs with a kind that an imported plug-in, or a module next to its file, defines."""
    beside = plugin.folder if plugin.file is not None and plugin.file.name != "__init__.py" else None

    def is_own(module: str) -> bool:
        if module.split(".")[0] == plugin.module or module.startswith(f"{plugin.module}."):
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return beside is not None and file is not None and Path(file).resolve().parent == beside

    def is_current(config: type[Config]) -> bool:  # and not of an earlier import in a notebook
        return getattr(sys.modules.get(config.__module__), config.__name__, None) is config

    every = dict.fromkeys(_subclasses(Config))  # once, though a family has several bases
    own = [config for config in every if config.kind and is_own(config.__module__) and is_current(config)]
    return [config for config in own if vars(config).get("__final__") and not inspect.isabstract(config)]


def _subclasses(config: type[Config]) -> Iterator[type[Config]]:
    for inner in config.__subclasses__():
        yield inner
        yield from _subclasses(inner)


def table_of(config: type[Config]) -> dict[str, type[Any]] | None:
    """Returns the table of the nearest abstract config above this one; None where none has one."""
    tables = (vars(base).get("kinds") for base in config.__mro__[1:])
    return cast("dict[str, type[Any]] | None", next((kinds for kinds in tables if kinds), None))
