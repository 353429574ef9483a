"""How fast a corpus becomes batches, next to datasets, MosaicML streaming and litdata: ``python -m benchmarks.stream``.

Writes a corpus of ``--megabytes`` in each format into a temporary folder, and removes it. Each reader
(``benchmarks/stream_readers.py``) reads each case in separate processes. CPU time sums all processes of a reader; rates
by the clock are sums over ranks. A reader with its own files is measured in the first format alone. The first batch is
cold where nothing is prepared, and warm where the corpus was opened before; time to import a library does not count.
After a resume, the same number of batches is compared, row by row, with those without an interruption.
"""

from __future__ import annotations

import gzip
import json as json_files
import multiprocessing
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
import pyarrow
import torch
import typer
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.stream_readers import LENGTH, READERS, ROWS, SUFFIXES, Case, StreamReader
from datamodules.core.documents import Document
from datamodules.core.tokenizers import BPE, BPEConfig

MEGABYTE = 1_000_000
FILES, GROUP = 8, 1000
"""Files of a corpus, and rows of a row group of parquet."""
SCALING_SECONDS = 3.0
"""How long two processes encode, and one, to see how far the machine serves two."""
LONGEST = 200
"""Characters of a reason that are printed: the last ones of a long trace."""
QUESTIONS = {
    "tokens": "Thousand tokens per CPU second",
    "clock": "Thousand tokens per second of the clock",
    "cold": "Cold first batch: seconds (CPU seconds)",
    "warm": "Warm first batch: seconds (CPU seconds)",
    "memory": "Peak memory of all processes, without libraries, MB",
    "resume": "Time to resume: seconds",
    "differ": "Rows that differ after a resume",
}
GOALS = {"bytes": 3.0, "bpe": 1.5}
"""Goals for the ratio of tokens per CPU second to those of datasets."""


class Key(NamedTuple):
    """A case, by which results are known."""

    tokenizer: str
    format: str
    workers: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.tokenizer} {self.format} {self.workers}w {self.ranks}r"


class Amounts(NamedTuple):
    """How much each process reads: seconds of a measurement, measurements, and batches compared after a resume."""

    seconds: float
    repeats: int
    compared: int


def documents(size: int) -> Iterator[str]:
    """Yields documents of 200 to 20,000 characters, as many as have about ``size`` bytes, of words with frequencies as
    in English, most of which have several pieces."""
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(draw.choice(letters[:18], draw.integers(2, 11))) for _ in range(20_000)]
    written = 0
    while written < size:
        count = int(np.clip(draw.lognormal(5.5, 1.0), 30, 3000))
        chosen = (20_000 ** draw.random(count)).astype(int) - 1
        text = " ".join(words[rank] + (".\n" if number % 17 == 16 else "") for number, rank in enumerate(chosen))
        written += len(text)
        yield text


def write_corpora(folder: Path, size: int, formats: Sequence[str]) -> Path:
    """Writes the corpus in each format into a folder of its name, and a BPE tokenizer of it; returns its path."""
    texts = list(documents(size))
    for name in formats:
        (folder / name).mkdir()
        for number in range(FILES):
            part = texts[number::FILES]
            path = folder / name / f"train-{number:05}{SUFFIXES[name]}"
            if name == "jsonl.gz":
                lines = "".join(json_files.dumps({"text": text}) + "\n" for text in part)
                path.write_bytes(gzip.compress(lines.encode(), 6))
            elif name == "text":
                for place, text in enumerate(part):
                    path.with_name(f"train-{number:05}-{place:06}.txt").write_text(text, encoding="utf-8")
            else:
                parquet.write_table(pyarrow.table({"text": part}), path, GROUP)
    learned = BPEConfig(size=8192).build(Document("text", text.encode()) for text in texts[:2000])
    (place := folder / "bpe.json").write_text(learned.serialised, encoding="utf-8")
    return place


