"""Columns of labels: of rows, of tokens and of spans, from a file from outside through batches to a checkpoint."""

from __future__ import annotations

import lzma
import os
import pickle
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from toy_labels import RisesConfig, SickConfig

from datamodules import EXAMPLES, Example, LabelledDataConfig, SyntheticConfig
from datamodules.core.documents import SPLITS, Shard
from datamodules.core.errors import DataError
from lit_transformers.batch import (
    IGNORED,
    LABEL,
    ClassedSpanLabels,
    ClassLabels,
    ClassSetLabels,
    DataDescription,
    GroupLabels,
    LabelledBatch,
    LabelledDescription,
    Labels,
    NumberLabels,
    SpanLabels,
    TagLabels,
    Vocabulary,
    labels_in,
)
from lit_transformers.checks.contract import checks_of, run_check
from lit_transformers.config import Config, ConfigError
from lit_transformers.runs import RunConfig, fit

VOCABULARY = Vocabulary(size=7, boundary=6, unit="word", byte_lengths=None)
KINDS: dict[str, Labels] = {LABEL: RisesConfig().description.labels, **RisesConfig().description.columns}


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for config in (RisesConfig, SickConfig):
        monkeypatch.setitem(EXAMPLES, config.kind, config)


def failed(case: Config) -> list[str]:
    return [
        f"{gate.name}: {gate.detail}"
        for name, check in checks_of(case)
        for gate in run_check(name, check)
        if not gate.passed
    ]


def rises(**changes: Any) -> LabelledDataConfig:
    return LabelledDataConfig(source=RisesConfig(), batch_size=8, window=4).override(changes)


def test_a_file_from_outside_brings_a_column_of_each_kind() -> None:
    assert failed(RisesConfig()) == []
    assert failed(rises(workers=0)) == []


def test_labels_stand_where_their_symbols_stand_behind_the_boundary() -> None:
    data = rises().build()
    batch: LabelledBatch = next(iter(data.train_dataloader()))
    assert batch.columns is not None and batch.columns.keys() == RisesConfig().description.columns.keys()
    for row in range(len(batch.inputs)):
        example = data.examples.example("train", int(batch.example[row]))
        count = len(example.symbols)
        tags = [IGNORED if tag is None else tag for tag in example.labels["tags"]]
        padding = [IGNORED] * (batch.inputs.size(1) - count - 1)
        assert labels_in(batch, "tags")[row].tolist() == [IGNORED, *tags, *padding]
        start, stop = labels_in(batch, "rise")[row].tolist()
        rise = example.labels["rise"]
        assert (start, stop) == ((IGNORED, IGNORED) if rise is None else (rise[0] + 1, rise[1] + 1))
        present = example.labels["present"]
        expected = [IGNORED] * 3 if present is None else [int(number in present) for number in range(3)]
        assert labels_in(batch, "present")[row].tolist() == expected
        assert labels_in(batch, "mean")[row].item() == pytest.approx(example.labels["mean"])
        assert labels_in(batch, LABEL)[row] == batch.labels[row] == example.label
        spans = [(a + 1, b + 1, label) for a, b, label in example.labels["halves"]]
        assert [tuple(span) for span in labels_in(batch, "halves")[row].tolist() if span[0] != IGNORED] == spans


def test_columns_go_between_processes_and_devices() -> None:
    batch = next(rises(workers=1).build().training().batches())
    for other in (
        pickle.loads(pickle.dumps(batch)),
        move_data_to_device(batch, "cpu"),
        torch.utils.data.default_convert(batch),
    ):
        assert isinstance(other, LabelledBatch) and other.columns.keys() == batch.columns.keys()
        assert all(torch.equal(other.columns[name], batch.columns[name]) for name in batch.columns)


def test_padding_of_a_rank_without_a_share_has_no_label_in_any_column() -> None:
    reading = rises(**{"evaluation.batch_size": 1}).build().evaluation("test")
    batch = next(reading._replace(rank=Shard(1, 2)).batches())
    assert not batch.padding_mask.any()
    for name, kind in KINDS.items():
        assert kind.fault(labels_in(batch, name), batch.padding_mask) is None
        assert isinstance(kind, NumberLabels) or set(labels_in(batch, name).flatten().tolist()) == {IGNORED}


def test_what_columns_hold_is_in_a_checkpoint_and_read_from_one_that_has_none() -> None:
    description = RisesConfig().description
    plain = description.to_dict()
    assert DataDescription.from_dict(plain) == description
    older = {name: value for name, value in plain.items() if name != "columns"}
    assert DataDescription.from_dict(older).label_columns == {LABEL: ClassLabels(count=2)}
    with pytest.raises(ConfigError, match="no kind of labels 'boxes'"):
        DataDescription.from_dict(plain | {"labels": {"kind": "boxes"}})


