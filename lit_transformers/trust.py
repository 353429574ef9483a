"""Which classes and commands the file of a run may name. This is settled before anything is imported.

A class may do anything when it is imported or built, so that a run.yaml or a checkpoint which may name any class is as
good as a program. A study, a script and a command line are of the user, who runs them: the classes that they name are
imported and remembered, so that files of the runs which they plan may name these classes too. Any other file may name
classes of MODULES, of plug-ins, and of modules that the user has allowed: by ``--allow-module``, by ``allow_modules``
of the project file, or in Python by ``allow_modules``. A command is a program: no file may hold one that no study of
the user has named. ``docs/trust.md`` explains these rules to users.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lit_transformers.class_path import import_class, module_file, split_class_path
from lit_transformers.config import Config, ConfigError, canonical_hash
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.plugins import plugins
from lit_transformers.project import read_project
from lit_transformers.records.files import write_json

__all__ = [
    "MODULES",
    "PROGRAM",
    "allow_modules",
    "are_remembered",
    "class_paths_in",
    "import_allowed",
    "remember",
    "require_allowed",
    "require_allowed_in",
]

T = TypeVar("T")

MODULES = ("lit_transformers", "datamodules", "lightning", "torch.nn", "torch.optim")
"""The modules of which any file may name the parts of a run: networks, optimizers, schedules, data modules, callbacks
and configs."""
VARIABLE = "LIT_TRANSFORMERS_ALLOWED"
"""The environment variable of the modules that were allowed in this process, or by the command that started it."""
COMMAND = "command "
"""The beginning of the name by which a command is remembered; a hash of the fields of PROGRAM follows."""
PROGRAM = ("command", "shell", "environment", "files", "folder")
"""The fields of a run of a command that decide which program is run, and how."""
STATE = "XDG_STATE_HOME"
"""The environment variable of the folder in which programs store the state of a user."""


def allow_modules(*names: str) -> None:
    """Lets files of runs name classes of these modules, and of those below them, in this process and in those that it
    starts. Raises ConfigError for a string that is no name of a module."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"a module is written package.module, not {name!r}", "--allow-module")
    if names:
        os.environ[VARIABLE] = ",".join(dict.fromkeys([*_typed(), *names]))


def class_paths_in(values: Any, visited: dict[tuple[str, int], Any] | None = None) -> Iterator[str]:
    """Yields the class paths anywhere in plain data, in configs, and in values by the dotted paths of a config, and a
    name for each command of a run.

    visited: the fields that were looked into, by name and identity, which configs of many runs share; they are held
    here, so that no other object gets their identity.
    """
    visited = {} if visited is None else visited
    if isinstance(values, Config):
        yield from class_paths_in(values.to_dict())
    elif isinstance(values, Mapping):
        if "command" in values and "metrics" in values:  # which no run of a command is without
            yield f"{COMMAND}{canonical_hash({name: values.get(name) for name in PROGRAM})}"
        for path, value in values.items():
            name = str(path).rpartition(".")[2]
            if name == "class_path" and isinstance(value, str):
                yield value
            elif name == "callbacks" and isinstance(value, list | tuple):
                written = (item.get("path") for item in value if isinstance(item, Mapping))
                yield from (path for path in written if isinstance(path, str))
            if isinstance(value, Config | Mapping | list | tuple) and (name, id(value)) not in visited:
                visited[name, id(value)] = value
                yield from class_paths_in(value, visited)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from class_paths_in(value, visited)


def require_allowed(values: Any, place: str, trusted: Collection[str] = ()) -> None:
    """Raises ConfigError where data from a file name a class that they may not, before anything is imported.

    values: plain data, or values by the dotted paths of a config. place: where they come from. trusted: class paths
    that the user's own code names. A string that is no class path is left to the config that is read from the data.
    """
    known = _remembered()
    paths = [path for path in _written_well(values) if path not in trusted and not _is_among(path, known)]
    for command in (path for path in paths if path.startswith(COMMAND)):
        reason = "holds a command that no study of yours has named; read it, and run it from a study (docs/trust.md)"
        raise ConfigError(reason, f"{place}, {command}")
    for path in paths:
        if not _is_allowed(split_class_path(path)[0]):
            raise _refused(path, split_class_path(path)[0], place)
    for path in paths:
        named = None
        with suppress(ConfigError):  # there is no such class, which the config says
            named = import_class(path)
        if named is not None:
            _require_part_of_a_run(path, named, place)


