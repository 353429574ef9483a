"""Runs on generated strings: the loss is of answers alone, lengths are measured apart, and resuming is exact."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules import GeneratedData
from lit_transformers.batch import IGNORED, StringBatch
from lit_transformers.config import ConfigError
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.heads.answer_symbols import AnswerSymbols, AnswerSymbolsConfig
from lit_transformers.heads.head import Representation
from lit_transformers.inference.write import write
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, evaluate, fit, load
from lit_transformers.runs.train import train
from lit_transformers.tasks.string_metric import StringMetric
from lit_transformers.tasks.strings import Strings
from lit_transformers.training.callbacks import Checkpointer
from lit_transformers.training.stopping import Interrupted, Stop

XL = {"kind": "attention", "encoding": "xl"}
CONFIG = RunConfig.from_dict(
    {
        "model": {"kind": "language_model", "dim": 32, "heads": 2, "depth": 2, "mixer": XL},
        "task": "strings",
        "data": {
            "kind": "generated",
            "generator": {"kind": "copy", "alphabet": 3},
            "max_length": 5,
            "lengths": "uniform",
            "batch_size": 32,
            "evaluation": {"lengths": [3, 5], "examples": 40},
        },
        "training": {"steps": 250, "device": "cpu", "optimizer": {"kind": "adamw", "learning_rate": 0.005}},
    }
)  # fmt: skip
SHORT = CONFIG.override({"training.steps": 12, "model.dropout": 0.1, "training.log_every": 3})


def task_of(config: RunConfig) -> Strings:
    torch.manual_seed(0)
    task = config.build_task(GeneratedData(config.data))
    assert isinstance(task, Strings)
    return task


def artifacts(directory: Path) -> tuple[Any, bytes, bytes]:
    """All that a report reads of a run, without its times."""
    record = json.loads((directory / "record.json").read_text())
    del record["measured"]
    return record, (directory / "metrics.csv").read_bytes(), (directory / "documents.csv").read_bytes()


def validation(config: RunConfig) -> list[StringBatch]:
    return list(GeneratedData(config.data).val_dataloader())


@pytest.mark.slow
def test_a_model_learns_to_copy_and_every_length_is_measured_apart(tmp_path: Path) -> None:
    changes = {"data.lengths": "fixed", "data.evaluation.lengths": [5, 12], "training.steps": 300}
    record = fit(CONFIG.override(changes), tmp_path)
    metrics = record["metrics"]
    assert record["outcome"] == "finished" and all(gate["passed"] for gate in record["gates"])
    assert metrics["val/accuracy@5"] > 0.95 and metrics["val/sequence_accuracy@5"] > 0.9
    assert metrics["val/accuracy@12"] < 0.9, "never trained"
    assert metrics["val/accuracy"] == pytest.approx(
        (6 * metrics["val/accuracy@5"] + 13 * metrics["val/accuracy@12"]) / 19
    )
    rows = list(csv.DictReader((tmp_path / "documents.csv").open()))
    assert [row["name"] for row in rows[::40]] == ["5:0", "12:0"]
    assert {row["tokens"] for row in rows if row["length"] == "12"} == {"13"}
    correct, tokens, nats = (sum(float(row[name]) for row in rows) for name in ("correct", "tokens", "nats"))
    assert metrics["val/accuracy"] == correct / tokens and metrics["val/nats"] == pytest.approx(nats / tokens)
    assert record["protocol"]["lengths"] == [5, 12] and record["data"]["name"] == "copy"


def test_the_loss_is_of_the_answer_alone() -> None:
    task, batch = task_of(CONFIG), next(iter(GeneratedData(CONFIG.data).train_dataloader()))
    step = task.training_step(batch, 0)
    logits = task.network.tokens.log_probabilities(task.network(batch.inputs, None, batch.padding_mask).hidden)
    expected = [-logits[b, t, batch.targets[b, t]] for b, t in (batch.targets != IGNORED).nonzero().tolist()]
    assert step["loss"].item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)
    assert step["nats"].item() == pytest.approx(step["loss"].item())
    changed = batch._replace(targets=torch.where(batch.targets == IGNORED, IGNORED, (batch.targets + 1) % 4))
    assert task.training_step(changed, 0)["loss"] != step["loss"]


def test_numbers_do_not_depend_on_how_strings_are_batched() -> None:
    metrics = []
    for rows in (40, 7):
        task = task_of(CONFIG).eval()
        with torch.no_grad():
            for batch in validation(CONFIG.override({"data.evaluation.batch_size": rows})):
                task.validation_step(batch, 0)
        metrics.append(task.metric.compute())
    assert metrics[0].keys() == metrics[1].keys()
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)


def test_accuracy_counts_symbols_and_whole_answers() -> None:
    tokens = SimpleNamespace(flops=None, log_probabilities=lambda hidden: hidden)
    head = AnswerSymbols(AnswerSymbolsConfig(), SimpleNamespace(tokens=tokens))  # type: ignore[arg-type]
    metric = StringMetric({"answers": head})
    targets = torch.tensor([[IGNORED, 1, 2, 0], [IGNORED, 2, 0, IGNORED]])
    predicted = torch.tensor([[0, 1, 2, 0], [3, 1, 0, 0]])  # 0 stands where nothing is scored, too
    probabilities = torch.full((2, 4, 4), 0.1).scatter(-1, predicted[..., None], 0.7)
    padding_mask = torch.ones(2, 4, dtype=torch.bool)
    batch = StringBatch(predicted, targets, padding_mask, torch.tensor([0, 1]), torch.tensor([7, 9]), "")
    reading = Representation(SimpleNamespace(tokens=tokens), probabilities.log())
    metric.update(batch.example, {"answers": head.sums(reading, batch)})
    assert metric.compute() == pytest.approx(
        {
            "accuracy": 4 / 5,
            "sequence_accuracy": 1 / 2,
            "nats": (-4 * math.log(0.7) - math.log(0.1)) / 5,
            "accuracy@7": 1.0,
            "sequence_accuracy@7": 1.0,
            "nats@7": -math.log(0.7),
            "accuracy@9": 1 / 2,
            "sequence_accuracy@9": 0.0,
            "nats@9": (-math.log(0.7) - math.log(0.1)) / 2,
        }
    )
    metric.reset()
    assert metric.compute() == {}


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_as_if_it_never_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(SHORT, tmp_path / "alone" / "whole")
    step = Strings.training_step

    def step_and_stop(task: Strings, batch: StringBatch, index: int) -> dict[str, Tensor]:
        if task.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(task, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Strings, "training_step", step_and_stop)
        with pytest.raises(Interrupted, match="stopped at step 5"):
            fit(SHORT, tmp_path / "stopped")
    fit(SHORT, tmp_path / "stopped")
    assert artifacts(tmp_path / "stopped") == artifacts(tmp_path / "alone" / "whole")


@pytest.mark.slow
def test_runs_that_are_measured_at_other_lengths_are_trained_once(tmp_path: Path) -> None:
    fit(SHORT, tmp_path / "first")
    record = fit(SHORT.override({"data.evaluation.lengths": [8]}), tmp_path / "second")
    assert record["measured"]["trained_by"] == "first"
    assert set(record["metrics"]) == {
        f"val/{n}{at}" for n in ("accuracy", "sequence_accuracy", "nats") for at in ("", "@8")
    }
    metrics = evaluate(tmp_path / "first" / CHECKPOINT, {"data.evaluation.lengths": [8]})
    assert metrics == pytest.approx(record["metrics"], rel=1e-6)


def test_what_changes_when_it_is_measured_shares_the_weights(tmp_path: Path) -> None:
    fit(SHORT, tmp_path)
    task, _, saved = load(tmp_path / CHECKPOINT, {"task.evaluation": {"mixer.scaled": False}})
    assert saved["description"] == "strings" and saved["max_length"] == 12 and saved["meanings"]["symbols"] == 4
    trained, evaluated = dict(task.network.named_parameters()), dict(task.evaluator().named_parameters())
    assert all(trained[name] is evaluated[name] for name in trained) and task.evaluator() is not task.network
    changed = evaluate(tmp_path / CHECKPOINT, {"task.evaluation": {"mixer.scaled": False}})
    assert changed["val/nats"] != evaluate(tmp_path / CHECKPOINT)["val/nats"]
    with pytest.raises(ConfigError, match="task: only a causal_lm writes text"):
        list(write(tmp_path / CHECKPOINT, "", 3, sampling=None))  # type: ignore[arg-type]


@pytest.mark.slow
def test_strings_begin_with_an_empty_state_so_memory_costs_and_changes_nothing_in_training() -> None:
    with_memory = CONFIG.override({"model.mixer.memory": 8})
    costs, token_by_token = describe(CONFIG), describe(with_memory).decoding_state
    assert describe(with_memory) == costs._replace(decoding_state=token_by_token)
    assert (costs.decoding_state, token_by_token) == (12 * 128, 8 * 128)
    assert describe(CONFIG).tokens == 250 * 32 * 12
    assert changes_nothing(with_memory, CONFIG)
    assert not changes_nothing(CONFIG.override({"model.mixer.scaled": False}), CONFIG)
    assert not changes_nothing(CONFIG.override({"task.evaluation": {"mixer.scaled": False}}), CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "causal_lm"}, "task causal_lm does not learn from data generated, .* set data to language"),
        ({"data": "language"}, "task strings does not learn from data language, .* set data to .*generated"),
        ({"data.max_lenght": 3}, "data.max_lenght: GeneratedDataConfig has no field .*; did you mean max_length"),
        ({"data.generator": "copi"}, "data.generator.kind: no kind 'copi'; did you mean copy"),
        ({"task": "string"}, "task.kind: no kind 'string'; did you mean strings"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_when_the_config_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIG.override(changes)


def test_a_model_of_another_kind_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: strings trains a language_model, not a encoder"):
        fit(CONFIG.override({"model": "encoder"}), tmp_path)
    assert not (tmp_path / "record.json").exists()


class ClampedConfig(MixerConfig):
    """A mixer whose weights must stay in a range."""

    def promises(self) -> Promises:
        return Promises(("causal",))

    def build(self, shape: Shape) -> Mixer:
        return Clamped(shape)


class Clamped(Mixer):
    """x W, with |W| at most 0.01 after every update."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(shape.dim, shape.dim)
        self.penalty = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        return MixerOutput(self.linear(x), None, {"penalty": 100 * self.penalty.square()})

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 0

    @torch.no_grad()
    def after_step(self) -> None:
        self.linear.weight.clamp_(-0.01, 0.01)


