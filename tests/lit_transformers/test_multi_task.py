"""Several tasks with private heads: against separate tasks, in updates of several batches, as a stage, in lines."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from sampler.promises import PROMISES, Case
from sampler.trained import without_gates
from torch import Tensor

from lit_transformers.batch import (
    ClassLabels,
    LabelledBatch,
    LabelledDescription,
    MixedDescription,
    NumberLabels,
    SpanLabels,
    TagLabels,
    Vocabulary,
)
from lit_transformers.config import ConfigError
from lit_transformers.heads.pooled import NumberLabelConfig
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.models import ModelConfig
from lit_transformers.records.files import CHECKPOINT, DOCUMENTS
from lit_transformers.records.measure import minimized
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.runs.run_floors import floors
from lit_transformers.tasks import MultiTaskConfig, Task, TaskConfig
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.tasks.multi_task import MultiTask
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=11, boundary=0, unit="piece", byte_lengths=None)
MODEL = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 2, "positions": "learned"}
SOURCES = {
    "kinds": LabelledDescription(vocabulary=VOCABULARY, length=12, labels=ClassLabels(count=3)),
    "numbers": LabelledDescription(vocabulary=VOCABULARY, length=9, labels=NumberLabels()),
    "signs": LabelledDescription(vocabulary=VOCABULARY, length=10, labels=ClassLabels(count=2)),
}
DATA = MixedDescription.of_sources(SOURCES)
ANSWERS = LabelledDescription(vocabulary=VOCABULARY, length=12, labels=SpanLabels(), segments=2)
TASK: dict[str, Any] = {
    "kind": "multi_task",
    "tasks": {"signs": {"kind": "classification", "pooling": "mean"}},
    "weights": {"signs": 0.5},
}
WEIGHTS = {"kinds": 1.0, "numbers": 1.0, "signs": 0.5}
LABELS = {"mood": ["bad", "good"], "topic": ["art", "law", "sea"]}
CPU = TrainingConfig(device="cpu", steps=20)


def built(task: Mapping[str, Any] = TASK, data: MixedDescription = DATA) -> MultiTask:
    torch.manual_seed(0)
    task_of_all = TaskConfig.from_dict(dict(task)).build(ModelConfig.from_dict(MODEL), data, CPU)
    assert isinstance(task_of_all, MultiTask)
    return task_of_all.double()


def rows(source: str, count: int) -> LabelledBatch:
    """Random rows of a source, of unequal lengths."""
    described, place = SOURCES[source], [*DATA.sources].index(source)
    inputs = torch.randint(1, VOCABULARY.size, (count, described.length))
    real = torch.arange(described.length) < torch.tensor([described.length - row % 3 for row in range(count)])[:, None]
    ordinals = torch.arange(count) * len(SOURCES) + place
    labels = described.labels.random(count, described.length)
    labels = labels.double() if labels.is_floating_point() else labels
    return LabelledBatch(inputs * real, real, labels, None, ordinals, None, source=source)


def single_of(task: MultiTask, source: str) -> Task:
    """A task of a source alone, built anew, with copied weights."""
    config, described = task.config.task_of(source, DATA), replace(SOURCES[source], length=DATA.length)
    single = config.build(ModelConfig.from_dict(MODEL), described, CPU).double()
    single.network.load_state_dict(task.network.state_dict())
    single.heads["label"].load_state_dict(task.heads[source].state_dict())
    return single


def part(batch: LabelledBatch, start: int, stop: int) -> LabelledBatch:
    fields = {name: value[start:stop] for name, value in batch._asdict().items() if isinstance(value, Tensor)}
    return batch._replace(**fields)


def gradients(task: MultiTask, batches: list[LabelledBatch]) -> dict[str, Tensor]:
    task.zero_grad()
    task.begin_update(batches)
    for batch in batches:
        task.training_step(batch, 0)["loss"].backward()
    missing = [name for name, weight in task.named_parameters() if weight.requires_grad and weight.grad is None]
    unused = {id(weight) for weight in task.unused()}
    assert not [name for name in missing if id(dict(task.named_parameters())[name]) not in unused]
    return {name: weight.grad.clone() for name, weight in task.named_parameters() if weight.grad is not None}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "fields", [{"layers": 1}, {"combined_layers": [-2, -1], "layer_combination": "scalar_mix"}], ids=["lowest", "mixed"]
)
def test_all_tasks_read_the_layers_that_are_chosen(fields: dict[str, Any]) -> None:
    """As a task of one source that reads the same layers, and trains the same weights of their combination."""
    task, batch = built(TASK | fields), rows("signs", 5)
    described = replace(SOURCES["signs"], length=DATA.length)
    single = TaskConfig.from_dict(TASK["tasks"]["signs"] | fields).build(ModelConfig.from_dict(MODEL), described, CPU)
    for weight in task.combination.parameters():
        torch.nn.init.normal_(weight)
    single.double().network.load_state_dict(task.network.state_dict())
    single.combination.load_state_dict(task.combination.state_dict())
    single.heads["label"].load_state_dict(task.heads["signs"].state_dict())
    torch.testing.assert_close(task.evaluation_output(batch), single.evaluation_output(batch))
    for one, weight in ((task, 1.0), (single, 0.5)):
        (weight * one.training_step(batch, 0)["loss"]).backward()
    for own, expected in zip(task.combination.parameters(), single.combination.parameters(), strict=True):
        assert own.grad is not None and own.grad.any()
        torch.testing.assert_close(own.grad, expected.grad)


def test_the_loss_of_an_update_is_that_of_separate_tasks_that_share_a_network() -> None:
    """Each is a separate task with the same weights, whose losses are means over all of its rows in the update."""
    task = built()
    batches = [rows("kinds", 4), rows("signs", 3), rows("kinds", 2), rows("numbers", 5)]
    actual = gradients(task, batches)
    counts = {source: sum(len(batch.inputs) for batch in batches if batch.source == source) for source in SOURCES}
    expected: dict[str, Tensor] = {name: torch.zeros_like(gradient) for name, gradient in actual.items()}
    for batch in batches:
        single = single_of(task, batch.source)
        loss = single.heads["label"](single.training_reading(batch), batch).total / counts[batch.source]
        (WEIGHTS[batch.source] * loss).backward()
        for name, weight in single.named_parameters():
            if weight.grad is not None:
                expected[name.replace("heads.label.", f"heads.{batch.source}.")] += weight.grad
    same(actual, expected)


def test_batches_of_an_update_equal_their_rows_in_one_batch_of_each_source() -> None:
    task, kinds, signs = built(), rows("kinds", 7), rows("signs", 5)
    together = gradients(task, [kinds, signs])
    apart = gradients(task, [part(kinds, 0, 2), part(signs, 0, 4), part(kinds, 2, 7), part(signs, 4, 5)])
    same(together, apart)
    assert not together["heads.numbers.map.1.weight"].any()  # which waits, and has a gradient all the same


def test_measures_are_those_of_separate_tasks_and_means_count_each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, batches = built(), [rows("kinds", 9), rows("signs", 4), rows("numbers", 5), rows("kinds", 3)]
    batches[3] = batches[3]._replace(example=batches[3].example + 9 * len(SOURCES))
    task.eval()
    with torch.no_grad():
        for batch in batches:
            task.validation_step(batch, 0)
    results = task.metric.compute()
    for source in SOURCES:
        single = single_of(task, source).eval()
        with torch.no_grad():
            for batch in batches:
                if batch.source == source:
                    single.validation_step(batch, 0)
        expected = {f"{source}_{name}": value for name, value in single.metric.compute().items()}
        assert {name: value for name, value in results.items() if name.startswith(source)} == pytest.approx(expected)
    assert results["mean_nats"] == pytest.approx(math.fsum(results[f"{source}_nats"] for source in SOURCES) / 3)
    scores = task.config.scores_of(DATA)
    assert scores == {"kinds": "accuracy", "numbers": "pearson", "signs": "accuracy"}
    mean = math.fsum(results[f"{source}_{score}"] for source, score in scores.items()) / 3
    assert results["mean_score"] == pytest.approx(mean)
    assert results.keys() == task.config.measures(DATA).keys()
    monkeypatch.setattr(NumberLabelConfig, "measures", lambda *_: minimized("mse", "nats", per="example"))
    assert task.config.scores_of(DATA) == {}  # of numbers nothing is known of which more is better
    assert "mean_score" not in task.config.measures(DATA)
    classes = MixedDescription.of_sources({name: SOURCES[name] for name in ("kinds", "signs")})
    config = MultiTaskConfig(scores={"signs": "matthews"})
    assert config.scores_of(classes) == {"kinds": "accuracy", "signs": "matthews"}
    assert config.measures(classes)["mean_score"].goal == "maximize"


def test_probe_data_have_the_columns_and_the_measures_of_every_task() -> None:
    """Plans of studies probe each arm on random rows."""
    config = MultiTaskConfig.from_dict(
        {
            "kind": "multi_task",
            "tasks": {
                "near": {"kind": "regression", "column": "relatedness"},
                "signs": {"kind": "classification", "heads": [{"kind": "class_set_label", "column": "topics"}]},
            },
            "scores": {"near": "spearman", "signs": "matthews"},
        }
    )
    data = config.probe_data(VOCABULARY, 8)
    assert config.scores_of(data) == {"near": "spearman", "signs": "matthews"}
    for batch in config.random_batches(data):
        assert torch.isfinite(built(config.to_dict(), data).training_step(batch, 0)["loss"])


def test_answers_in_passages_count_as_classes_do() -> None:
    data = MixedDescription.of_sources({"answers": ANSWERS, "kinds": SOURCES["kinds"]})
    task = built(
        {"kind": "multi_task", "tasks": {"answers": {"kind": "question_answering"}}, "scores": {"answers": "f1"}}, data
    )
    questions, classes = task.config.random_batches(data)
    assert (questions.source, classes.source) == ("answers", "kinds") and questions.passages
    passages = tuple(passage._replace(answers=(passage.text,)) for passage in questions.passages)
    task.eval()
    with torch.no_grad():
        for batch in (classes, questions._replace(passages=passages)):
            task.validation_step(batch, 0)
    results = task.metric.compute()
    assert results["answers_f1"] > 1, "in per cent"
    assert results["mean_score"] == pytest.approx((results["answers_f1"] / 100 + results["kinds_accuracy"]) / 2)


def test_a_task_that_cannot_be_is_refused_in_a_line() -> None:
    tags = LabelledDescription(vocabulary=VOCABULARY, length=9, labels=TagLabels(count=3))
    refusals: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: built({"kind": "multi_task", "tasks": {"kind": "regression"}}),
            r"tasks\.kind: is no source of the data; did you mean kinds",
        ),
        (lambda: built({"kind": "multi_task", "weights": {"other": 1.0}}), r"weights\.other: is no source"),
        (lambda: built({"kind": "multi_task", "scores": {"kinds": "f1"}}), r"task\.scores\.kinds: is not measured"),
        (lambda: built({"kind": "multi_task", "tasks": {"numbers": "classification"}}), "classification needs classes"),
        (
            lambda: MultiTaskConfig(tasks={"a": TaskConfig.from_dict("masked_lm")}),
            r"tasks\.a is masked_lm, which does not learn from labels",
        ),
        (
            lambda: MultiTaskConfig(tasks={"a": TaskConfig.from_dict({"kind": "regression", "layers": 1})}),
            r"drop tasks\.a\.layers",
        ),
        (
            lambda: built({"kind": "multi_task"}, MixedDescription.of_sources({"words": tags})),
            "words holds tags, of which no objective is the usual",
        ),
        (lambda: built().of_source("other"), "there is no source 'other'"),
    ]
    for refused, reason in refusals:
        with pytest.raises(ConfigError, match=reason):
            refused()


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts whose first word tells their label, more of one task than of the other."""
    folder, draw = tmp_path_factory.mktemp("corpora"), random.Random(0)
    for name, labels in LABELS.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["text", "label"])
            for _ in range(120 if name == "mood" else 60):
                label = draw.choice(labels)
                lines.writerow([" ".join([label, *draw.choices(["u", "v", "w"], k=draw.randint(1, 5))]), label])
    return folder


