"""Identifies the code that a run depends on by a hash of the syntax trees of the modules it uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.config import Config, ConfigError
from lit_transformers.plugins import local_folders
from lit_transformers.read_once import read_once
from lit_transformers.source_code import file_below, hashes_of_project, package_of, read, source
from lit_transformers.training.config import CallbackConfig

PACKAGES = ("lit_transformers", "datamodules")


def code_hash(config: Config, roots: Iterable[str], packages: Sequence[str] = PACKAGES) -> str:
    """Returns a hash of the modules on a path: see ``modules_on_path``."""
    roots = tuple(roots)
    classes = (*sorted(modules_of(config)), None, *sorted(modules_of_callbacks(config)))
    key = ("code", roots, tuple(packages), classes)
    return read_once(key, lambda: hash_of_modules(modules_on_path(config, roots, packages)))


def hash_of_modules(hashes: Mapping[str, str]) -> str:
    """Returns one hash of modules, given the hash of each."""
    text = "\n".join(f"{module} {hashes[module]}" for module in sorted(hashes))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def modules_on_path(config: Config, roots: Iterable[str], packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Returns, for every module of ``packages`` that ``roots`` and the config's classes import, the hash of its syntax
    tree without docstrings. A class of the config that is defined elsewhere adds its own package; a class of a plug-in
    that is a file adds the modules in the folder of the file that it imports.

    The tables in the packages' __init__ files are left out, with their imports: a new mixer leaves the runs of the
    others valid. Of a callback, the modules of its project that it imports are there too.
    """
    callbacks = map(hashes_of_project, modules_of_callbacks(config))
    hashes = {module: digest for project in callbacks for module, digest in project.items()}
    pending = [*roots, *sorted(modules_of(config))]
    followed, folders = {*packages, *(module.split(".")[0] for module in modules_of(config))}, local_folders()
    while pending:
        module = pending.pop()
        package = module.split(".")[0]
        path = source(module) if package in followed or lies_beside(module, folders) else None
        if module in hashes or path is None or (path.name == "__init__.py" and package in packages):
            continue
        hashes[module], imported = read(path, package_of(module, path))
        pending.extend(imported)
    return hashes


def stamps_of_plugins(config: Config) -> dict[str, str]:
    """Returns the hash of every module from outside of this library on which the outputs of a config's network depend:
    the modules of its classes, and the modules that they import there."""
    if all(module.split(".")[0] in PACKAGES for module in modules_of(config)):
        return {}
    hashes = modules_on_path(config, ())
    return {module: digest for module, digest in hashes.items() if module.split(".")[0] not in PACKAGES}


def changed_since(stamps: Mapping[str, str], place: str) -> str | None:
    """Returns a line that names the files which have changed since ``stamps_of_plugins`` were written to a checkpoint;
    None where none has. A module that this process does not know runs nothing here."""
    files = [(source(module), module, digest) for module, digest in stamps.items()]
    changed = [path.name for path, name, digest in files if path and read(path, package_of(name, path))[0] != digest]
    if not changed:
        return None
    have = "has" if len(changed) == 1 else "have"
    return f"warning: {', '.join(changed)} {have} changed since {place} was trained; its numbers may be others now"


def lies_beside(module: str, folders: Iterable[Path]) -> bool:
    """Whether a module is a file of one of these folders, or of a package in it."""
    return any(file_below(folder, module) for folder in folders)


def _entries(value: Any) -> Iterable[Any]:
    """Returns the entries of a field of a config: of a tuple or a mapping, or the value itself."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def modules_of(config: Config) -> set[str]:
    """Returns the modules that define the classes of a config tree."""
    modules = {type(config).__module__}
    for value in vars(config).values():
        for part in _entries(value):
            if isinstance(part, Config):
                modules |= modules_of(part)
    return modules


def modules_of_callbacks(config: Config) -> Iterator[str]:
    """Yields the modules that define the classes of callbacks in a config tree. Raises ConfigError where a class cannot
    be imported, or by no other process."""
    for value in vars(config).values():
        for part in _entries(value):
            if isinstance(part, CallbackConfig):
                module = part.callback_type.__module__
                if source(module) is None:
                    reason = "is in no file that other processes could import; write it into a module"
                    raise ConfigError(f"{part.class_path} {reason}", "training.callbacks")
                yield module
            elif isinstance(part, Config):
                yield from modules_of_callbacks(part)
