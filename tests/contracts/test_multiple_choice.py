"""Multiple choice equals its definition: each choice read alone, a softmax over the choices of an example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from numerics import bound, placed, same
from torch import Tensor

from datamodules import DataError, LabelledData, LabelledDataConfig, Split
from datamodules.floors.measure import floors
from lit_transformers.batch import (
    IGNORED,
    ChoiceLabels,
    ClassLabels,
    LabelledBatch,
    LabelledDescription,
    Vocabulary,
    labels_in,
)
from lit_transformers.config import ConfigError
from lit_transformers.models import EncoderConfig
from lit_transformers.tasks import ClassificationConfig, MultipleChoiceConfig
from lit_transformers.tasks.multiple_choice import MultipleChoice
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=12, boundary=0, unit="byte", byte_lengths=None)
DATA = LabelledDescription(vocabulary=VOCABULARY, length=9, labels=ChoiceLabels(count=3), segments=2)
MODEL = EncoderConfig(dim=16, heads=2, depth=1, segments=2)
LENGTHS = [[9, 5, 7], [6, 8], [4, 4, 9], []]
"""The tokens of each choice; the last example is padding."""
LABELS = [2, 0, 1, IGNORED]


def batch_of() -> LabelledBatch:
    torch.manual_seed(0)
    lengths = torch.tensor([[*row, 0, 0, 0][:3] for row in LENGTHS])
    mask = torch.arange(9) < lengths[..., None]
    inputs = torch.randint(1, 12, (4, 3, 9)).masked_fill(~mask, 0)
    segments = ((torch.arange(9) > 2) & mask).long()
    return LabelledBatch(inputs, mask, torch.tensor(LABELS), None, torch.arange(4), None, segments=segments)


def task_of(**fields: Any) -> MultipleChoice:
    torch.manual_seed(0)
    task = MultipleChoiceConfig(**fields).build(MODEL, DATA, TrainingConfig(device="cpu"))
    return placed(task.double())


def by_definition(task: MultipleChoice, batch: LabelledBatch) -> list[Tensor]:
    """The scores of the choices of each example, each row read alone."""
    examples = []
    for inputs, segments, lengths in zip(batch.inputs, batch.segments, LENGTHS, strict=True):  # type: ignore[arg-type]
        scores = []
        for row, parts, length in zip(inputs, segments, lengths, strict=False):
            first = (torch.arange(length) == 0)[None]
            hidden = task.network.read_row(row[None, :length], None, first, parts[None, :length]).hidden[0]
            vector = hidden.mean(dim=0) if task.config.pooling == "mean" else hidden[0]
            if task.config.hidden is not None:
                vector = torch.tanh(vector @ task.choice_head.hidden.weight.T + task.choice_head.hidden.bias)  # type: ignore[union-attr, operator]
            scores.append(vector @ task.choice_head.map[1].weight[0])  # type: ignore[union-attr]
        examples.append(torch.stack(scores) if scores else torch.zeros(0))
    return examples


@pytest.mark.any_device
@pytest.mark.parametrize(("pooling", "hidden"), [("first", None), ("mean", None), ("first", "tanh")])
def test_the_loss_is_the_softmax_over_the_choices_of_an_example(pooling: str, hidden: str | None) -> None:
    task, batch = task_of(pooling=pooling, hidden=hidden), batch_of()
    scores = by_definition(task, batch)
    nats = [-row.log_softmax(0)[label] for row, label in zip(scores[:3], LABELS, strict=False)]
    output = task.training_step(batch, 0)
    same(output["loss"], torch.stack(nats).mean())
    output["loss"].backward()
    unused = {id(p) for p in task.unused()}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if id(p) not in unused)
    task.eval()
    with torch.no_grad():
        task.validation_step(batch, 0)
    right = [int(row.argmax()) == label for row, label in zip(scores[:3], LABELS, strict=False)]
    assert [(row.document, row.correct) for row in task.metric.per_document()] == [*enumerate(map(int, right))]
    results = task.metric.compute()
    assert (
        results["nats"] == pytest.approx(float(sum(nats).detach()) / 3, rel=bound(1e-6))
        and results["accuracy"] == sum(right) / 3
    )
    predicted = task.predict_step(batch, 0)
    assert [len(row.probabilities) for row in predicted] == [3, 2, 3]
    same(torch.tensor(predicted[1].probabilities, dtype=scores[1].dtype), scores[1].softmax(0))


def test_equal_scores_and_scores_that_are_no_numbers_are_wrong() -> None:
    task, batch = task_of(), batch_of()
    for value in (0.0, torch.nan):
        with torch.no_grad():
            task.choice_head.map[1].weight.fill_(value)  # type: ignore[union-attr, operator]
            task.metric.reset()
            task.validation_step(batch, 0)
        assert task.metric.compute()["accuracy"] == 0


def test_an_objective_of_other_labels_refuses_choices_and_this_one_refuses_classes() -> None:
    with pytest.raises(ConfigError, match=r"task: class_label needs classes, and the column 'label' .* holds choices"):
        ClassificationConfig().build(MODEL, DATA, TrainingConfig())
    classes = LabelledDescription(vocabulary=VOCABULARY, length=9, labels=ClassLabels(count=3))
    with pytest.raises(
        ConfigError, match=r"task: choice_scores needs choices, and the column 'label' .* holds classes"
    ):
        MultipleChoiceConfig().build(MODEL, classes, TrainingConfig())


RECORDS = [
    {"question": "one plus one", "choices": ["two", "three or four"], "answer": "A"},
    {"question": "the first letter", "choices": ["b", "a", "the last letter"], "answer": 1},
]


def records(folder: Path, *changed: dict[str, Any]) -> Path:
    for split in ("train", "validation"):
        rows = [*RECORDS, *changed] if split == "train" else RECORDS
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def data_of(folder: Path, **source: Any) -> LabelledData:
    plain = {"kind": "choices", "path": str(folder), "length": 40, "most": 3, **source}
    return LabelledDataConfig.from_dict({"source": plain, "batch_size": 2, "window": 1}).build()


def test_each_choice_of_a_record_is_a_row_behind_its_question(tmp_path: Path) -> None:
    data = data_of(records(tmp_path))
    [batch] = data.val_dataloader()
    separator = data.description.vocabulary.size - 2
    texts = []
    for rows, masks, segments in zip(batch.inputs, batch.padding_mask, batch.segments, strict=True):
        for row, mask, part in zip(rows, masks, segments, strict=True):
            first, second = row[mask & (part == 0)].tolist(), row[mask & (part == 1)].tolist()
            assert not first or (first[0] == data.description.vocabulary.boundary and first[-1] == separator)
            texts.append((bytes(first[1:-1]).decode(), bytes(second[:-1]).decode()))
    expected = [(row["question"], choice) for row in RECORDS for choice in row["choices"]]
    assert texts == [*expected[:2], ("", ""), *expected[2:]] and batch.labels.tolist() == [0, 1]
    assert data.description.labels.fault(labels_in(batch, "label"), batch.padding_mask) is None
    assert data.description.labels.fault(torch.tensor([2, 1]), batch.padding_mask) is not None


def test_a_row_that_is_too_long_loses_the_end_of_its_longer_text(tmp_path: Path) -> None:
    [batch] = data_of(records(tmp_path), length=16).val_dataloader()
    for rows, masks, segments in zip(batch.inputs, batch.padding_mask, batch.segments, strict=True):
        for row, mask, part in zip(rows, masks, segments, strict=True):
            assert mask.sum() <= 16 and (not mask.any() or int(row[mask & (part == 1)][-1]) == int(row[mask][-1]))
    first = batch.inputs[0, 0][batch.padding_mask[0, 0] & (batch.segments[0, 0] == 1)]
    assert bytes(first[:-1].tolist()) == b"two"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"question": "q", "choices": ["a", "b"], "answer": "C"},
            r"jsonl:3: the answer 'C' names none of the 2 choices",
        ),
        (
            {"question": "q", "choices": ["a", "b"], "answer": -1},
            r"jsonl:3: the answer '-1' names none of the 2 choices",
        ),
        ({"question": "q", "choices": ["a"], "answer": 0}, r"jsonl:3: 1 choices, but an example has 2 to 3"),
        ({"question": "q", "choices": ["a", "b"]}, r"jsonl:3: no 'answer'"),
    ],
)
def test_a_record_without_a_right_choice_is_refused_with_its_line(
    record: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        data_of(records(tmp_path, record)).prepare_data()


def test_floors_are_chance_the_longest_choice_and_the_words_of_the_question(tmp_path: Path) -> None:
    data = data_of(records(tmp_path))
    accuracy = floors(data, "accuracy", 1)
    assert accuracy["chance"] == pytest.approx((1 / 2 + 1 / 3) / 2) and accuracy["longest choice"] == 0
    assert floors(data, "nats", 1)["chance"] == pytest.approx(float(torch.tensor([2.0, 3.0]).log().mean()))


def squad(folder: Path, count: int) -> Path:
    paragraphs = [
        {"context": f"The paragraph of {n}.", "qas": [{"id": n, "question": f"Which is {n}?", "answers": []}]}
        for n in range(count)
    ]
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder / "squad.json"


def squad_data(path: Path, choices: int = 3) -> LabelledData:
    source = {"kind": "squad_choices", "path": str(path), "choices": choices, "validation": 0.3, "length": 48}
    return LabelledDataConfig.from_dict({"source": source, "batch_size": 2}).build()


def test_the_paragraph_of_a_question_is_among_those_of_its_split(tmp_path: Path) -> None:
    data, contexts = squad_data(squad(tmp_path, 30)), dict[str, set[str]]()
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        examples = [data.examples.example(split, ordinal) for ordinal in range(data.examples.count(split))]
        contexts[split] = set()
        for example in examples:
            assert example.choices is not None
            rows = [bytes(example.symbols[second:stop].tolist()[:-1]).decode() for _, second, stop in example.choices]
            question = bytes(example.symbols[: example.choices[0][1] - 1].tolist()).decode()
            assert len({*rows}) == 3 and rows[example.label].split()[-1][:-1] == question.split()[-1][:-1]
            contexts[split] |= {*rows}
        assert len({example.label for example in examples}) == 3
    assert not contexts["train"] & contexts["validation"]
    with pytest.raises(
        DataError, match=r"data.source.choices: the split \w+ has \d+ paragraphs, too few for 20 choices"
    ):
        squad_data(squad(tmp_path, 29), choices=20).prepare_data()