def cpu_seconds() -> float:
    """CPU seconds of this process, of those that it has started, and of those of them that have ended."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory(process: psutil.Process | None = None) -> float:
    """Megabytes that a process and those that it has started have to themselves: none of those of libraries. process:
    None for this one."""
    total, process = 0.0, process or psutil.Process()
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().uss
        except psutil.Error:
            continue
    return total / MEGABYTE


def clocked(work: Any) -> tuple[Any, list[float]]:
    """Returns the result of a function, with the seconds and the CPU seconds that it took."""
    began, cpu = time.perf_counter(), cpu_seconds()
    result = work()
    return result, [time.perf_counter() - began, cpu_seconds() - cpu]


def measured(kind: type[StreamReader], case: Case, amounts: Amounts) -> dict[str, Any]:
    """Measures the reading of one rank."""
    result: dict[str, Any] = {}
    warm_state = case.cache / f"state-{case.rank}"
    opened, cold = clocked(lambda: _first(kind, case, None))
    reader, batches = opened
    result["first"], peak, rates, clock = cold, memory(), [], []
    for _ in range(amounts.repeats):
        tokens, (seconds, cpu) = clocked(lambda: _tokens_within(batches, amounts.seconds))
        rates.append(tokens / cpu)
        clock.append(tokens / seconds)
        peak = max(peak, memory())
    result |= {"rates": rates, "clock": clock, "memory": peak}
    if (state := reader.state()) is not None:
        rows = [part for part, _ in islice(batches, amounts.compared)]
        warm_state.write_bytes(pickle.dumps((state, rows)))
    return result


def resumed(kind: type[StreamReader], case: Case, amounts: Amounts) -> dict[str, Any]:
    """Measures how a new process begins: from the beginning, and where ``measured`` has stopped."""
    (_, batches), warm = clocked(lambda: _first(kind, case, None))
    del batches
    kept = case.cache / f"state-{case.rank}"
    result: dict[str, Any] = {"first": warm, "resume": None, "differ": None, "failed": None}
    if not kept.exists():
        return result
    state, expected = pickle.loads(kept.read_bytes())
    reader = kind(case)
    batches = reader.rows(state)
    try:
        first, resume = clocked(lambda: next(batches))
    except Exception as error:  # of any of the peers
        return result | {"failed": _reason(error)}
    rows = [first[0], *(part for part, _ in islice(batches, amounts.compared - 1))]
    differ = sum(
        int((one != other).any(1).sum()) if one.shape == other.shape else len(one)
        for one, other in zip(expected, rows, strict=True)
    )
    return result | {"resume": resume[0], "differ": [differ, sum(map(len, expected))]}


def _reason(error: Exception) -> str:
    """Returns the message of an error in one line, of a long trace its end."""
    return " ".join(f"{type(error).__name__}: {error}".split())[-LONGEST:]


def _tokens_within(batches: Iterator[Any], seconds: float) -> int:
    """Reads batches for some seconds and returns how many tokens they have."""
    tokens, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        tokens += next(batches)[1]
    return tokens


def _first(kind: type[StreamReader], case: Case, state: Any) -> tuple[StreamReader, Iterator[Any]]:
    """Opens a corpus and reads its first batch."""
    reader = kind(case)
    batches = reader.rows(state)
    next(batches)
    return reader, batches


def _work(name: str, step: str, case: Case, amounts: Amounts, results: Any) -> None:
    """Does a step in a separate process: one rank, or the preparation for all."""
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # of workers, as where a reader is not in a process of ours
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(case.cache / "hf"), "HF_HUB_OFFLINE": "1"}
    try:
        import_module(READERS[name].needs)
        if case.ranks > 1:
            os.environ |= {"RANK": str(case.rank), "LOCAL_RANK": str(case.rank), "WORLD_SIZE": str(case.ranks)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "29533"}
            store = (case.cache / f"store-{step}").as_uri()
            torch.distributed.init_process_group("gloo", store, rank=case.rank, world_size=case.ranks)
        if step == "prepare":
            results.send(clocked(READERS[name](case).prepare)[1])
        else:
            results.send((measured if step == "measure" else resumed)(READERS[name], case, amounts))
    except Exception as error:  # of any of the peers
        results.send(_reason(error))
    finally:
        for process in psutil.Process().children(recursive=True):  # workers, and processes of the peers
            process.kill()
        os._exit(0)


def step(name: str, what: str, case: Case, amounts: Amounts) -> list[Any]:
    """Returns the results of a step by rank. Raises RuntimeError with the message of a process that fails."""
    context, started = multiprocessing.get_context("forkserver"), []
    for rank in range(case.ranks):
        receiving, sending = context.Pipe(duplex=False)
        arguments = (name, what, case._replace(rank=rank), amounts, sending)
        process = context.Process(target=_work, args=arguments)
        process.start()
        sending.close()
        started.append((process, receiving))
    results = []
    for process, receiving in started:
        try:
            results.append(receiving.recv())
        except EOFError:
            results.append("a process ended from outside")
        process.join()
    for result in results:
        if isinstance(result, str):
            raise RuntimeError(result)
    return results


def result_of(name: str, case: Case, amounts: Amounts) -> dict[str, Any]:
    """Returns the numbers of a reader in a case; times are those of the slowest rank, CPU time and memory sums."""
    seconds = cpu = 0.0
    if READERS[name].has_own_files:
        [(seconds, cpu)] = step(name, "prepare", case._replace(ranks=1), amounts)
    ranks = step(name, "measure", case, amounts)
    again = step(name, "resume", case, amounts)
    share = [statistics.median(rank["rates"]) for rank in ranks]
    return {
        "tokens": statistics.harmonic_mean(share),
        "clock": sum(statistics.median(rank["clock"]) for rank in ranks),
        "rates": [rank["rates"] for rank in ranks],
        "cold": [
            seconds + max(rank["first"][0] for rank in ranks),
            cpu + sum(rank["first"][1] for rank in ranks),
        ],
        "warm": [max(rank["first"][0] for rank in again), sum(rank["first"][1] for rank in again)],
        "memory": sum(rank["memory"] for rank in ranks),
        "resume": None if again[0]["resume"] is None else max(rank["resume"] for rank in again),
        "failed": again[0]["failed"],
        "differ": None if again[0]["differ"] is None else np.sum([rank["differ"] for rank in again], 0).tolist(),
    }


def shown(question: str, value: Any) -> str:
    """Returns a number of a table."""
    if value is None:
        return "-"
    if question in ("cold", "warm"):
        return f"{value[0]:.2f} ({value[1]:.1f})"
    if question == "differ":
        return f"{value[0]} of {value[1]}"
    if question == "resume":
        return f"{value:.2f}"
    return f"{value / 1000 if question in ('tokens', 'clock') else value:,.0f}"


def tables(results: dict[str, dict[str, Any]], readers: Sequence[str]) -> Iterator[Table]:
    """Yields a table for each question, of at most 80 columns."""
    for question, title in QUESTIONS.items():
        ratio = ["by datasets"] if question == "tokens" and "datasets" in readers else []
        table = Table("case", title=title, width=80)
        for heading in (*readers, *ratio):
            table.add_column(heading, justify="right")
        for key, row in results.items():
            cells = [shown(question, row[name][question]) if name in row else "-" for name in readers]
            if ratio:
                both = "suite" in row and "datasets" in row
                cells.append(f"{row['suite']['tokens'] / row['datasets']['tokens']:.1f}" if both else "-")
            table.add_row(key, *cells)
        yield table


def encoded_bytes(learned: Path, size: int, seconds: float) -> float:
    """Returns the bytes a second of the clock that a process encodes which does nothing else."""
    tokenizer = BPE(learned.read_text(encoding="utf-8"), "strict")
    texts = [text.encode() for text in documents(size)]
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        text = texts.pop()
        tokenizer.encode(text)
        done += len(text)
        texts = texts or [text]
    return done / (time.perf_counter() - began)


def scaling(learned: Path, size: int, seconds: float, processes: int = 2) -> float:
    """Returns how many times as fast as one process several processes encode that share nothing: the most that as many
    workers can reach on this machine."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        work = [(learned, size, seconds)] * processes
        pool.starmap(encoded_bytes, work)  # imports the modules
        together = sum(pool.starmap(encoded_bytes, work, chunksize=1))
        [alone] = pool.starmap(encoded_bytes, work[:1])
    return together / alone


