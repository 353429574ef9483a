"""The rules of the house, which no single module's tests would notice being broken."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lit_transformers", "datamodules", "sweeps", "reports", "ablations")
SOURCES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "published" not in path.parts
)
MODELS = ("lit_transformers.block", "lit_transformers.mixer", "lit_transformers.models", "lit_transformers.tasks")
MEETING = {f"lit_transformers.{name}" for name in ("run", "write", "translate", "__main__")}
"""Where a model meets its data."""


def name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in SOURCES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of this project that a module imports, wherever in it."""
    return frozenset(imported(ast.walk(tree(MODULES[module]))))


@cache
def running_imports(module: str) -> frozenset[str]:
    """The same without those that are for type checkers alone and never run."""
    top = tree(MODULES[module]).body
    unseen = {
        id(inner)
        for node in top
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return frozenset(imported(node for node in ast.walk(tree(MODULES[module])) if id(node) not in unseen))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & MODULES.keys()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            yield from inner or {node.module} & MODULES.keys()


def below(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def crossings(importer: str) -> Iterator[tuple[str, str]]:
    """Imports of a package from the others."""
    for module in MODULES:
        if below(module, importer):
            yield from ((module, found) for found in imports(module) if not below(found, importer))


def test_the_library_knows_no_study_no_report_and_meets_data_in_one_place() -> None:
    for module, found in crossings("lit_transformers"):
        assert below(found, "datamodules"), f"{module} imports {found}"
        assert module in MEETING, f"{module} imports {found}"


def test_data_know_of_the_library_configs_and_batches_alone() -> None:
    for module, found in crossings("datamodules"):
        assert found in ("lit_transformers.config", "lit_transformers.batch"), f"{module} imports {found}"


def test_sweeps_know_runs_and_neither_models_nor_studies_nor_reports() -> None:
    for module, found in crossings("sweeps"):
        if module == "sweeps.__main__" and below(found, "ablations"):
            continue  # the command, which nothing imports: a worker has to know which runs a study consists of
        assert below(found, "lit_transformers") and not below(found, *MODELS), f"{module} imports {found}"


def test_reports_read_records_and_know_no_model_and_no_study() -> None:
    for module, found in crossings("reports"):
        light = (f"lit_transformers.{name}" for name in ("amounts", "config", "files", "scores"))
        assert below(found, "sweeps", *light), f"{module} imports {found}"


@pytest.mark.parametrize(
    "lower", ["config", "batch", "mixer", "mixers", "encodings", "positions", "patterns", "models"]
)
def test_what_a_network_is_made_of_knows_no_task_and_no_run(lower: str) -> None:
    upper = tuple(f"lit_transformers.{name}" for name in ("tasks", "run", "callbacks", "gates", "training", "generate"))
    for module in MODULES:
        if below(module, f"lit_transformers.{lower}"):
            assert not [found for found in imports(module) if below(found, *upper)], module


def test_no_imports_go_round_in_a_circle() -> None:
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for found in running_imports(module):
                walk(found, (*path, module))
            done.add(module)

    for module in MODULES:
        walk(module, ())


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    small = path.parent.name in ("mixers", "encodings")
    assert lines < (150 if small else 400), f"{lines} lines"
    assert path.name != "utils.py"
    assert not re.search(r"\bhasattr\(", text)
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    if text.strip():
        assert ast.get_docstring(tree(path)), "no docstring at its head"


def test_yaml_is_read_in_one_place() -> None:
    readers = [name(path) for path in SOURCES if re.search(r"\byaml\.(safe_)?load", path.read_text(encoding="utf-8"))]
    assert readers == ["lit_transformers.plain_yaml"]


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_what_is_public_has_a_docstring(path: Path) -> None:
    bare = [
        node.name
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare


def kinds(path: Path) -> list[ast.ClassDef]:
    """Configs that a file may be asked for by name."""
    return [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and any(keyword.arg == "kind" for keyword in node.keywords)
    ]


MECHANISMS = [path for path in SOURCES if path.parent.name in ("mixers", "encodings") and kinds(path)]


@pytest.mark.parametrize("path", MECHANISMS, ids=name)
def test_every_mechanism_names_its_paper(path: Path) -> None:
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", ast.get_docstring(tree(path)) or "")


def test_there_are_mechanisms_to_look_at() -> None:
    assert {"attention", "xl", "shaw", "huang", "rotary", "learned_relative"} <= {path.stem for path in MECHANISMS}


def test_what_packages_need_beside_code_is_installed_with_them() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {package.rstrip("*") for package in settings["packages"]["find"]["include"]} == set(PACKAGES)
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists(), f"{package} has no py.typed"
        patterns = [*settings["package-data"]["*"], *settings["package-data"].get(package, [])]
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc") and "published" not in path.parts:
                local = str(path.relative_to(ROOT / package))
                assert any(fnmatch.fnmatch(local, pattern) for pattern in patterns), f"{package}/{local} is left out"


@pytest.mark.parametrize("package", ["lit_transformers", "sweeps", "ablations", "reports"])
def test_a_command_tells_how_it_is_used_without_importing_torch(package: str) -> None:
    code = (
        "import runpy, sys; sys.argv = ['command', '--help']\n"
        f"try:\n    runpy.run_module({package!r}, run_name='__main__')\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout and done.stderr == "False\n"
