"""Runs of LightningModules that know nothing of this suite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_module import DIE

from ablations.ablation import Ablation, Match, Metric
from ablations.catalog import load
from ablations.plan import Request, make_plan
from ablations.tuning import prepare
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.first_batch import check, describe
from lit_transformers.lightning_runs.fit import fit
from lit_transformers.lightning_runs.keys import run_key
from lit_transformers.lightning_runs.loaders import DataOrder
from lit_transformers.lightning_runs.metrics import logged_in_record
from lit_transformers.lightning_runs.runner import RUNNER
from lit_transformers.run_file import read_run
from lit_transformers.training.config import CallbackConfig
from lit_transformers.training.stopping import Interrupted

BORING = "lightning.pytorch.demos.boring_classes."
NET = LightningRunConfig(
    model={"class_path": "foreign_module.Net"},
    data={"class_path": "foreign_module.Plane"},
    training={"steps": 17, "validate_every": 6, "log_every": 2, "device": "cpu"},
)


def run(config: LightningRunConfig, directory: Path) -> dict[str, Any]:
    """All that a run leaves, but for how long it took."""
    record = fit(config, directory)
    weights = torch.load(directory / "checkpoint.ckpt", weights_only=True)["state_dict"]
    files = {name: (directory / name).read_text() for name in ("metrics.csv", "documents.csv")}
    return {
        "record": {name: value for name, value in record.items() if name != "measured"},
        "weights": {name: tensor.tolist() for name, tensor in weights.items()},
        **files,
    }


def test_a_run_leaves_a_record_of_what_the_module_logs_and_a_value_of_every_example(tmp_path: Path) -> None:
    left = run(NET, tmp_path)
    record = left["record"]
    assert record["outcome"] == "finished" and record["metrics"].keys() == {"val/acc", "val/loss"}
    assert record["metrics"]["val/acc"] > 0.7, "of two classes that are as frequent"
    values = [float(line.rsplit(",", 1)[1]) for line in left["documents.csv"].splitlines()[1:]]
    assert len(values) == 50 and sum(values) / 50 == pytest.approx(record["metrics"]["val/acc"])
    assert record["cost"]["parameters"] == 58 and record["cost"]["tokens"] is None
    # Per example: forward 4x8 and 8x2, backward as much for the weights and for the second layer's inputs.
    assert record["cost"]["train_flops"] == 17 * 8 * 2 * (2 * (32 + 16) + 16)
    steps = [line.split(",")[0] for line in left["metrics.csv"].splitlines() if "val/acc" in line]
    assert steps == ["6", "12"]


def test_the_learning_rates_of_a_module_are_the_arguments_that_are_called_so() -> None:
    assert RUNNER.rate_fields(NET) == []
    changed = NET.override({"model.init_args.lr": 0.2, "model.init_args.width": 4})
    assert RUNNER.rate_fields(changed) == ["model.init_args.lr"]
    assert changed.override({"model.init_args.lr": 0.1}).get("model.init_args.lr") == 0.1


@pytest.mark.parametrize("kind", ["plain", "generator", pytest.param("stream", marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_at_any_step_ends_as_one_that_never_was(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stops lie within an epoch, before and at its end, and at a validation; an epoch has five steps."""
    config = NET.override({"data.init_args.kind": kind})
    whole = run(config, tmp_path / "whole")
    for step in (1, 4, 5, 9, 11, 14):
        monkeypatch.setenv(DIE, f"{signal.SIGTERM.value} {step}")
        with pytest.raises(Interrupted):
            fit(config, tmp_path / str(step))
        monkeypatch.delenv(DIE)
        assert run(config, tmp_path / str(step)) == whole, f"stopped at step {step}"


