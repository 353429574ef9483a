"""The files in examples/ for data of one's own train as they stand, but for their sizes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from datamodules import PairDataConfig
from datamodules.core.documents import SPLITS
from lit_transformers import RunConfig, fit, load_checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"model.dim": 16, "model.heads": 2, "model.depth": 1, "training.steps": 2, "training.device": "cpu"}
PAIRS = {"data.tokens_per_batch": 128, "data.tokenizer": "bytes", "training.schedule.warmup": 1}


def small(name: str, path: Path, **changes: Any) -> RunConfig:
    return RunConfig.from_yaml(EXAMPLES / name).override({"data.source.path": str(path), **SMALL, **changes})


def meeting(number: int) -> dict[str, Any]:
    """A meeting as those of QMSum are written, with two questions."""
    turns = [{"speaker": "Ann", "content": f"We are meeting {number}."}, {"speaker": "Bob", "content": "Yes. " * 30}]
    questions = [[{"query": f"{kind}?", "answer": f"{kind} {number}."}] for kind in ("What", "Why")]
    return {
        "meeting_transcripts": turns,
        "general_query_list": questions[0],
        "specific_query_list": questions[1],
    }


def test_long_documents_are_judged_by_rouge_alone_and_the_record_says_what_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, count in (("train", 6), ("val", 2), ("test", 1)):
        folder = tmp_path / "qmsum" / "ALL" / split
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.json").write_text(json.dumps(meeting(number)))
    lengths = {"data.longest_source": 64, "data.longest_target": 8}
    config = small("long_documents.yaml", tmp_path / "qmsum", **PAIRS, **lengths)
    record = fit(config, tmp_path / "run")
    assert record["outcome"] == "finished", record["reason"]
    scores = {name for name in record["metrics"] if name != "val/nats"}
    assert scores == {"val/rouge1", "val/rouge2", "val/rougeL"}
    # Of a source "What? Ann: ... Bob: ..." 63 symbols are kept; of the targets "What 0." of 7 and "Why 0." of 6 all.
    length = len("What? Ann: We are meeting 0.\nBob: " + "Yes. " * 30)
    expected = (2 * length - 1 - 2 * 63) / (2 * length - 1)
    cut = record["measured"]["cut"]
    assert cut["validation"]["sources"] == {"examples": 1.0, "symbols": pytest.approx(expected)}
    assert cut["train"]["targets"] == {"examples": 0.0, "symbols": 0.0}
    printed = capsys.readouterr().err
    assert f"12 sources cut (100.0% of them, {expected:.1%} of their symbols)" in printed


@pytest.mark.slow
def test_the_example_of_long_documents_finds_every_question_of_its_corpus() -> None:
    if not Path(os.environ.get("LIT_DATA", ""), "qmsum").is_dir():
        pytest.skip("LIT_DATA names no folder with qmsum")
    config = RunConfig.from_yaml(EXAMPLES / "long_documents.yaml").data.override({"tokenizer": "bytes"})
    assert isinstance(config, PairDataConfig)
    qmsum = config.override({"source": "qmsum"})
    own, known = (data.build().pairs for data in (config, qmsum))
    assert [own.count(split) for split in SPLITS] == [known.count(split) for split in SPLITS] == [1257, 272, 281]
    assert {own.references("test", number) for number in range(281)} == {
        known.references("test", number) for number in range(281)
    }


@pytest.mark.slow
def test_pairs_of_a_table_train_a_translator(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"number {n}\tnombre {n}\tCC-BY\n" for n in range(80)) + "nothing\t\n")
    lengths = {"data.longest_source": 64, "data.longest_target": 64}
    record = fit(small("pairs_tsv.yaml", path, **PAIRS, **lengths), tmp_path / "run")
    assert record["outcome"] == "finished" and {"val/bleu", "val/chrf"} <= {*record["metrics"]}
    assert load_checkpoint(tmp_path / "run" / "checkpoint.ckpt").config.kind == "seq2seq"


@pytest.mark.slow
def test_texts_and_labels_of_a_table_train_a_classifier(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    lines = (f'{"good" if n % 2 else "bad"},"text {n}, {"fine" if n % 2 else "dull"}"\n' for n in range(200))
    path.write_text("label,text\n" + "".join(lines))
    changes = {"training.steps": 60, "training.validate_every": None, "training.schedule.warmup": 5}
    record = fit(small("labels_csv.yaml", path, **changes, **{"data.source.tokenizer": "words"}), tmp_path / "run")
    assert record["outcome"] == "finished" and record["metrics"]["val/accuracy"] > 0.8


def test_every_example_is_a_config_of_a_run() -> None:
    paths = sorted(EXAMPLES.glob("*.yaml"))
    assert len(paths) > 10
    for path in paths:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert RunConfig.from_yaml(path).data.kind == plain["data"]["kind"], path
