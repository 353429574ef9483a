"""Identifies the code that a run depends on by a hash of the syntax trees of the modules it uses."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from lit_transformers.config import Config, ConfigError
from lit_transformers.plugins import local_folders
from lit_transformers.training.config import CallbackConfig

PACKAGES = ("lit_transformers", "datamodules")


def code_hash(config: Config, roots: Iterable[str], packages: Sequence[str] = PACKAGES) -> str:
    """Returns a hash of the modules on a path: see ``modules_on_path``."""
    return hash_of_modules(modules_on_path(config, roots, packages))


def hash_of_modules(hashes: Mapping[str, str]) -> str:
    """Returns one hash of modules, given the hash of each."""
    text = "\n".join(f"{module} {hashes[module]}" for module in sorted(hashes))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def modules_on_path(config: Config, roots: Iterable[str], packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Returns the hash of every module of ``packages`` that ``roots`` and the config's classes import, of its syntax
    tree without docstrings. A class of the config that is defined elsewhere brings its own package, and one of a
    plug-in that is a file the modules beside it which it imports.

    The tables in the packages' __init__ files are left out, with what they import: a new mixer leaves the runs of the
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


def lies_beside(module: str, folders: Iterable[Path]) -> bool:
    """Whether a module is a file of one of these folders, or of a package in it."""
    return any(_file_below(folder, module) for folder in folders)


def absolute(name: str, package: str) -> str:
    """Returns the full name of a module that is imported in a package, where dots before it may stand for packages."""
    try:
        return importlib.util.resolve_name(name, package or None)
    except ImportError:  # a relative import above the top package fails when it is run
        return name.lstrip(".")


def files_of_project(module: str) -> dict[str, Path]:
    """Returns the file of a module, and of every module of the same project that it imports, by name.

    The project is the top-level package that the module is in or, without one, its folder; of an installed package it
    is the folder of the module alone, since a version of it is not edited.
    """
    path = source(module)
    if path is None:
        return {}
    is_package = path.name == "__init__.py"
    depth = module.count(".") + is_package
    base = path.parents[depth]
    project = path.parent if depth == 0 or _is_installed(path) else base / module.split(".")[0]
    pending, files = [module], dict[str, Path]()
    while pending:
        name = pending.pop()
        file = _file_below(base, name)
        if name in files or file is None or not file.is_relative_to(project):
            continue
        files[name] = file
        pending.extend(read(file, package_of(name, file))[1])
    return files


def hashes_of_project(module: str) -> dict[str, str]:
    """Returns the hash of a module, and of every module of the same project that it imports: see
    ``files_of_project``."""
    return {name: read(file, package_of(name, file))[0] for name, file in files_of_project(module).items()}


def package_of(module: str, path: Path) -> str:
    """Returns the package from which the relative imports of a module start."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def _file_below(base: Path, module: str) -> Path | None:
    """Returns the file of a module in a folder of modules, without importing anything."""
    place = base.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _is_installed(path: Path) -> bool:
    folders = {*site.getsitepackages(), *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))}
    return any(path.is_relative_to(folder) for folder in folders)


def modules_of(config: Config) -> set[str]:
    """Returns the modules that define the classes of a config tree."""
    modules = {type(config).__module__}
    for value in vars(config).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Config):
                modules |= modules_of(part)
    return modules


def modules_of_callbacks(config: Config) -> Iterator[str]:
    """Yields the modules that define the classes of callbacks in a config tree. Raises ConfigError where a class cannot
    be imported, or by no other process."""
    for value in vars(config).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, CallbackConfig):
                module = part.callback_type.__module__
                if source(module) is None:
                    reason = "is in no file that other processes could import; write it into a module"
                    raise ConfigError(f"{part.path} {reason}", "training.callbacks")
                yield module
            elif isinstance(part, Config):
                yield from modules_of_callbacks(part)


@cache
def source(module: str) -> Path | None:
    """Returns the file of a module, or None where there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # "from package.module import name" was read as a module package.module.name
        return None
    except ValueError:  # __main__, when it is a script or a notebook, is no module that another process could import
        return None
    return Path(spec.origin) if spec and spec.origin else None


@cache
def read(path: Path, package: str = "") -> tuple[str, tuple[str, ...]]:
    """Returns the hash of a file's syntax tree, and the modules that it imports. package: that of relative imports."""
    tree = ast.parse(path.read_bytes())
    imported = tuple(sorted({absolute(name, package) for name in imports(tree)}))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imported


def imports(tree: ast.Module) -> Iterator[str]:
    """Yields every module that a tree may import, with its dots: for ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" if node.module else f"{base}{alias.name}" for alias in node.names)
