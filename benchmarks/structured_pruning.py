"""Measures the speed of a network that keeps some heads and channels of a larger one.

    python -m benchmarks.structured_pruning [--heads 6] [--width 768] [--batch 32] [--length 64] [--json NAME]

Three networks of MiniLM's kind take turns in one process: the whole one; the narrower one, with the heads and channels
of the largest weights of the whole one (``start.narrow``); and a dense one of the narrower size, made from scratch.
Prints texts a second of each in evaluation, as medians, and the ratios of the narrower one to the others. The goal is a
ratio between 0.9 and 1.1 to the dense one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from ablations.fine_tuning import MINILM_NETWORK
from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers.compression.narrow import NarrowConfig, Narrowing, scores_of
from lit_transformers.gates.miniature import probe_data
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.encoder import EncoderConfig

SYMBOLS = 30_522
"""The vocabulary of MiniLM."""
WHOLE, NARROWED, SCRATCH = "whole", "narrowed", "from scratch"
TINY = {"dim": 24, "depth": 1, "feedforward.width": 96}


def networks_of(whole: EncoderConfig, heads: int, width: int, length: int) -> dict[str, RowNetwork]:
    """Returns the three networks. Raises ConfigError where the narrower one has more heads or channels than the whole
    one."""
    head_dim = whole.dim // whole.heads
    narrow = whole.override({"heads": heads, "mixer.head_dim": head_dim, "feedforward.width": width})
    data = probe_data(SYMBOLS, length)
    configs = {WHOLE: whole, NARROWED: narrow, SCRATCH: narrow}
    networks = {name: config.build(data).eval() for name, config in configs.items()}
    narrowing = Narrowing(networks[WHOLE], networks[NARROWED], whole.heads != heads)
    scores = scores_of(NarrowConfig(score="magnitude"), narrowing, networks[WHOLE], lambda: ())
    networks[NARROWED].load_state_dict(narrowing.narrowed(networks[WHOLE].state_dict(), scores))
    return networks


@torch.no_grad()
def measure(networks: Mapping[str, RowNetwork], batch: int, length: int, rounds: int) -> dict[str, list[float]]:
    """Returns the texts a second of each network in each round, after one round that is not counted."""
    symbols = torch.randint(1, SYMBOLS, (batch, length))
    marked = torch.zeros_like(symbols, dtype=torch.bool)
    speeds: dict[str, list[float]] = {name: [] for name in networks}
    for number in range(rounds + 1):
        for name, network in networks.items():
            begun = time.perf_counter()
            network.read_row(symbols, None, marked)
            if number:
                speeds[name].append(batch / (time.perf_counter() - begun))
    return speeds


def main(
    heads: Annotated[int, typer.Option(min=1, help="Heads that the narrower network keeps in each layer.")] = 6,
    width: Annotated[int, typer.Option(min=1, help="Channels that its feed-forwards keep.")] = 768,
    batch: Annotated[int, typer.Option(min=1, help="Texts of a batch.")] = 32,
    length: Annotated[int, typer.Option(min=1, help="Symbols of a text.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each network reads the batch.")] = 21,
    tiny: Annotated[bool, typer.Option("--tiny", help="Measure a tiny network, to try the benchmark.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints the speed of a narrower network next to the whole one and to one of its size."""
    torch.manual_seed(0)
    whole = MINILM_NETWORK.override(TINY) if tiny else MINILM_NETWORK
    speeds = measure(networks_of(whole, heads, width, length), batch, length, rounds)
    medians = {name: median(own) for name, own in speeds.items()}
    ratios = {name: medians[NARROWED] / medians[name] for name in (WHOLE, SCRATCH)}
    table = Table("network", "texts a second", "narrowed to it")
    for name, speed in medians.items():
        table.add_row(name, f"{speed:.1f}", f"{ratios[name]:.2f}" if name in ratios else "")
    Console().print(table)
    if json:
        sizes = {"heads": heads, "width": width, "batch": batch, "length": length}
        save(json, {"hardware": describe(("torch",)), **sizes, "texts_per_second": speeds, "ratios": ratios})


if __name__ == "__main__":
    typer.run(main)
