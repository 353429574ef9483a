"""The cost to prepare pairs, from two files of lines to stored symbols: ``python -m benchmarks.prepared_pairs``.

Writes two files of made-up sentences, which both sides draw from one vocabulary, into a temporary folder. A separate
process indexes them, learns a tokenizer of 8,192 symbols from a sample, and encodes both sides. CPU seconds and memory
are sums over this process and those that it starts; memory without libraries is read five times a second.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.stream import clocked, documents, memory
from datamodules.core.tokenizers import BPEConfig
from datamodules.pairs.parallel import ParallelConfig
from datamodules.pairs.source import PairsRead

LANGUAGES = ("en", "de")
ENDLESS = 1 << 62
INTERVAL = 0.2
"""Seconds between two readings of memory."""


def sentences() -> Iterator[str]:
    """Yields sentences of at most 17 words without end."""
    for text in documents(ENDLESS):
        yield from filter(None, (sentence.strip() for sentence in text.split(".\n")))


def write_files(folder: Path, pairs: int) -> None:
    """Writes the sides of pairs, one to a line."""
    drawn = sentences()
    for language in LANGUAGES:
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            file.writelines(f"{sentence}\n" for sentence in islice(drawn, pairs))


def prepare(folder: Path, sender: Connection) -> None:
    """Prepares the pairs of a folder and sends seconds and CPU seconds of each step."""
    os.environ["LIT_CACHE"] = str(folder / "cache")
    corpus, indexed = clocked(ParallelConfig(path=str(folder)).corpus)
    how = PairsRead(BPEConfig(size=8192), None, lengths=(), examples=None)
    pairs, learned = clocked(lambda: ParallelConfig(path=str(folder)).open(how))
    _, encoded = clocked(lambda: pairs.lengths("train"))
    sender.send({"index": indexed, "learn the tokenizer": learned, "encode": encoded, "pairs": corpus.count("train")})


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Prepare n pairs.")] = 3_000_000,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints seconds, CPU seconds and the peak memory of each step."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), pairs)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=prepare, args=(Path(folder), sending))
        process.start()
        sending.close()
        peak = 0.0
        while not receiving.poll(INTERVAL):
            peak = max(peak, memory(psutil.Process(process.pid)))
        steps = receiving.recv()
        process.join()
    if steps.pop("pairs") != pairs:
        raise RuntimeError("the index has not all pairs")
    steps["all"] = [sum(values) for values in zip(*steps.values(), strict=True)]
    table = Table("step", title=f"{pairs:,} pairs of {size / 1e6:.0f} MB, {peak:.0f} MB of memory at most", width=80)
    for heading in ("seconds", "CPU seconds"):
        table.add_column(heading, justify="right")
    for name, values in steps.items():
        table.add_row(name, *(f"{value:.1f}" for value in values))
    Console(width=80).print(table)
    if json:
        hardware = describe(("tokenizers", "numpy"))
        save(json, {"hardware": hardware, "pairs": pairs, "bytes": size, "memory": peak, "steps": steps})


if __name__ == "__main__":
    typer.run(main)
