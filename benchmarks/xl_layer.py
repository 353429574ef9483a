"""One Transformer-XL attention layer, forward and backward, beside plain causal attention and XLNet's layer.

    python -m benchmarks.xl_layer [--lengths 1024,2048,4096] [--device cuda] [--json NAME]

Plain attention is the same layer without encoding: the same projections around torch's fused kernel. XLNet's layer is
that of transformers, which builds the whole score matrix. The three run in turn in one process, so that what else the
machine does falls on all alike; times are medians. Beside the time on the clock stands that of the processor, which
says more on a machine that is busy. Peak memory is taken in a process of its own for each.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.hardware import describe, save
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.patterns import BLOCK

DIM, HEADS = 256, 4
LARGEST_XLNET = 4096 * 4096
"""Scores per head: beyond, its matrices take gigabytes."""


class Work(NamedTuple):
    """What every layer is given: ``rows`` sequences of ``length`` after ``memory`` remembered inputs."""

    rows: int
    length: int
    memory: int

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.length}" + (f" after {self.memory}" if self.memory else "")


Step = Callable[[], None]


def xl(work: Work, device: torch.device) -> Step:
    return ours(AttentionConfig(encoding=XLConfig(), memory=work.memory), work, device)


def plain(work: Work, device: torch.device) -> Step:
    return ours(AttentionConfig(memory=work.memory), work, device)


def ours(config: AttentionConfig, work: Work, device: torch.device) -> Step:
    layer = config.build(Shape(DIM, HEADS, work.length)).to(device)
    ctx = Context(torch.arange(work.length, device=device).expand(work.rows, -1), causal=True)
    x = torch.randn(work.rows, work.length, DIM, device=device, requires_grad=True)
    state = None
    if work.memory:
        with autocast(device):
            state = layer(torch.randn(work.rows, work.memory, DIM, device=device), ctx).state
    return stepper(layer, x, lambda: layer(x, ctx, state).y)


def xlnet(work: Work, device: torch.device) -> Step:
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    config = XLNetConfig(d_model=DIM, n_head=HEADS, d_inner=DIM, dropout=0.0, vocab_size=8)
    layer = XLNetRelativeAttention(config)  # type: ignore[no-untyped-call]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.02)
    layer = layer.to(device)
    t, m = work.length, work.memory
    x = torch.randn(t, work.rows, DIM, device=device, requires_grad=True)
    memory = torch.randn(m, work.rows, DIM, device=device) if m else None
    encode: Any = XLNetModel(config).relative_positional_encoding
    waves = encode(t, t + m, bsz=work.rows).to(device)
    hidden = torch.ones(t, t + m, device=device).triu(m + 1)[:, :, None, None]
    return stepper(layer, x, lambda: layer(x, None, hidden, None, waves, None, mems=memory)[0])


LAYERS: dict[str, Callable[[Work, torch.device], Step]] = {"plain": plain, "xl": xl, "xlnet": xlnet}


def stepper(layer: nn.Module, x: Tensor, forward: Callable[[], Tensor]) -> Step:
    """One forward and backward pass, done when it returns."""

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        with autocast(x.device):
            y = forward()
        y.sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()

    return step


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on CUDA, float32 elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def layers_for(work: Work) -> list[str]:
    return [
        name
        for name in LAYERS
        if name != "xlnet" or work.rows * work.length * (work.length + work.memory) <= LARGEST_XLNET
    ]


class Taken(NamedTuple):
    """Median milliseconds of one step, on the clock and of the processor."""

    clock: float
    processor: float


def time_side_by_side(work: Work, device: torch.device, rounds: int) -> dict[str, Taken]:
    """The layers take turns."""
    steps = {name: LAYERS[name](work, device) for name in layers_for(work)}
    taken: dict[str, list[Taken]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            clock, processor = time.perf_counter(), time.process_time()
            step()
            if turn:  # the first turn warms up
                taken[name].append(Taken(time.perf_counter() - clock, time.process_time() - processor))
    return {
        name: Taken(*(1000 * statistics.median(column) for column in zip(*times, strict=True)))
        for name, times in taken.items()
    }


def peak_mib(name: str, work: Work, device: torch.device) -> float:
    """How far one step raises the peak of memory, in MiB."""
    if device.type == "cuda":
        step = LAYERS[name](work, device)
        step()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(resident_growth, (name, work))


def resident_growth(name: str, work: Work) -> float:
    """In a process of its own, because the peak of resident memory never falls."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    LAYERS[name](work._replace(rows=1, length=BLOCK + 8, memory=0), device)()  # all code paths, little memory
    step = LAYERS[name](work, device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def measure(works: list[Work], device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Peaks first: a child process inherits the peak of its parent, which timing would raise."""
    peaks = [{name: peak_mib(name, work, device) for name in layers_for(work)} for work in works]
    rows = []
    for work, peak in zip(works, peaks, strict=True):
        taken = time_side_by_side(work, device, rounds)
        rows.append(
            work._asdict()
            | {
                "milliseconds": {name: t.clock for name, t in taken.items()},
                "processor_milliseconds": {name: t.processor for name, t in taken.items()},
                "peak_mib": peak,
            }
        )
    return rows


QUANTITIES = {
    "milliseconds": "time, ms",
    "processor_milliseconds": "processor time, ms",
    "peak_mib": "peak memory, MiB",
}


def show(rows: list[dict[str, Any]], quantity: str, device: torch.device) -> Table:
    """One quantity of every layer, with ratios and with the power of length that it grows by."""
    table = Table(
        title=f"One layer, dim {DIM}, {HEADS} heads, forward and backward, {device.type}: {QUANTITIES[quantity]}"
    )
    for heading in ("sequences", *LAYERS, "xl / plain", "xlnet / xl"):
        table.add_column(heading, justify="left" if heading == "sequences" else "right", no_wrap=True)
    for row in rows:
        found = row[quantity]
        table.add_row(
            Work(row["rows"], row["length"], row["memory"]).name,
            *(f"{found[name]:.1f}" if name in found else "-" for name in LAYERS),
            *(ratio(found, *pair) for pair in (("xl", "plain"), ("xlnet", "xl"))),
        )
    powers = {name: power(rows, name, quantity) for name in LAYERS}
    table.add_row("power of length", *("-" if value is None else f"{value:.2f}" for value in powers.values()))
    return table


def ratio(found: dict[str, float], above: str, below: str) -> str:
    return f"{found[above] / found[below]:.2f}" if above in found and found[below] > 0 else "-"


def power(rows: list[dict[str, Any]], name: str, quantity: str) -> float | None:
    """The exponent with which a quantity grows with the length of one sequence, fitted over all lengths measured."""
    points = [(row["length"], row[quantity][name]) for row in rows if row["rows"] == 1 and name in row[quantity]]
    if len(points) < 2 or min(value for _, value in points) <= 0:
        return None
    lengths, values = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(lengths, values, 1)[0])


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated; one sequence of each length.")] = "1024,2048,4096",
    rounds: Annotated[int, typer.Option(help="Steps of each layer that are timed.")] = 7,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda (bf16).")] = "cpu",
    json: Annotated[str, typer.Option(help="Write benchmarks/results/NAME.json.")] = "",
) -> None:
    """Times one XL attention layer against plain attention and XLNet's layer."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    on = torch.device(device)
    works = [Work(1, int(length), 0) for length in lengths.split(",")] + [Work(32, 128, 128)]
    rows = measure(works, on, rounds)
    for quantity in QUANTITIES:
        Console(width=110).print(show(rows, quantity, on))
    if json:
        found = {"benchmark": "xl_layer", "dim": DIM, "heads": HEADS, "device": on.type, "rows": rows}
        Console().print(f"written: {save(json, found | describe(('torch', 'transformers')))}")


if __name__ == "__main__":
    typer.run(main)
