"""One Transformer-XL attention layer, forward and backward, next to plain causal attention and XLNet's layer.

    python -m benchmarks.xl_layer [--lengths 1024,2048,4096] [--device cuda] [--json NAME]

Plain attention is the same layer without encoding: the same projections around torch's fused kernel. XLNet's layer is
that of transformers, which builds the whole score matrix. The three take turns in one process, so that other load on
the machine affects all of them alike; times are medians. Processor time is reported next to wall-clock time, because it
is more reliable on a busy machine. The peak memory of each is measured in a separate process.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.layer_timing import DIM, HEADS, QUANTITIES, Layer, Step, Work, ours, peaks_of, power, row_of, stepper
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.startup.quick_imports import use_huge_pages

LARGEST_XLNET = 4096 * 4096
"""The most scores per head: larger matrices take gigabytes."""


def xl(work: Work, device: torch.device) -> Step:
    return ours(AttentionConfig(encoding=XLConfig(), memory=work.memory), True, work, device)


def plain(work: Work, device: torch.device) -> Step:
    return ours(AttentionConfig(memory=work.memory), True, work, device)


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


LAYERS: dict[str, Layer] = {"plain": plain, "xl": xl, "xlnet": xlnet}


def layers_for(work: Work) -> dict[str, Layer]:
    """All layers, without XLNet's where its matrices would be too large."""
    fits = work.rows * work.length * (work.length + work.memory) <= LARGEST_XLNET
    return {name: layer for name, layer in LAYERS.items() if fits or name != "xlnet"}


def show(rows: list[dict[str, Any]], quantity: str, device: torch.device) -> Table:
    """A table of one quantity of every layer, with ratios and the exponent of its growth with length."""
    table = Table(
        title=f"One layer, dim {DIM}, {HEADS} heads, forward and backward, {device.type}: {QUANTITIES[quantity]}"
    )
    for heading in ("sequences", *LAYERS, "xl / plain", "xlnet / xl"):
        table.add_column(heading, justify="left" if heading == "sequences" else "right", no_wrap=True)
    for row in rows:
        values = row[quantity]
        table.add_row(
            Work(row["rows"], row["length"], row["memory"]).name,
            *(f"{values[name]:.1f}" if name in values else "-" for name in LAYERS),
            *(ratio(values, *pair) for pair in (("xl", "plain"), ("xlnet", "xl"))),
        )
    powers = {
        name: power({row["length"]: row[quantity][name] for row in rows if row["rows"] == 1 and name in row[quantity]})
        for name in LAYERS
    }
    table.add_row("power of length", *("-" if value is None else f"{value:.2f}" for value in powers.values()))
    return table


def ratio(values: dict[str, float], above: str, below: str) -> str:
    return f"{values[above] / values[below]:.2f}" if above in values and values[below] > 0 else "-"


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated; one sequence of each length.")] = "1024,2048,4096",
    rounds: Annotated[int, typer.Option(help="Steps of each layer that are timed.")] = 7,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda (bf16).")] = "cpu",
    json: Annotated[str, typer.Option(help=JSON_HELP)] = "",
) -> None:
    """Times one XL attention layer against plain attention and XLNet's layer."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch_device = torch.device(device)
    works = [Work(1, int(length), 0) for length in lengths.split(",")] + [Work(32, 128, 128)]
    peaks = [peaks_of(layers_for(work), work, torch_device) for work in works]
    rows = [row_of(layers_for(work), work, torch_device, rounds, peak) for work, peak in zip(works, peaks, strict=True)]
    for quantity in QUANTITIES:
        Console(width=110).print(show(rows, quantity, torch_device))
    if json:
        results = {"benchmark": "xl_layer", "dim": DIM, "heads": HEADS, "device": torch_device.type, "rows": rows}
        Console().print(f"written: {save(json, results | describe(('torch', 'transformers')))}")


if __name__ == "__main__":
    use_huge_pages()  # as every run does
    typer.run(main)
