"""Whose code is run: classes that a stranger's file names are refused before anything of them is imported, and classes
that the user's own study names keep working without a word."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_module import Net

from ablations.__main__ import main as ablations
from ablations.ablation import Ablation, Metric
from ablations.cache import cached_plan
from ablations.inputs import StudyInputs, installed_packages
from ablations.plan import PlannedStudy, Request, make_plan
from lit_transformers import allow_modules, load_checkpoint, plugins, trust
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError, Plain
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.records.files import CHECKPOINT, RUN
from lit_transformers.run_file import read_run
from lit_transformers.runs.folder import Identity, claim
from lit_transformers.trust import require_allowed

MARKED = """
from pathlib import Path
import foreign_module
import lightning as L
Path("imported").touch()
class Net(foreign_module.Net):
    pass
class Other(L.LightningModule):
    pass
class Note(L.Callback):
    pass
"""
LANGUAGE = {"model": {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1}}


def of_class(path: str) -> dict[str, Plain]:
    return {"model": {"class_path": path}}


def of_argument(path: str) -> dict[str, Plain]:
    popen = {"class_path": path, "init_args": {"args": ["touch", "imported"]}}
    return {"model": {"class_path": "lightning.pytorch.demos.boring_classes.BoringModel", "init_args": {"net": popen}}}


def of_callback(path: str) -> dict[str, Plain]:
    return LANGUAGE | {"training": {"callbacks": [{"path": path}]}}


HOSTILE = {
    "a class of the standard library": of_class("subprocess.Popen"),
    "a function of it": of_class("os.system"),
    "a function of torch": of_class("torch.hub.load"),
    "a module of the working folder": of_class("stranger.Net"),
    "with a colon": of_class("stranger:Net"),
    "a module in a package": of_class("strange_package.inner.Net"),
    "a name that begins as an allowed one": of_class("lightning_stranger.Net"),
    "an argument": of_argument("subprocess.Popen"),
    "an argument of an argument": of_argument("torch.nn.Sequential")
    | {"data": {"class_path": "lightning.LightningDataModule", "init_args": {"x": {"y": [of_class("stranger.Net")]}}}},
    "what an allowed module only imports": of_class("torch.nn.modules.module:OrderedDict"),
    "a part of an allowed module that is none of a run": of_argument("lightning.pytorch.cli.LightningCLI"),
    "a callback": of_callback("stranger.Note"),
    "a callback of a class path": LANGUAGE | {"training": {"callbacks": [{"class_path": "stranger.Note"}]}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with modules that leave a mark where they are imported; nothing is remembered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trust.STATE, str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in (trust.VARIABLE, plugins.VARIABLE, plugins.READING):
        monkeypatch.delenv(name, raising=False)
    for path in ("stranger.py", "strange_package/__init__.py", "strange_package/inner.py", "lightning_stranger.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(MARKED)
    yield tmp_path
    for name in ("stranger", "strange_package", "strange_package.inner", "lightning_stranger"):
        sys.modules.pop(name, None)


def write_run(folder: Path, plain: Any) -> Path:
    path = folder / RUN
    path.write_text(json.dumps(plain))
    return path


def write_checkpoint(folder: Path, plain: Any) -> Path:
    torch.save({"lit_transformers": {"config": plain}, "state_dict": {}}, folder / CHECKPOINT)
    return folder / CHECKPOINT


@pytest.mark.parametrize("plain", [pytest.param(plain, id=name) for name, plain in HOSTILE.items()])
def test_a_file_names_no_class_of_a_module_that_is_not_allowed(folder: Path, plain: Any) -> None:
    with pytest.raises(ConfigError, match=r"of a module that you have not allowed; .*--allow-module \w") as refused:
        read_run(write_run(folder, plain))
    assert "\n" not in str(refused.value) and not (folder / "imported").exists()
    callbacks = plain.get("training")
    if callbacks is not None:
        with pytest.raises(ConfigError, match="you have not allowed"):
            load_checkpoint(write_checkpoint(folder, plain))


@pytest.mark.parametrize(
    "words",
    [["fit"], ["config"], ["evaluate"], ["generate"], ["translate"], ["export", "out"], ["convert", "out"]],
    ids=" ".join,
)
def test_every_command_that_reads_a_file_of_a_run_refuses_it(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    write = write_run if words[0] in ("fit", "config") else write_checkpoint
    command = [words[0], str(write(folder, of_callback("stranger.Note") | {"nothing": 1})), *words[1:]]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--allow-module stranger" in error and error.count("\n") == 1 and not (folder / "imported").exists()
    main([*command, "--allow-module", "stranger"])
    assert "you have not allowed" not in capsys.readouterr().err


@pytest.mark.parametrize("way", ["option", "project", "python", "plug-in"])
def test_a_module_is_allowed_by_name(folder: Path, capsys: pytest.CaptureFixture[str], way: str) -> None:
    path, words = write_run(folder, of_class("stranger.Net")), []
    with pytest.raises(ConfigError, match="not allowed"):
        read_run(path)
    if way == "option":
        words = ["--allow-module", "stranger"]
    elif way == "project":
        (folder / "lit.toml").write_text('allow_modules = ["stranger"]\n')
    elif way == "python":
        allow_modules("stranger")
    else:
        words = ["--plugin", "stranger.py"]
    assert main(["config", str(path), *words]) == 0
    assert "stranger.Net" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"names subprocess\.Popen"):
        read_run(write_run(folder, of_class("subprocess.Popen")))


def planned(seeds: int = 1) -> PlannedStudy:
    baseline = LightningRunConfig(model={"class_path": "stranger.Net"}, data={"class_path": "foreign_module.Plane"})
    arms = {"baseline": {}, "other": {"model": {"class_path": "foreign_module.Net"}}}
    study = Ablation(
        question="Which?", baseline=baseline, arms=arms, design="explicit", metric=Metric("val/loss", goal="minimize")
    )
    return make_plan("own", study, Request(seeds=seeds))


def test_what_a_study_of_ones_own_names_its_runs_may_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = next(iter(planned().configs.values()))
    assert isinstance(read_run(write_run(folder, config)), LightningRunConfig)
    with pytest.raises(ConfigError, match=r"names stranger\.Other"):
        read_run(write_run(folder, of_class("stranger.Other")))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "stranger.py").write_text(MARKED)
    sys.modules.pop("stranger")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [*(entry for entry in sys.path if entry != str(folder)), str(elsewhere)])
    with pytest.raises(ConfigError, match=r"names stranger\.Net"):
        read_run(write_run(folder, config))
    assert not (elsewhere / "imported").exists()


def test_a_cached_plan_names_nothing_that_its_study_does_not(folder: Path) -> None:
    (folder / "own.py").write_text("")
    plans = []

    def make() -> PlannedStudy:
        plans.append(replace(planned(), inputs=StudyInputs(packages=installed_packages()).to_dict()))
        return plans[-1]

    def plan() -> PlannedStudy:
        return cached_plan(folder / "runs", folder / "own.py", "own.py", Request(seeds=1), make)

    assert plan() == plan() and len(plans) == 1
    (path,) = folder.glob("runs/studies/own/plans/*.json")
    path.write_text(path.read_text().replace("foreign_module.Net", "strange_package.inner.Net"))
    assert plan() == plans[0] and len(plans) == 2


def test_parameters_of_a_sweep_name_no_other_class(folder: Path) -> None:
    for values in (
        {"training.callbacks": [{"path": "stranger.Note"}]},
        {"model.class_path": "stranger.Net"},
        {"model.init_args.net": {"class_path": "stranger.Net"}},
    ):
        with pytest.raises(ConfigError, match=r"W&B: names stranger"):
            require_allowed(values, "the parameters of W&B")
        require_allowed(values, "the parameters of W&B", {"stranger.Net", "stranger.Note"})


def test_a_folder_that_holds_a_strangers_run_is_refused_without_an_import(folder: Path) -> None:
    config = LightningRunConfig(model={"class_path": "foreign_module.Net"})
    write_run(folder, of_class("stranger.Net"))
    with pytest.raises(ConfigError, match=r"names stranger\.Net"):
        claim(folder, Identity("0" * 16, config, None, {}, set()))
    assert not (folder / "imported").exists()


def test_an_argument_is_an_object_of_the_class_that_its_annotation_names(folder: Path) -> None:
    (folder / "stranger.py").write_text(
        "import lightning as L\nfrom torch import nn\nfrom typing import Optional\n"
        "class Net(L.LightningModule):\n    def __init__(self, net: Optional[nn.Module] = None, any=None): pass\n"
    )
    arguments = {"net": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}}
    LightningRunConfig(model={"class_path": "stranger.Net", "init_args": arguments})
    LightningRunConfig(
        model={"class_path": "stranger.Net", "init_args": {"any": {"class_path": "collections.Counter"}}}
    )
    with pytest.raises(ConfigError, match=r"init_args\.net\.class_path: Counter is no Module"):
        LightningRunConfig(
            model={"class_path": "stranger.Net", "init_args": {"net": {"class_path": "collections.Counter"}}}
        )


READING = {
    "lit_transformers": (main, [["schema"], ["kinds", "model.mixer"], ["config", "mixer=window"], ["fit", "--help"]]),
    "ablations": (ablations, [["list"], ["show", "xl_recurrence"], ["new", "mine"], ["run", "--help"]]),
    "ablations, planned": (ablations, [["status", "xl_recurrence"], ["report", "xl_recurrence"]]),
}  # fmt: skip


@pytest.mark.parametrize("plugin", ["stranger.py", "strange_package.inner"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "planned" in name else ()) for name in READING]
)
def test_a_command_that_only_reads_imports_no_plug_in_of_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, plugin: str
) -> None:
    (folder / "lit.toml").write_text(f'plugins = ["{plugin}"]\n')
    program, commands = READING[name]
    for words in commands:
        program(words)
        assert not (folder / "imported").exists(), words
    if name == "lit_transformers":
        main(["schema"])
        assert f"left out here; include them by --plugin {plugin}" in capsys.readouterr().err
        assert main(["schema", "--plugin", plugin]) == 0
        assert (folder / "imported").exists()


def test_a_study_of_the_folder_has_the_plug_ins_of_the_folder_which_is_no_secret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lit.toml").write_text('plugins = ["stranger.py"]\n')
    (folder / "own.py").write_text(
        "from ablations.ablation import Ablation, Metric\nfrom standin.run import RunConfig\n"
        'ABLATION = Ablation(question="Why?", baseline=RunConfig(), metric=Metric("val/bpb", goal="minimize"),\n'
        '    factors={"width": {"16": {}, "32": {"model.width": 32}}})\n'
    )
    assert ablations(["show", "own.py"]) == 0
    assert "the plug-in stranger.py of the project file is imported" in capsys.readouterr().err
    assert (folder / "imported").exists()


def test_the_module_of_these_tests_is_none_of_the_allowed_ones() -> None:
    assert not Net.__module__.startswith(trust.MODULES)
