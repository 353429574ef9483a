"""Objectives that predict one value of a whole row: numbers do not depend on batches or padding, and they learn."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics.functional.classification import matthews_corrcoef

from datamodules import ListOpsConfig, MaskedSumConfig, NeedleConfig, Shard
from lit_transformers.batch import ClassLabels, LabelledBatch, LabelledDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.heads.head import Representation
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.heads.pooled import ClassLabel, ClassLabelConfig
from lit_transformers.heads.pooling import Pooled, pooled
from lit_transformers.models.encoder import Encoder
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.runs import RunConfig, describe, evaluate, fit, load
from lit_transformers.tasks.labelled import marks
from lit_transformers.tasks.pooled import PooledTask

ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 2, "positions": "sinusoidal"}
CAUSAL = ENCODER | {"kind": "language_model"}
LISTS = ListOpsConfig(shortest=4, longest=24, train=64, validation=23, test=9)
CONFIG = RunConfig.from_dict(
    {
        "model": ENCODER,
        "task": {"kind": "classification"},
        "data": {"kind": "labelled", "source": LISTS.to_dict(), "batch_size": 8, "window": 3},
        "training": {"steps": 12, "device": "cpu"},
    }
)
SUMS = CONFIG.override(
    {
        "task": "regression",
        "data.source": MaskedSumConfig(length=8, ones=2, levels=4, train=64, validation=23, test=9),
    }
)
WINDOW = {"kind": "window", "window": 1, "global_tokens": "marked"}


def build_task(config: RunConfig) -> PooledTask:
    """The task in evaluation mode, with weights large enough to matter."""
    torch.manual_seed(0)
    task = config.build_task(config.data.build())
    assert isinstance(task, PooledTask)
    with torch.no_grad():
        for parameter in task.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return task.eval()


def batches(config: RunConfig, count: int = 1) -> list[LabelledBatch]:
    loader = iter(config.data.build().train_dataloader())
    return [next(loader) for _ in range(count)]


def select_rows(batch: LabelledBatch, rows: slice) -> LabelledBatch:
    parts = [part[rows] if isinstance(part, Tensor) else part for part in batch]
    return LabelledBatch(*parts)


def with_padding(batch: LabelledBatch, by: int) -> LabelledBatch:
    """The same rows with more padding, which holds symbols that must not be seen."""
    inputs = torch.cat([batch.inputs, torch.full((len(batch.labels), by), 3)], dim=1)
    padding_mask = torch.cat([batch.padding_mask, torch.zeros(len(batch.labels), by, dtype=torch.bool)], dim=1)
    return batch._replace(inputs=inputs, padding_mask=padding_mask)


def gradients(task: PooledTask, parts: list[LabelledBatch]) -> list[Tensor]:
    """Of the mean over all examples, from the loss of each part."""
    task.zero_grad()
    total = sum(len(part.labels) for part in parts)
    for part in parts:
        (task.training_step(part, 0)["loss"] * len(part.labels) / total).backward()
    return [parameter.grad for parameter in task.parameters() if parameter.grad is not None]


def measured_metrics(config: RunConfig, task: PooledTask) -> dict[str, float]:
    task.metric.reset()
    with torch.no_grad():
        for index, batch in enumerate(config.data.build().val_dataloader()):
            task.validation_step(batch, index)
    return task.metric.compute()


BOTH = pytest.mark.parametrize("config", [CONFIG, SUMS], ids=["classification", "regression"])
READ = pytest.mark.parametrize(
    ("model", "pooling"),
    [
        *((ENCODER, pooling) for pooling in ("first", "mean", "last", "max", "attention")),
        *((CAUSAL, pooling) for pooling in ("mean", "last", "attention")),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)


@BOTH
def test_the_gradient_of_a_batch_is_that_of_its_parts(config: RunConfig) -> None:
    task, (batch,) = build_task(config).double(), batches(config)
    parts = [select_rows(batch, slice(0, 3)), select_rows(batch, slice(3, 8))]
    for gradient, split_gradient in zip(gradients(task, [batch]), gradients(task, parts), strict=True):
        torch.testing.assert_close(gradient, split_gradient)


@BOTH
def test_measured_numbers_do_not_depend_on_batches_windows_padding_or_workers(config: RunConfig) -> None:
    task = build_task(config).double()
    expected = measured_metrics(config, task)
    assert task.metric.per_document()[5].document == 5 and len(task.metric.per_document()) == 23
    for changes in (
        {"data.evaluation.batch_size": 5},
        {"data.window": 1},
        {"data.padding": "fixed"},
        {"data.workers": 2},
    ):
        assert measured_metrics(config.override(changes), task) == pytest.approx(expected, rel=1e-9), changes


@READ
def test_padding_changes_nothing(model: dict[str, Any], pooling: str) -> None:
    config = CONFIG.override({"model": model, "task.pooling": pooling})
    task, (batch,) = build_task(config).double(), batches(config)
    assert not batch.padding_mask.all(), "rows of several lengths"
    torch.testing.assert_close(task.evaluation_output(with_padding(batch, 5)), task.evaluation_output(batch))
    for row, length in enumerate(batch.padding_mask.sum(dim=1).tolist()):
        single = select_rows(batch, slice(row, row + 1))
        single = single._replace(inputs=single.inputs[:, :length], padding_mask=single.padding_mask[:, :length])
        torch.testing.assert_close(task.evaluation_output(single)[0], task.evaluation_output(batch)[row])


def test_a_row_is_pooled_as_the_name_says() -> None:
    hidden = torch.randn(2, 5, 3)
    padding_mask = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    assert torch.equal(pooled(hidden, padding_mask, "first"), hidden[:, 0])
    assert torch.equal(pooled(hidden, padding_mask, "last"), torch.stack([hidden[0, 2], hidden[1, 4]]))
    torch.testing.assert_close(
        pooled(hidden, padding_mask, "mean"), torch.stack([hidden[0, :3].mean(0), hidden[1].mean(0)])
    )
    largest = torch.stack([hidden[0, :3].max(0).values, hidden[1].max(0).values])
    assert torch.equal(pooled(hidden, padding_mask, "max"), largest)
    attention = Pooled("attention", hidden.size(-1))
    torch.testing.assert_close(attention(hidden, padding_mask), pooled(hidden, padding_mask, "mean"))
    attention.query.data = torch.linspace(-1.0, 2.0, hidden.size(-1))  # type: ignore[union-attr]
    for row, length in ((0, 3), (1, 5)):
        weights = torch.stack(
            [(attention.query @ vector / hidden.size(-1) ** 0.5).exp() for vector in hidden[row, :length]]
        )
        expected = (weights[:, None] * hidden[row, :length]).sum(0) / weights.sum()
        torch.testing.assert_close(attention(hidden, padding_mask)[row], expected)
    nothing = torch.zeros_like(padding_mask)
    assert not any(Pooled(pooling, hidden.size(-1))(hidden, nothing).any() for pooling in ("mean", "max", "attention"))


@BOTH
def test_numbers_are_those_of_the_definition(config: RunConfig) -> None:
    task = build_task(config)
    metrics = measured_metrics(config, task)
    data = config.data.build()
    batch_outputs, batch_labels = [], []
    for batch in data.val_dataloader():
        batch_outputs.append(task.evaluation_output(batch))
        batch_labels.append(batch.labels)
    outputs, labels = torch.cat(batch_outputs).detach().double(), torch.cat(batch_labels)
    if config is CONFIG:
        nats = -outputs.log_softmax(dim=-1)[range(23), labels]
        assert metrics["accuracy"] == (outputs.argmax(dim=-1) == labels).double().mean().item()
    else:
        nats = (outputs[:, 0] - labels).square() / 2
        assert metrics["mse"] == pytest.approx(2 * nats.mean().item(), rel=1e-6)
    assert metrics["nats"] == pytest.approx(nats.mean().item(), rel=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bias", [0.0, 50.0], ids=["all classes", "one class predicted"])
def test_matthews_correlation_is_that_of_torchmetrics_and_0_where_that_is_undefined(bias: float, classes: int) -> None:
    """Where one class alone is predicted it is 0 / 0, for which torchmetrics gives a number near 0."""
    outputs = torch.randn(classes, 40, generator=torch.manual_seed(3))
    labels = torch.arange(40) % 3 % 2  # the third class is predicted and is no label
    outputs[1] += bias + labels
    head = ClassLabel(ClassLabelConfig(), dim=classes, classes=classes)
    metric = HeadsMetric({"label": head})
    batch = LabelledBatch(labels[:, None], torch.ones(40, 1, dtype=torch.bool), labels, None, torch.arange(40), None)
    with torch.no_grad():
        for weight, value in zip(head.map.parameters(), (torch.eye(classes), torch.zeros(classes)), strict=True):
            weight.copy_(value)
        metric.update(batch.example, {"label": head.sums(Representation(None, outputs.T[:, None]), batch)})
    predicted = outputs.argmax(dim=0)
    expected = matthews_corrcoef(predicted, labels, task="multiclass", num_classes=classes).item() if bias == 0 else 0.0
    assert len(predicted.unique()) == (classes if bias == 0 else 1)
    assert metric.compute()["matthews"] == pytest.approx(expected, abs=1e-6)


@BOTH
def test_a_rank_that_shows_padding_counts_for_nothing(config: RunConfig) -> None:
    task = build_task(config)
    expected = measured_metrics(config, task)
    padding = next(config.data.build().evaluation("validation")._replace(rank=Shard(63, 64)).batches())
    task.validation_step(padding, 0)
    assert task.metric.compute() == expected
    task.metric.reset()
    task.validation_step(padding, 0)
    assert task.metric.compute() == {} and task.metric.per_document() == []


def context_seen_by(task: PooledTask, batch: LabelledBatch) -> Any:
    """The context that the network's stack was given."""
    contexts: list[Any] = []
    hook = task.network.stack.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[1]))
    task.training_reading(batch)
    hook.remove()
    return contexts[0]


