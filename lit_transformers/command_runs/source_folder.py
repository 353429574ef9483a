"""The folder of a command's code: which files belong to it, a hash of them, and the copies that runs work in."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lit_transformers.command_runs.config import CommandRunConfig, SourceFolderConfig
from lit_transformers.config import ConfigError, MissingFileError, canonical_hash, existing, named_by
from lit_transformers.records.files import RUN

__all__ = ["content_of", "copy_source", "data_files", "data_hash", "source_files", "source_hash"]

IGNORED = (
    *(".*", "__pycache__", "*.pyc", "*.egg-info", "node_modules", "venv", "site-packages"),
    *("*.log", "*.out", "*~"),
    *("runs", "wandb", "mlruns", "lightning_logs", "outputs", "multirun", "studies"),
)
"""Patterns of names that are no part of a source folder: names that begin with a full stop (version control, caches,
environments), files that programs make from the code, logs, and the folders that runs and trackers write to."""
STUDY = b"ABLATION = Ablation("
"""A file that holds this is a study, which may gain seeds and arms while runs of it stay valid."""
LEDGER = ("ledger.db", "folder.id")
"""The files in a folder of runs before its first run."""
MEBIBYTE = 1 << 20
BLOCK = 1 << 20


class SourceEntry(NamedTuple):
    """A file of a source folder, or a link to a folder, which is not followed: its path there, and where it lies."""

    path: str
    place: Path


def source_files(config: CommandRunConfig) -> list[SourceEntry]:
    """Returns the files of the source folder in the order of their paths; none without a folder. Raises ConfigError
    where there is no such folder, and where it holds more than its limit."""
    folder = config.folder
    if folder is None:
        return []
    root = Path(folder.path)
    if not root.is_dir():
        raise ConfigError(f"there is no folder {folder.path}", "folder.path")
    entries, size = [], 0
    for entry in _walk(root, folder):
        entries.append(entry)
        size += 0 if entry.place.is_dir() else entry.place.stat().st_size
        if size > folder.limit * MEBIBYTE:
            raise _too_large(root, folder)
    return sorted(entries)


def source_hash(config: CommandRunConfig) -> str | None:
    """Returns a hash of the paths and the content of the files of the source folder; None without a folder. A file that
    can be executed counts as another one."""
    if config.folder is None:
        return None
    return canonical_hash([[entry.path, _hash(entry.place)] for entry in source_files(config)])


def copy_source(config: CommandRunConfig, target: Path) -> None:
    """Writes the files of the source folder into a working folder, with links to data that are named relatively."""
    for path, place in source_files(config):
        copied = target / path
        copied.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            copied.symlink_to(place.resolve())
        else:
            shutil.copy2(place, copied)
    for path, place in data_files(config).items():
        linked = target / path
        if not Path(path).is_absolute() and ".." not in Path(path).parts and not linked.exists():
            linked.parent.mkdir(parents=True, exist_ok=True)
            linked.symlink_to(place.resolve())


def data_files(config: CommandRunConfig) -> dict[str, Path]:
    """Returns the places of the data files, by their paths in the config. Raises MissingFileError for one that is not
    there: in the source folder, in the present one, or below LIT_DATA."""
    root = Path(config.folder.path) if config.folder else Path()
    places = {}
    for number, path in enumerate(config.data.files):
        inside = root / path
        place = inside if inside.exists() else existing(path, "LIT_DATA")
        if place is None:
            raise MissingFileError(f"there is no {path} in {root}; {named_by('LIT_DATA')}", f"data.files.{number}")
        places[path] = place
    return places


def data_hash(config: CommandRunConfig) -> str | None:
    """Returns a hash of the content of the data files, and None without any."""
    places = data_files(config)
    return canonical_hash({path: content_of(place) for path, place in places.items()}) if places else None


def content_of(place: Path) -> str:
    """Returns a hash of a file, or of the names and contents of all files below a folder."""
    if not place.is_dir():
        return _hash(place)
    files = sorted(file for file in place.rglob("*") if file.is_file())
    return canonical_hash([[str(file.relative_to(place)), _hash(file)] for file in files])


def _walk(root: Path, folder: SourceFolderConfig) -> Iterator[SourceEntry]:
    patterns = (*IGNORED, *_patterns_of_git(root), *folder.ignore)
    for place, folders, files in os.walk(root):
        below = Path(place).relative_to(root)
        kept = [name for name in sorted(folders) if not _is_ignored(below / name, patterns)]
        folders[:] = [name for name in kept if not _holds_runs(Path(place, name))]
        for name in [*folders]:
            if Path(place, name).is_symlink():
                folders.remove(name)
                yield SourceEntry(str(below / name), Path(place, name))
        for name in files:
            file = Path(place, name)
            if file.is_file() and not _is_ignored(below / name, patterns) and not _is_study(file):
                yield SourceEntry(str(below / name), file)


def _patterns_of_git(root: Path) -> list[str]:
    """Returns the patterns in the .gitignore of a folder, without those that take others back."""
    try:
        lines = (root / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [pattern for line in lines if (pattern := line.strip().strip("/")) and pattern[0] not in "#!"]


def _is_ignored(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(str(path), pattern) for pattern in patterns)


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is the folder of a run, or holds runs. Its name does not matter."""
    marks = (RUN, *LEDGER, f"*/{RUN}", "studies/*/plan.json", "studies/*/plans")
    return any(True for mark in marks for _ in folder.glob(mark))


def _is_study(file: Path) -> bool:
    return file.suffix == ".py" and STUDY in file.read_bytes()


def _hash(file: Path) -> str:
    """Returns a hash of the content of a file and of whether it can be executed; of a link to a folder, of its end."""
    if file.is_dir():
        return f"link to {file.resolve()}"
    digest = hashlib.sha256(b"x" if os.access(file, os.X_OK) else b"-")
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()[:32]


def _too_large(root: Path, folder: SourceFolderConfig) -> ConfigError:
    """Returns the error of a source folder above its limit, with the largest file or folder directly in it."""
    sizes: dict[str, int] = {}
    for entry in _walk(root, folder):
        head = Path(entry.path).parts[0]
        sizes[head] = sizes.get(head, 0) + (0 if entry.place.is_dir() else entry.place.stat().st_size)
    largest = max(sizes, key=lambda name: sizes[name])
    reason = (
        f"holds more than {folder.limit} MiB, and each run works in a copy of it; {largest} alone holds "
        f"{sizes[largest] / MEBIBYTE:,.0f} MiB: name it in folder.ignore, and in data.files if the command reads it"
    )
    return ConfigError(reason, f"folder {folder.path}")
