"""Measures a cache of lower states of passages: bytes, memory, answers, and time by the number of layers apart.

    python -m benchmarks.passage_cache [--passages 2000] [--apart 4] [--steps 80 | --checkpoint FILE] [--json NAME]

Trains MiniLM (below LIT_WEIGHTS) as a ``deformer`` on English questions of xquad (below LIT_DATA) for ``--steps``. The
passages are those of xquad in all languages, then paragraphs of WikiText-2 up to ``--passages``. Prints the largest
memory of the encoding process, by number of passages, and three tables:

- Precisions: bytes of the states of a passage; exact match and F1 of answers to held-out questions from the cache; and
  the number of answers that equal those of ``predict``.
- Scales of int8: the relative error of states in the Euclidean norm, with a scale for each channel of each window, and
  with a scale for each channel over all windows.
- Times: milliseconds for a batch of questions with passages whose k lower layers are in the cache, and the ratio to all
  layers on whole rows. All networks take turns in one process; ratios are ratios of medians.

xquad: arXiv:1910.11856. DeFormer (arXiv:2005.00697, table 2) reports a speedup of 3.2 for 9 of 12 layers of BERT-base
on a GPU.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ablations.fine_tuning import MINILM_NETWORK, PIECES, TUNED
from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import one_line, questions_of, shown, wikitext_lines, written
from datamodules import LabelledDataConfig, QuestionsConfig
from lit_transformers import build_model
from lit_transformers.answer_scores import answer_scores
from lit_transformers.checked_files import Precision, VectorLayout
from lit_transformers.inference.answer_passages import passage_answer_predictor_of
from lit_transformers.inference.lines import LineOptions, LineWriter
from lit_transformers.inference.passage_states import PassageStates, PassageStatesWriter
from lit_transformers.inference.predict import predictor_of
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.runs import RunConfig, fit
from lit_transformers.tasks import QuestionAnsweringConfig

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
WIDTH, LENGTH = 40, 384
LANGUAGES = ("en", "es", "de", "ro", "vi", "tr")
DEPTH = MINILM_NETWORK.depth


def config_of(apart: int, steps: int) -> RunConfig:
    """Returns the config of a run of MiniLM as a deformer on English questions of xquad."""
    source = QuestionsConfig(
        tokenizer=PIECES, length=LENGTH, stride=128, question_width=WIDTH, validation=0.2, test=0.0
    )
    model = ModelConfig.from_dict({**MINILM_NETWORK.to_dict(), "kind": "deformer", "apart": apart})
    changes = {"training.steps": steps, "training.schedule.warmup": max(1, steps // 10)}
    parts = {
        "model": model,
        "task": QuestionAnsweringConfig(),
        "data": LabelledDataConfig(source=source, batch_size=12),
    }
    return TUNED.override({**parts, **changes})


def paragraphs(language: str) -> Iterator[dict[str, Any]]:
    """Yields the paragraphs of xquad in a language, with their questions."""
    path = Path(os.environ["LIT_DATA"], "xquad", f"xquad.{language}.json.xz")
    for article in json.loads(lzma.decompress(path.read_bytes()))["data"]:
        yield from article["paragraphs"]


def texts() -> Iterator[str]:
    """Yields passages, each on one line: first xquad, then long lines of WikiText-2."""
    for language in LANGUAGES:
        yield from (one_line(paragraph["context"]) for paragraph in paragraphs(language))
    yield from wikitext_lines()


def megabytes_of(checkpoint: Path, passages: Path, folder: Path) -> list[tuple[int, float]]:
    """Encodes passages in a separate process. Returns, after each group, the number of passages so far and the largest
    memory so far in MB."""
    code = (
        "import sys; from pathlib import Path; from lit_transformers.runs.environment import resident_peak;"
        "from lit_transformers.inference.encode_passages import encode_passages;"
        "report = lambda lines, size: print(lines, resident_peak(), flush=True);"
        "encode_passages(*map(Path, sys.argv[1:]), report=report)"
    )
    command = [sys.executable, "-c", code, str(checkpoint), str(passages), str(folder)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")[:-1]
    groups = [(int(passages), int(memory) / 1e6) for passages, memory in map(str.split, lines)]
    return [(sum(count for count, _ in groups[: place + 1]), memory) for place, (_, memory) in enumerate(groups)]


def answers(predictor: LineWriter, lines: list[dict[str, Any]]) -> list[str]:
    return [answer["answer"] or "" for answer in written(predictor, lines)]


def in_precision(folder: Path, precision: Precision) -> Path:
    """Returns a folder with the states of ``folder``/float32 in a precision, as ``encode --precision`` writes them."""
    states, other = PassageStates(folder / "float32", {}), folder / precision
    if not other.exists():
        layout = VectorLayout(precision, states.layout.width)
        with PassageStatesWriter(other, states.manifest.dependencies, layout) as writer:
            for number in range(len(states)):
                windows = [(window.symbols, states.states(window)) for window in states.windows_of(number)]
                writer.add(states.passage(number), windows)
            writer.finish()
    return other


def precision_rows(
    config: RunConfig, checkpoint: Path, passages: Path, folder: Path, count: int
) -> list[dict[str, Any]]:
    """Returns a row for ``predict``, and a row for each precision of the cache."""
    lines = {text: number for number, text in reversed([*enumerate(passages.read_text().splitlines(), 1)])}
    questions = questions_of(config, "validation")[:count]
    expected = answers(
        predictor_of(checkpoint, LineOptions(), "json"),
        [{"question": question.text, "context": question.passage} for question in questions],
    )

    def row_of(name: str, given: list[str]) -> dict[str, Any]:
        pairs = zip(given, questions, strict=True)
        scores = [answer_scores(answer, question.answers, may_be_none=False) for answer, question in pairs]
        equal = sum(answer == other for answer, other in zip(given, expected, strict=True))
        match, f1 = (mean(column) for column in zip(*scores, strict=True))
        return {"name": name, "exact_match": match, "f1": f1, "equal": equal, "questions": len(questions)}

    rows = [row_of("predict", expected)]
    for precision in PRECISIONS:
        predictor = passage_answer_predictor_of(checkpoint, in_precision(folder, precision), LineOptions(), "json")
        given = answers(
            predictor, [{"question": question.text, "passage": lines[question.passage]} for question in questions]
        )
        held = predictor.states.manifest
        sizes = {"windows": held.windows, "tokens": held.tokens, "bytes": held.files["states"].size / held.passages}
        rows.append(row_of(precision, given) | sizes)
    return rows


def scale_rows(folder: Path, windows: int = 500) -> list[dict[str, Any]]:
    """Returns the relative error of int8 with scales for each window, and with scales for all windows together."""
    states = PassageStates(folder / "float32", {})
    every = chain.from_iterable(states.windows_of(number) for number in range(len(states)))
    some = [states.states(window) for window in islice(every, windows)]
    layout, joined = VectorLayout("int8", states.layout.width), torch.cat(some)
    size = sum(vectors.square().sum() for vectors in some)

    def error(parts: list[torch.Tensor]) -> float:
        read = (layout.read(numpy_of(layout.written(part)), len(part)) - part for part in parts)
        return float((sum(difference.square().sum() for difference in read) / size).sqrt())

    return [{"scales": "of each window", "error": error(some)}, {"scales": "of all windows", "error": error([joined])}]


def numpy_of(content: bytes) -> Any:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).numpy()


@torch.inference_mode()
def time_rows(folder: Path, batch: int, rounds: int) -> list[dict[str, Any]]:
    """Returns the milliseconds for a batch of questions with their passages, by k, and the ratios to k = 0."""
    states = PassageStates(folder / "float32", {})
    windows = [next(states.windows_of(number)) for number in range(batch)]
    longest = max(window.tokens for window in windows)
    questions, rows = torch.randint(1000, 2000, (batch, WIDTH)), torch.randint(1000, 2000, (batch, WIDTH + longest))
    asked, real = torch.ones(batch, WIDTH).bool(), torch.zeros(batch, WIDTH + longest).bool()
    asked[:, 20:] = False
    for row, window in enumerate(windows):
        real[row, : WIDTH + window.tokens] = True
    real[:, :WIDTH] = asked
    segments = (torch.arange(WIDTH + longest) >= WIDTH).long() * real
    first = torch.zeros_like(real)
    first[:, 0] = True
    networks: list[RowNetwork] = [network_of(apart) for apart in range(DEPTH + 1)]

    def uncached(apart: int) -> None:
        networks[apart].read_row(rows, real, first, segments)

    def cached(apart: int) -> None:
        vectors = torch.zeros(batch, longest, MINILM_NETWORK.dim)
        for row, window in enumerate(windows):
            vectors[row, : window.tokens] = states.states(window)
        networks[apart].read_with(questions, asked, vectors, real[:, WIDTH:])

    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds + 1):
        for apart in range(DEPTH + 1):
            for name, way in (("uncached", uncached), ("cached", cached)):
                if apart or name == "uncached":
                    begin = time.perf_counter()
                    way(apart)
                    if number:  # the first round warms up
                        times.setdefault((name, apart), []).append(1000 * (time.perf_counter() - begin))
    medians = {key: median(each) for key, each in times.items()}
    return [
        {
            "apart": apart,
            "uncached": medians["uncached", apart],
            "cached": medians["cached", apart],
            "ratio": medians["uncached", 0] / medians["cached", apart],
            "ratio_to_uncached": medians["uncached", apart] / medians["cached", apart],
        }
        for apart in range(1, DEPTH + 1)
    ]


def network_of(apart: int) -> RowNetwork:
    """Returns a network with ``apart`` lower layers apart, in evaluation mode. Its weights are random."""
    network = build_model(config_of(apart, 1)).network.eval()
    assert isinstance(network, RowNetwork)
    return network


def main(
    passages: Annotated[int, typer.Option(help="Number of passages in the cache.")] = 2000,
    apart: Annotated[int, typer.Option(help="Number of lower layers that read texts apart.")] = 4,
    steps: Annotated[int, typer.Option(help="Number of training updates.")] = 80,
    checkpoint: Annotated[Path | None, typer.Option(help="Measure this checkpoint instead of training.")] = None,
    questions: Annotated[int, typer.Option(help="Answer at most this many held-out questions.")] = 1000,
    batch: Annotated[int, typer.Option(help="Questions in a timed batch.")] = 16,
    rounds: Annotated[int, typer.Option(help="Number of times that each network is measured.")] = 5,
    folder: Annotated[Path | None, typer.Option("--to", help="Keep the run and the caches in this folder.")] = None,
    name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure bytes, memory, answers and time of a cache of passages."""
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        config = config_of(apart, steps)
        if checkpoint is None:
            fit(config, place / "run")
        trained = checkpoint or place / "run" / "checkpoint.ckpt"
        file = place / "passages.txt"
        file.write_text("".join(f"{text}\n" for text in islice(texts(), passages)), encoding="utf-8")
        results: dict[str, Any] = {"machine": describe(), "apart": apart}
        results["memory"] = megabytes_of(trained, file, place / "float32")
        console.print(f"largest memory in MB, by passages: {results['memory']}")
        results["precisions"] = precision_rows(config, trained, file, place, questions)
        console.print(shown("Precisions of states", results["precisions"]))
        results["scales"] = scale_rows(place)
        console.print(shown("Scales of int8", results["scales"]))
        results["times"] = time_rows(place, batch, rounds)
        console.print(shown("Milliseconds a batch, by layers apart", results["times"]))
    if name is not None:
        console.print(f"wrote {save(name, results)}")


if __name__ == "__main__":
    typer.run(main)