def test_the_network_is_told_what_the_data_single_out_or_else_the_first_token() -> None:
    config = CONFIG.override({"model.mixer": WINDOW})
    task, (batch,) = build_task(config), batches(config)
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    assert torch.equal(marks(batch), first) and torch.equal(context_seen_by(task, batch).marked, first)
    moved_marks = first.roll(2, dims=1) & batch.padding_mask
    assert torch.equal(context_seen_by(task, batch._replace(marked=moved_marks)).marked, moved_marks)
    assert not torch.allclose(task.evaluation_output(batch), task.evaluation_output(batch._replace(marked=moved_marks)))


def test_a_mark_is_what_far_needles_need_to_meet() -> None:
    """Windows of one token on each side in two layers do not reach the first token; marked needles do."""
    source = NeedleConfig(length=24, distance=12, noise=4, marked="needles", train=8)
    config = CONFIG.override({"model.mixer": WINDOW, "data.source": source})
    task, (batch,) = build_task(config), batches(config)
    needles = (batch.inputs >= 4) & (batch.inputs < 6)
    assert torch.equal(marks(batch), needles)
    # Each needle by another: noise before or after tells the first token nothing, the needle does.
    changed = batch._replace(inputs=torch.where(needles, 9 - batch.inputs, batch.inputs))
    assert not torch.allclose(task.evaluation_output(batch), task.evaluation_output(changed))
    unmarked = torch.zeros_like(needles)
    rows_far = needles[:, :4].sum(dim=1) == 0
    outputs = [task.evaluation_output(each._replace(marked=unmarked))[rows_far] for each in (batch, changed)]
    assert rows_far.any() and torch.equal(*outputs)


