"""A checkpoint with a changed byte is refused, and so is a file that never was one. Older checkpoints are read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from starting import start_from_file
from torch import Tensor

from lit_transformers.batch import Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.models import ModelConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit, recording
from lit_transformers.runs.starting_weights import StartingWeights, own_names, write_weights
from lit_transformers.tasks import Task, TaskConfig
from lit_transformers.training.checkpoints import read
from lit_transformers.training.config import TrainingConfig

HELD = {"lit_transformers": {"config": {"seed": 3}}, "state_dict": {"weight": torch.arange(40.0), "steps": 7}}


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(part, second[name]) for name, part in first.items())
    return torch.equal(first, second) if isinstance(first, Tensor) else bool(first == second)


@pytest.mark.slow
def test_a_bit_that_flips_anywhere_is_refused_or_was_of_nothing_that_is_read(tmp_path: Path) -> None:
    intact_path, damaged_path = tmp_path / "whole.ckpt", tmp_path / "damaged.ckpt"
    torch.save(HELD, intact_path)
    content = intact_path.read_bytes()
    error_count = 0
    for index in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[index] ^= 1 << index % 8
        damaged_path.write_bytes(flipped)
        try:
            assert equal(read(damaged_path), HELD), f"byte {index}"
        except ConfigError as error:
            assert error.path == str(damaged_path)
            error_count += 1
    assert equal(read(intact_path), HELD) and error_count > len(content) / 6


def test_a_part_that_is_marked_as_a_folder_is_refused(tmp_path: Path) -> None:
    """torch.load reads nothing of it, and returns the previous contents of memory."""
    path = tmp_path / "it.ckpt"
    torch.save(HELD, path)
    content = bytearray(path.read_bytes())
    attributes = content.rfind(b"PK\x01\x02", 0, content.rfind(b"it/data/0")) + 38
    content[attributes] |= 0x10
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged checkpoint, its part it/data/0 has changed since it was written"):
        read(path)


@pytest.mark.parametrize("content", [b"not a checkpoint\n", b"", b"PK\x03\x04 and no more"])
def test_what_is_no_checkpoint_is_refused_by_its_name_and_fault(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it.ckpt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert str(refusal.value) == f"{path}: is no checkpoint of a run, or a damaged one: File is not a zip file"


STRINGS = RunConfig.from_dict(
    {
        "model": {"kind": "language_model", "dim": 32, "heads": 2, "depth": 2, "positions": "learned"},
        "task": "strings",
        "data": {"kind": "generated", "max_length": 9, "batch_size": 4, "evaluation": {"examples": 8}},
        "training": {"steps": 4, "device": "cpu", "validate_every": 4},
    }
)


class Killed(BaseException):
    """Ends a run as SIGKILL does: no record is written, and no checkpoint."""


@pytest.fixture(scope="module")
def ended_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two runs, ``ended`` and ``kept``, of which the second keeps the state of its optimizer."""
    folder = tmp_path_factory.mktemp("runs")
    fit(STRINGS, folder / "ended")
    fit(STRINGS.override({"training.keep_optimizer": True}), folder / "kept")
    return folder


def test_a_run_that_has_ended_keeps_its_weights_and_no_moments_unless_it_is_to(ended_runs: Path) -> None:
    paths = [ended_runs / name / CHECKPOINT for name in ("ended", "kept")]
    states, sizes = [*map(read, paths)], [path.stat().st_size for path in paths]
    weights = 4 * sum(tensor.numel() for tensor in states[0]["state_dict"].values())
    assert sizes[1] - sizes[0] > 1.9 * weights and sizes[0] < 1.6 * weights
    assert equal(states[0]["state_dict"], states[1]["state_dict"])
    assert [len(state["optimizer_states"]) for state in states] == [0, 1]


def trained_further(checkpoint: Path, steps: int) -> Task:
    """Trains by a user's trainer from a checkpoint up to ``steps`` updates."""
    task = Task.load_from_checkpoint(checkpoint)
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(task, STRINGS.data.build(), ckpt_path=checkpoint, weights_only=True)
    return task


def test_training_further_from_a_run_that_has_ended_needs_its_optimizer(ended_runs: Path) -> None:
    ended, kept = ended_runs / "ended" / CHECKPOINT, ended_runs / "kept" / CHECKPOINT
    reason = f"{ended}: holds no state of the optimizer, since its run has ended; train again with training.keep"
    with pytest.raises(ConfigError, match=re.escape(reason)):
        trained_further(ended, 6)
    trained_further(ended, 4)
    trained_further(kept, 6)


