"""How time and peak memory grow from 4k to 64k tokens, for one layer of every subquadratic mixer.

    python -m benchmarks.long_documents [--lengths 4096,16384,65536] [--only window,linear] [--to FOLDER]

Which mixers these are is counted: FLOPs of the forward pass, at 4,096 and at 8,192 tokens. The power is the exponent of
a quantity's growth with length; the goal is 1.1. The power of the FLOPs is the least that the arithmetic of a mixer
allows. Times and memory are those of ``benchmarks.layers``. Writes long_documents_cpu.json, after every length, and
long_documents_cpu.png.

A trial run that takes seconds: --lengths 256,512,1024 --rounds 1 --no-peaks --to /tmp/long_documents
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import RESULTS, describe, save
from benchmarks.layer_timing import DIM, HEADS, Layer, Work, ours, power
from benchmarks.layers import MIXERS, LayerCase, measured
from lit_transformers.mixer import Shape
from lit_transformers.startup.quick_imports import use_huge_pages
from reports.show.style import STYLE

GOAL = 1.1
COUNTED_AT = 4096
"""FLOPs are counted at this length and at twice as much, to tell which mixers are subquadratic."""
NAME = "long_documents_cpu"
GROWTHS = {"milliseconds": "time", "peak_mib": "peak memory", "flops": "FLOPs, counted"}


class Growth(NamedTuple):
    """The powers of a layer's quantities in the length, by the names of ``GROWTHS``; None where fewer than two lengths
    were measured."""

    layer: str
    powers: dict[str, float | None]


def flops(case: LayerCase, length: int) -> int:
    """FLOPs of the forward pass of one row."""
    return case.config.build(Shape(DIM, HEADS, length)).flops(length, 0, case.causal)


def is_subquadratic(case: LayerCase) -> bool:
    """Whether twice the length takes less than 2 ** 1.5 times the FLOPs."""
    return flops(case, 2 * COUNTED_AT) < 2**1.5 * flops(case, COUNTED_AT)


def subquadratic(only: list[str]) -> dict[str, LayerCase]:
    """The mixers that the benchmark measures, in the order of ``MIXERS``. Raises BadParameter for another one."""
    cases = {name: case for name, case in MIXERS.items() if is_subquadratic(case)}
    if unknown := set(only) - cases.keys():
        names = ", ".join(sorted(unknown))
        raise typer.BadParameter(f"no subquadratic mixer is called {names}; there are: {', '.join(cases)}")
    return {name: case for name, case in cases.items() if not only or name in only}


def growths(rows: list[dict[str, Any]], cases: dict[str, LayerCase]) -> list[Growth]:
    """The powers of all layers over the lengths that were measured."""
    table = []
    for name, case in cases.items():
        points = {
            quantity: {row["length"]: row[quantity][name] for row in rows if name in row[quantity]}
            for quantity in ("milliseconds", "peak_mib")
        }
        points["flops"] = {length: flops(case, length) for length in points["milliseconds"]}
        table.append(Growth(name, {quantity: power(values) for quantity, values in points.items()}))
    return table


def draw(table: list[Growth], path: Path, lengths: str) -> None:
    """Writes a figure of the powers, a line for each layer, with the goal."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 1.2 + 0.28 * len(table)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for (quantity, label), marker in zip(GROWTHS.items(), "os|", strict=True):
            points = [(row.powers[quantity], place) for place, row in enumerate(table) if row.powers[quantity]]
            if points:
                axes.plot(*zip(*points, strict=True), marker, label=label)
        axes.axvline(GOAL, color="gray", linewidth=1, linestyle="--", label=f"goal, {GOAL}")
        axes.set_yticks(range(len(table)), [row.layer for row in table])
        axes.invert_yaxis()
        axes.set_xlabel(f"power of the growth with length, {lengths} tokens, forward and backward")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def show(table: list[Growth]) -> Table:
    """A table of the powers."""
    shown = Table(title=f"One layer, dim {DIM}, {HEADS} heads: power of the growth with length")
    shown.add_column("layer", no_wrap=True)
    for label in GROWTHS.values():
        shown.add_column(label, justify="right")
    for row in table:
        powers = (row.powers[quantity] for quantity in GROWTHS)
        shown.add_row(row.layer, *("-" if value is None else f"{value:.2f}" for value in powers))
    return shown


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated; one row of each length.")] = "4096,16384,65536",
    only: Annotated[str, typer.Option(help="Comma-separated names of mixers; all by default.")] = "",
    rounds: Annotated[int, typer.Option(help="Steps of each layer that are timed.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    patience: Annotated[float, typer.Option(help="Seconds of a step beyond which none is tried.")] = 60.0,
    peaked: Annotated[bool, typer.Option("--peaks/--no-peaks", help="Whether to take peak memory.")] = True,
    to: Annotated[Path, typer.Option(help="The folder to write numbers and figure into.")] = RESULTS,
) -> None:
    """Measures how one layer of every subquadratic mixer grows with the length, and draws it."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    cases = subquadratic([name for name in only.split(",") if name])
    candidates: dict[str, Layer] = {name: partial(ours, case.config, case.causal) for name, case in cases.items()}
    works = [Work(1, length) for length in sorted(map(int, lengths.split(",")))]
    settings = {"benchmark": "long_documents", "dim": DIM, "heads": HEADS, "device": "cpu", "rounds": rounds}
    rows: list[dict[str, Any]] = []
    for row in measured(candidates, works, torch.device("cpu"), rounds, patience, peaked):
        rows.append(row)
        table = growths(rows, cases)
        powers = {growth.layer: growth.powers for growth in table}
        save(str(to / f"{NAME}.json"), settings | {"rows": rows, "powers": powers} | describe())
        for name, why in row["failed"].items():
            print(f"{row['length']:>8,}  {name}: {why}")
    draw(table, to / f"{NAME}.png", f"{works[0].length:,} to {works[-1].length:,}")
    Console().print(show(table))


if __name__ == "__main__":
    use_huge_pages()  # as every run does
    typer.run(main)
