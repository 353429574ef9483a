"""Training speed of Transformer-XL base as NVIDIA runs it: ``python -m benchmarks.transformer_xl [--mode MODE]``.

The network is that of NVIDIA's DeepLearningExamples (Transformer-XL for PyTorch, base on WikiText-103): 16 layers, dim
512, 8 heads, inner 2048, segment and memory of 192 tokens, 32 sequences, 267,735 words with an adaptive softmax whose
weights the input shares, mixed precision (here bfloat16). They publish 59,961 tokens a second on one A100 of 40 GB.

Modes: ``eager`` is a run of this library, ``compiled`` a run with ``training.compile``. In ``graphs`` the whole update
(loss, gradient, clipping, Adam) is one CUDA graph, with the adaptive softmax in fixed shapes
(``benchmarks.fixed_shapes``); in ``compiled-graphs`` the captured code is compiled as well. ``--check`` first compares
a mode with eager over ten updates, and nothing is timed where it lies much further from float32 than eager does.

Tokens are drawn at random from Zipf's law, as words are distributed: they cost as much as text, and nothing can be
learned from them. Model FLOPs are those of the equations, three times the forward pass, without recomputation.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from enum import StrEnum
from itertools import cycle, pairwise
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.captured import Captured, capturable
from benchmarks.fixed_shapes import FixedShapes, capacities_of
from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import detach, map_state, state_tensors
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.cost import cost
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.tokens import AdaptiveTokenEmbedding, AdaptiveTokenEmbeddingConfig
from lit_transformers.runs import RunConfig

PUBLISHED = 59_961
"""Tokens a second in training, one A100 40 GB, mixed precision: README of NVIDIA's Transformer-XL for PyTorch."""

PEAKS = {"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L4": 121}
"""Dense bfloat16 TFLOP/s by a part of the name of a GPU, from the makers' data sheets; the first match counts."""

BASE = RunConfig.from_dict(
    {
        "model": {
            "kind": "language_model",
            "dim": 512,
            "depth": 16,
            "heads": 8,
            "norm": "post",
            "dropout": 0.1,
            "feedforward": {"kind": "dense", "width": 2048, "dropout": 0.1},
            "mixer": {"kind": "attention", "encoding": "xl", "memory": 192},
            "tokens": {"kind": "adaptive", "cutoffs": [19_997, 39_997, 199_997], "shrink": 4},
        },
        "data": {"segment_length": 192, "batch_size": 32},
        "training": {"optimizer": {"kind": "adam", "learning_rate": 0.001}, "clip": 0.25},
    }
)
VOCABULARY = 267_735
TINY = {
    "model.dim": 64,
    "model.depth": 2,
    "model.feedforward.width": 128,
    "model.mixer.memory": 16,
    "model.tokens.cutoffs": [100, 200, 600],
    "data.segment_length": 16,
    "data.batch_size": 4,
}
TINY_VOCABULARY = 1_000
TOLERANCE = {False: 1e-4, True: 1e-3}
"""The relative distance from float32 that is allowed beyond three times eager's; key True: on CUDA, in bfloat16."""


def zipf(vocabulary: int, rows: int, length: int, device: torch.device) -> Tensor:
    """Random symbols (rows, length); the r-th has a probability proportional to 1 / (r + 2.7) (Mandelbrot's form)."""
    weights = 1 / (torch.arange(1, vocabulary + 1, dtype=torch.float64) + 2.7)
    symbols = torch.multinomial(weights, rows * length, replacement=True, generator=torch.Generator().manual_seed(0))
    return symbols.view(rows, length).to(device)


def train_flops(config: RunConfig, vocabulary: int, targets: Tensor) -> float:
    """Model FLOPs of a training token. A rare cluster is computed for its own targets alone, so these are counted."""
    length = config.data.segment_length
    flops = cost(config.model, probe_data(vocabulary, length), length).flops_per_token
    tokens = config.model.tokens
    assert isinstance(tokens, AdaptiveTokenEmbeddingConfig)
    for cluster, (start, end) in enumerate(pairwise([*tokens.cutoffs, vocabulary]), start=1):
        width = config.model.dim // tokens.shrink**cluster
        share = ((targets >= start) & (targets < end)).double().mean().item()
        flops += share * 2 * width * (config.model.dim + end - start)
    return 3 * flops


