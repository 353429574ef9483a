"""Texts and pairs of texts with a class, several classes or a number: rows, measures, class weights, predictions."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_f1_score, multilabel_exact_match, multilabel_f1_score

from datamodules import LabelledDataConfig
from datamodules.core.errors import DataError
from datamodules.core.examples import cut_longer
from datamodules.floors.labelled import labelled_floors
from datamodules.labelled.labelled_records import LabelledRecordsConfig
from datamodules.labelled.stored_texts import StoredText
from lit_transformers.batch import ClassSetLabels, NumberLabels, labels_in
from lit_transformers.config import ConfigError
from lit_transformers.heads.pooled import ClassLabel
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.runs.train import contents, make_trainer
from lit_transformers.tasks.pooled import PooledTask
from reports.judge.measures import measure_of
from reports.read.measurements import as_documents

ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "initial_std": 0.5}
WORDS = ["cold", "dull", "good", "fine", "film", "plot", "song"]
TASKS: dict[str, Any] = {
    "classes": {"kind": "classification", "pooling": "mean"},
    "sets": {"kind": "multi_label", "pooling": "mean"},
    "numbers": {"kind": "regression", "pooling": "mean", "column": "score"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of pairs, of which some have as many classes as they like, and of texts."""
    folder, draw = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for split, count in (("train", 120), ("dev", 60)):
        with (folder / f"{split}.tsv").open("w", newline="") as file:
            rows = []
            for _ in range(count):
                first, second = (" ".join(draw.choice(WORDS, draw.integers(1, 9))) for _ in range(2))
                shared = len({*first.split()} & {*second.split()})
                kind = ("apart", "near", "near", "same")[min(shared, 3)]
                moods = "|".join(word for word in ("cold", "dull", "good") if word in first)
                rows.append((first, second, kind, moods, shared + 0.5))
            csv.writer(file, delimiter="\t").writerows([("a", "b", "kind", "moods", "score"), *rows])
    return folder


def source(folder: Path, name: str = "classes", **fields: Any) -> dict[str, Any]:
    labels: dict[str, Any] = {"label": "kind", "labels": ["same", "near", "apart"], "columns": {"score": "numbers"}}
    if name == "sets":
        labels = {"label": "moods", "labels": ["good", "dull", "cold"], "divided_by": "|"}
    texts = {"kind": "labelled_texts", "path": str(folder), "text": "a", "second": "b"}
    return texts | labels | {"tokenizer": {"kind": "words", "size": 6}, "length": 16} | fields


def config_of(folder: Path, name: str = "classes", task: Any = None, **fields: Any) -> RunConfig:
    data = {"kind": "labelled", "source": source(folder, name, **fields), "batch_size": 16}
    training = {"steps": 3, "device": "cpu"}
    return RunConfig.from_dict({"model": ENCODER, "task": task or TASKS[name], "data": data, "training": training})


def saved(config: RunConfig, path: Path) -> tuple[Path, PooledTask]:
    """The checkpoint of a run that has not been trained."""
    torch.manual_seed(0)
    data = config.build_data()
    task = config.build_task(data).eval()
    assert isinstance(task, PooledTask)
    torch.save({"lit_transformers": contents(config, data, "its own"), "state_dict": task.state_dict()}, path)
    return path, task


def test_of_two_texts_the_longer_one_loses_its_end_symbol_by_symbol() -> None:
    for longest in range(1, 9):
        for first in range(12):
            for second in range(12):
                texts = [[*range(first)], [*range(second)]]
                while sum(map(len, texts)) > longest:  # of two that are equally long the first one
                    texts[len(texts[1]) > len(texts[0])].pop()
                cut = cut_longer(np.arange(first), np.arange(second), longest)
                assert [part.tolist() for part in cut] == texts, (longest, first, second)


