"""What the benchmarks of layers share: a step, turns side by side, peak memory in a process of its own, powers."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.patterns import BLOCK

DIM, HEADS = 256, 4


class Work(NamedTuple):
    """What every layer is given: ``rows`` sequences of ``length`` after ``memory`` remembered inputs."""

    rows: int
    length: int
    memory: int = 0

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.length}" + (f" after {self.memory}" if self.memory else "")


Step = Callable[[], None]
Layer = Callable[[Work, torch.device], Step]
"""Makes the step of a layer; a function of a module, or a partial of one, so that a process can be told of it."""


def ours(config: MixerConfig, causal: bool, work: Work, device: torch.device) -> Step:
    """A mixer of this library, in training."""
    layer = config.build(Shape(DIM, HEADS, work.length)).to(device)
    ctx = Context(torch.arange(work.length, device=device).expand(work.rows, -1), causal)
    x = torch.randn(work.rows, work.length, DIM, device=device, requires_grad=True)
    state = None
    if work.memory:
        with autocast(device):
            state = layer(torch.randn(work.rows, work.memory, DIM, device=device), ctx).state
    return stepper(layer, x, lambda: layer(x, ctx, state).y)


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


class Taken(NamedTuple):
    """Median milliseconds of one step, on the clock and of the processor."""

    clock: float
    processor: float


def time_side_by_side(layers: Mapping[str, Layer], work: Work, device: torch.device, rounds: int) -> dict[str, Taken]:
    """The layers take turns."""
    steps = {name: layer(work, device) for name, layer in layers.items()}
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


def peak_mib(layer: Layer, work: Work, device: torch.device) -> float:
    """How far one step raises the peak of memory, in MiB."""
    if device.type == "cuda":
        step = layer(work, device)
        step()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(resident_growth, (layer, work))


def resident_growth(layer: Layer, work: Work) -> float:
    """In a process of its own, because the peak of resident memory never falls."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    layer(work._replace(rows=1, length=2 * BLOCK, memory=0), device)()  # all code paths, little memory
    step = layer(work, device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def power(points: Mapping[int, float]) -> float | None:
    """The exponent with which a quantity grows with length, fitted over all lengths measured."""
    if len(points) < 2 or min(points.values()) <= 0:
        return None
    lengths, values = np.log(np.array(sorted(points.items()), dtype=np.float64)).T
    return float(np.polyfit(lengths, values, 1)[0])


def peaks_of(layers: Mapping[str, Layer], work: Work, device: torch.device) -> dict[str, float]:
    """Peaks of all layers. To be taken before anything is timed: a child process inherits the peak of its parent."""
    return {name: peak_mib(layer, work, device) for name, layer in layers.items()}


def row_of(
    layers: Mapping[str, Layer], work: Work, device: torch.device, rounds: int, peaks: dict[str, float]
) -> dict[str, Any]:
    """Times of all layers on one work, beside the peaks taken before."""
    taken = time_side_by_side(layers, work, device, rounds)
    return work._asdict() | {
        "milliseconds": {name: t.clock for name, t in taken.items()},
        "processor_milliseconds": {name: t.processor for name, t in taken.items()},
        "peak_mib": peaks,
    }


QUANTITIES = {
    "milliseconds": "time, ms",
    "processor_milliseconds": "processor time, ms",
    "peak_mib": "peak memory, MiB",
}