def clamped(config: RunConfig) -> RunConfig:
    return config.override({"model.mixer": ClampedConfig(), "model.initial_std": 0.5})


def test_mixers_act_after_every_update_and_before_a_checkpoint_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    largest_weights: list[float] = []

    def record_weights(checkpointer: Checkpointer, trainer: Any, task: Any, *arguments: Any) -> None:
        mixers = [module for module in task.modules() if isinstance(module, Clamped)]
        largest_weights.append(max(mixer.linear.weight.abs().max().item() for mixer in mixers))

    monkeypatch.setattr(Checkpointer, "on_train_batch_end", record_weights)
    config = clamped(SHORT)
    train(config, GeneratedData(config.data), tmp_path, tmp_path.name, Stop())
    assert len(largest_weights) == 12 and max(largest_weights) <= 0.01


def test_named_losses_are_trained_on_and_not_reported() -> None:
    task, batch = task_of(clamped(CONFIG)), next(iter(GeneratedData(CONFIG.data).train_dataloader()))
    step = task.training_step(batch, 0)
    assert (step["loss"] - step["nats"]).item() == pytest.approx(200, rel=1e-5), "two layers, 100 each"
    with torch.no_grad():
        task.validation_step(batch, 0)
    assert task.metric.compute()["nats"] == pytest.approx(step["nats"].item(), rel=1e-5)


