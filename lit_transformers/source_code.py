"""Reads the source code of modules without importing them: which modules they import, and hashes of their syntax
trees."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import site
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = [
    "absolute",
    "code_from_outside",
    "file_below",
    "files_of_project",
    "hashes_of_project",
    "imports",
    "is_installed",
    "package_of",
    "read",
    "source",
]

OURS = ("lit_transformers", "datamodules")
"""The packages whose parts are of a version of this library."""


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
    project = path.parent if depth == 0 or is_installed(path) else base / module.split(".")[0]
    pending, files = [module], dict[str, Path]()
    while pending:
        name = pending.pop()
        file = file_below(base, name)
        if name in files or file is None or not file.is_relative_to(project):
            continue
        files[name] = file
        pending.extend(read(file, package_of(name, file))[1])
    return files


def hashes_of_project(module: str) -> dict[str, str]:
    """Returns the hash of a module, and of every module of the same project that it imports: see
    ``files_of_project``."""
    return {name: read(file, package_of(name, file))[0] for name, file in files_of_project(module).items()}


def code_from_outside(module: str) -> str | None:
    """Returns a hash of the files of a module from outside of this library, and of the modules of its project that it
    imports; None for a module of the library, and for one without a file."""
    if module.partition(".")[0] in OURS:
        return None
    files = sorted(files_of_project(module).items())
    text = "\n".join(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for name, file in files)
    return hashlib.sha256(text.encode()).hexdigest() if files else None


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
    """Returns the hash of a file's syntax tree without docstrings, and the modules that it imports. package: the
    package of relative imports."""
    tree = ast.parse(path.read_bytes())
    imported = tuple(sorted({absolute(name, package) for name in imports(tree)}))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_string(statement)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imported


def _is_string(statement: ast.stmt) -> bool:
    """Whether a statement is a string: the docstring of a module, a class, a function or a constant."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def imports(tree: ast.Module) -> Iterator[str]:
    """Yields every module that a tree may import, with its dots: for ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" if node.module else f"{base}{alias.name}" for alias in node.names)


def absolute(name: str, package: str) -> str:
    """Returns the full name of a module that is imported in a package, where dots before it may stand for packages."""
    try:
        return importlib.util.resolve_name(name, package or None)
    except ImportError:  # a relative import above the top package fails when it is run
        return name.lstrip(".")


def package_of(module: str, path: Path) -> str:
    """Returns the package from which the relative imports of a module start."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def file_below(base: Path, module: str) -> Path | None:
    """Returns the file of a module in a folder of modules, without importing anything."""
    place = base.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def is_installed(path: Path) -> bool:
    """Whether a file is of the standard library or of an installed package, which are versions that nobody edits."""
    return any(path.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> frozenset[str]:
    paths = (sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
    return frozenset((*site.getsitepackages(), site.getusersitepackages(), *paths))
