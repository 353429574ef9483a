"""Finds and loads studies: of this suite or of the working folder by name, any other by the path of its file."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from lit_transformers.config import ConfigError, nearest
from lit_transformers.plugins import include_project, load_plugins
from lit_transformers.printing.error_lines import IMPORT_ERRORS
from lit_transformers.project import read_project
from lit_transformers.startup.quick_imports import quick_imports

if TYPE_CHECKING:
    from ablations.ablation import Ablation

__all__ = [
    "RUNNER",
    "STUDIES",
    "Headline",
    "all_names",
    "find",
    "headline",
    "load",
    "names",
    "own_folder",
    "own_names",
    "uses_own_models",
    "write_new",
]

STUDIES = Path(__file__).parent / "studies"
RUNNER = "lit_transformers.runs.runner:RUNNER"
"""The runner of studies of models of this package, so that it can be imported elsewhere before a study is."""


class Headline(NamedTuple):
    """A study's entry in a list, which is read without importing the study and thus torch."""

    name: str
    question: str
    source: str


def names(folder: Path = STUDIES) -> list[str]:
    """Returns the names of all studies of a folder, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def own_folder() -> Path:
    """Returns the folder of the studies of the working folder, which need not exist: that of the suite itself where the
    suite lies in the working folder, in its checkout."""
    return STUDIES if STUDIES.is_relative_to(Path.cwd()) else Path(read_project().studies)


def own_names() -> list[str]:
    """Returns the names of the studies of the working folder, in alphabetical order: of the files that define one."""
    folder = own_folder()
    if folder == STUDIES:
        return []
    return [name for name in names(folder) if b"ABLATION" in (folder / f"{name}.py").read_bytes()]


def all_names() -> list[str]:
    """Returns the names of all studies that can be named, those of the working folder first."""
    return [*own_names(), *names()]


def find(study: str) -> Path:
    """Returns the file of a study, given by name or as a path ending in .py. Raises ConfigError where there is none, or
    where this suite and the working folder both have one of that name."""
    if not study.endswith(".py"):
        suite, own = names(), own_names()
        if study not in (*suite, *own):
            raise ConfigError(f"no study {study!r}; {nearest(study, (*suite, *own))}")
        path = (STUDIES if study in suite else own_folder()) / f"{study}.py"
        if study in suite and study in own:
            own_path = own_folder() / path.name
            raise ConfigError(f"{own_path} has the name of a study of this suite, {path}; rename it", f"study {study}")
        return path
    path = Path(study)
    if not path.is_file() or path.stem.startswith(("_", ".")):
        raise ConfigError("there is no such file", study)
    return path


class _SourceLoader(SourceFileLoader):
    """Compiles a file each time. Python's bytecode cache takes a file of the same size and second for the same file."""

    def get_code(self, fullname: str) -> CodeType:
        """Returns the code of the file as it is now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def load(path: Path) -> Ablation:
    """Loads the spec from a file. Raises ConfigError that names the study and the place of any error in it."""
    from ablations.ablation import Ablation
    from ablations.inputs import imported_afresh

    place = f"study {path.stem}"
    name = f"ablations.studies.{path.stem}" if path.parent == STUDIES else f"_study_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with quick_imports():
            if path.parent != STUDIES:
                include_project()
            load_plugins()
            with imported_afresh():
                spec.loader.exec_module(module)
    except ConfigError as error:
        raise ConfigError(str(error), place) from None
    except SyntaxError as error:
        raise ConfigError(f"{error.msg}, line {error.lineno} of {path}", place) from None
    except IMPORT_ERRORS as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {reason}", place) from None
    ablation = vars(module).get("ABLATION")
    if not isinstance(ablation, Ablation):
        raise ConfigError(f"{path} has to define ABLATION = Ablation(...)", place)
    return ablation


def headline(path: Path) -> Headline:
    """Reads question and source from the syntax tree of a study file; one that is no string literal stays empty."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return Headline(path.stem, "(not valid Python)", "")
    question = source = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "question":
            question = question or _text(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Source":
            source = source or (_text(node.args[0]) if node.args else "")
    return Headline(path.stem, question, source)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def uses_own_models(path: Path) -> bool:
    """Whether RUNNER does the runs of a study: it is one of these, or its file imports their baselines or RunConfig.

    That is read from the syntax tree, so a file that imports them through its own module is not recognised.
    """
    if path.parent == STUDIES:
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return not modules.isdisjoint(("lit_transformers.runs", "ablations.baselines", "ablations.pairs"))


def write_new(study: str, command: str | None = None, *, run: bool = False) -> Path:
    """Writes the commented skeleton of a study into the working folder and returns its path. Raises ConfigError for a
    bad or used name.

    command: the line of a command, of which the study is; run: whether it is run once, to see which numbers it prints.
    """
    path = Path(study) if study.endswith(".py") else own_folder() / f"{study}.py"
    name = path.stem if study.endswith(".py") else study  # a name that contains a folder would leave this one
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"a study's name is a Python name such as longer_memory, not {name!r}")
    if path.exists():
        raise ConfigError("is there already; choose another name or edit it", str(path))
    if not study.endswith(".py") and name in names():
        raise ConfigError(f"this suite has a study {name!r}; choose another name", str(path))
    text = (Path(__file__).parent / "skeleton.txt").read_text(encoding="utf-8")
    if command is not None:
        from ablations.command_study import study_of_command

        text = study_of_command(command, run=run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        with suppress(OSError):  # a folder that was made for nothing; one that holds something stays
            path.parent.rmdir()
        raise ConfigError(f"cannot be written: {error.strerror}", str(path)) from None
    return path