def test_a_pair_is_read_as_two_segments_with_its_class_and_its_number(folder: Path) -> None:
    data = LabelledDataConfig.from_dict({"kind": "labelled", "source": source(folder), "batch_size": 8}).build()
    tokenizer, examples = data.examples.tokenizer, data.examples  # type: ignore[attr-defined]
    description = data.description
    separator, boundary = tokenizer.vocabulary.size, tokenizer.vocabulary.boundary
    assert (description.segments, description.labels.to_dict()["count"]) == (2, 3)
    assert isinstance(description.columns["score"], NumberLabels)
    with (folder / "dev.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for batch in data.val_dataloader():
        assert batch.segments is not None
        for place, ordinal in enumerate(batch.example.tolist()):
            row, real = rows[ordinal], batch.padding_mask[place]
            first, second = cut_longer(*(tokenizer.encode(row[name].encode()) for name in "ab"), 13)
            expected = [boundary, *first, separator, *second, separator]
            assert batch.inputs[place][real].tolist() == expected
            assert batch.segments[place].tolist() == [
                int(len(first) + 2 <= at < len(expected)) for at in range(batch.inputs.size(1))
            ]
            assert batch.labels[place] == ["same", "near", "apart"].index(row["kind"])
            assert labels_in(batch, "score")[place] == float(row["score"])
    assert sum(len(symbols) for _, symbols in examples.encoded("validation")) < 60 * 13


def test_a_text_has_any_number_of_classes_from_a_cell_or_a_list(folder: Path, tmp_path: Path) -> None:
    examples = LabelledRecordsConfig.from_dict(source(folder, "sets")).build()
    with (folder / "train.tsv").open() as file:
        moods = [row["moods"] for row in csv.DictReader(file, delimiter="\t")]
    names = ("good", "dull", "cold")
    for ordinal, cell in enumerate(moods):
        assert {names[n] for n in examples.example("train", ordinal).label} == {*filter(None, cell.split("|"))}
    assert min(map(len, moods)) == 0
    lines = [{"a": "x", "b": "y", "moods": moods} for moods in (["dull", "cold"], [], ["good"])]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    listed = LabelledRecordsConfig.from_dict(source(tmp_path, "sets")).build()
    assert [listed.example("train", number).label for number in range(3)] == [[1, 2], [], [0]]
    assert listed.config.description.labels == ClassSetLabels(count=3)


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ("x\ty\tfar\t\t1", {}, r"train.tsv:2: the label 'far' is not in data.source.labels; "),
        ("x\ty\tnear\t\tmuch", {}, r"train.tsv:2: the label 'much' is not a number; correct it, or name the classes"),
        ("x\ty\tnear\t\tnan", {}, r"train.tsv:2: the label 'nan' is not finite"),
        ("x\t\tnear\t\t1", {}, r"train.tsv:2: 'b' is empty; correct it, or set data.source.incomplete"),
        ("x\ty\tnear\t\t1", {"second": "c"}, r"train.tsv:2: no 'c'; "),
        ("x\ty\tnear\t\t1", {"columns": {"rate": "numbers"}}, r"train.tsv:2: no 'rate'; "),
    ],
)
def test_a_line_that_lacks_something_is_named(tmp_path: Path, row: str, fields: dict[str, Any], message: str) -> None:
    (tmp_path / "train.tsv").write_text(f"a\tb\tkind\tmoods\tscore\n{row}\n")
    with pytest.raises(DataError, match=message):
        LabelledRecordsConfig.from_dict(source(tmp_path, **fields)).build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"balanced": True}, "balanced and subset choose among training examples, but all are read; set examples"),
        ({"balanced": True, "examples": 10}, "equal numbers of 3 classes; set examples to a multiple"),
        ({"columns": {"label": "numbers"}}, "columns: 'label' cannot be the name of a further column"),
        ({"labels": "numbers", "divided_by": ","}, "divided_by divides classes, but labels are numbers"),
        (
            {"labels": "numbers", "balanced": True, "examples": 9},
            "one class for each example, but these labels are not",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LabelledRecordsConfig.from_dict(source(folder, **fields))


def test_the_same_pair_in_two_splits_is_counted_and_the_same_first_text_is_not(tmp_path: Path) -> None:
    header = "a\tb\tkind\tmoods\tscore\n"
    (tmp_path / "train.tsv").write_text(f"{header}x\ty\tnear\t\t1\n")
    (tmp_path / "dev.tsv").write_text(f"{header}x\ty\tsame\t\t2\nx\tz\tsame\t\t2\n")
    messages = LabelledRecordsConfig.from_dict(source(tmp_path)).build().reading_messages()
    assert messages == ["1 of 2 texts of validation stand in train too"]


def test_few_examples_are_nested_balanced_and_chosen_by_the_seed_where_that_is_asked(folder: Path) -> None:
    def chosen(seed: int = 0, **fields: Any) -> list[str]:
        data = {"kind": "labelled", "source": source(folder, **fields), "seed": seed}
        examples = LabelledDataConfig.from_dict(data).build().examples
        return [examples.name("train", number) for number in range(examples.count("train"))]

    def classes(**fields: Any) -> Counter[int]:
        examples = LabelledRecordsConfig.from_dict(source(folder, **fields)).build()
        return Counter(examples.example("train", number).label for number in range(examples.count("train")))

    for balanced in (False, True):
        few, more = (chosen(examples=count, balanced=balanced) for count in (9, 18))
        assert len(few) == 9 and {*few} < {*more}
        assert chosen(3, examples=9, balanced=balanced) == few
        by_seed = {"examples": 9, "balanced": balanced, "subset": "by_seed"}
        assert chosen(3, **by_seed) != few and chosen(3, **by_seed) == chosen(3, **by_seed, length=12)
        assert chosen(0, **by_seed) == few
        assert {*chosen(3, **by_seed)} < {*chosen(3, **(by_seed | {"examples": 18}))}
    assert [*classes(examples=9, balanced=True).values()] == [3, 3, 3]
    with pytest.raises(DataError, match=r"have the label 'same', but balanced needs 40 of each; set .* at most"):
        classes(examples=120, balanced=True)


@pytest.mark.parametrize("name", TASKS)
def test_measures_are_those_of_other_packages_and_reports_compute_them_from_the_sums(name: str, folder: Path) -> None:
    config = config_of(folder, "sets" if name == "sets" else "classes", TASKS[name])
    task = config.build_task(config.build_data()).eval()
    assert isinstance(task, PooledTask)
    outputs, labels = [], []
    with torch.no_grad():
        for batch in config.build_data().val_dataloader():
            task.validation_step(batch, 0)
            outputs.append(task.evaluation_output(batch))
            labels.append(labels_in(batch, task.config.column))
    values, truth = torch.cat(outputs), torch.cat(labels)
    measured = task.metric.compute()
    if name == "numbers":
        expected = {
            "pearson": scipy.stats.pearsonr(values[:, 0], truth).statistic,
            "spearman": scipy.stats.spearmanr(values[:, 0], truth).statistic,
            "mse": F.mse_loss(values[:, 0], truth).item(),
        }
    elif name == "classes":
        expected = {
            "macro_f1": multiclass_f1_score(values, truth, num_classes=3, average="macro").item(),
            "accuracy": (values.argmax(1) == truth).double().mean().item(),
            "nats": F.cross_entropy(values, truth).item(),
        }
    else:
        f1 = {
            f"{which}_f1": multilabel_f1_score(values, truth, 3, average=which).item() for which in ("micro", "macro")
        }
        expected = f1 | {
            "exact_match": multilabel_exact_match(values, truth, 3).item(),
            "nats": F.binary_cross_entropy_with_logits(values, truth.float(), reduction="sum").item() / 60,
        }
    assert measured == pytest.approx(measured | expected, rel=1e-5)
    assert measured.keys() == config.task.measures(task.data).keys()
    rows = task.metric.per_document()
    columns = {column: np.array([getattr(row, column) for row in rows], float) for column in task.metric.names}
    documents = as_documents([str(row.document) for row in rows], columns)
    sums = {"nats": documents.nats, "tokens": documents.tokens, "bytes": documents.bytes}
    own = {f"own_{column}": part for column, part in columns.items()}
    in_another_head = as_documents(documents.names, sums | own)
    for metric, value in measured.items():
        for called, read in ((f"val/{metric}", documents), (f"val/own_{metric}", in_another_head)):
            measure = measure_of(called, read.others)
            assert measure is not None
            assert float(measure.value(measure.sums(read).sum(axis=0))) == pytest.approx(value, rel=1e-6), called


def test_the_influence_of_an_example_on_spearmans_correlation_is_that_of_the_jackknife() -> None:
    draw = np.random.default_rng(0)
    x = np.round(draw.normal(3, 1, 300), 1)  # with equal values
    y = x + draw.normal(0, 1, 300)
    documents = as_documents([*map(str, range(300))], {"nats": x, "tokens": x, "bytes": x, "number": x, "predicted": y})
    measure = measure_of("val/spearman", documents.others)
    assert measure is not None
    values = measure.sums(documents)[:, 0]
    without = [scipy.stats.spearmanr(np.delete(x, row), np.delete(y, row)).statistic for row in range(300)]
    jackknife = -299 * (np.array(without) - np.mean(without))
    assert values.mean() == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert values - values.mean() == pytest.approx(jackknife, abs=0.02) and jackknife.std() > 0.3


@pytest.mark.parametrize("weights", ["balanced", [0.5, 1.0, 3.0]])
def test_losses_are_weighted_by_class_in_training_and_reported_without(weights: Any, folder: Path) -> None:
    config = config_of(folder, task=TASKS["classes"] | {"class_weights": weights})
    data = config.build_data()
    task = config.build_task(data)
    trainer = make_trainer(config.training.override({"steps": 1}), folder, [])
    trainer.fit(task, data)
    head = task.heads["label"]
    assert isinstance(head, ClassLabel) and head.class_weights is not None
    examples = data.examples  # type: ignore[attr-defined]
    counts = Counter(examples.example("train", number).label for number in range(120))
    expected = [120 / (3 * counts[n]) for n in range(3)] if weights == "balanced" else weights
    assert head.class_weights.tolist() == pytest.approx(expected)
    batch = next(iter(data.val_dataloader()))
    with torch.no_grad():
        outputs = task.evaluation_output(batch)
        step = task.training_step(batch, 0)
    weighted = F.cross_entropy(outputs, batch.labels, torch.tensor(expected), reduction="sum") / len(batch.labels)
    assert step["loss"].item() == pytest.approx(weighted.item(), rel=1e-5)
    assert step["nats"].item() == pytest.approx(F.cross_entropy(outputs, batch.labels).item(), rel=1e-5)


def test_weights_of_classes_are_kept_in_the_checkpoint_and_need_data_that_count(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, task=TASKS["classes"] | {"class_weights": "balanced"})
    assert fit(config, tmp_path)["outcome"] == "finished"
    task, _, _ = load(tmp_path / "checkpoint.ckpt")
    weights = task.state_dict()["heads.label.class_weights"]
    assert len({*weights.tolist()}) == 3
    with pytest.raises(ConfigError, match="class_weights: 2 weights, and the data have 3 classes; give one for each"):
        config.override({"task.class_weights": [1.0, 2.0]}).build_task(config.build_data())
    loader = config.build_data().train_dataloader()
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with pytest.raises(ConfigError, match="balanced needs counts of training labels, which this trainer's data lack"):
        trainer.fit(config.build_task(config.build_data()), loader)


def test_two_heads_learn_a_class_and_a_number_of_the_same_pairs(folder: Path, tmp_path: Path) -> None:
    head = {"kind": "number_label", "column": "score", "name": "score", "pooling": "mean"}
    config = config_of(folder, task=TASKS["classes"] | {"heads": [head]})
    record = fit(config, tmp_path)
    assert record["outcome"] == "finished", record["reason"]
    assert {"val/accuracy", "val/nats", "val/score_pearson", "val/score_nats"} <= record["metrics"].keys()
    assert config.task.measured_as("score_pearson") == "score:pearson"
    with pytest.raises(
        ConfigError, match="number_label reads the column 'scores', which does not exist; did you mean score"
    ):
        config.override({"task.heads": [head | {"column": "scores"}]}).build_task(config.build_data())


@pytest.mark.parametrize("name", TASKS)
def test_a_line_of_two_texts_is_predicted_as_its_example(name: str, folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, "sets" if name == "sets" else "classes", TASKS[name])
    checkpoint, task = saved(config, tmp_path / "checkpoint.ckpt")
    data = config.build_data()
    expected: dict[int, Any] = {}
    with torch.no_grad():
        for batch in data.val_dataloader():
            expected |= {prediction.document: prediction[1] for prediction in task.predict_step(batch, 0)}
    documents = data.examples.corpus.documents("validation")  # type: ignore[attr-defined]
    pairs = [StoredText.of(documents[number].text).texts for number in sorted(expected)]
    for form, lines in (
        ("text", ["\t".join(pair) for pair in pairs]),
        ("json", [json.dumps({"second": second, "first": first}) for first, second in pairs]),
    ):
        predictor = predictor_of(checkpoint, LineOptions(window=7), form)  # type: ignore[arg-type]
        results = [json.loads(line) for line in predictor.write(f"{line}\n".encode() for line in lines)]
        for number, result in zip(sorted(expected), results, strict=True):
            if name == "numbers":
                assert result == {"value": pytest.approx(expected[number], abs=1e-5)}
                continue
            probabilities = result["probabilities"]
            assert [*probabilities.values()] == pytest.approx(list(expected[number]), abs=1e-5)
            if name == "sets":
                assert [*probabilities] == ["good", "dull", "cold"]
                assert result["labels"] == [label for label, p in probabilities.items() if p >= 0.5]
            else:
                assert result["label"] == max(probabilities, key=probabilities.get)


def test_lines_that_lack_a_text_or_hold_unknown_symbols_alone_are_counted(folder: Path, tmp_path: Path) -> None:
    checkpoint, _ = saved(config_of(folder), tmp_path / "checkpoint.ckpt")
    predictor = predictor_of(checkpoint, LineOptions())
    results = [json.loads(line) for line in predictor.write([b"good film\t", b"good film\t!!! ???", b"good\tfilm"])]
    assert [result["label"] is None for result in results] == [True, False, False]
    messages = list(predictor.messages())
    assert "empty, and left so: 1" in messages
    assert "lines with a text of unknown symbols only: 1 (line 2)" in messages
    for form, line, message in (
        ("text", "good film", "line 1: has another form; give two texts with a tab between them"),
        ("json", '{"first": "good film"}', "line 1: has no field 'second'; give "),
    ):
        with pytest.raises(DataError, match=message):
            list(predictor_of(checkpoint, LineOptions(), form).write([line.encode()]))  # type: ignore[arg-type]


def test_floors_of_pairs_sets_and_numbers_know_what_two_texts_share(folder: Path) -> None:
    def floors(name: str, metric: str, **fields: Any) -> dict[str, float]:
        config = LabelledDataConfig.from_dict({"kind": "labelled", "source": source(folder, name, **fields)})
        return labelled_floors(config.build(), metric, 12)

    whole = {"tokenizer": "words"}
    common, logistic = floors("classes", "accuracy", **whole).values()
    mean, ridge = floors("classes", "score:pearson", **whole).values()
    assert logistic > common + 0.1 and mean == 0 and ridge > 0.8
    for metric in ("micro_f1", "macro_f1", "exact_match"):
        common, logistic = floors("sets", metric, **whole).values()
        assert logistic > common + 0.2
    common, logistic = floors("sets", "nats", **whole).values()
    examples = LabelledRecordsConfig.from_dict(source(folder, "sets")).build()
    trained, measured = (
        [examples.example(split, number).label for number in range(examples.count(split))]
        for split in ("train", "validation")
    )
    rates = [sum(n in own for own in trained) / 120 for n in range(3)]
    entropy = sum(-np.log(rate if n in own else 1 - rate) for own in measured for n, rate in enumerate(rates))
    assert logistic < common == pytest.approx(entropy / 60, rel=0.02)  # 384 rows are 120 examples, three times or four


def test_sick_is_pairs_with_an_entailment_and_a_relatedness() -> None:
    if "LIT_DATA" not in os.environ:
        pytest.skip("LIT_DATA is not set to the folder of sick2014")
    data = {"kind": "labelled", "source": {"kind": "sentences", "corpus": "sick"}}
    examples = LabelledDataConfig.from_dict(data).build().examples
    assert [examples.count(split) for split in ("train", "validation", "test")] == [4500, 500, 4927]
    first = examples.example("train", 0)
    texts = bytes(first.symbols[: first.second][:-1].tolist()), bytes(first.symbols[first.second : -1].tolist())
    assert texts[0] == b"A group of kids is playing in a yard and an old man is standing"[: len(texts[0])]
    assert (first.label, first.columns) == (2, {"relatedness": 4.5})
    assert "49 of 4,927 texts of test stand in train too" in examples.reading_messages()
