"""Tables of the page of speed, from the files in ``benchmarks/results/`` that the benchmarks write themselves."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ablations.studies.xl_evaluation_speed import PUBLISHED
from claims.claim import ROOT, ClaimError
from lit_transformers.config import Plain

__all__ = ["benchmark_tables", "fine_tuning_values"]

RESULTS = ROOT / "benchmarks" / "results"


class Ratio(NamedTuple):
    """A layer and the one that it is compared with, by their names in the results, and the goal for the ratio of both;
    None for a peer, which has no goal."""

    layer: str
    beside: str
    goal: float | None = None


RATIOS = (
    Ratio("entmax learned", "attention", 3),
    Ratio("entmax 1.5", "attention", 3),
    Ratio("entmax15", "attention"),
    Ratio("entmax_bisect", "attention"),
    Ratio("synthesizer", "attention", 1.5),
    Ratio("synthesizer random", "attention", 1.5),
    Ratio("synthesizer factorised", "attention", 1.5),
    Ratio("synthesizer mixture", "attention", 1.5),
    Ratio("compressive", "attention", 1.2),
    Ratio("big bird", "HF BigBird", 0.6),
    Ratio("window global", "window both ways", 2),
    Ratio("star", "window both ways", 2),
)


def benchmark_tables() -> dict[str, Plain]:
    """Returns the tables as Markdown, by the names of their marks. Raises ClaimError for results that say nothing."""
    return {
        "speed.layers": _layers(_read("layers_4096_cpu")["rows"][0]["milliseconds"]),
        "speed.xl": _xl(_read("xl_layer_cpu_2_threads")["rows"]),
        "speed.long_rows": _long_rows(_read("long_documents_cpu")["powers"]),
        "speed.evaluation": _evaluation(_read("evaluation_speed_cpu")["rows"]),
        "speed.decoding": _decoding(tables := _read("decoding_cpu")["tables"]),
        "speed.texts": _texts(_read("acceleration_cpu")["rows"]),
        "speed.texts_amd": _texts(_without_int8(_read("acceleration_amd_cpu")["rows"])),
        "speed.texts_intel": _texts(_without_int8(_read("acceleration_intel_cpu")["rows"])),
        "speed.serving": _serving(serving := _read("serving_cpu")),
        "speed.serving_overload": _overload(serving["overload"]),
        "speed.prefixes": _prefixes(tables["A symbol after a prefix"]),
        "speed.pairs": _pairs(_read("prepared_pairs_cpu")),
        "speed.streams": _streams(streams := _read("stream_cpu")["results"]),
        "speed.resumed_streams": _resumed_streams(streams),
        "speed.scaling": f"{_read('stream_cpu')['scaling']:.2f}",
        "speed.gpu_goals": _gpu_goals(gpu := _read("nvidia_h100_80gb_hbm3")),
        "speed.gpu_training": _gpu_training(results := {job["name"]: job["result"] for job in gpu["attempts"]}),
        "speed.gpu_rows": _gpu_rows([*results["rows of 4k and 16k"]["rows"], *results["rows of 64k"]["rows"]]),
    } | fine_tuning_values(RESULTS / "fine_tuning_cpu.json")


def fine_tuning_values(path: Path) -> dict[str, Plain]:
    """Returns the sentence and the table on the speed of fine-tuning, from a results file of
    ``benchmarks.fine_tuning``; without the file, the command that measures them. Raises ClaimError for results of a
    trial with few sentences."""
    command = "python -m benchmarks.fine_tuning --json fine_tuning_cpu"
    if not path.exists():
        line = f"`{command}` compares speed and nats with the Trainer of transformers."
        return {"speed.fine_tuning_sentence": line, "speed.fine_tuning": line}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    speed, nats = results["speed"], results["nats"]
    if results["tiny"]:
        raise ClaimError(f"{path.name} has few sentences; measure anew: {command}")
    random, grouped = (f"{speed['ratios'][order]:.2f}" for order in ("random", "group_by_length"))
    sentence = (
        f"Fine-tuning reads {random} times the examples a second of the Trainer of transformers at its defaults, and "
        f"{grouped} times those of the Trainer with batches of similar length."
    )
    names = {"ours": "this suite", "random": "Trainer, random order", "group_by_length": "Trainer, similar lengths"}
    rows = (
        (
            shown,
            f"{speed['examples_per_second'][name]:.1f}",
            "" if name == "ours" else f"{speed['ratios'][name]:.2f}",
            f"{statistics.mean(row[name] for row in nats['seeds']):.4f}",
            "" if name == "ours" else f"{nats['mean_differences'][name]:+.4f}",
        )
        for name, shown in names.items()
    )
    headings = ("Trained by", "Examples a second", "Suite, times faster", "Nats", "Suite, difference")
    seeds = len(nats["seeds"])
    of_seeds = f"means over {seeds} seeds" if seeds > 1 else "of one seed (`--seeds 1`)"
    of_nats = f"Nats are {of_seeds}, after one epoch of {nats['examples']:,} sentences."
    return {
        "speed.fine_tuning_sentence": sentence,
        "speed.fine_tuning": f"{sentence} {of_nats}\n\n{_table(headings, rows)}",
    }


STREAM_READERS = {"suite": "Suite", "datasets": "datasets", "MosaicML": "MosaicML streaming", "litdata": "litdata"}


def _streams(results: dict[str, dict[str, Any]]) -> str:
    """Returns the thousands of tokens that each reader reads per CPU second, and the ratio to those of datasets."""

    def cells(case: str, row: dict[str, Any]) -> Iterator[str]:
        yield _stream_case(case)
        yield from (f"{row[name]['tokens'] / 1000:,.0f}" if name in row else "-" for name in STREAM_READERS)
        yield f"{row['suite']['tokens'] / row['datasets']['tokens']:.1f}" if "datasets" in row else "-"
        yield f"{row['suite']['clock'] / 1000:,.0f}"

    rows = [tuple(cells(case, row)) for case, row in results.items()]
    return _table(("Corpus", *STREAM_READERS.values(), "By datasets", "Suite, by the clock"), rows)


def _resumed_streams(results: dict[str, dict[str, Any]]) -> str:
    """Returns by reader the slowest first batch, in CPU seconds, and the slowest resume, with the rows that differ."""

    def cells(name: str) -> Iterator[str]:
        of_reader = [row[name] for row in results.values() if name in row]
        resumed = [one for one in of_reader if one["differ"] is not None]
        differ, compared = (sum(one["differ"][place] for one in resumed) for place in (0, 1))
        yield STREAM_READERS[name]
        yield f"{max(one['cold'][1] for one in of_reader):.1f}"
        yield f"{max(one['warm'][1] for one in of_reader):.1f}"
        yield f"{max(one['resume'] for one in resumed):.2f}"
        yield f"{differ:,} of {compared:,}"
        yield f"{len(of_reader) - len(resumed)} of {len(of_reader)}"

    headings = ("Reader", "First batch, cold", "Warm", "Resume", "Rows that differ", "Cases without a resume")
    return _table(headings, [tuple(cells(name)) for name in STREAM_READERS])


def _stream_case(case: str) -> str:
    """Returns a case such as ``bpe jsonl.gz 2w 1r`` in words."""
    tokenizer, name, workers, ranks = case.split()
    tokenizer = "bytes" if tokenizer == "bytes" else "BPE"
    count = int(ranks.removesuffix("r"))
    return f"{tokenizer}, {name}, {workers.removesuffix('w')} workers, {count} rank{'s' if count > 1 else ''}"


def _read(name: str) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return contents


def _layers(milliseconds: dict[str, float]) -> str:
    rows = (
        (one.layer, f"{own:,.0f}", one.beside, f"{other:,.0f}", f"{own / other:.2f}", str(one.goal or "-"))
        for one in RATIOS
        for own, other in [(milliseconds[one.layer], milliseconds[one.beside])]
    )
    return _table(("Layer", "ms", "Compared with", "ms", "Ratio", "Goal"), rows, left=(0, 2))


def _xl(results: list[dict[str, Any]]) -> str:
    return _table(("Rows", "Attention", "XL", "XLNet", "XL by attention", "XL by XLNet"), _xl_rows(results))


def _xl_rows(results: list[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for row in results:
        plain, xl, xlnet = (row["milliseconds"][name] for name in ("plain", "xl", "xlnet"))
        memory = f" after {row['memory']}" if row["memory"] else ""
        name = f"{row['rows']} x {row['length']:,}{memory}"
        yield name, f"{plain:,.0f}", f"{xl:,.0f}", f"{xlnet:,.0f}", f"{xl / plain:.2f}", f"{xl / xlnet:.2f}"


def _long_rows(powers: dict[str, dict[str, float | None]]) -> str:
    quantities = ("milliseconds", "peak_mib", "flops")
    rows = (
        (name, *("-" if (value := own[quantity]) is None else f"{value:.2f}" for quantity in quantities))
        for name, own in powers.items()
    )
    return _table(("Mixer", "Time", "Peak memory", "FLOPs, counted"), rows)


def _evaluation(results: list[dict[str, Any]]) -> str:
    rows = (
        (
            f"{row['length']:,}",
            f"{row['milliseconds']['reusing']:.3f}",
            f"{row['milliseconds']['sliding']:.1f}",
            f"{row['ratio']:,.0f}",
            f"{PUBLISHED[row['length']]:,}",
        )
        for row in results
    )
    return _table(("Attention", "State reused", "Sliding by one", "Faster by", "The paper's"), rows, left=())


def _without_int8(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the results of ways of this suite but int8, and of others."""
    return [row for row in results if not (row["way"].startswith("predict") and row["way"].endswith("int8"))]