KILLED = """
import sys
from pathlib import Path
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.fit import fit
fit(LightningRunConfig.from_yaml(sys.argv[1]), Path(sys.argv[2]), keep_every=0.0)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(NET.to_yaml())
    command = [sys.executable, "-c", KILLED, str(tmp_path / "config.yaml"), str(tmp_path / "killed")]
    killed = subprocess.run(command, env={**os.environ, DIE: f"{signal.SIGKILL.value} 8"}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    saved = torch.load(tmp_path / "killed" / "checkpoint.ckpt", weights_only=True)
    assert saved["global_step"] == 8
    assert run(NET, tmp_path / "killed") == run(NET, tmp_path / "whole")


def test_arms_of_a_seed_read_the_same_batches_however_much_randomness_they_draw() -> None:
    """Dropout of another width draws more, so that the order of a second epoch would be another."""

    def batches(draws: int) -> list[Any]:
        data = NET.data.build()
        assert data is not None
        data.setup("fit")
        torch.manual_seed(0)
        DataOrder(seed=5, rank=0).attach(data)
        loader, read = data.train_dataloader(), []
        for _ in range(2):
            for x, _ in loader:
                torch.rand(draws)
                read.append(x.tolist())
        return read

    few, many = batches(1), batches(7)
    assert few == many
    assert few[:5] != few[5:], "epochs have the same order"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"class_path": "foreign_module.Ne"}}, "has no class 'Ne'; did you mean Net"),
        ({"model": {"class_path": "foreign_modul.Net"}}, "there is no module 'foreign_modul'"),
        ({"model": {"class_path": "foreign_module.DataLoader"}}, "DataLoader is no LightningModule; there are: Net"),
        ({"model": {"class_path": "foreign_module.Points"}}, "Points is no LightningModule; there are: Net"),
        ({"model.init_args.widht": 3}, "model.init_args.widht: Net takes no argument 'widht'; did you mean width?"),
        ({"model.init_args.width": "wide"}, "model.init_args.width: input should be a valid integer; got 'wide'"),
        ({"trainer.max_steps": 3}, "trainer.max_steps: .*set training.steps"),
        ({"trainer.gradient_clip_vla": 3}, "did you mean gradient_clip_val"),
    ],
)
def test_what_cannot_be_built_is_one_line_with_the_nearest_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        NET.override(changes)
    assert "\n" not in str(caught.value)


def test_a_class_path_that_is_left_empty_is_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {class_path: }\n")
    with pytest.raises(ConfigError, match=r"^model\.class_path: "):
        read_run(tmp_path / "run.yaml")


def test_names_of_a_record_are_the_same_however_a_module_names_its_split() -> None:
    assert logged_in_record({"val_loss": 1, "valid/acc": 2, "f1": 3}) == {"val/loss": 1, "val/acc": 2, "val/f1": 3}
    assert logged_in_record({"test_loss": 1}, "test") == {"test/loss": 1}
    assert logged_in_record({"val_loss": 1, "loss": 2}) == {"val/val_loss": 1, "val/loss": 2}


def test_of_names_that_lightning_forks_one_counts_and_others_stay_however_they_end() -> None:
    value, other = torch.tensor(1.0), torch.tensor(2.0)
    forked = {"val_acc": value, "val_acc_epoch": value, "val_f1/dataloader_idx_0": other}
    forked |= {"val_f1_epoch/dataloader_idx_0": other}
    assert logged_in_record(forked) == {"val/acc": 1, "val/f1/dataloader_idx_0": 2}
    chosen = {"time_step": value, "best_epoch": other, "loss": value, "loss_epoch": other}
    assert logged_in_record(chosen) == {"val/time_step": 1, "val/best_epoch": 2, "val/loss": 1, "val/loss_epoch": 2}


CALLBACK = """
import lightning as L
class Halve(L.Callback):
    def __init__(self, step):
        self.step = step
    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == self.step:
            for parameter in module.parameters():
                parameter.data *= 0.5
