"""One Transformer-XL attention layer, forward and backward, beside plain causal attention and XLNet's layer.

    python -m benchmarks.xl_layer [--lengths 1024,2048,4096] [--device cuda] [--json NAME]

Plain attention is the same layer without encoding: the same projections around torch's fused kernel. XLNet's layer is
that of transformers, which builds the whole score matrix. The three run in turn in one process, so that what else the
machine does falls on all alike; times are medians. Peak memory is taken in a process of its own for each.
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

DIM, HEADS = 256, 4
LONGEST_XLNET = 4096
"""Its score matrices of twice the length grow to gigabytes beyond."""


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
    return [name for name in LAYERS if name != "xlnet" or work.rows * (work.length + work.memory) <= LONGEST_XLNET]


def time_side_by_side(work: Work, device: torch.device, rounds: int) -> dict[str, float]:
    """Median milliseconds of each layer; they take turns."""
    steps = {name: LAYERS[name](work, device) for name in layers_for(work)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}


def peak_mib(name: str, work: Work, device: torch.device) -> float:
    """How far one step raises the peak of memory above what a short step had needed, in MiB."""
    if device.type == "cuda":
        step = LAYERS[name](work, device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(resident_growth, (name, work))


def resident_growth(name: str, work: Work) -> float:
    """In a process of its own: the peak of resident memory never falls."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    LAYERS[name](work._replace(rows=1, length=8, memory=0), device)()
    step = LAYERS[name](work, device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def slope(rows: list[dict[str, Any]], name: str, quantity: str) -> float | None:
    """The exponent with which a quantity grows with length, fitted over all lengths measured."""
    points = [(row["length"], row[quantity][name]) for row in rows if not row["memory"] and name in row[quantity]]
    if len(points) < 2 or min(value for _, value in points) <= 0:
        return None
    return float(np.polyfit(*np.log(np.array(points)).T, 1)[0])


def measure(works: list[Work], device: torch.device, rounds: int, memory: bool) -> list[dict[str, Any]]:
    rows = []
    for work in works:
        found = {"milliseconds": time_side_by_side(work, device, rounds)}
        if memory:
            found["peak_mib"] = {name: peak_mib(name, work, device) for name in layers_for(work)}
        rows.append(work._asdict() | found)
    return rows


def show(rows: list[dict[str, Any]], device: torch.device) -> Table:
    """Times with their ratio to plain attention, and peak memory."""
    table = Table(title=f"One layer, dim {DIM}, {HEADS} heads, forward and backward, {device.type}")
    table.add_column("sequences")
    for name in LAYERS:
        table.add_column(f"{name} ms", justify="right")
    table.add_column("xl / plain", justify="right")
    table.add_column("xlnet / xl", justify="right")
    for name in LAYERS:
        table.add_column(f"{name} MiB", justify="right")
    for row in rows:
        taken, peaks = row["milliseconds"], row.get("peak_mib", {})
        table.add_row(
            Work(row["rows"], row["length"], row["memory"]).name,
            *(f"{taken[name]:.1f}" if name in taken else "-" for name in LAYERS),
            f"{taken['xl'] / taken['plain']:.2f}",
            f"{taken['xlnet'] / taken['xl']:.1f}" if "xlnet" in taken else "-",
            *(f"{peaks[name]:.0f}" if name in peaks else "-" for name in LAYERS),
        )
    for quantity, unit in (("milliseconds", "time"), ("peak_mib", "memory")):
        if quantity in rows[0]:
            slopes = {name: slope(rows, name, quantity) for name in LAYERS}
            said = ", ".join(f"{name} {value:.2f}" for name, value in slopes.items() if value is not None)
            table.caption = f"{table.caption or ''}{unit} grows with length to the power of: {said}\n"
    return table


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated; one sequence of each length.")] = "1024,2048,4096",
    rounds: Annotated[int, typer.Option(help="Steps of each layer that are timed.")] = 7,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda (bf16).")] = "cpu",
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    json: Annotated[str, typer.Option(help="Write benchmarks/results/NAME.json.")] = "",
) -> None:
    """Times one XL attention layer against plain attention and XLNet's layer."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    on = torch.device(device)
    works = [Work(1, int(length), 0) for length in lengths.split(",")] + [Work(32, 128, 128)]
    rows = measure(works, on, rounds, memory)
    Console().print(show(rows, on))
    if json:
        found = {"benchmark": "xl_layer", "dim": DIM, "heads": HEADS, "device": on.type, "rows": rows}
        Console().print(f"written: {save(json, found | describe(('torch', 'transformers')))}")


if __name__ == "__main__":
    typer.run(main)
