"""Which code a run stands on: a hash of the syntax trees of the modules it uses."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from lit_transformers.config import Config

PACKAGES = ("lit_transformers", "datamodules")


def code_hash(config: Config, roots: Iterable[str], packages: Sequence[str] = PACKAGES) -> str:
    """A hash of every module of ``packages`` that ``roots`` and the config's own classes import, comments and
    docstrings aside.

    The tables in the packages' __init__ files are not followed: a new mixer leaves the runs of the others valid.
    """
    waiting = [*roots, *sorted(modules_of(config))]
    seen: dict[str, str] = {}
    while waiting:
        module = waiting.pop()
        path = source(module) if module.split(".")[0] in packages else None
        if module in seen or path is None:
            continue
        seen[module], imported = read(path)
        if path.name != "__init__.py":
            waiting.extend(imported)
    text = "\n".join(f"{module} {seen[module]}" for module in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def modules_of(config: Config) -> set[str]:
    """The modules in which the classes of a config tree stand."""
    found = {type(config).__module__}
    for value in vars(config).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Config):
                found |= modules_of(part)
    return {module for module in found if module.split(".")[0] in PACKAGES}


@cache
def source(module: str) -> Path | None:
    """The file of a module; None where there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # "from package.module import name" was read as a module package.module.name
        return None
    return Path(spec.origin) if spec and spec.origin else None


@cache
def read(path: Path) -> tuple[str, tuple[str, ...]]:
    """The hash of a file's syntax tree, and the modules it imports."""
    tree = ast.parse(path.read_bytes())
    imported = tuple(sorted(set(imports(tree))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imported


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module a tree may import: for ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
