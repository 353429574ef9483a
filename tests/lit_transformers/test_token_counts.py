"""Costs of a run are of the tokens that it has read: for every kind of data, over ranks, and after it was killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from forked import Forked

from datamodules import DenoisingData, LabelledData, RowData
from lit_transformers.batch import IGNORED, LabelledBatch, PairBatch, RowBatch, StringBatch, TextBatch
from lit_transformers.config import ConfigError
from lit_transformers.records.files import RECORD
from lit_transformers.runs import RunConfig, describe, fit
from lit_transformers.runs.runner import RUNNER
from lit_transformers.tasks.strings import Strings

SMALL = {"dim": 8, "heads": 2, "depth": 1, "positions": "learned"}
ENCODER = {"kind": "encoder", **SMALL}
TRANSLATOR = {"kind": "encoder_decoder", **SMALL}
LANGUAGE_MODEL = {"kind": "language_model", "dim": 8, "heads": 2, "depth": 1, "positions": "sinusoidal"}
SOURCE = {"kind": "topics", "documents": 41, "sentences": 6, "validation": 0.3, "test": 0.1}
TEXT = {"source": SOURCE, "tokenizer": "words", "length": 24, "batch_size": 4, "window": 2}
QUESTIONS = {"kind": "strings", "generator": "copy", "max_length": 9, "train": 300}
ACCURACY = {"kind": "seq2seq", "metrics": ["accuracy"]}
EXAMPLES = {"evaluation": {"examples": 6}}
STEPS, BATCHES = 5, 2


def segments(batch: TextBatch, data: Any) -> int:
    """Bytes are never the symbol 0 that pads; the boundary is the last one."""
    return int((batch.inputs != 0).sum())


def strings(batch: StringBatch, data: Any) -> int:
    """The last symbol of an answer is a target, and no input."""
    return sum(int((row != IGNORED).nonzero().max()) + 1 for row in batch.targets)


def examples(batch: LabelledBatch, data: LabelledData) -> int:
    """Each follows a boundary."""
    return sum(len(data.examples.example("train", ordinal).symbols) + 1 for ordinal in batch.example.tolist())


def rows(batch: RowBatch, data: RowData) -> int:
    """Each ends with [SEP]."""
    separator = data.description.separator
    return sum(int((row == separator).nonzero().max()) + 1 for row in batch.inputs)


def targets(batch: PairBatch, data: Any) -> int:
    """The boundary that ends a target is one of them."""
    return int((batch.targets != IGNORED).sum())


def texts(batch: PairBatch, data: DenoisingData) -> int:
    """The texts that both sides are made of, with the boundaries that end them."""
    reader = data.reader("train", ())
    return sum(len(reader.text(ordinal).symbols) + 1 for ordinal in batch.example.tolist())


class Case(NamedTuple):
    config: dict[str, Any]
    count: Callable[..., int]


LANES = {"kind": "language", "source": SOURCE, "segment_length": 64, "batch_size": 4, "evaluation": {"documents": 2}}
STRINGS = {"kind": "generated", "max_length": 9, "lengths": "uniform", "batch_size": 4, **EXAMPLES}
LISTOPS = {"kind": "listops", "train": 45, "validation": 6, "shortest": 3, "longest": 40, "depth": 3}
PAIRS = {"kind": "pairs", "source": QUESTIONS, "tokens_per_batch": 80, "window": 16, **EXAMPLES}
CASES = {
    "language": Case({"model": LANGUAGE_MODEL, "task": "causal_lm", "data": LANES}, segments),
    "strings": Case({"model": LANGUAGE_MODEL, "task": "strings", "data": STRINGS}, strings),
    "labelled": Case(
        {
            "model": ENCODER,
            "task": "classification",
            "data": {"kind": "labelled", "source": LISTOPS, "batch_size": 4, **EXAMPLES},
        },
        examples,
    ),
    "rows": Case(
        {
            "model": ENCODER,
            "task": "masked_lm",
            "data": {"kind": "rows", "packing": "doc_sentences", **TEXT, **EXAMPLES},
        },
        rows,
    ),
    "pairs": Case({"model": TRANSLATOR, "task": ACCURACY, "data": PAIRS}, targets),
    "denoising": Case(
        {
            "model": TRANSLATOR,
            "task": ACCURACY,
            "data": {"kind": "denoising", "noise": "span_corruption", "packing": "doc_sentences", **TEXT, **EXAMPLES},
        },
        texts,
    ),
}


def config_of(name: str, ranks: int = 1) -> RunConfig:
    training = {"steps": STEPS, "accumulate": BATCHES, "device": "cpu", "devices": ranks}
    return RunConfig.from_dict({"training": training, **CASES[name].config})


def counted(name: str) -> int:
    """The tokens of the batches that a run reads, as they are counted without it."""
    data = config_of(name).data.build()
    data.prepare_data()
    batches = islice(iter(data.train_dataloader()), STEPS * BATCHES)
    return sum(CASES[name].count(batch, data) for batch in batches)


def cost(directory: Path) -> dict[str, Any]:
    cost: dict[str, Any] = json.loads((directory / RECORD).read_text())["cost"]
    return cost


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of all kinds of data, by their names."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed")
    for name in CASES:
        record = fit(config_of(name), folder / name)
        assert record["outcome"] == "finished", record["reason"]
    return folder


@pytest.mark.first
@pytest.mark.parametrize("name", CASES)
def test_a_record_has_the_tokens_that_were_read_and_those_that_were_planned(name: str, undisturbed: Path) -> None:
    config, read = config_of(name), counted(name)
    planned = describe(config)
    assert cost(undisturbed / name) == planned._asdict() | {
        "tokens": read,
        "train_flops": pytest.approx(planned.train_flops * read / planned.tokens, rel=1e-12),
        "planned_tokens": planned.tokens,
    }
    assert read < planned.tokens


def test_the_speed_of_labelled_rows_is_that_of_the_examples_that_were_read(undisturbed: Path) -> None:
    speeds = {name: json.loads((undisturbed / name / RECORD).read_text())["measured"] for name in CASES}
    assert [name for name in CASES if "examples_per_second" in speeds[name]] == ["labelled"]
    ratio = speeds["labelled"]["examples_per_second"] / speeds["labelled"]["tokens_per_second"]
    batches = islice(iter(config_of("labelled").data.build().train_dataloader()), STEPS * BATCHES)
    assert ratio == pytest.approx(sum(len(batch.labels) for batch in batches) / counted("labelled"), rel=1e-12)
    assert RUNNER.measure_of(config_of("labelled"), "measured/examples_per_second").goal == "maximize"
    with pytest.raises(ConfigError, match="no 'measured/examples_per_second' would be in the record"):
        RUNNER.measure_of(config_of("strings"), "measured/examples_per_second")


def test_pairs_may_hold_more_targets_than_were_planned(tmp_path: Path) -> None:
    """Where sources may be longer than targets, short ones leave room for more of these."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split in ("train", "validation"):
        lines = (f"{number}\t{number * 1234567}\n" for number in range(10, 60))
        (corpus / f"{split}.tsv").write_text("".join(lines))
    source = {"kind": "records", "path": str(corpus), "source": 1, "target": 2, "header": False}
    sizes = {"tokens_per_batch": 40, "longest_source": 40, "longest_target": 20}
    data = {"kind": "pairs", "source": source, "tokenizer": "bytes", **sizes, **EXAMPLES}
    config = RunConfig.from_dict(
        {"model": TRANSLATOR, "task": ACCURACY, "data": data, "training": {"steps": STEPS, "device": "cpu"}}
    )
    record = fit(config, tmp_path / "run")
    batches = islice(iter(config.data.build().train_dataloader()), STEPS)
    assert record["cost"]["tokens"] == sum(targets(batch, None) for batch in batches) > STEPS * 20
    assert record["cost"]["planned_tokens"] == STEPS * 20