def test_auxiliary_losses_are_trained_on_and_not_reported() -> None:
    halting = {"kind": "universal", "halting": {"ponder": 5.0}}
    config = CONFIG.override({"model.stack": halting})
    task, (batch,) = build_task(config), batches(config)
    step = task.training_step(batch, 0)
    ponder = float(sum(task.training_reading(batch).aux.values()).detach())
    assert ponder > 1
    assert step["loss"].item() == pytest.approx(step["nats"].item() + ponder, rel=1e-5)
    rows = task.label_head.nats(task.evaluation_output(batch), batch.labels)
    assert step["nats"].item() == pytest.approx(rows.mean().item(), rel=1e-5)


TOKENS: list[dict[str, Any]] = [
    {"kind": "full"},
    {"kind": "full", "tied": False},
    {"kind": "adaptive", "cutoffs": [5, 10], "shrink": 2},
    {"kind": "adaptive", "cutoffs": [5, 10], "shrink": 2, "tied": False},
]


@pytest.mark.parametrize("tokens", TOKENS, ids=str)
@pytest.mark.parametrize("model", [ENCODER, CAUSAL], ids=["encoder", "language_model"])
def test_whatever_is_trained_learns_and_the_rest_is_not_counted(model: dict[str, Any], tokens: dict[str, Any]) -> None:
    """DDP stops at a parameter that no gradient reaches."""
    config = CONFIG.override({"model": model | {"tokens": tokens}, "task.pooling": "mean"})
    task = build_task(config).train()
    trained = {name: parameter for name, parameter in task.named_parameters() if parameter.requires_grad}
    for batch in batches(config, 3):
        task.training_step(batch, 0)["loss"].backward()
    assert not [name for name, parameter in trained.items() if parameter.grad is None or not parameter.grad.any()]
    assert describe(config).parameters == sum(parameter.numel() for parameter in trained.values())