class Mode(StrEnum):
    """How an update of the weights is run."""

    EAGER = "eager"
    COMPILED = "compiled"
    GRAPHS = "graphs"
    COMPILED_GRAPHS = "compiled-graphs"

    @property
    def captured(self) -> bool:
        return self in (Mode.GRAPHS, Mode.COMPILED_GRAPHS)


class Training:
    """A network in training: every call is an update, and returns its loss and the norm of its gradient.

    mixed: whether to compute in bfloat16, on CUDA. masked: whether attention has a key mask, though all tokens
    are real. All modes begin with a memory of zeros, so that shapes stay fixed, and read it as earlier symbols.
    """

    def __init__(
        self, config: RunConfig, vocabulary: int, text: Tensor, mode: Mode, mixed: bool = True, masked: bool = False
    ) -> None:
        assert isinstance(config.model, LanguageModelConfig)
        length, self.clip = config.data.segment_length, config.training.clip or float("inf")
        self.mixed = mixed and text.is_cuda
        self.padding_mask = torch.ones_like(text[:, :length], dtype=torch.bool) if masked else None
        torch.manual_seed(config.seed)
        network = config.model.build(probe_data(vocabulary, length)).to(text.device).train()
        starts = range(0, text.size(1) - length, length)
        self.segments = cycle([(text[:, s : s + length], text[:, s + 1 : s + length + 1]) for s in starts])
        with self.precision():
            self.state = map_state(torch.zeros_like, network(text[:, :length]).state)
        if mode.captured:
            assert isinstance(network.tokens, AdaptiveTokenEmbedding)
            targets = torch.stack([text[:, s + 1 : s + length + 1].flatten() for s in starts])
            network.tokens = FixedShapes(network.tokens, capacities_of(network.tokens, targets))
        self.network, self.parameters = network, list(network.parameters())
        self.optimizer, self.schedule = config.training.learn(network)
        self.loss_of: Callable[..., tuple[Tensor, Any]] = loss_of
        # On a CPU the traced graphs run operation by operation: this script is checked there, not timed.
        backend = "inductor" if text.is_cuda else "aot_eager"
        if mode is Mode.COMPILED:
            network.compile(backend=backend)
        if mode is Mode.COMPILED_GRAPHS:
            self.loss_of = torch.compile(loss_of, fullgraph=True, dynamic=False, backend=backend)
        if mode.captured:
            capturable(self.optimizer)
        self.run = Captured(self.update) if mode.captured else self.update

    def precision(self) -> torch.autocast:
        """Autocast to bfloat16 on CUDA alone: torch's adaptive softmax would keep log_softmax in bfloat16 on a CPU."""
        return torch.autocast("cuda" if self.mixed else "cpu", torch.bfloat16, enabled=self.mixed)

    def __call__(self) -> tuple[Tensor, Tensor]:
        inputs, targets = next(self.segments)
        loss, norm, self.state = self.run(inputs, targets, self.state)
        self.schedule.step()
        return loss, norm

    def update(self, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Runs one update: loss, gradient, clipping, optimizer step. Nothing here waits for the device."""
        with self.precision():
            loss, state = self.loss_of(self.network, inputs, targets, state, self.padding_mask)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss.detach(), norm, detach(state)


def loss_of(
    network: LanguageModel, inputs: Tensor, targets: Tensor, state: Any, padding_mask: Tensor | None = None
) -> tuple[Tensor, Any]:
    """The mean loss over all targets, and the memory after the segment."""
    unbroken = network.remembered if padding_mask is None else 0
    outputs = network(inputs, state, padding_mask, unbroken=unbroken)
    return network.tokens.nll(outputs.hidden, targets).mean(), outputs.state


def check(config: RunConfig, vocabulary: int, text: Tensor, mode: Mode) -> dict[str, Any]:
    """Compares ten updates of a mode, and ten of eager, with ten in float32.

    Dropout is off, because compiled code draws other random numbers, and the learning rate is so low that ten updates
    stay comparable. The distance of each quantity is relative to its norm in float32.
    """
    config = config.override(
        {"model.dropout": 0, "model.feedforward.dropout": 0, "training.optimizer.learning_rate": 1e-4}
    )
    exact = followed(Training(config, vocabulary, text, Mode.EAGER, mixed=False))
    eager = followed(Training(config, vocabulary, text, Mode.EAGER))
    candidate = followed(Training(config, vocabulary, text, mode))
    distances = {
        name: {"eager": distance(eager[name], exact[name]), mode: distance(candidate[name], exact[name])}
        for name in exact
    }
    agrees = all(pair[mode] <= 3 * pair["eager"] + TOLERANCE[text.is_cuda] for pair in distances.values())
    return {
        "agrees": agrees,
        "apart": distances,
        "losses": {"eager": eager["loss"].tolist(), mode: candidate["loss"].tolist()},
    }


def followed(training: Training, updates: int = 10) -> dict[str, Tensor]:
    """Losses and gradient norms of some updates, and the memory and the weights after them."""
    losses, norms = zip(*([part.double().item() for part in training()] for _ in range(updates)), strict=True)
    memory = [part.flatten().double() for part in state_tensors(training.state)]
    weights = [parameter.detach().flatten().double() for parameter in training.parameters]
    return {
        "loss": torch.tensor(losses),
        "norm": torch.tensor(norms),
        "memory": torch.cat(memory),
        "weights": torch.cat(weights),
    }


def distance(values: Tensor, exact: Tensor) -> float:
    """||values - exact|| / ||exact||; infinite where it is not a finite number."""
    relative = float((values - exact).norm() / exact.norm())
    return relative if math.isfinite(relative) else math.inf


def seconds_per_step(step: Callable[[], object], device: torch.device, warm: int, count: int, repeats: int) -> float:
    """The median over ``repeats`` of the mean seconds of ``count`` steps, with the device idle before and after."""
    for _ in range(warm):
        step()
    means = []
    for _ in range(repeats):
        synchronise(device)
        begun = time.perf_counter()
        for _ in range(count):
            step()
        synchronise(device)
        means.append((time.perf_counter() - begun) / count)
    return statistics.median(means)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def known_peak(device: torch.device) -> float | None:
    """The peak TFLOP/s of this GPU, or None where the table does not list it."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((float(peak) for name, peak in PEAKS.items() if name in gpu), None)


def profiled(step: Callable[[], object], device: torch.device, count: int = 3, listed: int = 30) -> dict[str, Any]:
    """Milliseconds per update in which the device is busy, and the kernels that take the most of them."""
    cuda = device.type == "cuda"
    step()
    synchronise(device)
    with profile(activities=[ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            step()
        synchronise(device)
    totals = [
        (event.self_device_time_total if cuda else event.self_cpu_time_total, event.count, event.key)
        for event in profiler.key_averages()
        if not cuda or (event.device_type == DeviceType.CUDA and not event.is_user_annotation)  # which span kernels
    ]
    kernels = [
        {"name": name[:200], "milliseconds": microseconds / count / 1000, "calls": calls / count}
        for microseconds, calls, name in sorted(totals, reverse=True)
        if microseconds > 0
    ]
    return {"busy_milliseconds": sum(kernel["milliseconds"] for kernel in kernels), "kernels": kernels[:listed]}


def main(
    tiny: Annotated[bool, typer.Option("--tiny", help="A small network, to check this script without a GPU.")] = False,
    mode: Annotated[Mode, typer.Option(help="How an update is run.")] = Mode.EAGER,
    checking: Annotated[
        bool, typer.Option("--check", help="First compare ten updates of the mode with eager.")
    ] = False,
    check_depth: Annotated[int, typer.Option(min=1, help="Layers of the networks that --check compares.")] = 4,
    masking: Annotated[
        bool, typer.Option("--masked", help="Also time the network with a mask of padding, though there is none.")
    ] = False,
    profiling: Annotated[
        bool, typer.Option("--profile", help="Also list the kernels that take the most time.")
    ] = False,
    peak: Annotated[float | None, typer.Option(help="Dense bfloat16 TFLOP/s of a device not known here.")] = None,
    warm: Annotated[int, typer.Option(min=1, help="Steps before the measurement.")] = 10,
    count: Annotated[int, typer.Option(min=1, help="Steps of a measurement.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements, of which the median counts.")] = 5,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints tokens a second and model FLOPs utilisation, next to NVIDIA's published speed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not tiny:
        typer.echo("error: no CUDA device is to be found; --tiny checks the script on a CPU", err=True)
        raise SystemExit(2)
    config, vocabulary = (BASE.override(TINY), TINY_VOCABULARY) if tiny else (BASE, VOCABULARY)
    rows, length = config.data.batch_size, config.data.segment_length
    text = zipf(vocabulary, rows, 8 * length + 1, device)
    results: dict[str, Any] = {
        "hardware": describe(),
        "tiny": tiny,
        "mode": mode,
        "peak_tflops": peak or known_peak(device),
    }
    if checking and mode is not Mode.EAGER:
        shallow = config.override({"model.depth": min(check_depth, config.model.depth)})
        results["check"] = check(shallow, vocabulary, text, mode)
        write_results(json, results)
        typer.echo(check_line(results["check"], mode))
        if not results["check"]["agrees"]:
            raise SystemExit(1)
        torch.compiler.reset()
        gc.collect()  # a training and its graph hold each other
    if text.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    training = Training(config, vocabulary, text, mode)
    training()
    synchronise(device)
    results["seconds_until_first_step"] = time.perf_counter() - begun
    results |= measured(training, config, text, warm, count, repeats)
    results["flops_per_token"] = train_flops(config, vocabulary, text)
    results["published_tokens_per_second"] = PUBLISHED
    write_results(json, results)
    if results["last_loss"] is None:
        typer.echo("error: the loss is no longer a number, so the timings are void", err=True)
        raise SystemExit(1)
    Console(width=120).print(view(results))
    if masking:
        masked = Training(config, vocabulary, text, mode, masked=True)
        results["masked"] = measured(masked, config, text, warm, count, repeats)
        write_results(json, results)
        typer.echo(f"with a mask: {results['masked']['tokens_per_second']:,.0f} tokens a second")
    if profiling:
        results["profile"] = profiled(training, device)
        write_results(json, results)
        for kernel in results["profile"]["kernels"][:12]:
            typer.echo(f"{kernel['milliseconds']:8.3f} ms {kernel['calls']:7.1f} x  {kernel['name'][:90]}")
    if tiny:
        typer.echo("A tiny network: these numbers say that the script runs, and nothing about speed.")


def measured(
    training: Training, config: RunConfig, text: Tensor, warm: int, count: int, repeats: int
) -> dict[str, Any]:
    """Speed and peak memory of a training. The last loss is None where it is not finite."""
    seconds = seconds_per_step(training, text.device, warm, count, repeats)
    loss = training()[0].item()
    return {
        "parameters": sum(parameter.numel() for parameter in training.parameters),
        "seconds_per_step": seconds,
        "tokens_per_second": config.data.batch_size * config.data.segment_length / seconds,
        "last_loss": loss if math.isfinite(loss) else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if text.is_cuda else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if text.is_cuda else None,
    }


def write_results(name: str | None, results: dict[str, Any]) -> None:
    """Writes the results so far, where a name is given."""
    if name:
        save(name, results)


def check_line(comparison: dict[str, Any], mode: Mode) -> str:
    """Returns the comparison of ``check`` as one line."""
    parts = (f"{name} {pair[mode]:.1e} (eager {pair['eager']:.1e})" for name, pair in comparison["apart"].items())
    verdict = "agrees with eager" if comparison["agrees"] else "error: computes something else than eager"
    return f"{mode} {verdict}; distance from float32 of {', '.join(parts)}"


def view(results: dict[str, Any]) -> Table:
    """A table with a row for this machine and, except at tiny size, one for NVIDIA's published speed."""
    achieved = results["tokens_per_second"] * results["flops_per_token"]
    peak = results["peak_tflops"]
    used = f"{achieved / peak / 1e12:.1%} of {peak:g} TFLOP/s" if peak else "unknown: give --peak"
    memory = results["peak_memory_bytes"]
    table = Table("", "parameters", "ms a step", "tokens a second", "model TFLOP/s", "utilisation", "peak GB")
    table.add_row(
        f"{results['hardware']['gpu'] or results['hardware']['processor']}, {results['mode']}",
        f"{results['parameters'] / 1e6:.1f} M",
        f"{1000 * results['seconds_per_step']:.1f}",
        f"{results['tokens_per_second']:,.0f}",
        f"{achieved / 1e12:.3g}",
        used,
        f"{memory / 1e9:.1f}" if memory else "-",
    )
    if not results["tiny"]:
        published_tflops = PUBLISHED * results["flops_per_token"] / 1e12
        used = f"{published_tflops / PEAKS['A100']:.1%} of {PEAKS['A100']} TFLOP/s"
        table.add_row(
            "NVIDIA's, one A100 40 GB", "", "", f"{PUBLISHED:,} (published)", f"{published_tflops:.3g}", used, ""
        )
    return table


if __name__ == "__main__":
    typer.run(main)
