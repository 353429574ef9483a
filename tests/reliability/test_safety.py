"""Files that are read are never executed, a name leads nowhere but into its folder, and no credential is stored."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ordeal import run_command
from ports import free_port
from standin.recurrence import write_study

import reports
from ablations.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, load
from lit_transformers.runs.train import usable
from reports import ReportError

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for package in ("lit_transformers", "datamodules", "sweeps", "reports", "ablations")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "published" not in path.parts
]
LOADERS = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
HOSTILE = ("../outside", "/etc/outside", "..", ".", "a/b", "a\\b", "a\0b", "", "x" * 300, "CON/..", "~root", "a\nb")
SECRETS = {"WANDB_API_KEY": "5ec4e7" * 6 + "abcd", "PGPASSWORD": "hunter2hunter2", "HF_TOKEN": "hf_0123456789abcdef"}
SMALL_STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("wrap", [lambda bomb: bomb, lambda bomb: {"lit_transformers": bomb, "state_dict": {}}])
@pytest.mark.parametrize("save", [torch.save, lambda plain, path: path.write_bytes(pickle.dumps(plain))])
def test_a_checkpoint_with_code_in_it_is_refused_and_the_code_not_run(tmp_path: Path, save: Any, wrap: Any) -> None:
    mark, checkpoint = tmp_path / "ran", tmp_path / "checkpoint.ckpt"
    save(wrap(Bomb(mark)), checkpoint)
    with pytest.raises(ConfigError, match=r"checkpoint\.ckpt: is no checkpoint of a run"):
        load(checkpoint)
    assert usable(checkpoint) is None and checkpoint.with_suffix(".damaged").exists()
    assert not mark.exists()
    with checkpoint.with_suffix(".damaged").open("rb") as file, contextlib.suppress(RuntimeError):
        torch.load(file, weights_only=False)
    assert mark.exists(), "the bomb is none: this test shows nothing"


@pytest.mark.parametrize("call", ["os.system ['touch MARK']", "pathlib.Path.touch [!!python/name:MARK '']"])
def test_a_config_with_code_in_it_is_refused_and_the_code_not_run(tmp_path: Path, call: str) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "run.yaml"
    path.write_text(f"model: !!python/object/apply:{call.replace('MARK', str(mark))}\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: cannot be read as YAML"):
        RunConfig.from_yaml(path)
    assert not mark.exists()


def safe_loaders(tree: ast.Module) -> set[str]:
    """Returns the classes of a module that derive from YAML's safe loader."""
    safe = {"yaml.SafeLoader"}
    for node in ast.walk(tree):  # a class comes after those that it derives from
        if isinstance(node, ast.ClassDef) and node.bases and {ast.unparse(base) for base in node.bases} <= safe:
            safe.add(node.name)
    return safe


def test_nothing_in_the_suite_loads_what_could_execute() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not (imported(node) & LOADERS), f"{path}: {imported(node)}"
            if isinstance(node, ast.Call):
                function, keywords = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
                assert function not in ("eval", "exec", "yaml.unsafe_load"), path
                if function == "yaml.load":  # safe with a loader that derives from the safe one, named by position
                    loader = node.args[1]
                    choices = [loader.body, loader.orelse] if isinstance(loader, ast.IfExp) else [loader]
                    assert {ast.unparse(choice) for choice in choices} <= safe_loaders(tree), path
                assert function != "torch.load" or ast.unparse(keywords["weights_only"]) == "True", path
                assert "allow_pickle" not in keywords or ast.unparse(keywords["allow_pickle"]) == "False", path


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_report_of_a_study_with_a_hostile_name_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "inside" / "studies").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ReportError) as refused:
        reports.write_report(tmp_path / "inside", name)
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["new", "plan", "show", "report"])
def test_a_command_with_a_hostile_name_ends_in_a_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    studies = sorted((ROOT / "ablations").rglob("*.py"))
    assert main([command, name]) == 2
    complaint = capsys.readouterr().err.strip()
    assert "Traceback" not in complaint and len(complaint) < 2000
    assert sorted((ROOT / "ablations").rglob("*.py")) == studies and not list(tmp_path.rglob("*"))


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that asks for no password, with one in it all the same."""
    script = ROOT / "tests" / "services" / "postgres.sh"
    folder = Path(f"/tmp/lit-safety-{os.getpid()}")
    started = subprocess.run(["sh", script, "start", folder, str(free_port())], capture_output=True, text=True)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip().replace("lit@", f"lit:{SECRETS['PGPASSWORD']}@")
    subprocess.run(["sh", script, "stop", folder], check=True)
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.slow
def test_no_credential_is_kept_of_a_study_over_a_database(tmp_path: Path, postgres: str) -> None:
    study, runs = tmp_path / "memory.py", tmp_path / "runs"
    study.write_text(SMALL_STUDY)
    completed = with_secrets([*run_command(study, runs), "--storage", postgres])
    assert completed.returncode == 0, completed.stderr
    assert_no_secret(runs, completed.stdout + completed.stderr)


@pytest.mark.slow
def test_no_credential_is_written_by_runs_that_are_sent_to_wandb(tmp_path: Path) -> None:
    study, runs = tmp_path / "recurrence.py", tmp_path / "runs"
    write_study(study, tmp_path / "corpus", steps=120, seeds=4)
    words = ["--wandb", "offline", "--seeds", "1", "--set", "training.steps=3", "--set", "training.log_every=1"]
    completed = with_secrets(run_command(study, runs, *words))
    assert completed.returncode == 0, completed.stderr
    assert list(runs.glob("*/wandb/offline-run-*/*.wandb")), "nothing was sent: this test shows nothing"
    assert_no_secret(runs, completed.stdout + completed.stderr)


def with_secrets(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **SECRETS})


def assert_no_secret(folder: Path, output: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for name, secret in SECRETS.items():
        assert secret not in output, name
        assert [path for path in files if secret.encode() in path.read_bytes()] == [], name
