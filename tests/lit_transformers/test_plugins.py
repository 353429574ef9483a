"""Parts of one's own come in by --plugin, a project file or an entry point, and are kinds like ours."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ablations import catalog
from datamodules import EXAMPLES
from lit_transformers import build_model, plugins
from lit_transformers.checks.contract import check_plugin, require_contract
from lit_transformers.config import ConfigError, register
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference.write import write
from lit_transformers.mixers import MIXERS
from lit_transformers.models import MODELS
from lit_transformers.project import read_project
from lit_transformers.runs import RunConfig, code, load
from lit_transformers.runs.keys import ROOTS
from lit_transformers.runs.starting_weights import read_weights
from lit_transformers.runs.train import contents
from lit_transformers.template import write_project

OWN = ("my_parts", "my_helper", "my_package", "my_package.inner")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; modules that a test imports and enters into tables are removed after it."""
    before = {id(table): (table, dict(table)) for table in (MIXERS, EXAMPLES)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    environment = os.environ.copy()
    yield tmp_path
    os.environ.clear()
    os.environ.update(environment)
    for name in OWN:
        sys.modules.pop(name, None)
    for table, kinds in before.values():
        table.clear()
        table.update(kinds)  # type: ignore[arg-type]
    code.source.cache_clear()
    code.read.cache_clear()


def write_mixer(path: Path, kind: str = "decay", head: str = "") -> None:
    """The mixer of the project that ``init`` writes, under another name and behind other lines."""
    text = (plugins_template() / "my_parts.py").read_text(encoding="utf-8")
    text = text.replace('kind="decay"', f'kind="{kind}"')
    path.write_text(text.replace("import math\n", f"import math\n{head}\n"), encoding="utf-8")


def plugins_template() -> Path:
    import lit_transformers.template as template

    return Path(template.__file__).parent / "files"


def test_a_project_file_names_plugins_whose_final_configs_become_kinds(project: Path) -> None:
    write_project(project)
    assert read_project().plugins == ("my_parts.py",)
    assert "decay" not in MIXERS and "majority" not in EXAMPLES
    plugins.load_plugins()
    assert MIXERS["decay"].__module__ == "my_parts" and "majority" in EXAMPLES
    plugins.load_plugins()


def test_a_script_has_the_parts_that_its_project_file_names(project: Path) -> None:
    write_project(project)
    model = {"kind": "language_model", "mixer": "decay", "dim": 16, "heads": 2, "depth": 1}
    task = build_model({"model": model, "data": {"kind": "language", "source": "lags"}})
    assert "Decay" in {type(module).__name__ for module in task.modules()}


def test_what_is_registered_by_hand_is_registered_once(project: Path) -> None:
    write_mixer(project / "my_parts.py")
    with (project / "my_parts.py").open("a") as file:
        file.write("\n\nfrom lit_transformers.config import register\nfrom lit_transformers.mixers import MIXERS\n")
        file.write("\nregister(MIXERS, DecayConfig)\n")
    plugins.add_plugins(["my_parts.py"])
    plugins.load_plugins()
    with pytest.raises(TypeError, match="needs a separate name"):
        register(MIXERS, MIXERS["decay"])


def test_what_was_typed_is_inherited_by_processes_and_repeated_by_commands(project: Path) -> None:
    write_mixer(project / "my_parts.py")
    plugins.add_plugins(["my_parts.py"])
    assert os.environ[plugins.VARIABLE] == str(project / "my_parts.py")
    assert plugins.plugin_arguments() == ["--plugin", "my_parts.py"]


def test_a_fault_of_a_plugin_is_one_line_that_names_it_with_file_and_line(project: Path) -> None:
    file = project / "my_parts.py"
    for head, message in (
        ("import nowhere_at_all", rf"plug-in my_parts.py: {file}, line \d+: ModuleNotFoundError: .*nowhere_at_all"),
        ("import sys\nsys.exit(3)", rf"plug-in my_parts.py: {file}, line \d+: SystemExit: 3"),
        ("def :", rf"plug-in my_parts.py: {file}, line \d+: invalid syntax"),
    ):
        write_mixer(file, head=head)
        with pytest.raises(ConfigError, match=message):
            plugins.import_plugin(plugins.locate("my_parts.py"))
        sys.modules.pop("my_parts", None)
    write_mixer(file, kind="attention")
    with pytest.raises(ConfigError, match=rf"{file}, line \d+: the kind 'attention' is taken by .*AttentionConfig"):
        plugins.import_plugin(plugins.locate("my_parts.py"))
    with pytest.raises(ConfigError, match=r"plug-in none\.py: there is no such file"):
        plugins.add_plugins(["none.py"])
    shutil.copy(file, project / "json.py")
    with pytest.raises(ConfigError, match="another module has its name"):
        plugins.import_plugin(plugins.locate("json.py"))


def test_the_key_of_a_run_covers_a_plugin_and_its_helpers_and_no_other_run_does(project: Path) -> None:
    write_mixer(project / "my_parts.py", head="import my_helper")
    (project / "my_helper.py").write_text("FACTOR = 1\n")
    (project / "unrelated.py").write_text("FACTOR = 1\n")
    plugins.add_plugins(["my_parts.py"])
    plugins.load_plugins()
    assert {"my_parts", "my_helper"}.isdisjoint(code.modules_on_path(RunConfig(), ROOTS))
    config = RunConfig.from_dict({"model": {"kind": "language_model", "mixer": "decay"}})
    modules = code.modules_on_path(config, ROOTS)
    assert {"my_parts", "my_helper"} <= modules.keys() and "unrelated" not in modules


def one_symbol(checkpoint: Path) -> None:
    list(write(checkpoint, "a", 1, SamplingConfig()))


def test_a_checkpoint_whose_plugin_has_changed_since_says_which_file_whoever_reads_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comment is no change, and neither is a file that runs nothing of the network."""
    write_mixer(project / "my_parts.py", head="import my_helper")
    (project / "my_helper.py").write_text("FACTOR = 1\n")
    plugins.add_plugins(["my_parts.py"])
    plugins.load_plugins()
    model = {"kind": "language_model", "mixer": "decay", "dim": 16, "heads": 2, "depth": 1}
    config = RunConfig.from_dict({"model": model, "data": {"kind": "language", "source": "lags"}})
    data, checkpoint = config.build_data(), project / "checkpoint.ckpt"
    state = config.build_task(data).state_dict()
    torch.save({"lit_transformers": contents(config, data, "its own"), "state_dict": state}, checkpoint)
    for text, lines in (
        ("FACTOR = 1  # as it was\n", []),
        ("FACTOR = 2\n", ["warning: my_helper.py has changed since checkpoint.ckpt was trained"]),
    ):
        (project / "my_helper.py").write_text(text)
        (project / "unrelated.py").write_text(text)
        code.read.cache_clear()
        for read in (load, one_symbol, read_weights):
            read(checkpoint)
            assert [line.partition(";")[0] for line in capsys.readouterr().err.splitlines()] == lines


def test_the_key_of_a_run_covers_what_a_package_imports_relatively(project: Path) -> None:
    package = project / "my_package"
    package.mkdir()
    write_mixer(package / "__init__.py", head="from . import inner")
    (package / "inner.py").write_text("FACTOR = 1\n")
    plugins.add_plugins(["my_package"])
    plugins.load_plugins()
    config = RunConfig.from_dict({"model": {"kind": "language_model", "mixer": "decay"}})
    assert {"my_package", "my_package.inner"} <= code.modules_on_path(config, ROOTS).keys()


def test_a_family_with_several_bases_is_one_part(project: Path) -> None:
    lines = (
        "from typing import final",
        "from lit_transformers.models import LanguageModelConfig",
        "@final",
        'class MineConfig(LanguageModelConfig, kind="mine"):',
        '    """A new family."""',
    )
    (project / "my_parts.py").write_text("\n".join(lines))
    plugin = plugins.locate("my_parts.py")
    try:
        plugins.import_plugin(plugin)
        assert [config.kind for config in plugins.configs_of(plugin)] == ["mine"]
    finally:
        MODELS.pop("mine")


@pytest.mark.slow
def test_parts_that_keep_the_contract_pass_and_a_leak_and_a_wrong_count_are_named(project: Path) -> None:
    write_project(project)
    require_contract("my_parts.py")
    sys.modules.pop("my_parts")
    MIXERS.pop("decay"), EXAMPLES.pop("majority")
    text = (project / "my_parts.py").read_text()
    text = text.replace("for t in range(x.size(1)):", "for t in reversed(range(x.size(1))):")
    text = text.replace("return 2 * queries", "return 3 * queries")
    text = text.replace("math.exp(-1 / config.horizon)", "math.exp(-1 / 4)")
    (project / "my_parts.py").write_text(text)
    failed = {check.name for part in check_plugin("my_parts.py") for check in part.checks if not check.passed}
    assert {"no future (change)", "FLOPs equal the count", "every field has an effect"} <= failed


def test_studies_of_the_working_folder_are_named_beside_ours_and_a_name_of_both_is_refused(project: Path) -> None:
    assert catalog.own_names() == []
    path = catalog.write_new("my_question")
    assert path == Path("studies/my_question.py") and catalog.find("my_question") == path
    (project / "studies" / "helper.py").write_text('"""No study."""\n')
    assert catalog.own_names() == ["my_question"]
    with pytest.raises(ConfigError, match="this suite has a study 'xl_recurrence'"):
        catalog.write_new("xl_recurrence")
    shutil.copy(path, project / "studies" / "xl_recurrence.py")
    with pytest.raises(ConfigError, match=r"studies/xl_recurrence\.py has the name of a study of this suite, /.*"):
        catalog.find("xl_recurrence")


def test_a_project_file_with_an_unknown_setting_is_refused(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.lit-transformers]\nstudies = "questions"\n')
    assert read_project().studies == "questions"
    (project / "lit.toml").write_text('plugin = ["my_parts.py"]\n')
    with pytest.raises(ConfigError, match=r"lit\.toml: .*no field 'plugin'; did you mean plugins"):
        read_project()