def test_a_run_trains_on_one_column_and_carries_the_others(tmp_path: Path) -> None:
    run = RunConfig.from_dict(
        {
            "model": {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1},
            "task": "classification",
            "data": rises().to_dict(),
            "training": {"steps": 3, "device": "cpu"},
        }
    )
    record = fit(run, tmp_path)
    assert record["outcome"] == "finished", record["reason"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_random_labels_are_of_their_kind(kind: Labels) -> None:
    torch.manual_seed(0)
    labels = kind.random(40, 9)
    assert kind.fault(labels, torch.ones(40, 9, dtype=torch.bool)) is None
    assert labels.dtype == kind.dtype and len(labels.unique()) > 1


def test_a_reader_of_labels_names_the_column_and_the_kind_that_it_needs() -> None:
    description = RisesConfig().description
    assert description.labels_of("tags", TagLabels, "tagging") == TagLabels(count=2)
    with pytest.raises(ConfigError, match=r"^data: tagging reads the column 'tag', which .* did you mean tags"):
        description.labels_of("tag", TagLabels, "tagging")
    with pytest.raises(ConfigError, match=r"^task: tagging needs tags, and the column 'rise' .* holds spans"):
        description.labels_of("rise", TagLabels, "tagging")
    with pytest.raises(ConfigError, match="no column 'tag'; did you mean tags"):
        labels_in(next(rises().build().training().batches()), "tag")
    for name in (LABEL, "two words"):
        with pytest.raises(ConfigError, match="cannot name a further column"):
            LabelledDescription(vocabulary=VOCABULARY, length=9, labels=SpanLabels(), columns={name: SpanLabels()})
    with pytest.raises(ConfigError, match="the column 'side' holds groups; name it 'group'"):
        columns = {"side": GroupLabels(names=("a", "b"))}
        LabelledDescription(vocabulary=VOCABULARY, length=9, labels=SpanLabels(), columns=columns)


REAL = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [False] * 4])
"""A row of four tokens, one of two, and one of padding."""
WRONG: dict[str, tuple[Labels, Any, str]] = {
    "class that there is not": (ClassLabels(count=2), [0, 2, IGNORED], "the label 2, and classes are 0 to 1"),
    "class of padding": (ClassLabels(count=2), [0, 1, 0], "a row of padding has a label"),
    "class for each token": (ClassLabels(count=2), [[0] * 4] * 3, "it has the shape (3, 4)"),
    "no number": (NumberLabels(), [0.0, float("nan"), 0.0], "a label is nan"),
    "class set beyond": (ClassSetLabels(count=2), [[0, 1], [2, 0], [IGNORED] * 2], "the label 2"),
    "class set of padding": (ClassSetLabels(count=2), [[0, 1], [1, 0], [0, 0]], "a row of padding has a label"),
    "group beyond": (GroupLabels(names=("a", "b")), [0, 2, IGNORED], "the label 2"),
    "group of padding": (GroupLabels(names=("a", "b")), [0, 1, 0], "a row of padding has a label"),
    "tag of padding": (TagLabels(count=2), [[0] * 4, [0] * 4, [IGNORED] * 4], "padding has a tag"),
    "tag that there is not": (TagLabels(count=2), [[0] * 4, [0, -1] + [IGNORED] * 2, [IGNORED] * 4], "the label -1"),
    "span in padding": (SpanLabels(), [[0, 4], [0, 3], [IGNORED] * 2], "the span 0 to 3 in a row of 2 tokens"),
    "empty span": (SpanLabels(), [[1, 1], [0, 1], [IGNORED] * 2], "the span 1 to 1"),
    "half a span": (SpanLabels(), [[IGNORED, 2], [0, 1], [IGNORED] * 2], "the span -100 to 2"),
    "second span beyond": (
        ClassedSpanLabels(count=2),
        [[[0, 1, 0], [1, 5, 1]], [[0, 1, 0], [IGNORED] * 3], [[IGNORED] * 3] * 2],
        "the span 1 to 5 in a row of 4 tokens",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_with_a_column_is_named(fault: str) -> None:
    kind, labels, message = WRONG[fault]
    assert message in (kind.fault(torch.tensor(labels, dtype=kind.dtype), REAL) or "nothing")


class _Wrong(SyntheticConfig):
    """Random symbols, and labels that a subclass draws wrongly."""

    train: int = 120
    validation: int = 60
    test: int = 60
    labels: ClassVar[Labels]

    @property
    def description(self) -> LabelledDescription:
        return LabelledDescription(vocabulary=VOCABULARY, length=9, labels=self.labels)

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        raise NotImplementedError

    def make(self, chance: Random) -> Example:
        symbols, label = self.draw(chance)
        return Example(np.array(symbols, np.int64), label)


class InterleavedConfig(_Wrong, kind="interleaved"):
    """Writes the tag of each symbol behind it."""

    labels = TagLabels(count=2)

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        tags = [chance.randrange(2) for _ in range(4)]
        symbols = [part for tag in tags for part in (2 + chance.randrange(4), tag)]
        return symbols, [part for tag in tags for part in (tag, None)]


class PlacedConfig(_Wrong, kind="placed"):
    """Tags by the place alone."""

    labels = TagLabels(count=2)

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        return [chance.randrange(6) for _ in range(8)], [0, 1] * 4


class ShortConfig(_Wrong, kind="short_of_tags"):
    """Has a tag less than symbols."""

    labels = TagLabels(count=2)

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        return [chance.randrange(6) for _ in range(8)], [chance.randrange(2) for _ in range(7)]


class PrintedConfig(_Wrong, kind="printed"):
    """Begins a row with where its span begins."""

    labels = SpanLabels()

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        start = chance.randrange(5)
        return [start, *(chance.randrange(6) for _ in range(7))], (start, start + 1)


class BeyondRowConfig(_Wrong, kind="beyond_row"):
    """Has spans that end behind the row."""

    labels = SpanLabels()

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        return [chance.randrange(6) for _ in range(8)], (chance.randrange(6), 9)


class LosesConfig(_Wrong, kind="loses"):
    """Leaves numbers out."""

    labels = NumberLabels()

    def draw(self, chance: Random) -> tuple[list[int], Any]:
        return [chance.randrange(6) for _ in range(8)], chance.choice([None, 0.5])


class SecondTextConfig(_Wrong, kind="told_by_second_text"):
    """The first symbol of the second text, which begins anywhere, is the label."""

    labels = ClassLabels(count=2)

    @property
    def description(self) -> LabelledDescription:
        return LabelledDescription(vocabulary=VOCABULARY, length=32, labels=self.labels, segments=2)

    def make(self, chance: Random) -> Example:
        label, second = chance.randrange(2), chance.randrange(4, 12)
        first, rest = ([chance.randrange(2, 6) for _ in range(count)] for count in (second, chance.randrange(4, 12)))
        return Example(np.array([*first, label, *rest]), label, second=second)


class MisplacedTextConfig(SecondTextConfig, kind="misplaced_second_text"):
    """The second text begins behind the row."""

    def make(self, chance: Random) -> Example:
        example = super().make(chance)
        return example._replace(second=len(example.symbols))


@pytest.mark.parametrize(
    ("config", "check", "message"),
    [
        (SecondTextConfig, "labels are not fed", "in the second text the symbol at place 0 alone tells every label"),
        (MisplacedTextConfig, "described as they are", "symbols, and a row has 2; count without"),
        (InterleavedConfig, "labels are not fed", "column 'label': the symbol after a token alone tells its tag"),
        (PlacedConfig, "labels are not fed", "column 'label': the place of a token alone tells its tag"),
        (ShortConfig, "described as they are", "it has 7 tags for 8 symbols; give labels that TagLabels describes"),
        (PrintedConfig, "labels are not fed", "the symbol at place 0 alone tells every label; leave labels out"),
        (BeyondRowConfig, "described as they are", "to 10 in a row of 9 tokens; give labels that SpanLabels describes"),
        (LosesConfig, "described as they are", "an example has no number, and every row needs one"),
    ],
)
def test_a_source_of_wrong_labels_is_noticed(config: type[Config], check: str, message: str) -> None:
    gate = next(gate for gate in run_check(check, dict(checks_of(config()))[check]))
    assert not gate.passed and message in gate.detail


def test_a_batch_whose_source_lacks_a_number_is_refused_with_the_column() -> None:
    data = LabelledDataConfig(source=RisesConfig(), batch_size=2).build()
    data.examples.example = lambda split, ordinal: Example(np.arange(3), 1)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="the column 'mean' of numbers cannot be laid out: an example has no number"):
        next(data.training().batches())


@pytest.fixture
def sick(tmp_path: Path) -> SickConfig:
    """The pairs of SICK, unpacked."""
    if "LIT_DATA" not in os.environ:
        pytest.skip("LIT_DATA is not set to the folder of sick2014")
    files = dict(zip(SPLITS, ("SICK_train", "SICK_trial", "SICK_test_annotated"), strict=True))
    for split, name in files.items():
        packed = Path(os.environ["LIT_DATA"], "sick2014", f"{name}.txt.xz")
        (tmp_path / f"{split}.txt").write_bytes(lzma.decompress(packed.read_bytes()))
    return SickConfig(folder=str(tmp_path))


def test_sick_has_a_class_and_a_number_in_one_batch(sick: SickConfig) -> None:
    data = LabelledDataConfig(source=sick, batch_size=16).build()
    assert {split: data.examples.count(split) for split in SPLITS} == {"train": 4500, "validation": 500, "test": 4927}
    batches = [*islice(data.training().batches(), 8)]
    for batch in batches:
        assert batch.labels.shape == labels_in(batch, "relatedness").shape == (16,)
    relatedness = torch.cat([labels_in(batch, "relatedness") for batch in batches])
    classes = torch.cat([batch.labels for batch in batches])
    assert relatedness.min() >= 1 and relatedness.max() <= 5 and {*classes.tolist()} == {0, 1, 2}
    assert relatedness[classes == 2].mean() > relatedness[classes == 1].mean() + 0.5, "entailed pairs are related"


@pytest.mark.slow
def test_sick_passes_the_checks_of_a_part_from_outside(sick: SickConfig) -> None:
    assert failed(sick) == []
