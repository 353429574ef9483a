"""One layer of every mixer, forward and backward, next to plain attention and the peers of each mixer.

    python -m benchmarks.layers [--lengths 1024,4096,16384] [--only lsh,linear] [--device cuda] [--json NAME]

On a CPU all layers take turns in one process, so that other load on the machine affects all of them alike, and the
peak memory of each is measured in a separate process; on CUDA, in bfloat16, they are measured one after another.
Times are medians. A layer that took longer than ``--patience`` seconds is left out at greater lengths, and so is one
that failed. Layers without numbers are listed with the reason, including peers that are not installed. The numbers are
written after every length. The power is the exponent of a quantity's growth with length between 4k and 16k (where these
were measured). Peers need: pip install -e .[benchmarks], and on CUDA flash-linear-attention.

A trial run that takes seconds: --lengths 64,128 --rounds 1 --no-peaks
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.layer_timing import ABSENT, DIM, HEADS, QUANTITIES, Layer, Peaks, Work, ours, peaks_of, power, row_of
from benchmarks.peers import BLOCK, CHUNK, KEPT, RANK, ROUNDS, WINDOW
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers import (
    AdaptiveSpanConfig,
    AttentionConfig,
    BigBirdConfig,
    CompressiveConfig,
    DietConfig,
    EntmaxConfig,
    LinearConfig,
    LinformerConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    LSTMConfig,
    SparseConfig,
    StarConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)
from lit_transformers.startup.quick_imports import use_huge_pages

FAR = 512
"""The window of long rows."""


class LayerCase(NamedTuple):
    """One of our mixers, whether it is timed causally, and the names of the peers that compute the same."""

    config: MixerConfig
    causal: bool
    peers: tuple[str, ...] = ()


MIXERS: dict[str, LayerCase] = {
    "attention": LayerCase(
        AttentionConfig(), True, ("SDPA flash", "SDPA cuDNN", "SDPA memory-efficient", "FlexAttention causal")
    ),
    "local": LayerCase(LocalConfig(block=WINDOW), True),
    "window": LayerCase(WindowConfig(window=WINDOW), True, ("local-attention", "FlexAttention window")),
    "window 512": LayerCase(WindowConfig(window=FAR), True, ("FlexAttention window 512",)),
    "xl": LayerCase(AttentionConfig(encoding=XLConfig()), True),
    "window both ways": LayerCase(WindowConfig(window=WINDOW), False, ("HF Longformer",)),
    "window dilated": LayerCase(WindowConfig(window=WINDOW, dilation=4, dilated_heads=2), True),
    "window global": LayerCase(WindowConfig(window=WINDOW, global_tokens="first", global_count=16), False),
    "adaptive span": LayerCase(AdaptiveSpanConfig(span=1024), True),
    "lsh": LayerCase(LSHConfig(rounds=ROUNDS, chunk_length=CHUNK), True, ("HF Reformer", "reformer-pytorch")),
    "sparse strided": LayerCase(SparseConfig(block=128), True),
    "sparse fixed": LayerCase(SparseConfig(pattern="fixed", block=128, summary=8), True),
    "top-k": LayerCase(TopKConfig(kept=KEPT), True, ("x-transformers top-k",)),
    "entmax learned": LayerCase(EntmaxConfig(), True, ("entmax_bisect",)),
    "entmax 1.5": LayerCase(EntmaxConfig(alpha=1.5), True, ("entmax15",)),
    "big bird": LayerCase(BigBirdConfig(block=BLOCK, random=3), False, ("HF BigBird",)),
    "linformer": LayerCase(LinformerConfig(rank=RANK), False, ("linformer",)),
    "linear": LayerCase(LinearConfig(), True, ("running sums", "flash-linear-attention")),
    "synthesizer": LayerCase(SynthesizerConfig(), True),
    "synthesizer random": LayerCase(SynthesizerConfig(members=("random",)), True),
    "synthesizer factorised": LayerCase(SynthesizerConfig(members=("factorised_dense",)), True),
    "synthesizer mixture": LayerCase(SynthesizerConfig(members=("dense", "dot_product")), True),
    "compressive": LayerCase(CompressiveConfig(memory=0), True),
    "diet": LayerCase(DietConfig(pattern="cascade", window=WINDOW), True),
    "lsra": LayerCase(LSRAConfig(), True),
    "lsra window": LayerCase(LSRAConfig(window=WINDOW), True),
    "star": LayerCase(StarConfig(), False),
    "lstm": LayerCase(LSTMConfig(), True),
}
PEERS: dict[str, Layer] = {
    "local-attention": peers.local_attention,
    "HF Longformer": peers.longformer,
    "HF Reformer": peers.hf_reformer,
    "reformer-pytorch": peers.reformer_pytorch,
    "x-transformers top-k": peers.top_k,
    "HF BigBird": peers.big_bird,
    "linformer": peers.linformer,
    "entmax_bisect": partial(peers.entmax, "entmax_bisect"),
    "entmax15": partial(peers.entmax, "entmax15"),
    "running sums": peers.running_sums,
    "flash-linear-attention": peers.flash_linear_attention,
    "SDPA flash": partial(peers.fused, "FLASH_ATTENTION"),
    "SDPA cuDNN": partial(peers.fused, "CUDNN_ATTENTION"),
    "SDPA memory-efficient": partial(peers.fused, "EFFICIENT_ATTENTION"),
    "FlexAttention causal": partial(peers.flex, None),
    "FlexAttention window": partial(peers.flex, WINDOW),
    "FlexAttention window 512": partial(peers.flex, FAR),
}
PLAIN = "attention"
LONGEST = {
    "x-transformers top-k": 4096,
    "entmax_bisect": 4096,
    "entmax15": 4096,
    "running sums": 4096,
    "synthesizer random": 8192,
}
"""The longest inputs on a CPU of layers that build a matrix of the whole length, or one as large: beyond, it does not
fit into memory. CUDA reports this itself, in time."""


def layers(only: list[str], beside: list[str] | None = None) -> dict[str, Layer]:
    """Plain attention, then every requested mixer followed by its peers; ``beside`` names the peers that are kept, None
    for all. Raises BadParameter for an unknown mixer or peer."""
    if absent := {*(beside or ())} - {*PEERS}:
        raise typer.BadParameter(f"no peer is called {', '.join(sorted(absent))}; there are: {', '.join(PEERS)}")
    unknown = set(only) - set(MIXERS)
    if unknown:
        raise typer.BadParameter(f"no mixer is called {', '.join(sorted(unknown))}; there are: {', '.join(MIXERS)}")
    selected: dict[str, Layer] = {}
    for name, entry in MIXERS.items():
        is_selected = not only or name in only
        if is_selected or name == PLAIN:
            selected[name] = partial(ours, entry.config, entry.causal)
        if is_selected:
            kept = [peer for peer in entry.peers if beside is None or peer in beside]
            selected |= {peer if peer not in MIXERS else f"{peer} (peer)": PEERS[peer] for peer in kept}
    return selected


def too_long(layers: dict[str, Layer], work: Work, device: torch.device) -> dict[str, str]:
    """The reason for each layer that needs too much memory for this length on a CPU."""
    beyond = {name for name in layers if work.length > LONGEST.get(name, work.length)}
    return {name: f"left out on a CPU beyond {LONGEST[name]}" for name in beyond} if device.type == "cpu" else {}


def show(rows: list[dict[str, Any]], quantity: str, device: torch.device) -> Table:
    """A table of one quantity of every layer at every length, and its ratio to plain attention at the longest."""
    sizes = f"One layer, dim {DIM}, {HEADS} heads, forward and backward, {device.type}"
    table = Table(title=f"{sizes}: {QUANTITIES[quantity]}")
    lengths = [row["length"] for row in rows]
    table.add_column("layer", no_wrap=True)
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    table.add_column("over plain", justify="right")
    table.add_column("power", justify="right")
    for name in dict.fromkeys(name for row in rows for name in row[quantity]):
        values = {row["length"]: row[quantity][name] for row in rows if name in row[quantity]}
        longest = max(values)
        plain = next(row[quantity].get(PLAIN) for row in rows if row["length"] == longest)
        exponent = power({length: value for length, value in values.items() if length >= min(4096, lengths[0])})
        cells = (f"{values[length]:,.1f}" if length in values else "-" for length in lengths)
        over = f"{values[longest] / plain:.2f}" if plain else "-"
        table.add_row(name, *cells, over, "-" if exponent is None else f"{exponent:.2f}")
    return table


def measured(
    candidates: dict[str, Layer],
    works: list[Work],
    device: torch.device,
    rounds: int,
    patience: float,
    peaked: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each input size, in order. Layers that failed or took too long are skipped afterwards."""
    oversized = [too_long(candidates, work, device) for work in works]
    peaks = [
        peaks_of({name: layer for name, layer in candidates.items() if name not in beyond}, work, device)
        if peaked
        else Peaks({}, {}, {})
        for work, beyond in zip(works, oversized, strict=True)
    ]
    skipped: dict[str, str] = {}
    for work, peak, beyond in zip(works, peaks, oversized, strict=True):
        skipped |= beyond
        row = row_of(
            {n: layer for n, layer in candidates.items() if n not in skipped}, work, device, rounds, peak, patience
        )
        new_failures, row["failed"] = row["failed"], skipped | row["failed"]
        slow_layers = {name: ms for name, ms in row["milliseconds"].items() if ms > 1000 * patience}
        skipped |= {name: f"left out: took {ms / 1000:.1f} s at {work.length}" for name, ms in slow_layers.items()}
        skipped |= {
            name: why if why.startswith(ABSENT) else f"at {work.length}: {why}" for name, why in new_failures.items()
        }
        yield row


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated; one sequence of each length.")] = "1024,2048,4096,8192",
    only: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(MIXERS)}.")] = "",
    beside: Annotated[
        str | None, typer.Option("--peers", help="Comma-separated: the peers that are timed; all of them by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Steps of each layer that are timed.")] = 5,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    patience: Annotated[float, typer.Option(help="Seconds that a step may take to be tried at greater lengths.")] = 4.0,
    device: Annotated[str, typer.Option(help="cpu, cuda (bf16), or auto: CUDA where there is one.")] = "cpu",
    peaked: Annotated[bool, typer.Option("--peaks/--no-peaks", help="On a CPU, whether to take peak memory.")] = True,
    json: Annotated[str, typer.Option(help=JSON_HELP)] = "",
) -> None:
    """Times one layer of every mixer next to its peers."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kept = None if beside is None else [name for name in beside.split(",") if name]
    torch_device, candidates = torch.device(device), layers([name for name in only.split(",") if name], kept)
    works = [Work(1, length) for length in sorted(int(length) for length in lengths.split(","))]
    settings = {"benchmark": "layers", "dim": DIM, "heads": HEADS, "device": torch_device.type, "rounds": rounds}
    settings |= {"precision": "bf16 autocast" if torch_device.type == "cuda" else "float32"}
    rows: list[dict[str, Any]] = []
    for row in measured(candidates, works, torch_device, rounds, patience, peaked):
        rows.append(row)
        if json:
            path = save(
                json, settings | {"rows": rows} | describe(("transformers", "flash-linear-attention", "fla-core"))
            )
            print(f"written: {path}, up to length {row['length']}", flush=True)
    for quantity in QUANTITIES:
        if any(row[quantity] for row in rows):
            Console(width=120).print(show(rows, quantity, torch_device))
    for row in rows:
        for name, why in row["failed"].items():
            print(f"{row['length']:>8,}  {name}: {why}")


if __name__ == "__main__":
    use_huge_pages()  # as every run does
    typer.run(main)
