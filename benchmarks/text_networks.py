"""One classifier of texts in the forms that are compared: a checkpoint of the suite, a folder of transformers, and
files of ONNX Runtime in float32 and dynamic int8."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Sequence
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer

from ablations.fine_tuning import MINILM_NETWORK
from datamodules import Data
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents
from lit_transformers.serving.messages import Abilities, LineAnswer, LineWork, ServingOptions, received
from lit_transformers.tasks.task import DESCRIPTION, Task

__all__ = [
    "Forms",
    "OnnxTexts",
    "answer_by_onnx",
    "forms_of",
    "labelled_texts",
    "tiny_checkpoint",
    "tiny_language_model",
    "tiny_translator",
    "write_checkpoint",
]

TOGETHER = 32
"""Texts of a batch of other libraries, which gain nothing from more on a CPU."""


class Forms(NamedTuple):
    """The places of one network. checkpoint: of the suite. folder: of transformers. onnx, int8: of ONNX Runtime."""

    checkpoint: Path
    folder: Path
    onnx: Path
    int8: Path


def chosen_texts(checkpoint: Path | None, texts: Path | None, quick: bool, folder: Path) -> tuple[Path, Path]:
    """Returns the checkpoint and the file of texts that a benchmark reads. quick: a small network and its texts, which
    are written to a folder. Raises BadParameter if one is missing."""
    if quick:
        return tiny_checkpoint(folder)
    if checkpoint is None or texts is None:
        raise typer.BadParameter("name a checkpoint and --texts, or give --quick")
    return checkpoint, texts


def labelled_texts(file: Path, count: int) -> tuple[list[str], list[str]]:
    """Returns the first texts of a file of two columns with tabs between them, and their labels."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)][1 : count + 1]
    return [row[0].strip() for row in rows], [row[1] for row in rows]


def tiny_checkpoint(folder: Path) -> tuple[Path, Path]:
    """Writes a file of texts, and the checkpoint of a small network that was not trained on them. Returns both."""
    words = ["a", "film", "of", "no", "wit", "and", "some", "heart", "that", "nobody", "will", "see", "twice"]
    texts = [" ".join(words[number % 5 : 6 + number % 7]) for number in range(200)]
    file = folder / "texts.tsv"
    file.write_text(
        "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *zip(texts, "01" * 100, strict=True)])
    )
    sizes = {"dim": 16, "heads": 2, "depth": 1, "feedforward.width": 32, "positions.max_length": 64, "initial_std": 0.3}
    source = {"kind": "labelled_texts", "path": str(file), "labels": ["0", "1"], "splits": "hash", "length": 32}
    source |= {"tokenizer": {"kind": "wordpiece", "size": 120}}
    plain = {
        "model": MINILM_NETWORK.override(sizes).to_dict(),
        "task": {"kind": "classification", "pooling": "first", "hidden": "tanh", "dropout": 0.1},
        "data": {"kind": "labelled", "source": source},
        "training": {"steps": 1, "device": "cpu"},
    }
    return untrained(plain, folder), file


def tiny_language_model(folder: Path) -> Path:
    """Writes the checkpoint of a small language model of bytes that was not trained. Returns its place."""
    for number in range(8):
        (folder / f"{number}.txt").write_text("a river of no wit that nobody will see twice, blå und grün\n" * 8)
    mixer = {"kind": "attention", "memory": 64}
    model = {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "mixer": mixer, "initial_std": 0.3}
    source = {"kind": "files", "path": str(folder)}
    data = {"source": source, "segment_length": 64, "batch_size": 2, "evaluation": {"documents": 1}}
    return untrained({"model": model, "data": data, "training": {"steps": 1, "device": "cpu"}}, folder)


def tiny_translator(folder: Path) -> Path:
    """Writes the checkpoint of a small translator that was not trained. Returns its place."""
    for name in ("train.aa", "train.bb", "val.aa", "val.bb"):
        (folder / name).write_text("a film of no wit\nsome heart that nobody will see twice\n" * 10)
    model = {"kind": "encoder_decoder", "dim": 16, "heads": 2, "depth": 1, "initial_std": 0.3, "positions": "learned"}
    source = {"kind": "parallel", "path": str(folder), "source": "aa", "target": "bb"}
    data = {"kind": "pairs", "source": source, "tokenizer": "words", "tokens_per_batch": 256}
    task = {"kind": "seq2seq", "decoding": {"kind": "greedy", "extra": 8, "ratio": 0.5}}
    plain = {"model": model, "task": task, "data": data | {"longest_source": 64, "longest_target": 64}}
    return untrained(plain | {"training": {"steps": 1, "device": "cpu"}}, folder)