def texts(folder: Path, name: str) -> dict[str, Any]:
    file = {"kind": "labelled_texts", "path": str(folder / f"{name}.csv"), "splits": "hash", "validation": 0.2}
    return file | {"labels": LABELS[name], "length": 32}


def run(folder: Path, **training: Any) -> RunConfig:
    return RunConfig.from_dict(
        {
            "model": {**MODEL, "positions": "sinusoidal", "dropout": 0.1},
            "task": "multi_task",
            "data": {
                "kind": "mixed",
                "sources": {name: texts(folder, name) for name in LABELS},
                "sampling": "uniform",
                "batch_size": 4,
                "window": 4,
            },
            "training": {
                "steps": 6,
                "device": "cpu",
                "log_every": 2,
                "schedule": "constant",
                "optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
                **training,
            },
        }
    )


@pytest.fixture(scope="module")
def trained(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of both tasks that has learned some of both."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with without_gates():
        fit(run(corpora, steps=60), folder)
    return folder


class Heads(L.Callback):
    """Keeps the weights of the heads after each update, with the source of its batch."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, Tensor]]] = []

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        assert isinstance(task, MultiTask)
        weights = {name: task.heads[name].get_parameter("map.1.weight").detach().clone() for name in LABELS}
        self.kept.append((batch.source, weights))


def test_a_head_moves_in_updates_with_a_batch_of_its_source_alone(corpora: Path) -> None:
    """Neither momentum nor decay moves it in others."""
    config, heads = run(corpora), Heads()
    data = config.build_data()
    trainer = L.Trainer(
        max_steps=9, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", limit_val_batches=0, callbacks=[heads],
    )  # fmt: skip
    trainer.fit(config.build_task(data), data)
    for (_, before), (source, after) in pairwise(heads.kept):
        assert [name for name in LABELS if not torch.equal(before[name], after[name])] == [source]
    assert {source for source, _ in heads.kept[1:]} == {*LABELS}


def test_a_run_learns_both_tasks_and_its_documents_are_those_of_both(trained: Path, corpora: Path) -> None:
    metrics = json.loads((trained / "record.json").read_text())["metrics"]
    assert metrics["val/mood_accuracy"] > 0.9 and metrics["val/topic_accuracy"] > 0.6
    assert metrics["val/mean_score"] == pytest.approx(
        (metrics["val/mood_accuracy"] + metrics["val/topic_accuracy"]) / 2
    )
    documents = list(csv.DictReader((trained / DOCUMENTS).open()))
    for name in LABELS:
        own = [row for row in documents if row["name"].startswith(f"{name}: ")]
        assert own and all(row[f"{name}_tokens"] == row["tokens"] == "1" for row in own)
        nats = [float(row[f"{name}_nats"]) for row in own]
        assert math.fsum(nats) / len(nats) == pytest.approx(metrics[f"val/{name}_nats"])
        assert sum(float(row[f"{name}_tokens"]) for row in documents) == len(own)


def test_the_floor_of_a_mean_over_tasks_is_that_of_the_best_predictors(corpora: Path) -> None:
    config = run(corpora)
    for mean, measure, best in (("mean_score", "accuracy", max), ("mean_nats", "nats", min)):
        values = [best(one.value for one in floors(config, f"val/{name}_{measure}")) for name in LABELS]
        [floor] = floors(config, f"val/{mean}")
        assert floor.value == pytest.approx(sum(values) / 2) and floor.name == "the best simple predictor of each task"


def test_a_mean_over_tasks_names_its_measures_with_their_columns_and_perfect_scores() -> None:
    tasks = {"answers": {"kind": "question_answering"}, "kinds": {"kind": "classification", "column": "topic"}}
    config = MultiTaskConfig.from_dict({"tasks": tasks, "scores": {"kinds": "accuracy", "answers": "f1"}})
    data = MixedDescription.of_sources({"kinds": SOURCES["kinds"], "answers": ANSWERS})
    full = {name: measure.full for name, measure in config.averaged("mean_score", data).items()}
    assert full == {"kinds_accuracy": 1.0, "answers_f1": 100.0} and config.averaged("answers_f1", data) == {}
    assert config.measured_as("kinds_accuracy") == "kinds_topic:accuracy"
    assert config.measured_as("answers_f1") == "answers_f1" and config.measured_as("mean_score") == "mean_score"


def test_one_task_starts_from_its_head_among_several(trained: Path, corpora: Path, tmp_path: Path) -> None:
    """By the labels' names, though they are now written in another order."""
    own = texts(corpora, "topic") | {"labels": LABELS["topic"][::-1]}
    plain = run(corpora).to_dict() | {
        "task": "classification",
        "data": {"kind": "labelled", "source": own, "batch_size": 4},
        "start": {"network": str(trained), "heads": "network", "head": "topic"},
    }
    config = RunConfig.from_dict(
        plain | {"training": {"steps": 1, "device": "cpu", "optimizer": {"kind": "sgd", "learning_rate": 1e-9}}}
    )
    with without_gates():
        metrics = fit(config, tmp_path / "one")["metrics"]
    before = json.loads((trained / "record.json").read_text())["metrics"]
    assert metrics["val/accuracy"] == before["val/topic_accuracy"]
    assert metrics["val/nats"] == pytest.approx(before["val/topic_nats"], rel=1e-4)
    refusals = {
        r"start\.heads: holds the heads of mood, topic; set start\.head to one": {
            "network": str(trained),
            "heads": "network",
        },
        r"start\.head: is not a task of start\.heads; did you mean topic": {
            "network": str(trained),
            "heads": "network",
            "head": "topics",
        },
        r"head is 'topic', but heads start anew; set start\.heads": {"network": str(trained), "head": "topic"},
    }
    for reason, start in refusals.items():
        with pytest.raises(ConfigError, match=reason):
            RunConfig.from_dict(config.to_dict() | {"start": start}).build_data()
    anew = RunConfig.from_dict(config.to_dict() | {"start": {"network": str(trained)}})
    assert anew.build_data().trained_symbols().labels == LABELS["topic"][::-1]


def test_a_line_is_predicted_by_the_head_that_is_named(trained: Path) -> None:
    options = LineOptions(4096, 8, "cut")
    for head, label in (("mood", "good"), ("topic", "sea")):
        predictor = predictor_of(trained / CHECKPOINT, options, head=head)
        [answer] = [json.loads(line) for line in predictor.write([f"{label} u v".encode()])]
        assert answer["label"] == label and {*answer["probabilities"]} == {*LABELS[head]}
    with pytest.raises(ConfigError, match="has heads of several tasks; name one with --head: mood, topic"):
        predictor_of(trained / CHECKPOINT, options)
    with pytest.raises(ConfigError, match="has no head 'moods'; did you mean mood"):
        predictor_of(trained / CHECKPOINT, options, head="moods")


def test_the_task_of_a_source_shares_the_weights_of_the_run(trained: Path) -> None:
    task, _, _ = load(trained / CHECKPOINT)
    assert isinstance(task, MultiTask)
    single = task.of_source("topic")
    assert single.heads["label"] is task.heads["topic"] and single.network is task.network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "accumulate"),
    [
        ("stopped anywhere and resumed it equals the undisturbed run to the bit", 3),
        ("two ranks have the numbers of one process", 3),
        ("measured in other batches it has the numbers of its record", 1),
    ],
)
def test_a_run_of_several_tasks_keeps_the_promises_of_every_run(
    promise: str, accumulate: int, corpora: Path, tmp_path: Path
) -> None:
    config = run(corpora, accumulate=accumulate, validate_every=2)
    PROMISES[promise].held(Case(config, tmp_path, 0))