@READ
def test_the_cost_is_what_is_counted(model: dict[str, Any], pooling: str) -> None:
    config = CONFIG.override({"model": model, "task.pooling": pooling})
    task, length = build_task(config), config.data.length
    batch = config.task.random_batch(config.data.build().description)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.evaluation_output(batch)
    cost = describe(config)
    assert cost.flops_per_token == pytest.approx(counter.get_total_flops() / 2 / length, rel=0.02)
    assert cost.state_bytes == 0
    assert cost.tokens == 12 * 8 * 25


def refused() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"model": CAUSAL}, "task.pooling: the first token of a language_model sees only itself"
    yield (
        {"model": {"kind": "encoder_decoder"}},
        "model: classification reads a deformer or an encoder or a language_model",
    )
    yield {"data.source": "masked_sum"}, "task: classification needs classes, .* set task=regression"


@pytest.mark.parametrize(("changes", "message"), [*refused()])
def test_what_cannot_be_is_refused_before_anything_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(CONFIG.override(changes), tmp_path)
    with pytest.raises(ConfigError, match=message):
        CONFIG.override(changes).build_task(CONFIG.override(changes).data.build())


def test_data_of_another_kind_are_refused() -> None:
    message = r"task classification does not learn from data language, .*; set data to labelled"
    with pytest.raises(ConfigError, match=message):
        CONFIG.override({"data": "language"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"task.pooling": "mean"},
        {"task.pooling": "last"},
        {"task.pooling": "max"},
        {"task.pooling": "attention"},
        {"task.dropout": 0.5},
        {"task": "regression"},
        {"task.evaluation": {"positions": None}},
    ],
    ids=str,
)
def test_no_knob_is_ignored(changes: dict[str, Any]) -> None:
    assert changes_nothing(CONFIG, CONFIG)
    assert not changes_nothing(CONFIG.override(changes), CONFIG)


def test_data_may_single_out_another_token_than_the_first() -> None:
    marked, first = (
        CONFIG.override({"model.mixer": WINDOW | {"global_tokens": which}}) for which in ("marked", "first")
    )
    assert not changes_nothing(marked, first)


def trainer(steps: int) -> L.Trainer:
    return L.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, limit_val_batches=0,
    )  # fmt: skip


