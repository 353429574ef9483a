"""The rules of the house, which no single module's tests would notice being broken."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TypeVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGES = ("lit_transformers", "datamodules", "sweeps", "reports", "ablations")
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "published" not in path.parts and not path.is_relative_to(ROOT / "lit_transformers" / "template" / "files")
)
MODELS = (
    "lit_transformers.stacks.block",
    "lit_transformers.mixer",
    "lit_transformers.models",
    "lit_transformers.tasks",
)
MEETING = {
    f"lit_transformers.{name}"
    for name in (
        "checks.data_parts",
        "runs.config",
        "runs.cut_context",
        "runs.evaluate",
        "runs.feature_pass",
        "runs.features",
        "runs.layer_probes",
        "runs.held_out",
        "runs.run_floors",
        "runs.keys",
        "runs.made_weights",
        "runs.reach",
        "runs.rehearsal",
        "runs.starting_weights",
        "runs.trained_symbols",
        "runs.train",
        "runs.fit",
        "inference.answer_passages",
        "inference.embed",
        "inference.encode_passages",
        "inference.predict_symbols",
        "serving.services",
        "serving.worker",
        "inference.write",
        "inference.lines",
        "inference.passages",
        "inference.predict",
        "inference.predict_answers",
        "inference.predict_choices",
        "inference.predict_tags",
        "inference.predictor",
        "inference.translate",
        "template.fine_tuning",
        "inference_command",
    )
}
"""The modules of the library that may import ``datamodules``."""


Node = TypeVar("Node", bound=ast.AST)


def name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in SOURCES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def all_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def nodes(path: Path, *kinds: type[Node]) -> Iterator[Node]:
    """The nodes of these classes, wherever in a file."""
    return (node for node in all_nodes(path) if isinstance(node, kinds))


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of this project that a module imports, wherever in it."""
    return frozenset(imported(all_nodes(MODULES[module])))