def test_a_run_that_is_killed_after_its_last_checkpoint_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that a callback has ended early, before the last of its steps."""
    stop = {"training.steps": 40, "training.validate_every": 1, "training.stop": {"patience": 1, "min_delta": 9.0}}
    config, killed = STRINGS.override(stop), tmp_path / "killed"
    expected = fit(config, tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr(recording, "write_record", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            fit(config, killed)
    assert read(killed / CHECKPOINT)["optimizer_states"] == []
    record = fit(config, killed)
    assert record["metrics"] == expected["metrics"] and record["cost"] == expected["cost"]
    assert record["measured"]["steps"] == expected["measured"]["steps"] == 2


VOCABULARY = Vocabulary(size=9, boundary=0, unit="piece", byte_lengths=None)
ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "positions": "learned", "segments": 2}
LANGUAGE = {"kind": "language_model", "dim": 8, "heads": 2, "depth": 1}
OLDER: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "masked_lm": (
        ENCODER,
        {"span_boundary": {"width": 4}},
        {
            "relation_head.0.weight": "heads.relation.map.0.weight",
            "boundary_head.map.3.bias": "heads.boundary.map.3.bias",
            "boundary_head.places.weight": "heads.boundary.places.weight",
            "detector.weight": "heads.phrase.map.weight",
        },
    ),
    "permutation_lm": (
        ENCODER | {"query_stream": "learned"}, {}, {"relation_head.2.bias": "heads.relation.map.2.bias"}
    ),
    "replaced_tokens": (ENCODER, {}, {"head.2.weight": "heads.discriminator.map.2.weight"}),
    "classification": (ENCODER, {}, {"head.1.weight": "heads.label.map.1.weight"}),
    "regression": (ENCODER, {}, {"head.1.bias": "heads.label.map.1.bias"}),
    "causal_lm": (
        LANGUAGE,
        {"future": [0.5, 0.25]},
        {"future.0.weight": "heads.future_1.logits.weight", "future.1.bias": "heads.future_2.logits.bias"},
    ),
}  # fmt: skip
"""The names that weights of tasks had before tasks were networks with heads, and their present names."""


def older_task(kind: str) -> tuple[Task, dict[str, Tensor], dict[str, str]]:
    """A task, its weights by older names, and the older name of each where it had another."""
    model, fields, _ = OLDER[kind]
    config = TaskConfig.from_dict({"kind": kind, **fields})
    data = config.probe_data(VOCABULARY, 8)
    if kind == "masked_lm":
        data = replace(data, phrases=True)  # type: ignore[call-arg]
    task = config.build(ModelConfig.from_dict(model), data, TrainingConfig())
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.normal_()
    older = {}
    for name in task.state_dict():
        former = (former + name.removeprefix(now) for former, now in task.former_names.items() if name.startswith(now))
        older[name] = next(former, name)
    return task, {older[name]: weight.clone() for name, weight in task.state_dict().items()}, older


@pytest.mark.parametrize("kind", OLDER)
def test_weights_that_an_older_task_has_written_are_read(kind: str, tmp_path: Path) -> None:
    """By ``load_state_dict``, and where a run starts from them."""
    task, weights, older = older_task(kind)
    assert not [name for name in weights if name.startswith("heads.")]
    for before, now in OLDER[kind][2].items():
        assert older[now] == before and torch.equal(weights[before], task.state_dict()[now])
    loaded, started = (older_task(kind)[0] for _ in range(2))
    loaded.load_state_dict(weights)
    file = tmp_path / "weights.safetensors"
    first = own_names(task)
    distinct = {name: weights[name] for now, name in older.items() if first[now] == now}
    write_weights(file, StartingWeights(task.model_config, "", distinct))
    assert start_from_file(started, file) == []
    for other in (loaded, started):
        torch.testing.assert_close(other.state_dict(), task.state_dict(), rtol=0, atol=0)


def test_an_older_import_is_exported_with_its_heads(tmp_path: Path) -> None:
    model = {
        "kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "positions": {"kind": "learned", "restart": "document"},
        "segments": 2, "norm": "post", "norm_epsilon": 1e-12, "mixer": {"bias": True}, "embedding_norm": True,
        "transform": "gelu", "tokens": {"scaled": False}, "initial_std": 0.02, "feedforward": {"activation": "gelu"},
    }  # fmt: skip
    config = TaskConfig.from_dict({"kind": "masked_lm"})
    data = config.probe_data(VOCABULARY, 8)
    task = config.build(ModelConfig.from_dict(model), data, TrainingConfig())
    names = own_names(task)
    now = {name: tensor for name, tensor in task.state_dict().items() if names[name] == name}
    before = {name.replace("heads.relation.map.", "relation_head."): tensor for name, tensor in now.items()}
    assert before.keys() != now.keys()
    for folder, weights in (("now", now), ("before", before)):
        (tmp_path / folder).mkdir()
        write_weights(tmp_path / folder / "weights.safetensors", StartingWeights(task.model_config, "bert", weights))
        export_weights(tmp_path / folder, tmp_path / f"{folder} exported")
    exported = [load_file(tmp_path / f"{folder} exported" / "model.safetensors") for folder in ("now", "before")]
    assert "cls.seq_relationship.weight" in exported[0]
    torch.testing.assert_close(*exported, rtol=0, atol=0)