def untrained(plain: dict[str, Any], folder: Path) -> Path:
    """Writes the checkpoint of a run that was not trained into a folder. Returns its place."""
    config = RunConfig.from_dict(plain)
    torch.manual_seed(0)
    data = config.build_data()
    return write_checkpoint(config, data, config.build_task(data), folder / "checkpoint.ckpt")


def write_checkpoint(config: RunConfig, data: Data, task: Task, file: Path) -> Path:
    """Writes the checkpoint of a task that was not trained by a run. Returns its place."""
    saved: dict[str, Any] = {"lit_transformers": contents(config, data, "its own"), "state_dict": task.state_dict()}
    torch.save(saved | {DESCRIPTION: task.data.to_dict()}, file)
    return file


def forms_of(checkpoint: Path, folder: Path) -> Forms:
    """Writes the network of a checkpoint in all forms."""
    from onnxruntime.quantization import quantize_dynamic
    from transformers import AutoModelForSequenceClassification

    forms = Forms(checkpoint, folder / "transformers", folder / "network.onnx", folder / "int8.onnx")
    export_weights(checkpoint, forms.folder, None)
    model: Any = AutoModelForSequenceClassification.from_pretrained(forms.folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = (torch.ones(2, 8, dtype=torch.long),) * 3
    axes = {name: {0: "texts", 1: "symbols"} for name in names} | {"logits": {0: "texts"}}
    torch.onnx.export(
        model, example, forms.onnx, input_names=names, output_names=["logits"], dynamic_axes=axes, dynamo=False
    )
    logging.getLogger().setLevel(logging.ERROR)  # it warns of each file that it was not given a prepared one
    quantize_dynamic(forms.onnx, forms.int8)
    return forms


class OnnxTexts:
    """Computes the probabilities of texts by a file of ONNX Runtime, texts of equal length together: no padding, which
    is its best, and outputs of int8 do not depend on it."""

    def __init__(self, file: Path, folder: Path, threads: int = 1) -> None:
        import onnxruntime
        from transformers import AutoTokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def probabilities(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns the probabilities of the classes of each text."""
        rows = self.tokenizer([*texts])["input_ids"]
        results: list[list[float]] = [[] for _ in texts]
        ordered = sorted(range(len(texts)), key=lambda number: len(rows[number]))
        for _, group in groupby(ordered, key=lambda number: len(rows[number])):
            equal = [*group]
            for first in range(0, len(equal), TOGETHER):
                numbers = equal[first : first + TOGETHER]
                symbols = np.array([rows[number] for number in numbers])
                given = {"input_ids": symbols, "attention_mask": np.ones_like(symbols)}
                [logits] = self.session.run(None, given | {"token_type_ids": np.zeros_like(symbols)})
                shares = np.exp(logits - logits.max(axis=1, keepdims=True))
                for number, own in zip(numbers, shares / shares.sum(axis=1, keepdims=True), strict=True):
                    results[number] = own.tolist()
        return results


def answer_by_onnx(connection: Connection, options: ServingOptions) -> None:
    """Computes behind the queue of a server by ONNX Runtime. options.checkpoint: the file; the folder of transformers
    is next to it."""
    network = OnnxTexts(options.checkpoint, options.checkpoint.with_name("transformers"))
    connection.send(Abilities({"classify": '{"text": "a"}'}, 0))
    for work in received(connection):
        if not isinstance(work, LineWork):
            continue
        texts = [json.loads(line)["text"] for line in work.lines]
        for place, own in enumerate(network.probabilities(texts)):
            connection.send(LineAnswer(place, 200, json.dumps({"probabilities": own})))


def nats(probabilities: Sequence[Sequence[float]], labels: Sequence[int]) -> list[float]:
    """Returns the loss of each text."""
    return [-math.log(max(own[label], 1e-9)) for own, label in zip(probabilities, labels, strict=True)]
