"""The base of the benchmarks of layers: steps, their times and peak memory, reasons for failures, scaling exponents.

On a CPU layers take turns in one process, so that other load on the machine affects all of them alike, and the peak
memory of each is measured in a separate process. On CUDA they are measured one after another, and the memory is freed
in between.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lit_transformers.attention.patterns import BLOCK
from lit_transformers.mixer import Context, MixerConfig, Shape
from lit_transformers.runs.environment import reason, resident_peak

DIM, HEADS = 256, 4
ABSENT = "not installed"


class Work(NamedTuple):
    """The input of every layer: ``rows`` sequences of ``length`` tokens after ``memory`` remembered inputs."""

    rows: int
    length: int
    memory: int = 0

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.length}" + (f" after {self.memory}" if self.memory else "")


Step = Callable[[], None]
Layer = Callable[[Work, torch.device], Step]
"""Makes the step of a layer. It is a module's function or a partial of one, so that it can be pickled for a process."""


def ours(config: MixerConfig, causal: bool, work: Work, device: torch.device) -> Step:
    """Returns a training step of one of this library's mixers."""
    layer = config.build(Shape(DIM, HEADS, work.length)).to(device)
    positions = torch.arange(work.length, device=device).expand(work.rows, -1)
    ctx = Context(positions, causal, unbroken=work.memory)
    x = torch.randn(work.rows, work.length, DIM, device=device, requires_grad=True)
    state = None
    if work.memory:
        with autocast(device):
            state = layer(torch.randn(work.rows, work.memory, DIM, device=device), ctx).state
    return stepper(layer, x, lambda: layer(x, ctx, state).y)


def stepper(layer: nn.Module, x: Tensor, forward: Callable[[], Tensor]) -> Step:
    """Returns a function that runs one forward and backward pass and waits for the device."""

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


class StepTime(NamedTuple):
    """Time of one step in wall-clock and in processor time: seconds for one step, milliseconds for a median."""

    clock: float
    processor: float