"""


def test_a_callback_and_a_class_written_with_a_colon_reach_a_run_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halving_points.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    short = NET.override({"training.steps": 3, "training.validate_every": None})
    path = tmp_path / "run.yaml"
    path.write_text(short.to_yaml().replace("foreign_module.Net", "foreign_module:Net"))
    records = []
    for name, words in (("plain", []), ("halved", ["--callback", "halving_points.Halve{step: 3}"])):
        words = ["fit", str(path), "--to", str(tmp_path / name), "--allow-module", "foreign_module", *words]
        assert main(words) == 0
        records.append(json.loads((tmp_path / name / "record.json").read_text()))
    assert records[0]["metrics"] == fit(short, tmp_path / "same")["metrics"] != records[1]["metrics"]
    assert records[0]["key"] != records[1]["key"]
    with pytest.raises(ConfigError, match=r"trainer.callbacks: .* set training.callbacks"):
        NET.override({"trainer": {"callbacks": []}})


SAVING = """
from foreign_module import Net
from lightning.pytorch.callbacks import ModelCheckpoint
class Saving(Net):
    def configure_callbacks(self):
        return ModelCheckpoint()
"""


def test_callbacks_that_write_checkpoints_are_refused_wherever_they_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saving_module.py").write_text(SAVING)
    monkeypatch.syspath_prepend(tmp_path)
    reason = "ModelCheckpoint writes checkpoints, and a run writes its own checkpoint"
    with pytest.raises(ConfigError, match=f"configure_callbacks of Saving: {reason}"):
        describe(NET.override({"model.class_path": "saving_module.Saving"}))
    callback = CallbackConfig(class_path="lightning.pytorch.callbacks.ModelCheckpoint")
    with pytest.raises(ConfigError, match=reason):
        callback.build()


def test_a_callback_is_named_as_a_module_is_and_as_it_was_before() -> None:
    fields = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_loss"}}
    before = {"path": fields["class_path"], "arguments": fields["init_args"]}
    one, other = (NET.override({"training.callbacks": [callback]}) for callback in (fields, before))
    assert one == other and one.to_dict()["training"]["callbacks"] == [fields]


def test_the_test_split_is_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    one = run(NET.override({"data.evaluation.split": "test"}), tmp_path / "test")["record"]["metrics"]
    other = run(NET, tmp_path / "validation")["record"]["metrics"]
    assert one.keys() == {"test/acc", "test/loss"} and other.keys() == {"val/acc", "val/loss"}
    assert one["test/acc"] != other["val/acc"]


def test_a_parameter_without_gradient_fails_a_gate_unless_it_is_named() -> None:
    idle = NET.override({"model.init_args.idle": True})
    assert [gate.name for gate in check(idle) if not gate.passed] == ["every parameter learns"]
    assert all(gate.passed for gate in check(idle.override({"unused": ["pooler"]})))


def test_where_slurm_is_installed_nothing_advises_to_use_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe(NET.override({"model.init_args.width": 9}))  # not yet described, which is done once


def test_the_key_covers_the_module_and_what_it_imports_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project_of_one"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "helper": "LOSS = 1\n",
        "other": "",
        "net": "from lightning.pytorch.demos.boring_classes import BoringModel\nfrom .helper import LOSS\n"
        "class Own(BoringModel):\n    pass\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "lit_transformers.runs.code"
    config = LightningRunConfig(model={"class_path": "project_of_one.net.Own"})

    def key() -> str:
        sys.modules[code].read.cache_clear()  # a process reads each file once
        return run_key(config)

    before = key()
    (package / "other.py").write_text("X = 1\n")
    assert key() == before, "a file that is not imported is no part of it"
    (package / "helper.py").write_text("LOSS = 2\n")
    assert key() != before


def test_the_key_covers_the_content_of_files_that_arguments_name(tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_text("one")
    config = NET.override({"data.init_args.path": str(file)})
    before = run_key(config)
    file.write_text("other")
    assert run_key(config) != before


def study(**changes: Any) -> Ablation:
    fields: dict[str, Any] = {
        "question": "Does width help?",
        "baseline": NET,
        "factors": {"width": {"8": {}, "16": {"model.init_args.width": 16}}},
        "metric": Metric("val/acc", goal="maximize"),
    }
    return Ablation(**fields | changes)


def test_a_study_of_unknown_tokens_is_planned_and_matched_by_what_is_known() -> None:
    planned = make_plan("width", study(), Request())
    assert planned.costs["width=8"]["tokens"] is None and planned.plan.protocol.startswith("17 updates, 58 parameters")
    with pytest.raises(ConfigError, match="the tokens of its runs are not known"):
        make_plan("width", study(match=Match("tokens")), Request())
    with pytest.raises(ConfigError, match="no 'val/accuracy' would be in the record of its runs; did you mean val/acc"):
        make_plan("width", study(metric=Metric("val/accuracy", goal="maximize")), Request())
    deeper = {"rate": {"slow": {}, "wide": {"model.init_args.lr": 0.2, "model.init_args.width": 3}}}
    matched = make_plan(
        "width", study(factors=deeper, match=Match("parameters", free="model.init_args.width")), Request()
    )
    assert [describe(LightningRunConfig.from_dict(config)).parameters for config in matched.configs.values()] == [
        58
    ] * 6


def test_a_search_tries_what_the_config_declares(tmp_path: Path) -> None:
    """The study's file names its module by a path from which every process can import it."""
    path = tmp_path / "widths.py"
    search = {"model.init_args.lr": {"low": 0.01, "high": 1.0, "log": True}}
    with pytest.raises(ConfigError, match="is searched and has no value here"):
        NET.override({"search": search})
    plain = NET.override({"model.init_args.lr": 0.1, "search": search}).to_dict()
    path.write_text(
        "from ablations.ablation import Ablation, Metric\n"
        "from lit_transformers.lightning_runs import LightningRunConfig\n"
        f"BASELINE = LightningRunConfig.from_dict({plain!r})\n"
        "WIDTHS = {'8': {}, '16': {'model.init_args.width': 16}}\n"
        "METRIC = Metric('val/acc', goal='maximize')\n"
        "ABLATION = Ablation(question='?', baseline=BASELINE, factors={'width': WIDTHS}, metric=METRIC)\n"
    )
    arms = prepare(str(path), Request(), tmp_path / "runs").arms
    assert [{*arm.space} for arm in arms] == [{"model.init_args.lr"}] * 2 and arms[0].space == arms[1].space


