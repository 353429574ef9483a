"""A run from config to record: repeatable, resumable, and with clear errors."""

from __future__ import annotations

import csv
import errno
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import training

from datamodules import PairDataConfig
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.gates.miniature import probe_data
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.runs import RunConfig, describe, evaluate, fit, load, run_key
from lit_transformers.runs.required_memory import require_memory

CREDENTIAL = "s3cr3t-value"


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    """Two layers, with dropout."""
    return small_run.override(
        {
            "model.depth": 2,
            "model.dropout": 0.1,
            "model.mixer.dropout": 0.1,
            "training.steps": 40,
            "training.validate_every": 20,
            "training.log_every": 7,
        }
    )


def reproducible(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the values that no two runs share: times and speeds."""
    return {name: value for name, value in record.items() if name != "measured"}


def artifacts(directory: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """All that a report reads of a run."""
    record = json.loads((directory / "record.json").read_text())
    return reproducible(record), (directory / "metrics.csv").read_bytes(), (directory / "documents.csv").read_bytes()


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of its run, done with a credential in the environment; tests read it and change nothing."""
    directory = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", CREDENTIAL)
        fit(config, directory)
    return directory


def read_record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / RECORD).read_text())


def test_a_run_leaves_a_record_curves_and_the_loss_of_every_document(config: RunConfig, finished: Path) -> None:
    record = read_record(finished)
    assert record["outcome"] == "finished" and record["reason"] is None
    assert all(gate["passed"] for gate in record["gates"])
    rows = list(csv.DictReader((finished / "documents.csv").open()))
    nats, size = (sum(float(row[name]) for row in rows) for name in ("nats", "bytes"))
    assert record["metrics"]["val/bpb"] == pytest.approx(nats / size / 0.6931471805599453, rel=1e-12)
    curves = list(csv.DictReader((finished / "metrics.csv").open()))
    assert {int(row["step"]) for row in curves if row["name"] == "val/bpb"} == {20, 40}
    assert {int(row["step"]) for row in curves if row["name"] == "train/nats"} == set(range(7, 41, 7))
    assert RunConfig.from_yaml(finished / "run.yaml") == config
    assert record["key"] == run_key(config)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    repeated = fit(config, tmp_path / "again")
    assert artifacts(finished) == artifacts(tmp_path / "again")
    other_seed = fit(config.override({"seed": 1}), tmp_path / "other")
    assert other_seed["metrics"] != repeated["metrics"]
    first_state, repeated_state = (weights(directory) for directory in (finished, tmp_path / "again"))
    assert all(torch.equal(first_state[name], repeated_state[name]) for name in first_state)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return torch.load(directory / CHECKPOINT, weights_only=True)["state_dict"]


