"""The cost of a symbol in evaluation with attention that reaches L symbols back: by reused state, and by sliding.

    python -m benchmarks.evaluation_speed [--lengths 800,1800,2800,3800] [--json NAME]

Reused state is that of Transformer-XL: a segment is read with the states of the L symbols before it, and all of its
symbols are predicted at once. Sliding is the way of a model without memory to the same context: every symbol has its
own window of L symbols, of which the last alone predicts. Both are the network of ``xl_evaluation_speed`` with the
softmax of the predicted symbols, one row, once the memory is full. Dai et al. 2019 (arXiv:1901.02860, table 9) report
ratios of 363 to 1,874, for 24 layers on one GPU. The two take turns; times are medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ablations.studies.xl_evaluation_speed import ABLATION, PUBLISHED
from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers import build_model
from lit_transformers.models.language_model import LanguageModel

SYMBOLS = 256


def network_of(dim: int, depth: int, memory: int) -> LanguageModel:
    """The network of the study, in evaluation, with a memory of ``memory`` symbols."""
    sizes = {"model.dim": dim, "model.depth": depth, "model.mixer.memory": memory}
    network = build_model(ABLATION.baseline.override(sizes)).network.eval()
    assert isinstance(network, LanguageModel)
    return network


def reusing(network: LanguageModel, length: int, segment: int) -> Callable[[], Tensor]:
    """A call that predicts a segment of symbols after ``length`` others, whose states it reads."""
    state = network(torch.randint(SYMBOLS, (1, length))).state
    symbols, targets = torch.randint(SYMBOLS, (2, 1, segment))

    def step() -> Tensor:
        return network.tokens.nll(network(symbols, state).hidden, targets)

    return step


def sliding(network: LanguageModel, length: int) -> Callable[[], Tensor]:
    """A call that predicts one symbol from its window of ``length`` symbols."""
    symbols, target = torch.randint(SYMBOLS, (1, length)), torch.randint(SYMBOLS, (1, 1))
    return lambda: network.tokens.nll(network(symbols).hidden[:, -1:], target)


def seconds_of(step: Callable[[], Tensor]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


@torch.inference_mode()
def row_of(dim: int, depth: int, length: int, segment: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a symbol of both ways, and their ratio."""
    with_memory, without = network_of(dim, depth, length), network_of(dim, depth, 0)
    ways = {"reusing": (reusing(with_memory, length, segment), segment), "sliding": (sliding(without, length), 1)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (step, predicted) in ways.items():
            seconds = seconds_of(step)
            if number:  # the first of each warms up
                times[name].append(1000 * seconds / predicted)
    values = {name: median(each) for name, each in times.items()}
    return {"length": length, "milliseconds": values, "ratio": values["sliding"] / values["reusing"]}


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Milliseconds a symbol, by how far its attention reaches")
    for heading in ("attention", "state reused", "sliding by one", "times faster", "the paper's"):
        table.add_column(heading, justify="right")
    for row in rows:
        values = row["milliseconds"]
        published = PUBLISHED.get(row["length"])
        table.add_row(
            f"{row['length']:,}", f"{values['reusing']:.3f}", f"{values['sliding']:.1f}", f"{row['ratio']:,.0f}",
            "-" if published is None else f"{published:,}",
        )  # fmt: skip
    return table


def main(
    lengths: Annotated[str, typer.Option(help="How far attention reaches, comma-separated.")] = "800,1800,2800,3800",
    segment: Annotated[int, typer.Option(help="Symbols that are read at once with reused state.")] = 128,
    dim: Annotated[int, typer.Option(help="Width of the network.")] = 64,
    depth: Annotated[int, typer.Option(help="Layers of the network.")] = 2,
    rounds: Annotated[int, typer.Option(help="Timed calls of each.")] = 9,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    json: Annotated[str, typer.Option(help=JSON_HELP)] = "",
) -> None:
    """Times evaluation by reused state and by sliding, at equal reach of attention."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = [row_of(dim, depth, int(length), segment, rounds) for length in lengths.split(",")]
    Console(width=80).print(show(rows))
    if json:
        sizes = {"dim": dim, "depth": depth, "segment": segment, "rounds": rounds}
        results = {"benchmark": "evaluation_speed", **sizes, "rows": rows}
        Console().print(f"written: {save(json, results | describe())}")


if __name__ == "__main__":
    typer.run(main)