def test_lightnings_own_demos_are_run_or_refused_for_what_they_lack(tmp_path: Path) -> None:
    """BoringModel learns and logs nothing; the module with manual optimization trains all the same."""
    silent = fit(
        LightningRunConfig(
            model={"class_path": f"{BORING}BoringModel"},
            data={"class_path": f"{BORING}BoringDataModule"},
            training={"steps": 5, "device": "cpu"},
        ),
        tmp_path,
    )
    assert silent["outcome"] == "invalid" and "the measured split logs none" in silent["reason"]
    manual = LightningRunConfig(model={"class_path": f"{BORING}ManualOptimBoringModel"}, training={"device": "cpu"})
    failed = [gate.name for gate in check(manual) if not gate.passed]
    assert failed == ["metrics are logged"] and describe(manual).parameters == 66


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning_demo_study", "lightning_digits_study"])
def test_an_example_learns_more_than_its_floor(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root))
    ablation = load(root / "examples" / f"{name}.py")
    config = ablation.resolve().configs[ablation.all_arms()[0].name]
    record = fit(config, tmp_path)
    assert record["outcome"] == "finished", record["reason"]
    floor = RUNNER.floors(config, ablation.metric.name)[-1].value
    gain = record["metrics"][ablation.metric.name] - floor
    assert gain > 0.5 if ablation.metric.goal == "maximize" else gain < -0.1