def checkpoint_time(directory: Path) -> int:
    """When the checkpoint was written, in nanoseconds; 0 where there is none."""
    path = directory / CHECKPOINT
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.slow
def test_dropout_draws_the_same_whatever_building_has_drawn(
    config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_task = RunConfig.build_task

    def draw_and_build(self: RunConfig, data: Any) -> Any:
        torch.rand(3)
        return build_task(self, data)

    monkeypatch.setattr(RunConfig, "build_task", draw_and_build)
    fit(config, tmp_path)
    assert artifacts(tmp_path) == artifacts(finished)


@pytest.mark.slow
def test_a_run_that_is_killed_and_stopped_and_killed_again_ends_as_one_that_never_was(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    generator = random.Random(0)
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        process = training(config, tmp_path, 0.0)
        for _ in range(generator.randint(2, 7)):
            saved_at = checkpoint_time(tmp_path)
            process.until(lambda saved_at=saved_at: checkpoint_time(tmp_path) != saved_at)
        time.sleep(generator.uniform(0, 0.03))  # at any moment of a step
        process.send(number)
        assert process.wait() == [status], process.log.read_text()
    training(config, tmp_path).finish()
    assert artifacts(tmp_path) == artifacts(finished)


@pytest.mark.slow
def test_validation_and_training_keep_states_apart(config: RunConfig, finished: Path, tmp_path: Path) -> None:
    unvalidated = fit(config.override({"training.validate_every": None}), tmp_path)
    assert unvalidated["metrics"] == read_record(finished)["metrics"]


@pytest.mark.slow
def test_a_loss_that_is_no_number_fails_the_run_and_says_when(config: RunConfig, tmp_path: Path) -> None:
    divergent = config.override({"training.optimizer": {"kind": "sgd", "learning_rate": 1e30}, "training.clip": None})
    record = fit(divergent, tmp_path)
    assert record["outcome"] == "failed"
    assert record["reason"].startswith("not-a-number: the loss is nan at step")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_moved_aside_and_the_run_starts_anew(
    config: RunConfig, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hurt").mkdir()
    checkpoint_bytes = (finished / CHECKPOINT).read_bytes()
    (tmp_path / "hurt" / CHECKPOINT).write_bytes(checkpoint_bytes[: len(checkpoint_bytes) // 2])
    assert fit(config, tmp_path / "hurt")["outcome"] == "finished"
    assert artifacts(tmp_path / "hurt") == artifacts(finished)
    assert (tmp_path / "hurt" / "checkpoint.damaged").exists()
    assert "cannot be read" in capsys.readouterr().out


def test_a_checkpoint_holds_no_code(config: RunConfig, finished: Path, tmp_path: Path) -> None:
    task, loaded, saved = load(finished / CHECKPOINT)
    assert loaded == config and saved["tokenizer"] == {"kind": "bytes"} and not task.training
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ConfigError, match=r"text\.ckpt: is no checkpoint of a run"):
        load(tmp_path / "text.ckpt")


def test_a_checkpoint_with_a_part_of_a_plugin_that_is_not_loaded_names_the_option(
    finished: Path, tmp_path: Path
) -> None:
    contents = torch.load(finished / CHECKPOINT)
    contents["lit_transformers"]["config"]["data"]["tokenizer"] = {"kind": "letters"}
    torch.save(contents, tmp_path / "letters.ckpt")
    with pytest.raises(ConfigError, match=r"letters\.ckpt: data\.tokenizer\.kind: no kind 'letters'.* --plugin"):
        load(tmp_path / "letters.ckpt")


@pytest.mark.slow
def test_a_trained_model_is_measured_again_by_another_protocol(finished: Path) -> None:
    metrics = evaluate(finished / CHECKPOINT)
    assert metrics["val/bpb"] == pytest.approx(read_record(finished)["metrics"]["val/bpb"], rel=1e-6)
    longer_memory = evaluate(finished / CHECKPOINT, {"task.evaluation": {"mixer.memory": 24}})
    assert longer_memory["val/bpb"] != pytest.approx(metrics["val/bpb"], rel=1e-6)
    sliding = evaluate(finished / CHECKPOINT, {"data.evaluation.stride": 1, "task.evaluation": {"mixer.memory": 0}})
    assert sliding["val/bpb"] > 0


@pytest.mark.slow
def test_evaluation_settings_change_nothing_but_the_evaluation(
    config: RunConfig, finished: Path, tmp_path: Path
) -> None:
    longer_memory = fit(config.override({"task.evaluation": {"mixer.memory": 24}}), tmp_path)
    assert longer_memory["metrics"] != read_record(finished)["metrics"]
    base_state, longer_state = weights(finished), weights(tmp_path)
    assert all(torch.equal(base_state[name], longer_state[name]) for name in base_state)
    with pytest.raises(ConfigError, match=r"task\.evaluation changes a field that model does not have.*memory"):
        config.override({"task.evaluation": {"mixer.memmory": 24}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.devices": 3}, "data.batch_size: 4 rows cannot be shared by 3 ranks"),
        (
            {"training.devices": 2, "data.evaluation.batch_size": 5},
            "data.evaluation.batch_size: 5 rows cannot be shared by 2 ranks",
        ),
        (
            {"training.devices": 4, "data": PairDataConfig(tokens_per_batch=60), "task": "seq2seq"},
            "data.tokens_per_batch 60 over 4 ranks does not hold one pair each",
        ),
    ],
)
def test_ranks_that_cannot_share_a_batch_are_refused_before_any_starts(
    small_run: RunConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        small_run.override(changes)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.device": "cuda"}, "training.device: no CUDA device is to be found"),
        ({"training.precision": "bf16", "training.device": "auto"}, "training.precision: bf16 needs CUDA"),
        (
            {"training.attention_kernel": "cudnn", "training.device": "auto"},
            "training.attention_kernel: cudnn needs CUDA",
        ),
        ({"training.devices": 2}, "torchrun --nproc-per-node 2"),
    ],
)
def test_what_this_machine_has_not_is_refused_before_anything_starts(
    config: RunConfig, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    if torch.cuda.is_available() and "devices" not in str(changes):
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ConfigError, match=message):
        fit(config.override(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.dim": 1_000_000_000}, "model: one of its weights has more numbers than can be counted"),
        ({"model.dim": 300_000_000}, r"model: its [\d,]+ weights alone take \d+.* [PE]iB"),
        ({"model.dim": 300_000_000, "model.mixer": "adaptive_span"}, r"model: its [\d,]+ weights alone take"),
        ({"model.depth": 100_000_000}, "model: 100,000,000 layers, and no network has more than 10,000"),
    ],
)
def test_what_no_memory_holds_is_refused_before_anything_is_built(
    config: RunConfig, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(config.override(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_and_a_batch_that_no_memory_holds_are_refused(config: RunConfig) -> None:
    require_memory(config, 10**6)
    with pytest.raises(ConfigError, match=r"model: its [\d,]+ weights alone take \d+"):
        require_memory(config, 10**15)
    with pytest.raises(ConfigError, match=r"data: a batch of [\d,]+ symbols takes \d+ .* set data\.batch_size lower"):
        require_memory(config.override({"data.batch_size": 10**12}), 10**6)


def test_weights_of_another_network_than_that_of_the_code_are_refused_in_a_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def renamed(contents: Any) -> None:
        name = next(name for name in contents["state_dict"] if name.endswith("weight"))
        contents["state_dict"][f"{name}s"] = contents["state_dict"].pop(name)

    def widened(contents: Any) -> None:
        contents["lit_transformers"]["config"]["model"]["dim"] = 32

    def without_bound(contents: Any) -> None:
        contents["lit_transformers"]["config"]["model"]["dim"] = 300_000_000

    for change, message in (
        (renamed, "does not fit the network that today's code builds: Missing key"),
        (widened, "does not fit the network that today's code builds: size mismatch"),
        (without_bound, "weights alone take"),
    ):
        contents = torch.load(finished / CHECKPOINT)
        change(contents)
        torch.save(contents, tmp_path / "other.ckpt")
        for command in ("evaluate", "generate"):
            assert main([command, str(tmp_path / "other.ckpt")]) == 2
            error = capsys.readouterr().err
            assert message in error and error.count("\n") == 1


def test_a_description_costs_no_training_and_agrees_with_the_record(config: RunConfig, finished: Path) -> None:
    description = describe(config)
    planned = {"planned_tokens": description.tokens}
    assert description._asdict() | planned == read_record(finished)["cost"]
    network = config.model.build(probe_data(257, 8))
    assert description.parameters == sum(p.numel() for p in network.parameters())
    assert description.tokens == 40 * 4 * 8


def test_no_variable_of_the_environment_enters_a_record(finished: Path) -> None:
    for path in finished.iterdir():
        assert CREDENTIAL.encode() not in path.read_bytes()


@pytest.mark.slow
def test_runs_that_are_only_measured_differently_are_trained_once(config: RunConfig, tmp_path: Path) -> None:
    config = config.override({"training.validate_every": None, "training.steps": 5})
    longer = config.override({"task.evaluation": {"mixer.memory": 24}})
    fit(config, tmp_path / "first")
    shared = fit(longer, tmp_path / "second")
    assert shared["measured"]["trained_by"] == "first"
    separate = fit(longer, tmp_path / "elsewhere" / "third")
    assert separate["measured"]["trained_by"] is None
    assert artifacts(tmp_path / "second") == artifacts(tmp_path / "elsewhere" / "third")


@pytest.mark.slow
def test_weights_of_which_a_bit_has_flipped_are_not_measured_not_resumed_and_not_taken_over(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config.override({"training.validate_every": None, "training.steps": 5})
    record = fit(config, tmp_path / "first")
    checkpoint = tmp_path / "first" / CHECKPOINT
    weight = load(checkpoint)[0].state_dict()["network.norm.bias"].numpy().tobytes()
    content = checkpoint.read_bytes()
    assert content.count(weight) == 1
    checkpoint.write_bytes(content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:]))
    with pytest.raises(ConfigError, match=r"first/checkpoint\.ckpt: is a damaged checkpoint"):
        evaluate(checkpoint)
    second_record = fit(config.override({"task.evaluation": {"mixer.memory": 24}}), tmp_path / "second")
    assert second_record["measured"]["trained_by"] is None and "is a damaged checkpoint" in capsys.readouterr().out
    (tmp_path / "first" / RECORD).unlink()
    assert reproducible(fit(config, tmp_path / "first")) == reproducible(record)
    assert checkpoint.with_suffix(".damaged").exists()


@pytest.mark.slow
def test_a_compiled_network_computes_the_same(config: RunConfig, tmp_path: Path) -> None:
    config = config.override({"training.steps": 4, "training.validate_every": None, "model.dropout": 0.0})
    one_segment = {"bytes": 8, "last": "cut"}  # the compiled training step has read segments with and without memory
    config = config.override({"model.mixer": {"kind": "attention", "memory": 8}, "model.depth": 1})
    config = config.override({"data.evaluation": one_segment, "data.batch_size": 2})  # as many rows as a probe has
    uncompiled = fit(config, tmp_path / "plain")
    compiled = fit(config.override({"training.compile": True}), tmp_path / "compiled")
    assert compiled["reason"] is None
    assert compiled["metrics"]["val/bpb"] == pytest.approx(uncompiled["metrics"]["val/bpb"], rel=1e-5)


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lightning.Trainer.save_checkpoint", full)
        record = fit(config, tmp_path / "run")
    assert (record["outcome"], record["reason"], record["resumable"]) == ("failed", "the disk is full", True)
    assert fit(config, tmp_path / "run")["outcome"] == "finished"
    assert artifacts(tmp_path / "run") == artifacts(finished)