def time_side_by_side(
    layers: Mapping[str, Layer], work: Work, device: torch.device, rounds: int
) -> tuple[dict[str, StepTime], dict[str, str]]:
    """Times the layers in turns. Returns the median times by layer, and the reasons for those that failed."""
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    for name, layer in layers.items():
        try:
            step = layer(work, device)
            step()  # warms up
            steps[name] = step
        except Exception as error:
            failed[name] = failure(error)
    samples: dict[str, list[StepTime]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            samples[name].append(timed(step))
    return {name: middle(times) for name, times in samples.items()}, failed


def timed(step: Step) -> StepTime:
    """Runs one step and returns the seconds that it takes."""
    clock, processor = time.perf_counter(), time.process_time()
    step()
    return StepTime(time.perf_counter() - clock, time.process_time() - processor)


def middle(times: Sequence[StepTime]) -> StepTime:
    """The medians of times in seconds, in milliseconds."""
    return StepTime(*(1000 * statistics.median(column) for column in zip(*times, strict=True)))


class Alone(NamedTuple):
    """One layer alone on CUDA: its median time, by how many MiB its steps raise the peak of allocated memory, and the
    seconds of building it and of its first step, in which its kernels are compiled."""

    time: StepTime
    mib: float
    first_seconds: float


def alone(layer: Layer, work: Work, device: torch.device, rounds: int, patience: float) -> Alone:
    """Measures one layer. Fewer steps are timed where they take long: none begins after five times ``patience``
    seconds."""
    begun = time.perf_counter()
    step = layer(work, device)
    step()
    first_seconds = time.perf_counter() - begun
    step()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    begun, times = time.perf_counter(), [timed(step)]
    while len(times) < rounds and time.perf_counter() - begun < 5 * patience:
        times.append(timed(step))
    return Alone(middle(times), (torch.cuda.max_memory_allocated(device) - before) / 2**20, first_seconds)


def failure(error: Exception) -> str:
    """Why a layer has no numbers, in one line: the first and the last line of a long message."""
    if isinstance(error, ModuleNotFoundError):
        return f"{ABSENT}: {error.name}"
    if "out of memory" in str(error).lower():
        return "out of memory"
    why, last = reason(error), (str(error).strip().splitlines() or [""])[-1].strip()
    return why if not last or last[:200] in why else f"{why} ... {last[:200]}"


def peak_mib(layer: Layer, work: Work) -> float:
    """By how many MiB one step on the CPU raises the peak of memory, measured in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(resident_growth, (layer, work))


def resident_growth(layer: Layer, work: Work) -> float:
    """By how many MiB one step raises the peak of resident memory, which never falls: hence a new process each time."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    layer(work._replace(rows=1, length=2 * BLOCK, memory=0), device)()  # all code paths, little memory
    step = layer(work, device)
    before = resident_peak()
    step()
    return (resident_peak() - before) / 2**20


def power(points: Mapping[int, float]) -> float | None:
    """The exponent with which a quantity grows with length, fitted over the measured lengths; None for fewer than 2."""
    if len(points) < 2 or min(points.values()) <= 0:
        return None
    lengths, values = np.log(np.array(sorted(points.items()), dtype=np.float64)).T
    return float(np.polyfit(lengths, values, 1)[0])


class Peaks(NamedTuple):
    """Peak memory of each layer in MiB, the reasons why others have none, and on CUDA the seconds of first steps."""

    mib: dict[str, float]
    failed: dict[str, str]
    first_seconds: dict[str, float]


def peaks_of(layers: Mapping[str, Layer], work: Work, device: torch.device) -> Peaks:
    """Peak memory of all layers on a CPU. On CUDA peaks are measured together with the times, and this returns none."""
    peaks = Peaks({}, {}, {})
    for name, layer in layers.items() if device.type == "cpu" else ():
        try:
            peaks.mib[name] = peak_mib(layer, work)
        except Exception as error:
            peaks.failed[name] = failure(error)
    return peaks


def row_of(
    layers: Mapping[str, Layer], work: Work, device: torch.device, rounds: int, peaks: Peaks, patience: float = 4.0
) -> dict[str, Any]:
    """Times and peak memory of all layers on one input size. ``failed`` holds the reasons of those without."""
    if device.type == "cuda":
        times, peaks = row_on_device(layers, work, device, rounds, patience)
        failed = peaks.failed
    else:
        runnable = {name: layer for name, layer in layers.items() if name not in peaks.failed}
        times, failed = time_side_by_side(runnable, work, device, rounds)
    return work._asdict() | {
        "milliseconds": {name: t.clock for name, t in times.items()},
        "processor_milliseconds": {name: t.processor for name, t in times.items()},
        "peak_mib": peaks.mib,
        "first_seconds": peaks.first_seconds,
        "failed": peaks.failed | failed,
    }


def row_on_device(
    layers: Mapping[str, Layer], work: Work, device: torch.device, rounds: int, patience: float
) -> tuple[dict[str, StepTime], Peaks]:
    """Measures the layers one after another. Where one leaves the device unusable, those after it are not tried."""
    times: dict[str, StepTime] = {}
    peaks = Peaks({}, {}, {})
    culprit = ""
    for name, layer in layers.items():
        if culprit:
            peaks.failed[name] = f"not tried: the device failed in {culprit}"
            continue
        try:
            times[name], peaks.mib[name], seconds = alone(layer, work, device, rounds, patience)
            peaks.first_seconds[name] = seconds
            print(f"{work.name} {name}: {times[name].clock:,.2f} ms, first step {seconds:.1f} s", flush=True)
        except Exception as error:
            peaks.failed[name] = failure(error)
        try:  # outside of the handler, for the error holds the frames that hold the layer's tensors
            gc.collect()
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
        except RuntimeError:
            culprit = name
    return times, peaks


QUANTITIES = {
    "milliseconds": "time, ms",
    "processor_milliseconds": "processor time, ms",
    "peak_mib": "peak memory, MiB",
}
