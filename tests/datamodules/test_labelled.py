"""LabelledData: every example once, in buckets of like lengths, resumed exactly, under a plain Lightning trainer."""

import io
import json
import lzma
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed
from forked import Forked
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules import (
    DataError,
    LabelledDataConfig,
    ListOpsConfig,
    MaskedSumConfig,
    NeedleConfig,
    ReviewsConfig,
    SentencesConfig,
    Shard,
)
from datamodules.core.windows import Endless, Once
from lit_transformers.batch import IGNORED, LabelledBatch, NumberLabels
from lit_transformers.config import ConfigError

LISTS = ListOpsConfig(shortest=4, longest=30, train=23, validation=11, test=5)


def config(**changes: Any) -> LabelledDataConfig:
    return LabelledDataConfig(source=LISTS, batch_size=4, window=2).override(changes)


def example_ordinals(batches: list[LabelledBatch]) -> list[int]:
    return [ordinal for batch in batches for ordinal in batch.example[batch.padding_mask.any(dim=1)].tolist()]


def rows(batches: list[LabelledBatch]) -> list[list[Any]]:
    return [
        [part.tolist() for part in (batch.inputs, batch.padding_mask, batch.labels, batch.example)] for batch in batches
    ]


def training_batches(data_config: LabelledDataConfig, count: int) -> list[LabelledBatch]:
    return list(islice(data_config.build().train_dataloader(), count))


def test_a_row_is_the_boundary_an_example_and_padding() -> None:
    data = config().build()
    batch = next(iter(data.train_dataloader()))
    longest = 0
    for row, ordinal in enumerate(batch.example.tolist()):
        example = data.examples.example("train", ordinal)
        length = 1 + len(example.symbols)
        assert batch.inputs[row].tolist() == [15, *example.symbols, *[0] * (batch.inputs.size(1) - length)]
        assert batch.padding_mask[row].tolist() == [True] * length + [False] * (batch.inputs.size(1) - length)
        assert batch.labels[row] == example.label
        longest = max(longest, length)
    assert batch.inputs.size(1) == longest
    assert batch.labels.dtype == torch.long and batch.marked is None


def test_padding_to_a_fixed_length_is_to_the_longest_that_can_come() -> None:
    sizes = {batch.inputs.size(1) for batch in training_batches(config(padding="fixed"), 6)}
    assert sizes == {31} == {config().build().description.length}


def test_numbers_are_labels_where_there_are_no_classes() -> None:
    data = config(source=MaskedSumConfig(length=6, ones=2)).build()
    batch = next(iter(data.train_dataloader()))
    assert data.description.labels == NumberLabels()
    assert batch.labels.dtype == torch.float32
    assert batch.labels[0].item() == pytest.approx(data.examples.example("train", int(batch.example[0])).label)


def test_marked_places_are_those_of_the_row_that_begins_with_a_boundary() -> None:
    source = NeedleConfig(length=9, distance=3, noise=5, marked="needles")
    for batch in training_batches(config(source=source), 3):
        assert batch.marked is not None
        needles = (batch.inputs >= 5) & (batch.inputs < 7)
        assert torch.equal(batch.marked, needles)
        assert needles.sum(dim=1).tolist() == [2] * 4


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 3))
def test_every_pass_is_complete(count: int, passes: int, seed: int) -> None:
    ordinals = Endless(count, seed).slice(0, passes * count)
    for epoch in range(passes):
        assert sorted(ordinals[epoch * count : (epoch + 1) * count]) == list(range(count))


@settings(max_examples=60)
@given(st.integers(1, 40), st.none() | st.integers(1, 50))
def test_an_evaluation_reads_every_example_once_up_to_its_limit(count: int, limit: int | None) -> None:
    ordinals = Once(count, limit).ordinals
    assert len(ordinals) == len(set(ordinals)) == min(count, limit or count)
    assert set(ordinals) <= set(range(count))


def test_passes_and_seeds_differ_in_their_order() -> None:
    order = Endless(20, 0)
    assert order.slice(0, 20) != order.slice(20, 40) != Endless(20, 1).slice(20, 40)


