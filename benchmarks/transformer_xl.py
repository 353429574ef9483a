"""Training speed of Transformer-XL base as NVIDIA runs it: ``python -m benchmarks.transformer_xl [--compile]``.

The network is that of NVIDIA's DeepLearningExamples (Transformer-XL for PyTorch, base on WikiText-103): 16 layers, dim
512, 8 heads, inner 2048, segment and memory of 192 tokens, 32 sequences, 267,735 words with an adaptive softmax whose
weights the input shares, mixed precision (here bfloat16). They publish 59,961 tokens a second on one A100 of 40 GB.

Tokens are drawn from Zipf's law, as words are distributed; they cost what text costs and are learned from in vain.
Model FLOPs are those of the mathematics, three times the forward pass, without what an implementation does twice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.hardware import describe, save
from lit_transformers.cost import cost
from lit_transformers.mixer import detach
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.tokens import AdaptiveTokensConfig
from lit_transformers.run import RunConfig

PUBLISHED = 59_961
"""Tokens a second in training, one A100 40 GB, mixed precision: README of NVIDIA's Transformer-XL for PyTorch."""

PEAKS = {"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L4": 121}
"""Dense bfloat16 TFLOP/s by what the name of a GPU contains, from the makers' data sheets; the first match counts."""

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
        "training": {"optimizer": {"kind": "adam", "learning_rate": 0.01}, "clip": 0.25},
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


def zipf(vocabulary: int, rows: int, length: int, device: torch.device) -> Tensor:
    """Symbols (rows, length), the r-th with probability in proportion to 1 / (r + 2.7) (Mandelbrot's form)."""
    weights = 1 / (torch.arange(1, vocabulary + 1, dtype=torch.float64) + 2.7)
    drawn = torch.multinomial(weights, rows * length, replacement=True, generator=torch.Generator().manual_seed(0))
    return drawn.view(rows, length).to(device)


def train_flops(config: RunConfig, vocabulary: int, targets: Tensor) -> float:
    """Model FLOPs of a training token. Only the targets of a rare cluster ask for it, so these are counted."""
    found = cost(config.model, vocabulary, config.data.segment_length).flops_per_token
    tokens = config.model.tokens
    assert isinstance(tokens, AdaptiveTokensConfig)
    for cluster, (start, end) in enumerate(pairwise([*tokens.cutoffs, vocabulary]), start=1):
        width = config.model.dim // tokens.shrink**cluster
        share = ((targets >= start) & (targets < end)).double().mean().item()
        found += share * 2 * width * (config.model.dim + end - start)
    return 3 * found


def steps(config: RunConfig, network: LanguageModel, text: Tensor, device: torch.device) -> Iterator[None]:
    """A training step each time it is asked: memory, loss, gradient, clipping, update."""
    optimizer, schedule = config.training.learn(network)
    parameters, state, length = list(network.parameters()), None, config.data.segment_length
    starts = range(0, text.size(1) - length, length)
    for start in cycle(starts):
        inputs, targets = text[:, start : start + length], text[:, start + 1 : start + length + 1]
        # On a CPU torch's adaptive softmax cannot mix precisions: log_softmax stays in bfloat16 there.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            read = network(inputs, state)
            loss = network.tokens.nats(read.hidden, targets).mean()
        state = detach(read.state)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.training.clip or float("inf"))
        optimizer.step()
        schedule.step()
        yield


def seconds_per_step(step: Callable[[], object], device: torch.device, warm: int, count: int, repeats: int) -> float:
    """The median over ``repeats`` of the mean of ``count`` steps, each measured from an idle device to an idle one."""
    for _ in range(warm):
        step()
    found = []
    for _ in range(repeats):
        synchronise(device)
        begun = time.perf_counter()
        for _ in range(count):
            step()
        synchronise(device)
        found.append((time.perf_counter() - begun) / count)
    return statistics.median(found)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def known_peak(device: torch.device) -> float | None:
    """TFLOP/s of this GPU where the table has it."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((float(peak) for name, peak in PEAKS.items() if name in gpu), None)


def main(
    tiny: Annotated[bool, typer.Option("--tiny", help="A small network, to check this script without a GPU.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Run the network through torch.compile.")] = False,
    peak: Annotated[float | None, typer.Option(help="Dense bfloat16 TFLOP/s of a device not known here.")] = None,
    warm: Annotated[int, typer.Option(min=1, help="Steps before the measurement.")] = 10,
    count: Annotated[int, typer.Option(min=1, help="Steps of a measurement.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements, of which the median counts.")] = 5,
    json: Annotated[str | None, typer.Option(help="Also write benchmarks/results/NAME.json.")] = None,
) -> None:
    """Prints tokens a second and model FLOPs utilisation, beside NVIDIA's published speed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not tiny:
        typer.echo("error: no CUDA device is to be found; --tiny checks the script on a CPU", err=True)
        raise SystemExit(2)
    config, vocabulary = (BASE.override(TINY), TINY_VOCABULARY) if tiny else (BASE, VOCABULARY)
    assert isinstance(config.model, LanguageModelConfig)
    torch.manual_seed(config.seed)
    network = config.model.build(vocabulary, config.data.segment_length).to(device).train()
    if compiled:
        network.compile()
    rows, length = config.data.batch_size, config.data.segment_length
    text = zipf(vocabulary, rows, 8 * length + 1, device)
    stream = steps(config, network, text, device)
    seconds = seconds_per_step(lambda: next(stream), device, warm, count, repeats)
    flops = train_flops(config, vocabulary, text)
    found: dict[str, Any] = {
        "hardware": describe(("torch",)),
        "tiny": tiny,
        "compiled": compiled,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds_per_step": seconds,
        "tokens_per_second": rows * length / seconds,
        "flops_per_token": flops,
        "peak_tflops": peak or known_peak(device),
        "published_tokens_per_second": PUBLISHED,
    }
    Console().print(view(found))
    if tiny:
        typer.echo("A tiny network: these numbers say that the script runs, and nothing about speed.")
    if json:
        save(json, found)


def view(found: dict[str, Any]) -> Table:
    """One row for this machine, one for NVIDIA's."""
    achieved = found["tokens_per_second"] * found["flops_per_token"]
    peak = found["peak_tflops"]
    used = f"{achieved / peak / 1e12:.1%} of {peak:g} TFLOP/s" if peak else "unknown: give --peak"
    table = Table("", "parameters", "ms a step", "tokens a second", "model TFLOP/s", "utilisation")
    table.add_row(
        (found["hardware"]["gpu"] or found["hardware"]["processor"]) + (", compiled" if found["compiled"] else ""),
        f"{found['parameters'] / 1e6:.1f} M",
        f"{1000 * found['seconds_per_step']:.1f}",
        f"{found['tokens_per_second']:,.0f}",
        f"{achieved / 1e12:.3g}",
        used,
    )
    if not found["tiny"]:
        spent = PUBLISHED * found["flops_per_token"] / 1e12
        used = f"{spent / PEAKS['A100']:.1%} of {PEAKS['A100']} TFLOP/s"
        table.add_row("NVIDIA's, one A100 40 GB", "", "", f"{PUBLISHED:,} (published)", f"{spent:.3g}", used)
    return table


if __name__ == "__main__":
    typer.run(main)
