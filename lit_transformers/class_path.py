"""Finds classes by their import path, those of the working folder too."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lit_transformers.cli.errors import IMPORT_ERRORS, first_line
from lit_transformers.config import ConfigError, Plain, nearest

__all__ = ["class_path_of", "import_class", "import_module", "split_class_path"]


def split_class_path(class_path: str) -> tuple[str, str]:
    """Returns the names of the module and the class of ``package.module.Class`` or ``package.module:Class``. Raises
    ConfigError for what is neither."""
    module, _, name = class_path.rpartition(":" if ":" in class_path else ".")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"a class is written package.module.Class or package.module:Class, not {class_path!r}")
    return module, name


def class_path_of(run: Plain) -> str | None:
    """Returns the class of the LightningModule of a run's config, given as plain data, which is empty where no value is
    written; None where its model is one of this library."""
    model = run.get("model") if isinstance(run, Mapping) else None
    return model["class_path"] or "" if isinstance(model, Mapping) and "class_path" in model else None


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
    folder = str(Path.cwd())
    if not {"", folder} & {*sys.path}:  # an installed command has its own folder there instead
        sys.path.insert(0, folder)
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
