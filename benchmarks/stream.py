"""How fast text becomes batches in one process, and whether memory stays flat: ``python benchmarks/stream.py``.

Writes a file of ``--gigabytes`` into a temporary folder (and its index into a cache there), and removes both.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import psutil
import torch
import typer
from rich.console import Console
from rich.table import Table

from datamodules import (
    BPEConfig,
    BytesConfig,
    CharactersConfig,
    FilesConfig,
    LanguageData,
    LanguageDataConfig,
    TokenizerConfig,
    WordsConfig,
)
from datamodules.core.tokenizers import encode_document
from lit_transformers.batch import TextBatch

MEGABYTE = 1_000_000


def write_text(path: Path, size: int) -> None:
    """Writes lines of up to 50,000 different words with frequencies as in English; one block of them is repeated."""
    generator = torch.Generator().manual_seed(0)
    ranks = (50_000 ** torch.rand(1_000_000, generator=generator)).long().tolist()
    words = [f"w{rank:x}" + "\n" * (position % 12 == 11) for position, rank in enumerate(ranks)]
    block = " ".join(words).encode()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


def resident() -> float:
    """Resident memory of this process in megabytes."""
    return float(psutil.Process().memory_info().rss) / MEGABYTE


def config(path: Path, tokenizer: TokenizerConfig, rows: int, length: int, policy: str) -> LanguageDataConfig:
    return LanguageDataConfig.from_dict(
        {
            "source": FilesConfig(path=str(path), splits="order"),
            "tokenizer": tokenizer,
            "batch_size": rows,
            "segment_length": length,
            "documents": policy,
        }
    )


def symbols(batches: Iterator[TextBatch], count: int) -> int:
    return sum(int(batch.padding_mask.sum()) for batch in islice(batches, count))


def rates(data: LanguageData, bytes_per_symbol: float, megabytes: float, repeats: int) -> list[float]:
    """Megabytes of text a second, measured several times over consecutive parts of one stream."""
    batches = iter(data.train_dataloader())
    per_batch = data.config.batch_size * data.config.segment_length * bytes_per_symbol
    count = max(round(megabytes * MEGABYTE / per_batch), 1)
    symbols(batches, count)
    measured_rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        symbol_count = symbols(batches, count)
        measured_rates.append(symbol_count * bytes_per_symbol / MEGABYTE / (time.perf_counter() - started))
    return measured_rates


def bytes_per_symbol(data: LanguageData) -> float:
    document = next(iter(data.documents("train")))
    return len(document.text) / len(encode_document(data.tokenizer, document))


def peak_growth(path: Path) -> tuple[int, float, float]:
    """Reads the training data once, from indexing on. Returns the number of documents, the megabytes read, and the
    growth of memory at its peak in megabytes."""
    before = peak = resident()
    data = LanguageData(config(path, BytesConfig(), 32, 512, "reset"))
    lengths = [len(document.text) for document in data.documents("train")]
    batches = iter(data.train_dataloader())
    count = sum(lengths) // (32 * 512)
    for _ in range(100):
        peak = max(peak, resident())
        symbols(batches, count // 100)
    return len(lengths), sum(lengths) / MEGABYTE, max(peak, resident()) - before


def generate(large: Path, size: int, small: Path) -> None:
    """Writes both files in separate processes, so that their memory does not count as that of the measured one."""
    for path, length in ((large, size), (small, 30 * MEGABYTE)):
        writer = multiprocessing.get_context("spawn").Process(target=write_text, args=(path, length))
        writer.start()
        writer.join()


def main(
    gigabytes: Annotated[float, typer.Option(help="size of the generated file")] = 2.0,
    repeats: Annotated[int, typer.Option(help="measurements of each rate")] = 7,
) -> None:
    """Prints the growth of memory over one pass and the rates of every tokenizer."""
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIT_CACHE"] = f"{folder}/cache"
        large, small = Path(folder, "large.txt"), Path(folder, "small.txt")
        generate(large, int(gigabytes * 1e9), small)
        before = resident()
        documents, read, growth = peak_growth(large)
        console.print(
            f"{gigabytes:g} GB, {documents:,} train documents: indexing and one pass over {read:,.0f} MB "
            f"add {growth:.1f} MB to {before:.0f} MB at their peak"
        )
        console.print(rate_table(large, small, repeats))


def rate_table(large: Path, small: Path, repeats: int) -> Table:
    table = Table("tokenizer", "documents", "rows", "segment", "MB/s median", "lowest", "highest", title="one process")
    cases: list[tuple[Path, TokenizerConfig, int, int, str, float]] = [
        (large, BytesConfig(), 32, 512, "reset", 40),
        (large, BytesConfig(), 32, 512, "stream", 40),
        (large, BytesConfig(), 32, 128, "reset", 20),
        (large, BytesConfig(), 32, 32, "reset", 5),
        (small, CharactersConfig(), 32, 512, "reset", 10),
        (small, WordsConfig(), 32, 512, "reset", 10),
        (small, BPEConfig(size=8192), 32, 512, "reset", 10),
    ]
    for path, tokenizer, rows, length, policy, megabytes in cases:
        data = LanguageData(config(path, tokenizer, rows, length, policy))
        measured_rates = rates(data, bytes_per_symbol(data), megabytes, repeats)
        median, low, high = statistics.median(measured_rates), min(measured_rates), max(measured_rates)
        table.add_row(tokenizer.kind, policy, str(rows), str(length), f"{median:.1f}", f"{low:.1f}", f"{high:.1f}")
    return table


if __name__ == "__main__":
    typer.run(main)
