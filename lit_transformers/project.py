"""The project file of a working folder: ``lit.toml``, or ``[tool.lit-transformers]`` in its ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from lit_transformers.config import Config, ConfigError

__all__ = ["FILE", "ProjectConfig", "read_project"]

FILE = "lit.toml"


class ProjectConfig(Config):
    """plugins: files or modules with parts of one's own; studies: the folder of one's own studies. Paths are relative
    to the working folder. allow_modules: those of which files of runs may name classes (``lit_transformers/trust.py``).
    """

    plugins: tuple[str, ...] = ()
    allow_modules: tuple[str, ...] = ()
    studies: str = "studies"


def read_project(folder: Path = Path()) -> ProjectConfig:
    """Returns the settings of a working folder, the defaults where it has none. Raises ConfigError that names the
    file."""
    for name, tables in ((FILE, ()), ("pyproject.toml", ("tool", "lit-transformers"))):
        path = folder / name
        if not path.is_file():
            continue
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
            for table in tables:
                plain = plain.get(table, {})
            if plain or not tables:
                return ProjectConfig.from_dict(plain)
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(str(error), str(path)) from None
    return ProjectConfig()