@pytest.mark.slow
def test_training_that_stops_in_the_middle_of_a_pass_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    """Eight batches are a pass and three a window: five are neither."""

    def fit_steps(steps: int, checkpoint: Path | None = None) -> tuple[PooledTask, L.Trainer]:
        L.seed_everything(0, verbose=False)
        task, steps_trainer = CONFIG.build_task(CONFIG.data.build()), trainer(steps)
        steps_trainer.fit(task, CONFIG.data.build(), ckpt_path=checkpoint, weights_only=True)
        assert isinstance(task, PooledTask)
        return task, steps_trainer

    uninterrupted, _ = fit_steps(12)
    _, steps_trainer = fit_steps(5)
    steps_trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    resumed, _ = fit_steps(12, tmp_path / "stopped.ckpt")
    for (name, expected), value in zip(uninterrupted.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(expected, value), name


def test_a_run_leaves_the_loss_of_every_example_and_is_measured_again(tmp_path: Path) -> None:
    record = fit(CONFIG, tmp_path)
    assert record["outcome"] == "finished", record["reason"]
    assert all(gate["passed"] for gate in record["gates"])
    assert record["data"]["name"] == "listops"
    assert record["protocol"]["split"] == "validation" and record["protocol"]["validation"] == 23
    with (tmp_path / "documents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"validation:{n}" for n in range(23)]
    assert tuple(rows[0]) == ("document", "name", "nats", "tokens", "bytes", "correct", "label", "predicted")
    metrics = record["metrics"]
    assert math.fsum(float(row["nats"]) for row in rows) / 23 == pytest.approx(metrics["val/nats"])
    assert sum(int(row["correct"]) for row in rows) / 23 == pytest.approx(metrics["val/accuracy"])
    assert json.loads((tmp_path / "record.json").read_text())["metrics"] == metrics
    checkpoint = tmp_path / "checkpoint.ckpt"
    assert evaluate(checkpoint) == pytest.approx(metrics, rel=1e-6)
    assert evaluate(checkpoint, {"data.evaluation.examples": 4}) != metrics
    task, _, _ = load(checkpoint)
    assert isinstance(task, PooledTask)


@pytest.mark.parametrize(
    "model", [ENCODER, pytest.param(CAUSAL, marks=pytest.mark.slow)], ids=["encoder", "language_model"]
)
def test_a_network_learns_which_symbol_a_row_holds(model: dict[str, Any]) -> None:
    """One of three symbols, anywhere in a row of nothing."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(size=6, boundary=5, unit="word", byte_lengths=None)
    description = LabelledDescription(vocabulary=vocabulary, length=9, labels=ClassLabels(count=3))
    training = CONFIG.training.override({"steps": 80, "optimizer.learning_rate": 0.01})
    config = CONFIG.task.override({"pooling": "mean" if model is CAUSAL else "first"})
    task = config.build(CONFIG.override({"model": model}).model, description, training)

    def rows() -> LabelledBatch:
        labels = torch.randint(3, (32,))
        inputs = torch.full((32, 9), 3)
        inputs[:, 0] = 5
        inputs[torch.arange(32), torch.randint(1, 9, (32,))] = labels
        return LabelledBatch(inputs, torch.ones(32, 9, dtype=torch.bool), labels, None, torch.arange(32), None)

    optimizer, schedule = training.learn(task)
    for _ in range(80):
        optimizer.zero_grad()
        task.training_step(rows(), 0)["loss"].backward()
        optimizer.step()
        schedule.step()
    task.eval().validation_step(rows(), 0)
    assert task.metric.compute()["accuracy"] == 1.0


@pytest.mark.slow
def test_needles_are_found_by_all_of_attention_and_by_windows_only_where_they_are_marked(tmp_path: Path) -> None:
    source = NeedleConfig(length=8, distance=5, noise=2, marked="needles", validation=128)
    base = CONFIG.override(
        {
            "data.source": source,
            "data.batch_size": 32,
            "training.steps": 150,
            "training.optimizer.learning_rate": 5e-3,
            "training.schedule.warmup": 20,
        }
    )
    arms = {"all": {}, "marked": {"model.mixer": WINDOW}, "window": {"model.mixer": WINDOW | {"global_tokens": "none"}}}
    accuracies = {
        name: fit(base.override(arm), tmp_path / name)["metrics"]["val/accuracy"] for name, arm in arms.items()
    }
    assert accuracies["all"] > 0.98 and accuracies["marked"] > 0.98
    assert accuracies["window"] < 0.8


@pytest.mark.slow
def test_sums_are_learnt(tmp_path: Path) -> None:
    config = SUMS.override(
        {
            "task.pooling": "mean",
            "data.source.train": 4_096,
            "data.batch_size": 32,
            "training.steps": 100,
            "training.optimizer.learning_rate": 0.01,
        }
    )
    baseline_mse = 2 * (1 - 4**-2) / 12
    assert fit(config, tmp_path)["metrics"]["val/mse"] < 0.2 * baseline_mse


def test_networks_are_of_the_kind_that_was_asked_for() -> None:
    assert isinstance(build_task(CONFIG).network, Encoder)
    assert isinstance(build_task(CONFIG.override({"model": CAUSAL, "task.pooling": "last"})).network, LanguageModel)
