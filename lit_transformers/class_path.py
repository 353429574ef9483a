"""Finds classes by their import path, those of the working folder too."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.printing.error_lines import IMPORT_ERRORS, first_line

__all__ = [
    "class_path_of",
    "former_class_path",
    "import_class",
    "import_module",
    "module_file",
    "module_spec",
    "split_class_path",
]

_FORMER: Mapping[str, str] = {
    "decoded": "datamodules.core.tokenizers.DecodedText",
    "numbers": "lit_transformers.batch.SpelledNumbers",
}
"""The detokenizers of checkpoints that name them by kinds."""


def split_class_path(class_path: str) -> tuple[str, str]:
    """Returns the names of the module and the class of ``package.module.Class`` or ``package.module:Class``. Raises
    ConfigError for any other string."""
    module, _, name = class_path.rpartition(":" if ":" in class_path else ".")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"a class is written package.module.Class or package.module:Class, not {class_path!r}")
    return module, name


def class_path_of(run: Plain) -> str | None:
    """Returns the class of the LightningModule of a run's config, given as plain data, which is empty where no value is
    written; None where its model is one of this library."""
    model = run.get("model") if isinstance(run, Mapping) else None
    return model["class_path"] or "" if isinstance(model, Mapping) and "class_path" in model else None


def former_class_path(kind: str) -> str:
    """Returns the path of a class that files named by a kind before they named it by its path. Raises ConfigError for
    any other kind."""
    if kind not in _FORMER:
        raise ConfigError(f"no class of the kind {kind!r} is known; {nearest(kind, _FORMER)}")
    return _FORMER[kind]


def import_class(class_path: str) -> type[Any]:
    """Returns the class of a path (``split_class_path``). Raises ConfigError where there is none."""
    module_name, name = split_class_path(class_path)
    module = import_module(module_name)
    value = getattr(module, name, None)
    if not isinstance(value, type):
        classes = [attribute for attribute, other in vars(module).items() if isinstance(other, type)]
        raise ConfigError(f"module {module_name} has no class {name!r}; {nearest(name, classes)}")
    return value


def import_module(name: str) -> ModuleType:
    """Imports a module that is installed or lies in the working folder. Raises ConfigError where it cannot be."""
    folder = _search_working_folder()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not f"{name}.".startswith(f"{missing}."):  # the module is there, and one that it imports is not
            raise ConfigError(f"module {name} cannot be imported: {first_line(error)}") from None
        parent, _, _ = missing.rpartition(".")
        places = getattr(sys.modules.get(parent), "__path__", None) if parent else [folder]
        names = [f"{parent}.{module.name}" if parent else module.name for module in pkgutil.iter_modules(places)]
        raise ConfigError(f"there is no module {missing!r}; {nearest(missing, names)}") from None
    except IMPORT_ERRORS as error:
        raise ConfigError(f"module {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from None


def module_file(name: str) -> Path | None:
    """Returns the file that ``import_module`` imports a module from, or the folder of one without a file, and imports
    nothing itself; None where there is no such module."""
    _search_working_folder()
    spec = module_spec(name)
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ())]
    return Path(places[0]).resolve() if places else None


def module_spec(name: str) -> ModuleSpec | None:
    """Returns where a module is, or None where there is none. Unlike that of ``importlib.util``, this function does not
    import the packages that the module is in."""
    top, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _search_working_folder() -> str:
    """Has modules searched for in the working folder, too, and returns that."""
    folder = str(Path.cwd())
    if not {"", folder} & {*sys.path}:  # an installed command has its own folder there instead
        sys.path.insert(0, folder)
    return folder