@pytest.mark.parametrize(("window", "workers"), [(1, 0), (3, 0), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_training_takes_every_example_of_a_pass_once(window: int, workers: int) -> None:
    data_config = config(workers=workers, window=window, batch_size=1, **{"source.train": 22})
    ordinals = example_ordinals(training_batches(data_config, 22 if window == 1 else 66))
    assert Counter(ordinals) == dict.fromkeys(range(22), len(ordinals) // 22)


@pytest.mark.parametrize(("window", "workers"), [(1, 0), (4, 0), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_an_evaluation_loader_shows_every_example_once(window: int, workers: int) -> None:
    data = config(workers=workers, window=window, **{"evaluation.batch_size": 3}).build()
    assert sorted(example_ordinals(list(data.val_dataloader()))) == list(range(11))
    assert sorted(example_ordinals(list(data.test_dataloader()))) == list(range(5))
    assert max(len(batch.labels) for batch in data.val_dataloader()) == 3


def test_a_part_is_evaluated_that_no_seed_changes_and_that_is_not_the_first() -> None:
    """The reviews are sorted by label, so that the first ones would all have the same label."""
    parts = [
        sorted(example_ordinals(list(config(seed=seed, **{"evaluation.examples": 4}).build().val_dataloader())))
        for seed in (0, 1)
    ]
    assert parts[0] == parts[1] != [0, 1, 2, 3]
    assert len(parts[0]) == 4
    data = config(**{"evaluation.split": "train"}).build()
    assert sorted(example_ordinals(list(data.val_dataloader()))) == list(range(23))


def test_rows_of_a_batch_are_about_as_long_and_batches_come_in_no_order() -> None:
    source = LISTS.override({"train": 400})

    def padding_share(window: int) -> float:
        return fmean(
            (~batch.padding_mask).float().mean().item()
            for batch in training_batches(config(source=source, window=window), 64)
        )

    assert padding_share(16) < 0.3 * padding_share(1)
    lengths = [batch.inputs.size(1) for batch in training_batches(config(source=source, window=16), 16)]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


def test_batches_of_sentences_have_little_padding_by_default(real_data: Path) -> None:
    source = SentencesConfig(corpus="sst2", path=str(real_data / "sst2-glue"), length=300)
    batches = training_batches(LabelledDataConfig(source=source), 64)
    masks = [batch.padding_mask for batch in batches]
    assert sum(int(mask.sum()) for mask in masks) >= 0.95 * sum(mask.numel() for mask in masks)
    lengths = [mask.size(1) for mask in masks]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


def test_a_window_that_is_not_named_holds_a_pass_at_most() -> None:
    """Else a batch would hold an example several times, for its copies are of one length."""
    unnamed = config(window=None, **{"source.train": 24})
    batches = training_batches(unnamed, 12)
    assert equal_batches(batches, training_batches(unnamed.override({"window": 6}), 12))
    passes = [example_ordinals(half) for half in (batches[:6], batches[6:])]
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1]) == list(range(24))


def equal_batches(first: list[LabelledBatch], second: list[LabelledBatch]) -> bool:
    return rows(first) == rows(second)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("taken", [1, 2, 3, 5, 7, 13])
def test_a_cursor_makes_the_next_batch_come(window: int, taken: int) -> None:
    """This holds in the middle of a window too, and of a pass, which has six batches."""

    def open_stream(cursor: str = "") -> Iterator[LabelledBatch]:
        return config(window=window).build().training().batches(cursor)

    batches = list(islice(open_stream(), 16))
    resumed = open_stream(batches[taken - 1].cursor)
    assert equal_batches(list(islice(resumed, 16 - taken)), batches[taken:])


class Recorder(L.LightningModule):
    """A model that learns nothing and stores the batches that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[LabelledBatch] = []

    def training_step(self, batch: LabelledBatch, index: int) -> Tensor:
        self.batches.append(batch)
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, use_distributed_sampler=False, **quiet, **options)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_fit_gets_exactly_the_next_batch(tmp_path: Path, workers: int) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> tuple[Recorder, L.Trainer]:
        model, fitter = Recorder(), trainer(max_steps=steps, max_epochs=-1)
        fitter.fit(model, config(workers=workers, window=3).build(), ckpt_path=checkpoint, weights_only=True)
        return model, fitter

    uninterrupted, _ = fit(13)
    first, fitter = fit(7)
    fitter.save_checkpoint(tmp_path / "stopped.ckpt")
    second, _ = fit(13, tmp_path / "stopped.ckpt")
    assert len(second.batches) == 6
    assert equal_batches(first.batches + second.batches, uninterrupted.batches)


def test_the_state_is_plain_data_that_loads_with_weights_only() -> None:
    data = config().build()
    trainer(max_steps=3).fit(Recorder(), data)
    file = io.BytesIO()
    torch.save(data.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == data.state_dict()


@pytest.mark.parametrize(("path", "value"), [("seed", 1), ("batch_size", 8), ("window", 5), ("padding", "fixed")])
def test_a_position_of_other_data_is_refused(path: str, value: Any) -> None:
    data = config().build()
    trainer(max_steps=2).fit(Recorder(), data)
    changed_data = config(**{path: value}).build()
    changed_data.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=f"^data.{path}: the checkpoint"):
        next(iter(changed_data.train_dataloader()))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"window": 5},
        {"padding": "fixed"},
        {"source.seed": 1},
        {"batch_size": 8},
        {"evaluation.examples": 3},
    ],
    ids=str,
)
def test_the_fingerprint_tells_everything_apart_that_decides_a_batch(changes: dict[str, Any]) -> None:
    assert config().build().fingerprint == config().build().fingerprint != config(**changes).build().fingerprint


def test_a_checkpoint_needs_no_data_to_describe_them_and_runs_that_train_alike_share_them() -> None:
    data_config = config(**{"evaluation.examples": 3, "evaluation.split": "test"})
    data = data_config.build()
    assert data_config.description_from(data.checkpoint_metadata()) == data.description
    assert data_config.with_default_evaluation() == config()
    assert data_config.protocol() == {"validation": 11, "test": 5, "split": "test", "examples": 3}
    assert LabelledDataConfig.from_dict(data_config.to_dict()) == data_config


def test_a_source_has_as_many_examples_as_it_says() -> None:
    source = LISTS.override({"train": 7, "validation": 8, "test": 9}).build()
    assert [source.count(split) for split in ("train", "validation", "test")] == [7, 8, 9]


def test_examples_have_names_that_runs_share() -> None:
    data = config(**{"evaluation.split": "test"}).build()
    assert [data.example_name(ordinal) for ordinal in range(2)] == ["test:0", "test:1"]


def test_what_a_rank_shows_without_a_share_of_a_batch_is_one_row_of_padding() -> None:
    reading = config(**{"evaluation.batch_size": 1}).build().evaluation("test")
    batch = next(reading._replace(rank=Shard(1, 2)).batches())
    assert batch.padding_mask.tolist() == [[False]] and batch.labels.tolist() == [IGNORED]


def _rank(data_config: LabelledDataConfig, folder: Path) -> None:
    """Runs on each of two ranks: reads the validation split and six training batches, and saves the ordinals."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = data_config.build()
    evaluated, trained_on = list(data.val_dataloader()), list(islice(data.train_dataloader(), 6))
    torch.save((len(evaluated), example_ordinals(evaluated), example_ordinals(trained_on)), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_end_together_and_share_everything(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", _rank, config(window=1, **{"source.train": 24}), tmp_path, ranks=2).finish()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert results[0][0] == results[1][0]
    assert sorted(results[0][1] + results[1][1]) == list(range(11))
    assert sorted(results[0][2] + results[1][2]) == list(range(24))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Returns a folder of reviews, sorted by label as published: all of one label, then all of the other."""
    for split, count in (("train", 40), ("test", 10)):
        generator = Random(split)
        labels = ["neg"] * (count // 2) + ["pos"] * (count // 2)
        texts = [f"{split} é{number} " + "x" * generator.randint(0, 60) for number in range(count)]
        lines = [{"label": label, "text": text} for label, text in zip(labels, texts, strict=True)]
        with lzma.open(tmp_path / f"made.{split}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.write("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_reviews_are_read_by_bytes_with_their_labels(written: Path) -> None:
    reviews = ReviewsConfig(path=str(written), length=16).build()
    assert (reviews.count("train"), reviews.count("test"), reviews.name("train", 3)) == (
        40,
        10,
        "made.train.jsonl.xz:4",
    )
    for ordinal in (0, 39):
        example = reviews.example("train", ordinal)
        assert len(example.symbols) <= 16
        assert bytes(example.symbols.tolist()).startswith(f"train é{ordinal} ".encode())
        assert example.label == int(ordinal >= 20)
    assert max(len(reviews.example("train", ordinal).symbols) for ordinal in range(40)) == 16


def test_the_test_reviews_validate_unless_a_part_of_training_is_held_out(written: Path) -> None:
    arena = ReviewsConfig(path=str(written))
    held_out = arena.override({"held_out": 0.3})
    assert arena.build().name("validation", 2) == arena.build().name("test", 2)
    assert arena.protocol()["validation"] == "test, as in the Long Range Arena"
    reviews = held_out.build()
    names = {split: {reviews.name(split, n) for n in range(reviews.count(split))} for split in ("train", "validation")}
    assert len(names["train"]) + len(names["validation"]) == 40 and not names["train"] & names["validation"]
    assert 4 <= len(names["validation"]) <= 20 and reviews.count("test") == 10
    assert held_out.protocol()["validation"] == "0.3 of train"
    rebuilt = held_out.build()
    assert {rebuilt.name("validation", n) for n in range(rebuilt.count("validation"))} == names["validation"]


def test_the_fingerprint_of_reviews_follows_content_not_place(written: Path, tmp_path: Path) -> None:
    reviews = ReviewsConfig(path=str(written)).build()
    fingerprint = reviews.fingerprint
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in written.glob("*.xz"):
        (moved / file.name).write_bytes(file.read_bytes())
    assert ReviewsConfig(path=str(moved)).build().fingerprint == fingerprint
    for changes in ({"length": 9}, {"held_out": 0.2}, {"labels": ["pos", "neg"]}):
        assert ReviewsConfig(path=str(moved)).override(changes).build().fingerprint != fingerprint
    part = ReviewsConfig(path=str(moved), length=9).build()
    assert part.content == reviews.content != part.fingerprint, "arms that read less of the same reviews are compared"


def broken_lines() -> Iterator[tuple[str, str]]:
    yield "{", r"made.train.jsonl:2: not JSON"
    yield "[1]", r"made.train.jsonl:2: not a JSON object but list"
    yield '{"label": "neg", "body": "x"}', r"made.train.jsonl:2: no text in the field 'text'"
    yield '{"label": "neg", "text": "\\ud800"}', r"made.train.jsonl:2: 'text' is not text that UTF-8 can write"
    yield '{"label": 1, "text": "x"}', r"made.train.jsonl:2: no text in the field 'label'"
    yield '{"label": "fair", "text": "x"}', r"made.train.jsonl:2: the label 'fair' is not in data.source.labels"


@pytest.mark.parametrize(("line", "message"), [*broken_lines()])
def test_a_review_that_cannot_be_read_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "made.train.jsonl").write_text('{"label": "neg", "text": "fine"}\n' + line)
    (tmp_path / "made.test.jsonl").write_text('{"label": "neg", "text": "fine"}\n')
    with pytest.raises(DataError, match=message) as error:
        ReviewsConfig(path=str(tmp_path)).build()
    assert "\n" not in str(error.value)


def test_missing_reviews_name_the_place_and_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIT_DATA", raising=False)
    with pytest.raises(DataError, match=r"imdb: no such file or folder \(LIT_DATA.* is not set\)"):
        ReviewsConfig().build()
    with pytest.raises(DataError, match=r"no file called \*train\*.jsonl; correct data.source.path or LIT_DATA"):
        ReviewsConfig(path=str(tmp_path)).build()


@pytest.mark.parametrize("labels", [["one"], ["same", "same"]])
def test_labels_that_are_no_classes_are_refused(labels: list[str]) -> None:
    with pytest.raises(ConfigError, match="labels must be 2 to 256 different ones"):
        ReviewsConfig.from_dict({"labels": labels})


@pytest.mark.slow
def test_the_reviews_of_imdb_are_all_there(real_data: Path) -> None:
    data = LabelledDataConfig(source=ReviewsConfig(length=1_000)).override({"evaluation.examples": 400}).build()
    assert [data.examples.count(split) for split in ("train", "validation", "test")] == [25_000] * 3
    batches = list(data.val_dataloader())
    labels = torch.cat([batch.labels for batch in batches])
    assert len(labels) == 400 and 0.4 < labels.float().mean() < 0.6
    assert max(batch.inputs.size(1) for batch in batches) == 1_001 == data.description.length
