"""Measures how many texts a second are classified in the ways of this suite and of its peers, in one run.

    python -m benchmarks.acceleration [CHECKPOINT --texts FILE] [--count 872] [--rounds 3] [--alone 100] [--threads 1]
    [--quick] [--json NAME]

The ways take turns: transformers' pipeline as it is called; the same with texts sorted by length; ``predict`` with
padded rows, and as it is, which reads rows without padding; both in bfloat16, and in int8 where the processor has its
product; ONNX Runtime in float32 and in dynamic int8, texts of equal length together. Time is that of the CPU, which
other processes change less than time by the clock; of several threads, time by the clock. p50 and p99 are of one text
alone. Labels and nats are compared with ``predict`` on padded rows in float32, with an interval of 95 % over texts.
Memory is the peak of a separate process. FasterTransformer and TurboTransformers (arXiv:2010.05680) measure the same
question on GPUs.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import shown
from benchmarks.text_networks import TOGETHER, Forms, OnnxTexts, chosen_texts, forms_of, labelled_texts, nats
from lit_transformers.checked_files import Precision
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predict import predictor_of
from lit_transformers.models.encoder import Encoder
from lit_transformers.quantisation import has_int8_product
from lit_transformers.runs.environment import resident_peak
from reports.judge.statistics import estimate

BASE = "predict, padded"
SPEED = ("way", "texts_a_second", "ratio", "p50_ms", "p99_ms", "peak_mb")
EQUALITY = ("way", "equal_labels", "nats", "low", "high")
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


def by_predict(checkpoint: Path, unpadded: bool = True, precision: Precision = "float32") -> Way:
    """Returns the command ``predict``. unpadded: whether it reads rows without padding."""
    predictor = predictor_of(checkpoint, LineOptions(precision=precision))
    for module in predictor.task.modules():  # type: ignore[attr-defined]
        if isinstance(module, Encoder):
            module.unpadded = unpadded

    def way(texts: Sequence[str]) -> list[list[float]]:
        lines = predictor.write(text.encode() for text in texts)
        return [[*json.loads(line)["probabilities"].values()] for line in lines]

    return way


def by_onnx(file: Path, folder: Path, threads: int) -> Way:
    return OnnxTexts(file, folder, threads).probabilities


def makers_of(forms: Forms, threads: int = 1) -> dict[str, Callable[[], Way]]:
    """Returns a function for each way, which prepares it. threads: of ONNX Runtime; the other ways have torch's."""
    checkpoint = forms.checkpoint
    makers: dict[str, Callable[[], Way]] = {
        "pipeline": partial(by_pipeline, forms.folder, False),
        "pipeline, sorted": partial(by_pipeline, forms.folder, True),
        BASE: partial(by_predict, checkpoint, False),
        "predict, padded, bfloat16": partial(by_predict, checkpoint, False, "bfloat16"),
        "predict": partial(by_predict, checkpoint),
        "predict, bfloat16": partial(by_predict, checkpoint, True, "bfloat16"),
    }
    if has_int8_product():
        makers["predict, padded, int8"] = partial(by_predict, checkpoint, False, "int8")
        makers["predict, int8"] = partial(by_predict, checkpoint, True, "int8")
    makers["ONNX Runtime"] = partial(by_onnx, forms.onnx, forms.folder, threads)
    makers["ONNX Runtime, int8"] = partial(by_onnx, forms.int8, forms.folder, threads)
    return makers


def peak_megabytes(make: Callable[[], Way], texts: Sequence[str]) -> float:
    """Returns the most memory of a process that computes texts in one way on one thread, torch and transformers
    included."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(own_peak_megabytes, make, texts).result()


def own_peak_megabytes(make: Callable[[], Way], texts: Sequence[str]) -> float:
    torch.set_num_threads(1)
    make()(texts)
    return resident_peak() / 2**20


class Measured(NamedTuple):
    """The measurements of one way. seconds: for all texts, in each round. alone: for each text alone, in the last
    round. outputs: the probabilities of each text."""

    seconds: list[float]
    alone: list[float]
    outputs: list[list[float]]


def spent(way: Way, texts: Sequence[str]) -> float:
    """Returns the seconds that a way takes for texts: of CPU on one thread, by the clock on several."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    way(texts)
    return clock() - begin


def measured(ways: Mapping[str, Way], texts: Sequence[str], rounds: int, alone: int) -> dict[str, Measured]:
    """Measures all ways in turns. alone: the number of texts that are also read one at a time."""
    results = {name: Measured([], [], way(texts)) for name, way in ways.items()}  # the first of each warms up
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].seconds.append(spent(way, texts))
    for text in texts[:alone]:
        for name, way in ways.items():
            results[name].alone.append(spent(way, [text]))
    return results


def rows_of(results: Mapping[str, Measured], labels: Sequence[int]) -> list[dict[str, Any]]:
    """Returns a row for each way: texts a second, the ratio to the first way, milliseconds of one text, and
    equality with ``BASE``."""
    losses = {name: nats(own.outputs, labels) for name, own in results.items()}
    speeds = {name: len(labels) / median(own.seconds) for name, own in results.items()}
    rows = []
    for name, own in results.items():
        pairs = [*zip(own.outputs, results[BASE].outputs, strict=True)]
        equal = sum(one.index(max(one)) == other.index(max(other)) for one, other in pairs)
        difference = estimate([one - other for one, other in zip(losses[name], losses[BASE], strict=True)])
        low, high = difference.interval or (difference.difference,) * 2
        row = {"way": name, "texts_a_second": speeds[name], "ratio": speeds[name] / speeds["pipeline"]}
        row |= {"p50_ms": 1000 * median(own.alone), "p99_ms": 1000 * quantiles(own.alone, n=100)[98]}
        row |= {"equal_labels": 100 * equal / len(labels), "nats": difference.difference, "low": low, "high": high}
        rows.append(row)
    return rows


def chosen(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def main(
    checkpoint: Annotated[Path | None, typer.Argument(help="The checkpoint.ckpt of a classifier of texts.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Read texts and labels with tabs between them.")] = None,
    count: Annotated[int, typer.Option(min=2, help="Classify this many texts.")] = 872,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each way this many times.")] = 3,
    alone: Annotated[int, typer.Option(min=2, help="Read this many texts one at a time.")] = 100,
    threads: Annotated[int, typer.Option(min=1, help="Compute on this many threads.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Take a small network, to check this script.")] = False,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure the texts a second of several ways to run one classifier."""
    torch.set_num_threads(threads)
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint, texts = chosen_texts(checkpoint, texts, quick, Path(temporary))
        lines, labels = labelled_texts(texts, count)
        names = sorted({*labels})
        makers = makers_of(forms_of(checkpoint, Path(temporary)), threads)
        results = measured({name: make() for name, make in makers.items()}, lines, rounds, alone)
        rows = rows_of(results, [names.index(label) for label in labels])
        for row, make in zip(rows, makers.values(), strict=True):
            row["peak_mb"] = peak_megabytes(make, lines)
    saved = {"machine": describe(("transformers", "onnxruntime")), "quick": quick, "threads": threads}
    saved |= {"texts": len(lines), "rows": rows}
    console.print(shown(f"Texts a second, threads: {threads}", [chosen(row, SPEED) for row in rows]))
    console.print(shown(f"Next to {BASE}", [chosen(row, EQUALITY) for row in rows]))
    if json_name is not None:
        console.print(f"wrote {save(json_name, saved)}")


if __name__ == "__main__":
    typer.run(main)