def fit_all(folder: Path) -> None:
    """Does the runs of all kinds of data on two ranks; for ``Forked``."""
    for name in CASES:
        fit(config_of(name, ranks=2), folder / name)


@pytest.mark.slow
def test_two_ranks_read_as_many_tokens_as_one(undisturbed: Path, tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", fit_all, tmp_path, ranks=2).finish()
    assert {name: cost(tmp_path / name) for name in CASES} == {name: cost(undisturbed / name) for name in CASES}


class Killed(BaseException):
    """Ends a run as SIGKILL does: no record is written, and no checkpoint."""


def test_what_was_read_before_a_kill_counts_once(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint follows every update. A kill amid the fourth update loses the counts of its first batch."""
    step, calls = Strings.training_step, iter(range(100))

    def step_or_die(task: Strings, batch: StringBatch, index: int) -> dict[str, Any]:
        if next(calls) == 3 * BATCHES + 1:
            raise Killed
        return step(task, batch, index)

    monkeypatch.setattr(Strings, "training_step", step_or_die)
    with pytest.raises(Killed):
        fit(config_of("strings"), tmp_path, keep_every=0.0)
    monkeypatch.undo()
    assert not (tmp_path / RECORD).exists()
    fit(config_of("strings"), tmp_path)
    assert cost(tmp_path) == cost(undisturbed / "strings")


def test_weights_that_are_taken_over_have_read_what_their_donor_has(undisturbed: Path) -> None:
    other = config_of("strings").override({"data.evaluation.examples": 7})
    record = fit(other, undisturbed / "measured otherwise")
    assert record["measured"]["trained_by"] == "strings"
    assert record["cost"] == cost(undisturbed / "strings")
