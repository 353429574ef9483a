"""Checkpoints of runs that were not trained, one for each thing that a server can do, with weights large enough to tell
texts apart."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import torch

from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents

__all__ = ["ENCODER", "PASSAGES", "Kind", "tiny_run"]

Kind = Literal[
    "classify", "score", "tag", "answer", "apart", "choose", "search", "fill", "translate", "summarize", "generate"
]
TEXTS = ["The river rises in the north.", "No one answered, and nobody left.", "It was not a good film.", "Yes."]
PASSAGES = [f"{text} {other}" for text in TEXTS for other in TEXTS]
ENCODER = {"kind": "encoder", "dim": 16, "heads": 2, "depth": 1, "initial_std": 0.3, "positions": "learned"}


def tiny_run(kind: Kind, folder: Path, **model: Any) -> Path:
    """Returns the checkpoint of a run. model: changed fields of the network."""
    plain = MAKERS[kind](folder)
    config = RunConfig.from_dict(plain | {"model": plain["model"] | model, "training": {"steps": 1, "device": "cpu"}})
    torch.manual_seed(0)
    data = config.build_data()
    state = config.build_task(data).state_dict()
    torch.save({"lit_transformers": contents(config, data, "its own"), "state_dict": state}, folder / "checkpoint.ckpt")
    return folder / "checkpoint.ckpt"


def labelled(source: dict[str, Any], task: str, **model: Any) -> dict[str, Any]:
    return {"model": ENCODER | model, "task": task, "data": {"kind": "labelled", "source": source}}


def of_texts(folder: Path) -> dict[str, Any]:
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label"), *((f"{TEXTS[n % 4]} {n}", ("neg", "pos")[n % 2]) for n in range(100))]
        )
    source = {"kind": "labelled_texts", "path": str(folder / "texts.csv"), "labels": ["neg", "pos"]}
    source |= {"splits": "hash", "length": 64, "tokenizer": {"kind": "words", "size": 40}}
    return labelled(source, "classification")


def of_numbers(folder: Path) -> dict[str, Any]:
    plain = of_texts(folder)
    return plain | {"task": "regression"}


def of_words(folder: Path) -> dict[str, Any]:
    for split in ("train", "validation"):
        lines = (f"{word} {'B-LOC' if word == 'river' else 'O'}" for text in TEXTS for word in [*text.split(), ""])
        (folder / f"{split}.conll").write_text("\n".join(line if line.strip() != "O" else "" for line in lines))
    source = {"kind": "conll", "path": str(folder), "length": 300}
    return labelled(source, "tagging")


def of_questions(folder: Path) -> dict[str, Any]:
    records = [{"question": TEXTS[n % 4], "context": PASSAGES[n], "answers": []} for n in range(16)]
    for record in records:
        record["answers"] = [{"text": str(record["context"]).split()[0], "answer_start": 0}]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    source = {"kind": "questions", "path": str(folder / "questions.jsonl"), "language": None, "length": 600}
    return labelled(source | {"stride": 24, "validation": 0.3, "question_width": 200}, "question_answering", segments=2)


def apart_from_passages(folder: Path) -> dict[str, Any]:
    """A reader whose lower layers read a passage apart from its question."""
    model = {"kind": "deformer", "depth": 2, "apart": 1, "segments": 2}
    return of_questions(folder) | {"model": ENCODER | model}


def of_choices(folder: Path) -> dict[str, Any]:
    (folder / "choices").mkdir()
    rows = [{"question": text, "choices": TEXTS[:3], "answer": 0} for text in TEXTS]
    for split in ("train", "validation"):
        (folder / "choices" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"kind": "choices", "path": str(folder / "choices"), "length": 96, "tokenizer": {"kind": "words"}}
    return labelled(source, "multiple_choice", segments=2)


def of_pairs(folder: Path) -> dict[str, Any]:
    (folder / "pairs").mkdir()
    rows = [{"source": text, "target": other} for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
    for split in ("train", "validation"):
        (folder / "pairs" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = {"kind": "retrieval", "source": {"kind": "records", "path": str(folder / "pairs")}, "batch_size": 4}
    data |= {"tokenizer": {"kind": "words"}, "longest_question": 64, "longest_passage": 64}
    (folder / "passages.txt").write_text("".join(f"{passage}\n" for passage in PASSAGES))
    return {"model": ENCODER, "task": {"kind": "retrieval", "pooling": "mean", "towers": "separate"}, "data": data}


def of_rows(folder: Path) -> dict[str, Any]:
    data = {"kind": "rows", "source": {"kind": "topics", "documents": 40, "validation": 0.3}, "length": 48}
    return {"model": ENCODER, "task": "masked_lm", "data": data | {"tokenizer": "words"}}


def of_languages(folder: Path) -> dict[str, Any]:
    for name in ("train.aa", "train.bb", "val.aa", "val.bb"):
        (folder / name).write_text("".join(f"{text}\n" for text in TEXTS * 3))
    source = {"kind": "parallel", "path": str(folder), "source": "aa", "target": "bb"}
    data = {"kind": "pairs", "source": source, "tokenizer": "words", "tokens_per_batch": 256}
    model = ENCODER | {"kind": "encoder_decoder"}
    task = {"kind": "seq2seq", "decoding": {"kind": "greedy", "extra": 4, "ratio": 0.5}}
    return {"model": model, "task": task, "data": data | {"longest_source": 64, "longest_target": 64}}


def of_summaries(folder: Path) -> dict[str, Any]:
    (folder / "papers").mkdir()
    rows = [{"source": [text, other], "target": [text]} for text in TEXTS for other in TEXTS]
    for split in ("train", "dev"):
        (folder / "papers" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plain = of_languages(folder)
    return plain | {"data": plain["data"] | {"source": {"kind": "scitldr", "path": str(folder / "papers")}}}


def of_corpus(folder: Path) -> dict[str, Any]:
    for number in range(8):
        (folder / f"{number}.txt").write_text("\n".join(["grün und blå", *TEXTS] * 4), encoding="utf-8")
    mixer = {"kind": "attention", "memory": 16, "encoding": "xl"}
    model = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "mixer": mixer, "initial_std": 0.3}
    data = {"source": {"kind": "files", "path": str(folder)}, "segment_length": 16, "batch_size": 4}
    return {"model": model, "data": data | {"evaluation": {"documents": 1}}}


MAKERS = {
    "classify": of_texts,
    "score": of_numbers,
    "tag": of_words,
    "answer": of_questions,
    "apart": apart_from_passages,
    "choose": of_choices,
    "search": of_pairs,
    "fill": of_rows,
    "translate": of_languages,
    "summarize": of_summaries,
    "generate": of_corpus,
}
