"""A run on labelled texts is invalid where a run that it starts from was trained on a text that it holds out."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lit_transformers.runs import RunConfig, fit, run_key
from lit_transformers.runs.held_out import held_out_gates
from lit_transformers.runs.runner import RUNNER

ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1}
TRAINING = {"steps": 2, "device": "cpu"}
TEXTS = [f"the text number {n} is about {n % 3} things" for n in range(80)]
HELD_OUT = ["here is a text of validation", "and here is one of the test", "short one"]


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Labelled texts, of which one of training is held out too; nothing is known of them from earlier tests."""
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "labelled").mkdir()
    files = {"train": [*TEXTS, "Here is a text -- of validation!"], "validation": [HELD_OUT[0], *HELD_OUT[2:]]}
    for split, texts in {**files, "test": HELD_OUT[1:2]}.items():
        with (tmp_path / "labelled" / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, str(n % 2)) for n, text in enumerate(texts))])
    return {
        "kind": "labelled_texts",
        "path": str(tmp_path / "labelled"),
        "labels": ["0", "1"],
        "splits": "folders",
        "tokenizer": "words",
        "length": 16,
    }


def config(labelled: dict[str, Any], source: dict[str, Any], later: dict[str, Any] | None = None) -> RunConfig:
    """A classifier after two stages of pretraining. later: the source of the second one."""
    rows = {"kind": "rows", "source": source, "tokenizer": "words", "length": 16, "batch_size": 4}
    pretraining = {"model": ENCODER, "task": "masked_lm", "data": rows, "training": TRAINING}
    between = pretraining | {"start": {"network": {"run": pretraining}, "heads": "network"}}
    between["data"] = rows | {"source": later or source}
    return RunConfig.from_dict(
        {
            "model": ENCODER,
            "task": {"kind": "classification", "pooling": "mean"},
            "data": {"kind": "labelled", "source": labelled, "batch_size": 4},
            "training": TRAINING,
            "start": {"network": {"run": between}},
        }
    )


def files(tmp_path: Path, *further: str) -> dict[str, Any]:
    """A source of texts, with further ones of training."""
    folder = tmp_path / "texts"
    folder.mkdir(exist_ok=True)
    for split, texts in {"train": (*TEXTS, *further), "validation": TEXTS[:3]}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return {"kind": "files", "path": str(folder), "splits": "folders"}


def test_the_gate_tells_texts_that_an_earlier_stage_has_read_whole_or_as_a_line(
    tmp_path: Path, labelled: dict[str, Any]
) -> None:
    """Short texts, which anybody may have written, do not count."""
    (gate,) = held_out_gates(config(labelled, files(tmp_path, "short one")))
    assert gate.passed
    assert gate.detail == "no earlier stage was trained on any of 2 texts and sentences of validation and test"
    for further in ("AND here is one of the test.", "A title\nand here is one of the test\nthe end"):
        (gate,) = held_out_gates(config(labelled, files(tmp_path, further)))
        assert not gate.passed
        assert gate.detail.startswith(
            "1 of 2 texts and sentences of validation and test are among the training texts of start.network.run.data, "
            "such as 'and here is one of the test'; read them by a source of kind labelled_training"
        )
        assert "\n" not in gate.detail
    own = {"kind": "labelled_training", "labelled": labelled, "validation": 0.1}
    (gate,) = held_out_gates(config(labelled, files(tmp_path, HELD_OUT[0]), own))
    assert not gate.passed and "training texts of start.network.run.start.network.run.data" in gate.detail


def test_the_gate_counts_sentences_that_training_shares_with_held_out_texts(
    tmp_path: Path, labelled: dict[str, Any]
) -> None:
    """A planted overlap of one sentence, in other words around it, and of a sentence that is too short to count."""
    shared, short = "Nobody had ever seen a film as slow as this!", "I would see it again."
    path = tmp_path / "labelled" / "test.csv"
    whole = f"A first sentence of the test. {shared} {short}"
    path.write_text(f'text,label\n"{whole}",0\n')
    (gate,) = held_out_gates(config(labelled, files(tmp_path, f"They said so: {shared} {short} It is true.", short)))
    assert gate.passed, "words before it make another sentence"
    overlap = "It was late. nobody had ever seen a FILM as slow as this... We left."
    planted = config(labelled, files(tmp_path, overlap))
    (gate,) = held_out_gates(planted)
    assert not gate.passed
    assert gate.detail.startswith(
        "1 of 3 texts and sentences of validation and test are among the training texts of start.network.run.data, "
        "such as 'Nobody had ever seen a film as slow as this!'; read them"
    )
    (gate,) = held_out_gates(config(labelled, files(tmp_path, f"A title\n{whole}\nthe end")))
    assert gate.detail.startswith("2 of 3 texts and sentences"), "a line of several sentences, and one of them"
    with (tmp_path / "labelled" / "train.csv").open("a", newline="") as file:
        csv.writer(file).writerow((overlap, "0"))
    own = {"kind": "labelled_training", "labelled": labelled, "validation": 0.1}
    (gate,) = held_out_gates(config(labelled, own))
    assert gate.passed, "the source omits the text"


def test_the_texts_of_the_task_itself_pass_it(labelled: dict[str, Any]) -> None:
    (gate,) = held_out_gates(config(labelled, {"kind": "labelled_training", "labelled": labelled, "validation": 0.1}))
    assert gate.passed


def test_a_stage_on_the_labels_of_the_same_texts_is_seen(labelled: dict[str, Any]) -> None:
    own = config(labelled, {"kind": "labelled_training", "labelled": labelled, "validation": 0.1})
    further = own.override({"start": {"network": {"run": own.to_dict()}}})
    (gate,) = held_out_gates(further)
    assert not gate.passed and "training texts of start.network.run.data, such as 'here is a text of val" in gate.detail


def test_it_is_a_gate_of_the_run_and_of_its_check_and_of_no_other_run(tmp_path: Path, labelled: dict[str, Any]) -> None:
    bad = config(labelled, files(tmp_path, HELD_OUT[0]))
    assert [gate.passed for gate in RUNNER.check(bad) if gate.name == "held-out texts are new"] == [False]
    for stage in RUNNER.earlier(bad):
        assert fit(stage, tmp_path / "runs" / run_key(stage))["outcome"] == "finished"
    record = fit(bad, tmp_path / "runs" / run_key(bad))
    assert record["outcome"] == "invalid" and record["reason"].startswith(
        "a gate failed: held-out texts are new (1 of 2"
    )
    assert held_out_gates(bad.override({"start": None})) == () == held_out_gates(RUNNER.earlier(bad)[1])