def import_allowed(path: str, base: type[T], place: str) -> type[T]:
    """Returns a class below ``base`` that a file names by its path. Raises ConfigError, before anything is imported,
    where the file may not name it, and where there is no such class."""
    named: Any = None
    if _is_allowed(split_class_path(path)[0]) or _is_among(path, _remembered()):
        named = import_class(path)
    if named is None or not (_is_allowed(named.__module__) or _is_among(path, _remembered())):
        raise _refused(path, split_class_path(path)[0], place)
    if not issubclass(named, base):
        raise ConfigError(f"names {path}, which is no {base.__name__}; name a class of these", place)
    return named


def require_allowed_in(path: Path, trusted: Collection[str] = ()) -> None:
    """Raises ConfigError where the YAML file of a run names a class that it may not; a file that cannot be read is left
    to the config that is read from it."""
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
        require_allowed(_plain_of(text), str(path), trusted)


def remember(values: Any) -> None:
    """Remembers the classes that the user's own code names, with the files of their modules, so that files of runs may
    name them later. Where nothing can be written they have to be allowed then."""
    known = _remembered()
    new = {path: [*known.get(path, ()), _file(path)] for path in _written_well(values) if not _is_among(path, known)}
    if new:
        with suppress(OSError, RuntimeError):
            write_json(_memory(), known | new)


def are_remembered(values: Any) -> bool:
    """Whether the user's own code has named all classes that are named here."""
    known = _remembered()
    return all(_is_among(path, known) for path in class_paths_in(values))


def _plain_of(text: str) -> Any:
    with suppress(ValueError):
        return read_yaml(text)
    return None


def _typed() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def _is_below(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _is_allowed(module: str) -> bool:
    """Whether files may name classes of a module."""
    return _is_below(module, MODULES) or _is_allowed_by_user(module)


def _is_allowed_by_user(module: str) -> bool:
    names = (*_typed(), *read_project().allow_modules, *(plugin.module for plugin in plugins()))
    return _is_below(module, names)


def _require_part_of_a_run(path: str, named: type[Any], place: str) -> None:
    """Raises ConfigError for a class that an allowed module only imports and, of MODULES, for one that is no part of a
    run, such as LightningCLI, which would import everything that its arguments name."""
    import lightning as L
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    if _is_allowed_by_user(named.__module__):
        return
    if not _is_below(named.__module__, MODULES):
        raise _refused(path, named.__module__, place)
    if not issubclass(named, nn.Module | Optimizer | LRScheduler | L.LightningDataModule | L.Callback | Config):
        raise _refused(path, named.__module__, place)


def _refused(path: str, module: str, place: str) -> ConfigError:
    return ConfigError(
        f"names {path}, of a module that you have not allowed; if you trust it and the file: "
        f"--allow-module {module}, or allow_modules in lit.toml (docs/trust.md)",
        place,
    )


def _written_well(values: Any) -> list[str]:
    """Returns the class paths, each once, without those that are none, which configs refuse."""
    paths = []
    for path in dict.fromkeys(class_paths_in(values)):
        with suppress(ConfigError):
            if not path.startswith(COMMAND):
                split_class_path(path)
            paths.append(path)
    return paths


def _memory() -> Path:
    """Returns the file of the classes that the user's own code has named."""
    return Path(os.environ.get(STATE) or "~/.local/state").expanduser() / "lit_transformers" / "classes.json"


def _remembered() -> dict[str, list[str]]:
    """Returns the files of the modules of remembered classes, by the paths of these."""
    with suppress(OSError, RuntimeError, ValueError, AttributeError):
        return {path: list(files) for path, files in json.loads(_memory().read_text(encoding="utf-8")).items()}
    return {}


def _is_among(path: str, known: Mapping[str, list[str]]) -> bool:
    """Whether a class is remembered, of the same file."""
    return path in known and _file(path) in known[path]


def _file(path: str) -> str:
    """Returns the file that defines a class, as it is remembered; none of a command."""
    return "" if path.startswith(COMMAND) else str(module_file(split_class_path(path)[0]))