def _texts(results: list[dict[str, Any]]) -> str:
    rows = (
        (
            row["way"],
            f"{row['texts_a_second']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['peak_mb']:.0f}",
            f"{row['equal_labels']:.1f} %",
            f"{row['nats']:+.4f} ({row['low']:.4f} to {row['high']:.4f})",
        )
        for row in results
    )
    headings = ("Way", "Texts a second", "Faster by", "One text, ms", "99th percentile", "MiB", "Equal labels", "Nats")
    return _table(headings, rows, left=(0,))


def _serving(results: dict[str, Any]) -> str:
    """Returns the cost of a request to each server, next to the pipeline of transformers over as many connections."""
    pipeline = {row["connections"]: row["cpu_ms"] for row in results["rows"] if row["server"].startswith("pipeline")}
    rows = (
        (
            row["server"],
            f"{row['connections']}",
            f"{row['cpu_ms']:.1f}",
            f"{pipeline[row['connections']] / row['cpu_ms']:.1f}",
            f"{row['p50_ms']:,.0f}",
            f"{row['p99_ms']:,.0f}",
        )
        for row in results["rows"]
    )
    headings = ("Server", "Connections", "CPU, ms", "Pipeline, times", "Median, ms", "99th percentile, ms")
    return _table(headings, rows)