def usual(tokenizers: Sequence[str], formats: Sequence[str], workers: Sequence[int], ranks: Sequence[int]) -> list[Key]:
    """Returns every format read by one process, and the first format by any number of workers and by any of ranks."""
    keys = [Key(tokenizer, name, workers[0], ranks[0]) for tokenizer in tokenizers for name in formats]
    keys += [Key(tokenizer, formats[0], count, ranks[0]) for tokenizer in tokenizers for count in workers[1:]]
    keys += [Key(tokenizer, formats[0], workers[0], count) for tokenizer in tokenizers for count in ranks[1:]]
    return keys


def _list(text: str, known: Sequence[str], what: str) -> list[str]:
    """Returns the items of an option. Raises BadParameter for an unknown one."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or set(items) - set(known):
        raise typer.BadParameter(f"{what} are {', '.join(known)}, separated by commas, not {text!r}")
    return items


def main(
    megabytes: Annotated[int, typer.Option(min=1, help="Write a corpus of about n megabytes.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Take the median of n measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Read for n seconds in each measurement.")] = 0.5,
    compared: Annotated[int, typer.Option(min=1, help="Compare n batches after a resume.")] = 20,
    readers: Annotated[str, typer.Option(help="Measure these readers, separated by commas.")] = ",".join(READERS),
    tokenizers: Annotated[str, typer.Option(help="Measure bytes, bpe or both.")] = "bytes,bpe",
    formats: Annotated[str, typer.Option(help="Measure these formats.")] = ",".join(SUFFIXES),
    workers: Annotated[str, typer.Option(help="Measure these numbers of workers.")] = "0,2,4",
    ranks: Annotated[str, typer.Option(help="Measure these numbers of ranks.")] = "1,2",
    full: Annotated[bool, typer.Option(help="Measure every combination, which takes long.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints tokens per CPU second, the first batch, memory, the time to resume and whether a resume is exact."""
    chosen = _list(readers, list(READERS), "readers")
    kinds, names = _list(tokenizers, ("bytes", "bpe"), "tokenizers"), _list(formats, list(SUFFIXES), "formats")
    counts, totals = ([int(item) for item in _list(text, "01248", "numbers")] for text in (workers, ranks))
    keys = [Key(*one) for one in product(kinds, names, counts, totals)] if full else usual(kinds, names, counts, totals)
    multiprocessing.set_forkserver_preload(["benchmarks.stream_readers", "datasets"])
    console, amounts = Console(width=80), Amounts(seconds, repeats, compared)
    results: dict[str, dict[str, Any]] = {}
    omitted: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        learned = write_corpora(Path(folder), megabytes * MEGABYTE, names)
        most = scaling(learned, megabytes * MEGABYTE, SCALING_SECONDS)
        for number, (key, name) in enumerate(product(keys, chosen)):
            if READERS[name].has_own_files and key.format != names[0] and not full:
                continue
            cache = Path(folder, f"cache-{number}")
            cache.mkdir()
            tokenizer = learned if key.tokenizer == "bpe" else None
            case = Case(key.format, Path(folder, key.format), tokenizer, cache, key.workers, ranks=key.ranks)
            if (reason := READERS[name].omission()) is not None:
                omitted[name] = reason
                continue
            console.print(f"{key}: {name}", style="dim")
            try:
                result = results.setdefault(str(key), {})[name] = result_of(name, case, amounts)
                if result["failed"] is not None:
                    omitted[f"the resume of {name}, {key}"] = result["failed"]
            except RuntimeError as error:
                omitted[f"{name}, {key}"] = str(error)
    for table in tables(results, [name for name in chosen if name not in omitted]):
        console.print(table)
    console.print(f"Two processes that share nothing encode {most:.2f} times as fast as one on this machine.")
    console.print(f"{ROWS} rows of {LENGTH} tokens a batch; w: workers, r: ranks; goals by datasets: {GOALS}")
    for name, reason in omitted.items():
        console.print(f"omitted {name}: {reason}", markup=False)
    if json:
        hardware = describe(("torch", "datasets", "tokenizers", "mosaicml-streaming", "litdata"))
        amount = {"megabytes": megabytes, **amounts._asdict()}
        save(json, {"hardware": hardware, "amounts": amount, "scaling": most, "results": results, "omitted": omitted})


if __name__ == "__main__":
    typer.run(main)
