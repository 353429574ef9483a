"""Self-distillation: the teacher is the mean of the last weights, and neither stops nor ranks change anything."""

from __future__ import annotations

import copy
from pathlib import Path

import lightning as L
import pytest
import torch
from forked import Forked
from stopped_runs import stop_run
from torch import Tensor
from torch.nn import functional as F

from datamodules import ListOpsConfig
from lit_transformers.config import ConfigError
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, fit, load
from lit_transformers.runs.train import train
from lit_transformers.tasks.classification import Classification
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.stopping import Stop

CONFIG = RunConfig.from_dict(
    {
        "model": {"kind": "encoder", "dim": 16, "heads": 2, "depth": 2, "positions": "sinusoidal"},
        "task": {"kind": "classification", "pooling": "mean", "self_distillation": {"last": 2, "weight": 10.0}},
        "data": {
            "kind": "labelled",
            "source": ListOpsConfig(shortest=4, longest=24, train=64, validation=23, test=9).to_dict(),
            "batch_size": 8,
            "window": 3,
        },
        "training": {
            "steps": 5,
            "device": "cpu",
            "clip": None,
            "schedule": "constant",
            "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0},
        },
    }
)


def weights(path: Path) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in load(path / CHECKPOINT)[0].named_parameters()}


def by_hand(config: RunConfig, accumulate: int) -> dict[str, Tensor]:
    """The weights after plain descent, with the loss of arXiv:2002.10345 written out; a whole copy for each teacher."""
    L.seed_everything(config.seed, workers=True, verbose=False)
    data = config.data.build()
    task = config.build_task(data).train()
    assert isinstance(task, PooledTask)
    past: list[dict[str, Tensor]] = []
    batches = iter(data.train_dataloader())
    for _ in range(config.training.steps):
        update = [next(batches) for _ in range(accumulate)]
        task.zero_grad()
        rows = sum(len(batch.labels) for batch in update)
        for batch in update:
            outputs = task.label_head.outputs(task.read(task.network, batch), batch)
            loss = F.cross_entropy(outputs, batch.labels, reduction="sum") / rows
            if past:
                teacher = copy.deepcopy(task).eval()
                last = past[-2:]
                teacher.load_state_dict({name: sum(step[name] for step in last) / len(last) for name in last[0]})
                with torch.no_grad():
                    wanted = teacher.label_head.outputs(teacher.read(teacher.network, batch), batch)
                loss = loss + 10.0 * F.mse_loss(outputs, wanted) * len(batch.labels) / rows
            loss.backward()
        past.append({name: weight.clone() for name, weight in task.state_dict().items()})
        with torch.no_grad():
            for parameter in task.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
    return {name: weight.detach() for name, weight in task.named_parameters()}


def fitted(config: RunConfig, directory: Path) -> dict[str, Tensor]:
    directory.mkdir()
    train(config, config.data.build(), directory, f"of {directory.name}", Stop())
    return weights(directory)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_learns_the_outputs_of_the_mean_of_its_last_weights(accumulate: int, tmp_path: Path) -> None:
    config = CONFIG.override({"training.accumulate": accumulate})
    learned, expected = fitted(config, tmp_path / "run"), by_hand(config, accumulate)
    torch.testing.assert_close(learned, expected, rtol=1e-4, atol=1e-5)
    alone = fitted(config.override({"task.self_distillation": None}), tmp_path / "alone")
    assert any((alone[name] - learned[name]).abs().max() > 1e-3 for name in learned)


def test_a_stopped_run_resumes_with_its_teacher_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    config = CONFIG.override({"model.dropout": 0.2})
    whole = fitted(config, tmp_path / "whole")
    stop_run(config, tmp_path / "stopped", Classification, steps=3)
    held = torch.load(tmp_path / "stopped" / CHECKPOINT, weights_only=True)["past_weights"]
    assert len(held) == 3, "two and the weights of the last update, which are a teacher's of the next"
    fit(config, tmp_path / "stopped")
    torch.testing.assert_close(weights(tmp_path / "stopped"), whole, rtol=0, atol=0)


def train_here(config: RunConfig, directory: Path) -> None:
    """For ``Forked``."""
    train(config, config.data.build(), directory, f"of {directory.name}", Stop())


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_does(tmp_path: Path) -> None:
    alone = fitted(CONFIG, tmp_path / "one")
    (tmp_path / "two").mkdir()
    config = CONFIG.override({"training.devices": 2})
    Forked(tmp_path / "output.txt", train_here, config, tmp_path / "two", ranks=2).finish()
    torch.testing.assert_close(weights(tmp_path / "two"), alone, rtol=1e-4, atol=1e-5)


def test_the_teacher_costs_a_forward_pass() -> None:
    plain, distilled = describe(CONFIG.override({"task.self_distillation": None})), describe(CONFIG)
    assert distilled.flops_per_token == pytest.approx(plain.flops_per_token * 4 / 3)
    assert distilled.parameters == plain.parameters


def test_whole_weights_need_ranks_that_hold_them() -> None:
    config = CONFIG.override({"training.strategy": "fsdp", "training.devices": 2})
    with pytest.raises(
        ConfigError, match=r"task\.self_distillation: a teacher needs whole weights on each rank, .*strategy: ddp"
    ):
        config.build_task(config.data.build())


def test_the_teacher_drops_nothing() -> None:
    torch.manual_seed(0)
    config = CONFIG.override({"model.dropout": 0.5})
    data = config.data.build()
    task, batch = config.build_task(data).train(), next(iter(data.train_dataloader()))
    assert isinstance(task, PooledTask) and task.teacher(batch) is None, "the first update has none"
    task.after_step()
    teachers = [task.teacher(batch) for _ in range(2)]
    outputs = [teacher.outputs[task.label_head] for teacher in teachers if teacher is not None]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    torch.testing.assert_close(outputs[0], task.eval().evaluation_output(batch))
    assert task.train().training and all(module.training for module in task.network.modules())


@pytest.mark.slow
def test_no_field_of_self_distillation_is_ignored() -> None:
    assert changes_nothing(CONFIG, CONFIG)
    for field, value in (("", None), (".last", 1), (".weight", 1.0)):
        assert not changes_nothing(CONFIG.override({f"task.self_distillation{field}": value}), CONFIG), field


@pytest.mark.slow
def test_the_mean_of_the_weights_of_all_steps_is_the_self_ensemble(tmp_path: Path) -> None:
    """arXiv:2002.10345: the mean of the weights after every update."""
    plain = CONFIG.override({"task.self_distillation": None, "training.steps": 3})
    steps = [fitted(plain.override({"training.steps": steps}), tmp_path / str(steps)) for steps in (1, 2, 3)]
    ensemble = fitted(plain.override({"training.average": {"last": 3, "every": 1}}), tmp_path / "ensemble")
    torch.testing.assert_close(ensemble, {name: sum(step[name] for step in steps) / 3 for name in ensemble})