FACTORS = {"temperature": 3.0, "labels": 0.7, "logits": 1.3, "hidden": 0.9, "cosine": 0.4, "relations": 0.6}


def distilled_pair() -> tuple[MultiTask, MultiTask]:
    """A student and its teacher, with other weights."""
    student, teacher = built(TASK | {"distillation": FACTORS}), built()
    for one in (teacher, student):
        for weight in one.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    student.learn_from(teacher)
    return student, teacher


@pytest.mark.parametrize("source", [*SOURCES])
def test_the_head_of_each_task_learns_from_the_teachers_head_of_the_task(source: str) -> None:
    """As the task of the source alone learns from a teacher of this task alone."""
    student, teacher = distilled_pair()
    batch = rows(source, 4)
    loss = student.train().training_step(batch, 0)["loss"]
    alone, its_teacher = single_of(student, source), single_of(teacher, source)
    config, weight = alone.config.override({"distillation": FACTORS}), WEIGHTS[source]
    single = config.build(ModelConfig.from_dict(MODEL), alone.data, CPU).double()
    assert isinstance(single, LabelledTask) and isinstance(its_teacher, LabelledTask)
    single.load_state_dict(alone.state_dict())
    single.learn_from(its_teacher)
    of_head = {"loss": single.training_step(batch, 0)["loss"]}
    of_states = sum(single.training_step(batch, 0)["weighted_aux"].values())
    torch.testing.assert_close(loss, weight * (of_head["loss"] - of_states) + of_states, rtol=1e-9, atol=1e-9)
    loss.backward()
    assert all(not weight.requires_grad and weight.grad is None for weight in teacher.parameters())
    others = [head for name, head in student.heads.items() if name != source]
    assert not any(weight.grad.any() for head in others for weight in head.parameters() if weight.grad is not None)


def test_several_tasks_refuse_a_teacher_of_other_tasks_and_of_other_rows() -> None:
    student, _ = distilled_pair()
    fewer = MixedDescription.of_sources({name: SOURCES[name] for name in ("kinds", "signs")})
    with pytest.raises(ConfigError, match=r"start\.teacher: has no head numbers that is a NumberLabel"):
        student.learn_from(built(data=fewer))
    with pytest.raises(ConfigError, match=r"several tasks have rows of several layouts; set .*rows to same"):
        TaskConfig.from_dict(TASK | {"distillation": FACTORS | {"rows": "contiguous"}})
    of_one = {"signs": {"kind": "classification", "pooling": "mean", "distillation": FACTORS}}
    with pytest.raises(ConfigError, match=r"signs shares the teacher; drop .*tasks\.signs\.distillation, and set"):
        TaskConfig.from_dict(TASK | {"tasks": of_one})
