"""The project that ``python -m lit_transformers init`` writes; its files lie in ``files``, as they are written."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from lit_transformers.config import ConfigError

__all__ = ["write_project"]


def write_project(directory: Path) -> list[Path]:
    """Writes the files of the project and returns their paths. Raises ConfigError where one of them is there already,
    and writes none then."""
    sources = dict(_sources(files(__name__) / "files", directory))
    for path in sources:
        if path.exists():
            raise ConfigError("is there already; choose another folder", str(path))
    for path, source in sources.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", str(path)) from None
    return list(sources)


def _sources(folder: Traversable, target: Path) -> list[tuple[Path, Traversable]]:
    """Returns the files below a folder by where they are written."""
    pairs: list[tuple[Path, Traversable]] = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name != "__pycache__":
            pairs += _sources(item, target / item.name)
        elif item.is_file() and not item.name.endswith(".pyc"):
            pairs.append((target / item.name, item))
    return pairs