@cache
def running_imports(module: str) -> frozenset[str]:
    """The modules that a module imports, without imports for type checkers alone."""
    top = tree(MODULES[module]).body
    unseen = {
        id(inner)
        for node in top
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return frozenset(imported(node for node in all_nodes(MODULES[module]) if id(node) not in unseen))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & MODULES.keys()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            yield from inner or {node.module} & MODULES.keys()


def third_party(path: Path) -> set[str]:
    """The packages of others that a file imports."""
    modules = set()
    for node in all_nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    packages = {module.split(".")[0] for module in modules}
    return packages - sys.stdlib_module_names - set(PACKAGES)


def below(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def kinds(path: Path) -> list[ast.ClassDef]:
    """The config classes in a file that have a ``kind``."""
    return [
        node
        for node in all_nodes(path)
        if isinstance(node, ast.ClassDef) and any(keyword.arg == "kind" for keyword in node.keywords)
    ]


def crossings(importer: str) -> Iterator[tuple[str, str]]:
    """The pairs of a module in a package and a module of another package that it imports."""
    for module in MODULES:
        if below(module, importer):
            yield from ((module, target) for target in imports(module) if not below(target, importer))


def test_the_library_knows_no_study_no_report_and_meets_data_in_one_place() -> None:
    for module, target in crossings("lit_transformers"):
        if (module, target) == ("lit_transformers", "ablations.api"):  # the front door, for type checkers alone
            continue
        assert below(target, "datamodules"), f"{module} imports {target}"
        assert module in MEETING, f"{module} imports {target}"


def test_the_library_imports_no_data_by_name() -> None:
    for module in MODULES:
        for call in nodes(MODULES[module], ast.Call) if below(module, "lit_transformers") else ():
            if ast.unparse(call.func).endswith("import_module") and call.args:
                assert "datamodules" not in ast.unparse(call.args[0]), module


def test_data_know_of_the_library_configs_batches_scores_code_and_machine_alone() -> None:
    names = ("config", "batch", "entities", "scores", "answer_scores", "source_code", "read_once")
    known = {f"lit_transformers.{name}" for name in (*names, "machine.cores", "machine.processor")}
    for module, target in crossings("datamodules"):
        assert target in known, f"{module} imports {target}"


def test_sweeps_know_runs_and_neither_models_nor_studies_nor_reports() -> None:
    for module, target in crossings("sweeps"):
        assert below(target, "lit_transformers") and not below(target, *MODELS), f"{module} imports {target}"


@pytest.mark.slow
def test_a_command_imports_commands_of_its_own_alone() -> None:
    commands = {module for module in MODULES if re.search(r"(\.__main__|_command)$", module)}
    assert {"ablations.__main__", "ablations.tune_command", "sweeps.__main__"} <= commands
    for path in (*SOURCES, *(ROOT / "claims").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        targets = commands.intersection(imported(all_nodes(path)))
        if path.name == "__main__.py":
            targets = {target for target in targets if not below(target, path.parent.name)}
        assert not targets, f"{name(path)} imports {targets}"


@pytest.mark.slow
def test_reports_read_records_and_know_no_model_and_no_study() -> None:
    for module, target in crossings("reports"):
        names = (
            "cli.command_table",
            "cli.commands",
            "cli.console",
            "cli.pairs",
            "config",
            "lazy_names",
            "machine",
            "plain_yaml",
            "printing",
            "records",
            "scores",
            "startup",
        )
        light = (f"lit_transformers.{name}" for name in names)
        assert below(target, "sweeps", *light), f"{module} imports {target}"


def test_records_plans_and_results_are_described_without_torch_and_known_to_all() -> None:
    for module in MODULES:
        if below(module, "lit_transformers.records"):
            assert "torch" not in third_party(MODULES[module]), module
            outside = [target for target in imports(module) if not below(target, "lit_transformers.records")]
            assert set(outside) <= {"lit_transformers.config"}, f"{module} imports {outside}"


@pytest.mark.parametrize(
    "lower",
    ["config", "batch", "maps", "mixer", "mixers", "encodings", "attention", "adapters", "stacks", "models"],
)
def test_what_a_network_is_made_of_knows_no_task_and_no_run(lower: str) -> None:
    upper = tuple(
        f"lit_transformers.{name}" for name in ("tasks", "runs", "training", "gates", "checks", "decoding", "inference")
    )
    for module in MODULES:
        if below(module, f"lit_transformers.{lower}"):
            assert not [target for target in imports(module) if below(target, *upper)], module


FAMILIES = [module for module in MODULES if below(module, "lit_transformers.models") and kinds(MODULES[module])]


def test_no_module_but_its_own_asks_for_a_family_of_models() -> None:
    """A family is its file and a line in the table: all other code asks for its abilities."""
    for module in (module for module in MODULES if below(module, "lit_transformers")):
        families = [family for family in FAMILIES if family not in (module, "lit_transformers.models.tokens")]
        assert families and (module == "lit_transformers.models" or not imports(module) & {*families}), module
        tops = (node for family in families for node in tree(MODULES[family]).body)
        classes = {node.name for node in tops if isinstance(node, ast.ClassDef)}
        for node in nodes(MODULES[module], ast.Call, ast.MatchClass):
            if isinstance(node, ast.MatchClass) or ast.unparse(node.func) in ("isinstance", "issubclass"):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                assert not classes & names, f"{module}: {ast.unparse(node)}"


def test_no_imports_go_round_in_a_circle() -> None:
    visited: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in visited:
            for target in running_imports(module):
                walk(target, (*path, module))
            visited.add(module)

    for module in MODULES:
        walk(module, ())


def file_of(module: str) -> str:
    """The dotted path of a module's file: that of a package ends in ``__init__``, so that it lies in its folder."""
    return f"{module}.__init__" if MODULES[module].name == "__init__.py" else module


def circle_of_folders(imports_of: Mapping[str, Iterable[str]]) -> list[str]:
    """A shortest way from a folder over other folders and files back to it, a line for the import of each step; empty
    where no folder is in a circle. imports_of: the files that each file imports, by dotted paths."""
    for folder in sorted({file.rpartition(".")[0] for file in imports_of} - {*PACKAGES}):
        steps: dict[str, dict[str, str]] = {}
        for file, targets in imports_of.items():
            for target in targets:
                room, other = (".".join(path.split(".")[: folder.count(".") + 1]) for path in (file, target))
                if room != other:
                    steps.setdefault(room, {})[other] = f"{file} imports {target}"
        ways: deque[tuple[str, list[str]]] = deque([(folder, [])])
        reached: set[str] = set()
        while ways:
            room, lines = ways.popleft()
            for other, line in sorted(steps.get(room, {}).items()):
                if other == folder:
                    return [*lines, line]
                if other not in reached:
                    reached.add(other)
                    ways.append((other, [*lines, line]))
    return []


def test_no_folders_are_in_a_circle() -> None:
    """Every import counts, also one within a function or for type checkers alone: who reads a folder follows it."""
    lines = circle_of_folders({file_of(module): [*map(file_of, imports(module))] for module in MODULES})
    assert not lines, "these imports close a circle of folders; move the names that one needs: " + ", ".join(lines)


def test_a_circle_of_folders_is_noticed_where_no_modules_are_in_one() -> None:
    imports_of = {
        "reports.judge.verdicts": ["reports.show.tables"],
        "reports.show.figures": ["reports.plain"],
        "reports.plain": ["reports.judge.effects"],
        "reports.judge.effects": [],
        "reports.show.tables": [],
    }
    assert circle_of_folders(imports_of) == [
        "reports.judge.verdicts imports reports.show.tables",
        "reports.show.figures imports reports.plain",
        "reports.plain imports reports.judge.effects",
    ]
    assert circle_of_folders({**imports_of, "reports.plain": []}) == []
    assert circle_of_folders({"a.b.c.one": ["a.b.two"], "a.b.two": ["a.b.three"], "a.b.three": ["a.b.c.other"]}) == [
        "a.b.c.one imports a.b.two",
        "a.b.two imports a.b.three",
        "a.b.three imports a.b.c.other",
    ]


def test_a_file_says_what_it_is() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert path.name != "utils.py", name(path)
        assert not re.search(r"\bhasattr\(", text), name(path)
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), name(path)
        assert not text.strip() or ast.get_docstring(tree(path)), f"{name(path)}: no docstring at its head"


def test_a_function_fits_a_screen() -> None:
    for path in SOURCES:
        for node in nodes(path, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            lines = (node.end_lineno or 0) - first.lineno + 1
            assert lines <= 60, f"{name(path)}: {node.name} has {lines} lines"


def test_yaml_is_read_in_one_place() -> None:
    readers = [name(path) for path in SOURCES if re.search(r"\byaml\.(safe_)?load", path.read_text(encoding="utf-8"))]
    assert readers == ["lit_transformers.plain_yaml"]


DIALECT = {"found", "told", "said", "asked", "made", "heard"}
"""Names that say nothing about the values that they hold."""


def test_names_say_what_they_hold() -> None:
    for path in SOURCES:
        names = {node.id for node in nodes(path, ast.Name)} | {node.arg for node in nodes(path, ast.arg)}
        assert not names & DIALECT, name(path)


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in (*SOURCES, *(ROOT / "claims").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name(path))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


CLASSES = {
    node.name: node
    for module, path in MODULES.items()
    if below(module, "lit_transformers")
    for node in tree(path).body
    if isinstance(node, ast.ClassDef)
}
ROOTS = {"Mixer", "MixerConfig"}
"""Classes below which every class is abstract or final."""


def ancestors(class_name: str) -> Iterator[str]:
    """The names of the library's classes that a class derives from."""
    for base in CLASSES[class_name].bases:
        base_name = ast.unparse(base)
        if base_name in CLASSES:
            yield base_name
            yield from ancestors(base_name)


FAMILY = sorted(name for name in CLASSES if ROOTS & {name, *ancestors(name)})


def decorators(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    return {ast.unparse(decorator) for decorator in node.decorator_list}


def concrete_methods(class_name: str) -> set[str]:
    """The methods that a class defines for good: neither abstract, nor a hook, nor called by Python itself."""
    return {
        node.name
        for node in CLASSES[class_name].body
        if isinstance(node, ast.FunctionDef)
        and "abstractmethod" not in decorators(node)
        and not (ast.get_docstring(node) or "").startswith("Hook")
        and not node.name.startswith("__")
    }


def defaults(class_name: str) -> set[str]:
    """The fields and class variables to which a class gives a value."""
    body = CLASSES[class_name].body
    annotated = {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign) and node.value}
    return annotated | {ast.unparse(part) for node in body if isinstance(node, ast.Assign) for part in node.targets}


def test_a_mixer_or_its_config_is_either_abstract_or_final() -> None:
    for class_name in FAMILY:
        node = CLASSES[class_name]
        is_abstract = "ABC" in map(ast.unparse, node.bases) or any(
            "abstractmethod" in decorators(method) for method in node.body if isinstance(method, ast.FunctionDef)
        )
        assert is_abstract != ("final" in decorators(node)), class_name


def test_a_mixer_or_its_config_writes_no_method_and_no_default_anew() -> None:
    for class_name in FAMILY:
        methods = {method.name for method in CLASSES[class_name].body if isinstance(method, ast.FunctionDef)}
        for ancestor in ancestors(class_name):
            assert not methods & concrete_methods(ancestor), f"{class_name}, {ancestor}"
            assert not (defaults(class_name) & defaults(ancestor)) - {"space"}, f"{class_name}, {ancestor}"


def test_whatever_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(
            line
            for extra in ("messages", "dashboard", "cluster", "loggers", "onnx", "ray", "serve")
            for line in extras[extra]
        ),
    ]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    distributions = packages_distributions()
    for module, path in MODULES.items():
        for package in third_party(path):
            names = {canonicalize_name(name) for name in distributions.get(package, (package,))}
            assert declared & names, f"{module} imports {package}"


def test_what_is_public_has_a_docstring() -> None:
    for path in SOURCES:
        undocumented = [
            node.name
            for node in tree(path).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
        assert not undocumented, name(path)


PRIVATE = {
    "lit_transformers.attention.flash": {
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "lit_transformers.attention.kernels": {
        "torch._dynamo.comptime.comptime",
        "torch.utils._python_dispatch.TorchDispatchMode",
    },
    "lit_transformers.cli.program": {"typer._completion_shared", "_completion_shared._completion_scripts"},
    "lit_transformers.lightning_runs.loaders": {
        "lightning.pytorch.loops.fetchers._DataLoaderIterDataFetcher",
        "loader._iterator",
        "trainer.fit_loop._data_fetcher",
        "trainer.fit_loop._last_train_dl_reload_epoch",
        "trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch",
    },
    "lit_transformers.onednn": {"torch.ops.mkldnn._linear_pointwise", "torch.ops.mkldnn._reorder_linear_weight"},
    "lit_transformers.quantisation": {"tensor._version", "torch.cpu._is_vnni_supported"},
    "lit_transformers.training.logged": {
        "lightning.pytorch.trainer.connectors.logger_connector.result._Metadata",
        "lightning.pytorch.trainer.connectors.logger_connector.result._ResultMetric",
        "lightning.pytorch.trainer.connectors.logger_connector.result._Sync",
        "metric._defaults",
        "trainer._logger_connector",
        "trainer.fit_loop.epoch_loop._results",
    },
    "lit_transformers.training.loop": {
        "lightning.pytorch.loops.fetchers._DataFetcher",
        "lightning.pytorch.loops.fetchers._PrefetchDataFetcher",
        "lightning.pytorch.loops.training_epoch_loop._TrainingEpochLoop",
        "self.trainer.fit_loop._can_stop_early",
        "self.trainer.fit_loop._restarting",
        "trainer.fit_loop._data_fetcher",
        "trainer.fit_loop._should_accumulate",
    },
    "sweeps.launchers.slurm": {"submitit.SlurmExecutor._valid_parameters"},
    "sweeps.ledger.storage": {"trial._trial_id"},
    "sweeps.wandb.dashboard": {"view._to_model"},
}
"""The members of libraries that are used without being public, which ``tests/test_private_members.py`` tests."""
PUBLIC = {"_exit", "_replace", "_asdict", "_fields"}
"""Public names with an underscore: of the module ``os`` and of named tuples."""


def is_private(name: str) -> bool:
    return name not in PUBLIC and any(re.match("_[^_]", part) for part in name.split("."))


def private_members(path: Path) -> Iterator[str]:
    """The private names in a file that are not of the object itself: attributes, and imported names."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(value, name):
                if is_private(name) and ast.unparse(value) not in ("self", "cls"):
                    yield ast.unparse(node)
            case ast.Import(names):
                yield from (alias.name for alias in names if is_private(alias.name))
            case ast.ImportFrom(module, names):
                yield from (f"{module}.{alias.name}" for alias in names if is_private(f"{module}.{alias.name}"))


def test_private_members_of_libraries_are_used_in_one_place_each() -> None:
    used = {module: {*private_members(path)} for module, path in MODULES.items()}
    assert {module: members for module, members in used.items() if members} == PRIVATE


@pytest.mark.parametrize("module", ["executors", "masks", "flex"])
def test_executors_ask_a_pattern_and_not_for_its_class(module: str) -> None:
    path = ROOT / "lit_transformers" / "attention" / f"{module}.py"
    patterns = {
        node.name
        for node in tree(ROOT / "lit_transformers" / "attention" / "patterns.py").body
        if isinstance(node, ast.ClassDef)
    }
    for node in all_nodes(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type"):
            classes = {name.id for part in node.args[1:] for name in ast.walk(part) if isinstance(name, ast.Name)}
            assert not classes & patterns, ast.unparse(node)
        assert not isinstance(node, ast.MatchClass), ast.unparse(node)


COMPILED = [path for path in SOURCES if {"attention", "mixers", "stacks", "models"} & {*path.relative_to(ROOT).parts}]


@pytest.mark.parametrize("path", [*COMPILED, MODULES["lit_transformers.mixer"]], ids=name)
def test_what_is_compiled_runs_on_the_lowest_version_of_torch(path: Path) -> None:
    """Dynamo of torch 2.11 can neither carry the result of ``_replace`` over a break of the graph, nor call an instance
    of a frozen class that was made in the graph."""
    assert not [node.lineno for node in nodes(path, ast.Attribute) if node.attr == "_replace"]
    for made in nodes(path, ast.ClassDef):
        methods = {member.name for member in made.body if isinstance(member, ast.FunctionDef)}
        is_frozen = any("frozen=True" in ast.unparse(decorator) for decorator in made.decorator_list)
        assert not (is_frozen and "__call__" in methods), made.name


OF_MECHANISMS = {"mixers", "encodings", "adapters"}
MECHANISMS = [path for path in SOURCES if OF_MECHANISMS & {*path.relative_to(ROOT).parts} and kinds(path)]


def test_every_mechanism_names_its_paper() -> None:
    known = {"attention", "xl", "shaw", "huang", "rotary", "learned_relative", "bottleneck", "low_rank"}
    assert known <= {path.stem for path in MECHANISMS}
    for path in MECHANISMS:
        assert re.search(r"arXiv:\d{4}\.\d{4,5}", ast.get_docstring(tree(path)) or ""), name(path)


DECISION = ["Status", "Context", "Decision", "Rejected", "Code"]
"""The parts of each record in docs/decisions.md; surprising consequences may stand before the code."""


def test_a_decision_has_its_parts_and_names_code_that_exists() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    _, contents, *records = re.split("^## ", page, flags=re.MULTILINE)
    assert records
    for record in records:
        heading, body = record.split("\n", 1)
        assert f"[{heading}](#" in contents, heading
        parts = re.findall(r"^\*\*(\w+)\.\*\*", body, re.MULTILINE)
        assert [part for part in parts if part != "Consequences"] == DECISION, heading
        paths = re.findall("`(.+?)`", body.split("**Code.**")[1])
        assert paths and all((ROOT / path).is_file() for path in paths), heading


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


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lit_transformers", "sweeps", "ablations", "reports"])
def test_a_program_shows_its_commands_without_importing_any(package: str) -> None:
    code = (
        "import runpy, sys; sys.argv = ['command', '--help']\n"
        "HEAVY = ('torch', 'numpy', 'pydantic', 'yaml')\n"
        f"try:\n    runpy.run_module({package!r}, run_name='__main__')\n"
        "finally:\n    print([name for name in sys.modules if name in HEAVY or '_command' in name], file=sys.stderr)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert "Usage:" in completed.stdout and completed.stderr == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lit_transformers", "sweeps", "ablations", "reports"])
def test_a_command_is_installed_under_a_name_of_its_own(package: str, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name(f"lit-{package.removeprefix('lit_')}")
    completed = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "Usage:" in completed.stdout
