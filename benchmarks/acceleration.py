"""Measures how many texts a second one thread classifies, in the ways of this suite and of its peers, in one run.

    python -m benchmarks.acceleration [CHECKPOINT --texts FILE] [--count 872] [--rounds 3] [--quick] [--json NAME]

The ways take turns: transformers' pipeline as it is called; the same with texts sorted by length; ``predict`` with
padded rows; ``predict`` as it is, which reads rows without padding; the same in bfloat16; ONNX Runtime in float32 and
in dynamic int8, texts of equal length together. Time is that of the CPU, which other processes change less than time by
the clock. Labels and nats are compared with ``predict`` on padded rows in float32, with an interval of 95 % over texts.
FasterTransformer and TurboTransformers (arXiv:2010.05680) measure the same question on GPUs.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import shown
from benchmarks.text_networks import TOGETHER, Forms, OnnxTexts, chosen_texts, forms_of, labelled_texts, nats
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.models.encoder import Encoder
from reports.judge.statistics import estimate

BASE = "predict, padded"
Way = Callable[[Sequence[str]], list[list[float]]]
"""Returns the probabilities of the classes of each text."""


def by_pipeline(folder: Path, is_sorted: bool) -> Way:
    """Returns transformers' pipeline. is_sorted: whether it gets texts by their lengths."""
    from transformers import pipeline

    classify: Any = pipeline("text-classification", str(folder), device="cpu", top_k=None)

    def way(texts: Sequence[str]) -> list[list[float]]:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]) if is_sorted else number)
        outputs = classify([texts[number] for number in order], batch_size=TOGETHER)
        named = [{one["label"]: one["score"] for one in own} for own in outputs]
        results = dict(zip(order, ([own[name] for name in sorted(own)] for own in named), strict=True))
        return [results[number] for number in range(len(texts))]

    return way


def by_predict(checkpoint: Path, unpadded: bool, bf16: bool = False) -> Way:
    """Returns the command ``predict``. unpadded: whether it reads rows without padding."""
    predictor = predictor_of(checkpoint, LineOptions())
    for module in predictor.task.modules():  # type: ignore[attr-defined]
        if isinstance(module, Encoder):
            module.unpadded = unpadded

    def way(texts: Sequence[str]) -> list[list[float]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            lines = [*predictor.write(text.encode() for text in texts)]
        return [[*json.loads(line)["probabilities"].values()] for line in lines]

    return way


def ways_of(forms: Forms) -> dict[str, Way]:
    return {
        "pipeline": by_pipeline(forms.folder, False),
        "pipeline, sorted": by_pipeline(forms.folder, True),
        BASE: by_predict(forms.checkpoint, False),
        "predict": by_predict(forms.checkpoint, True),
        "predict, bfloat16": by_predict(forms.checkpoint, True, bf16=True),
        "ONNX Runtime": OnnxTexts(forms.onnx, forms.folder).probabilities,
        "ONNX Runtime, int8": OnnxTexts(forms.int8, forms.folder).probabilities,
    }


def measured(ways: dict[str, Way], texts: Sequence[str], labels: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each way: texts a second of CPU, the ratio to the first way, and equality with ``BASE``."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs: dict[str, list[list[float]]] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            outputs[name] = way(texts)
            if number:  # the first of each warms up
                seconds[name].append(time.process_time() - begin)
    losses = {name: nats(own, labels) for name, own in outputs.items()}
    speeds = {name: len(texts) / median(own) for name, own in seconds.items()}
    rows = []
    for name in ways:
        pairs = [*zip(outputs[name], outputs[BASE], strict=True)]
        equal = sum(own.index(max(own)) == other.index(max(other)) for own, other in pairs)
        difference = estimate([own - other for own, other in zip(losses[name], losses[BASE], strict=True)])
        low, high = difference.interval or (difference.difference,) * 2
        row = {"way": name, "texts_a_second": speeds[name], "ratio": speeds[name] / speeds["pipeline"]}
        row |= {"equal_labels": 100 * equal / len(texts), "nats": difference.difference, "low": low, "high": high}
        rows.append(row)
    return rows


def main(
    checkpoint: Annotated[Path | None, typer.Argument(help="The checkpoint.ckpt of a classifier of texts.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Read texts and labels with tabs between them.")] = None,
    count: Annotated[int, typer.Option(min=2, help="Classify this many texts.")] = 872,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each way this many times.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Take a small network, to check this script.")] = False,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure the texts a second of several ways to run one classifier."""
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint, texts = chosen_texts(checkpoint, texts, quick, Path(temporary))
        lines, labels = labelled_texts(texts, count)
        names = sorted({*labels})
        ways = ways_of(forms_of(checkpoint, Path(temporary)))
        rows = measured(ways, lines, [names.index(label) for label in labels], rounds)
    results = {"machine": describe(("transformers", "onnxruntime")), "quick": quick, "texts": len(lines), "rows": rows}
    console.print(shown("Texts a second of one thread", rows))
    if json_name is not None:
        console.print(f"wrote {save(json_name, results)}")


if __name__ == "__main__":
    typer.run(main)