class DrawingConfig(MixerConfig):
    """A mixer that draws random numbers, also when it is measured."""

    def promises(self) -> Promises:
        return Promises(("causal",))

    def build(self, shape: Shape) -> Mixer:
        return Drawing(shape)


class Drawing(Mixer):
    """x W with some noise."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> MixerOutput:
        return MixerOutput(self.linear(x) + torch.randn_like(x))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return 0


@pytest.mark.slow
def test_what_a_mixer_draws_depends_on_the_weights_alone_and_training_does_not_notice(tmp_path: Path) -> None:
    config = SHORT.override({"model.mixer": DrawingConfig()})
    metrics_by_run = []
    for interval in (4, 6, 12, None):
        changed = config.override({"training.validate_every": interval})
        directory = tmp_path / str(interval)
        directory.mkdir()
        metrics_by_run.append(train(changed, GeneratedData(config.data), directory, "its own", Stop())[0])
    assert all(metrics == metrics_by_run[0] for metrics in metrics_by_run)
    second_directory = tmp_path / "again"
    second_directory.mkdir()
    metrics, measured, _ = train(config, GeneratedData(config.data), second_directory, "its own", Stop())
    assert measured["trained_by"] == "None" and metrics == metrics_by_run[0], (
        "weights of another run are measured alike"
    )