def _overload(overload: dict[str, Any]) -> str:
    """Returns how a server answers ten times the requests that it bears."""
    statuses = overload["statuses"]
    return (
        f"Of {overload['sent']:,} requests in {overload['seconds']:g} seconds, ten times as many as a slowed-down "
        f"process can compute, {statuses['200']:,} are answered, {statuses['429']:,} are refused with status 429, and "
        f"{overload['lost']:,} are lost."
    )


def _pairs(results: dict[str, Any]) -> str:
    """Returns the cost to prepare pairs."""
    seconds, cpu = results["steps"]["all"]
    return (
        f"{results['pairs']:,} pairs of {results['bytes'] / 1e6:.0f} MB take {cpu:.0f} CPU seconds, {seconds:.0f} "
        f"seconds by the clock and at most {results['memory']:.0f} MB of memory without libraries"
    )


def _decoding(tables: dict[str, list[dict[str, Any]]]) -> str:
    rows = (
        (
            title.removeprefix("A ").capitalize(),
            row["way"],
            f"{row['ms_a_symbol']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['equal_symbols']:.0f} %",
            f"{row['accepted']:.0f} %, {row['symbols_a_pass']:.2f}" if "accepted" in row else "-",
        )
        for title, table in tables.items()
        for row in table
        if "way" in row
    )
    headings = ("Output", "Way", "ms a symbol", "Faster by", "Equal symbols", "Accepted, symbols a pass")
    return _table(headings, rows, left=(0, 1))


def _prefixes(results: list[dict[str, Any]]) -> str:
    rows = (
        (f"{row['prefix']:,}", f"{row['attention_ms']:.2f}", f"{row['linear_ms']:.2f}", f"{row['ratio']:.2f}")
        for row in results
    )
    return _table(("Prefix", "Attention, ms", "Linear attention, ms", "Ratio"), rows, left=())


def _gpu_goals(kit: dict[str, Any]) -> str:
    return _table(
        ("Goal", "Measured", "Verdict"),
        ((goal["text"], goal["measured"], goal["verdict"]) for goal in kit["goals"]),
        left=(0, 1, 2),
    )


def _gpu_training(results: dict[str, Any]) -> str:
    modes = [results[f"transformer-xl {mode}"] for mode in ("eager", "graphs", "compiled-graphs")]
    rows = (
        (
            mode["mode"],
            f"{mode['tokens_per_second']:,.0f}",
            f"{mode['tokens_per_second'] / mode['published_tokens_per_second']:.2f}",
            f"{mode['tokens_per_second'] * mode['flops_per_token'] / mode['peak_tflops'] / 1e10:.1f} %",
            f"{mode['peak_memory_bytes'] / 1e9:.1f}",
        )
        for mode in modes
    )
    return _table(("Mode", "Tokens a second", "By NVIDIA's A100", "Of the peak", "GB"), rows)


def _gpu_rows(results: list[dict[str, Any]]) -> str:
    names = [*results[0]["milliseconds"]]
    rows = ((f"{row['length']:,}", *(f"{row['milliseconds'][name]:.1f}" for name in names)) for row in results)
    return _table(("Tokens", *names), rows, left=())


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    rule = ["---" if column in left else "---:" for column in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))
