"""Writes the config of a run that fine-tunes a network on your own data, for ``init --classify FILE`` and others."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from datamodules import DataError
from datamodules.core.reading import locate
from datamodules.core.tokenizers import Tokenizer, tokenizer_of_folder
from datamodules.labelled.conll import ConllConfig
from datamodules.labelled.questions import QuestionsConfig
from datamodules.text.nested_records import RecordsConfig
from lit_transformers.batch import LABEL
from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.exchange.folders import local_folder
from lit_transformers.exchange.transfer import imported
from lit_transformers.models.capabilities import RowModelConfig
from lit_transformers.runs.starting_weights import StartingWeights

__all__ = ["Columns", "Purpose", "write_fine_tuning"]

Purpose = Literal["classify", "score", "tag", "answer"]
"""The kind of prediction: a class or a number for a text or a pair of texts, a tag for each word, or an answer in a
passage."""

TEXT_NAMES = (
    *("text", "sentence", "review", "question", "title", "content", "body", "document", "premise", "first"),
    *("sentence1", "text1", "sentence_a", "text_a", "query"),
)
SECOND_NAMES = ("second", "sentence2", "text2", "hypothesis", "text_b", "sentence_b", "passage", "answer")
LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "score", "rating", "topic", "intent", "stars", "y")
"""Usual names of columns, the most usual first."""
MOST_CLASSES = 256
READ = 20_000
"""The most examples that are read to choose labels and lengths."""
BATCH, FEWEST_UPDATES, MOST_PASSES = 32, 200, 20
SMALL: dict[str, Plain] = {
    "kind": "encoder",
    "dim": 128,
    "heads": 4,
    "depth": 2,
    "dropout": 0.1,
    "positions": "learned",
    "segments": 2,
}
"""The network without ``--weights``, which starts untrained."""


class Columns(NamedTuple):
    """The columns of a table that the user names; None for columns to detect by their usual names."""

    text: str | None = None
    second: str | None = None
    label: str | None = None


FOUND = Columns()
"""Detects all columns by their usual names."""


class OwnData(NamedTuple):
    """A description of the user's data. source: the field ``data.source`` of the run. examples: the number of training
    examples. length: the tokens of a row. lines: a message for each choice."""

    source: dict[str, Plain]
    examples: int
    length: int
    lines: list[str]


class Started(NamedTuple):
    """The start of training. model: the network's config. tokenizer: its tokenizer; None for a new one. longest: the
    longest row that it reads, in tokens. start, symbols: the fields ``start`` and ``data.source.tokenizer`` of the run.
    rate: the learning rate. has_pooler: whether the weights have a pooler."""

    model: dict[str, Plain]
    tokenizer: Tokenizer | None
    longest: int
    start: dict[str, Plain]
    symbols: dict[str, Plain]
    rate: float
    has_pooler: bool


def write_fine_tuning(
    purpose: Purpose, data: str, directory: Path, weights: str | None = None, columns: Columns = FOUND
) -> list[str]:
    """Writes ``run.yaml`` into a folder, and returns a message for each choice.

    data: the file or folder. weights: a folder of Hugging Face, or a name on its hub; None for a small untrained
    network. Raises ConfigError if the file exists or the weights cannot be used, and DataError if the data cannot be
    read or a column is missing.
    """
    target = directory / "run.yaml"
    if target.exists():
        raise ConfigError("is there already; choose another folder", str(target))
    started = start_of(weights)
    path = str(locate(data, purpose).resolve())
    known = READERS[purpose](path, started, columns)
    plain = run_of(purpose, known, started)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        target.write_text(text_of(purpose, data, target, plain), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", str(target)) from None
    training: Any = plain["training"]
    passes = training["steps"] * BATCH / known.examples
    return [*known.lines, f"{known.examples:,} examples of training, {training['steps']} updates, {passes:.1f} passes"]


def start_of(weights: str | None) -> Started:
    """Returns the start of training. Raises ConfigError unless the weights are an encoder with a tokenizer."""
    if weights is None:
        return Started(SMALL, None, 512, {}, {"kind": "wordpiece", "size": 8000}, 1e-3, False)
    folder = local_folder(weights)
    network, _ = imported(folder)
    tokenizer = tokenizer_of_folder(folder)
    if not isinstance(network.model, RowModelConfig):
        raise ConfigError(f"is a {network.architecture}; name an encoder such as BERT", weights)
    if tokenizer is None:
        raise ConfigError("has no tokenizer.json and no vocab.txt that can be read", weights)
    name = "tokenizer.json" if (folder / "tokenizer.json").is_file() else "vocab.txt"
    start: dict[str, Plain] = {"network": {"kind": "import", "path": str(folder.resolve())}}
    has_pooler = "heads.relation.map.0.weight" in network.tensors
    if has_pooler:
        start["heads"] = "network"
    longest = positions_of(network)
    symbols: dict[str, Plain] = {"kind": "pretrained", "path": str((folder / name).resolve())}
    rate = 5e-5 * math.sqrt(768 / network.model.dim)
    return Started(network.model.to_dict(), tokenizer, longest, start, symbols, float(f"{rate:.1e}"), has_pooler)


def positions_of(weights: StartingWeights) -> int:
    """Returns the longest row that a network reads, at most 512 tokens."""
    longest = weights.model.get("positions.max_length") if weights.model.get("positions") else None
    return min(512, longest or 512)


def run_of(purpose: Purpose, known: OwnData, started: Started) -> dict[str, Plain]:
    """Returns the fields of the run."""
    steps = max(FEWEST_UPDATES, 3 * -(-known.examples // BATCH))
    steps = min(steps, MOST_PASSES * -(-known.examples // BATCH))
    head: dict[str, Plain] = {"dropout": 0.1}
    if purpose in ("classify", "score"):
        head |= {"pooling": "first", "hidden": "tanh"} if started.start else {"pooling": "mean"}
    kinds = {"classify": "classification", "score": "regression", "tag": "tagging", "answer": "question_answering"}
    task = {"kind": kinds[purpose]} | (head if purpose != "answer" else {})
    source = {**known.source, "tokenizer": started.symbols, "length": known.length}
    return {
        "task": task,
        "data": {"kind": "labelled", "source": source, "batch_size": BATCH},
        "training": {
            "steps": steps,
            "optimizer": {"kind": "adamw", "learning_rate": started.rate},
            "schedule": {"kind": "linear", "warmup": max(1, steps // 10)},
            "clip": 1.0,
            "validate_every": max(1, steps // 3),
        },
        **({"start": started.start} if started.start else {}),
        "model": started.model,
    }


def text_of(purpose: Purpose, data: str, target: Path, plain: Mapping[str, Plain]) -> str:
    """Returns the text of ``run.yaml``, headed by the commands that use it."""
    folder = target.parent
    lines = {"answer": "questions.jsonl > answers.jsonl"}.get(purpose, "lines.txt > predictions.jsonl")
    flag = " --lines json" if purpose == "answer" else ""
    head = (
        f"# Written by: python -m lit_transformers init {folder} --{purpose} {data}\n"
        f"#\n"
        f"#     python -m lit_transformers fit {target}\n"
        f"#     python -m lit_transformers predict {folder}/checkpoint.ckpt{flag} < {lines}\n"
        f"#     python -m lit_transformers export {folder}/checkpoint.ckpt {folder}/exported\n"
        f"#\n"
        f"# python -m lit_transformers config {target} prints every field with its meaning.\n"
    )
    return head + yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True, width=120)


def read_labelled(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes a table of texts and classes. Raises DataError for fewer than 2 or too many classes."""
    records = [*islice(_records(path), READ)]
    chosen = columns_of(records, columns, path)
    assert chosen.text is not None and chosen.label is not None
    counts = Counter(str(record[chosen.label]).strip() for record in records)
    if not 2 <= len(counts) <= MOST_CLASSES:
        reason = f"the column {chosen.label!r} has {len(counts):,} different labels in {len(records):,} records"
        raise DataError(f"{path}: {reason}; name another column by --label, or predict numbers by --score")
    labels: list[Plain] = sorted(counts)
    shown = ", ".join(f"{label} ({counts[str(label)]:,})" for label in labels[:6])
    lines = [f"classes: {shown}{', ...' if len(labels) > 6 else ''}"]
    return _known(path, started, records, chosen, labels, lines)


def read_scored(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes a table of texts and numbers. Raises DataError for a label that is not a number."""
    records = [*islice(_records(path), READ)]
    chosen = columns_of(records, columns, path)
    try:
        numbers = [float(record[chosen.label or ""]) for record in records]
    except (TypeError, ValueError) as error:
        reason = f"the column {chosen.label!r} holds a label that is not a number ({error})"
        raise DataError(f"{path}: {reason}; name another one by --label, or predict classes by --classify") from None
    lines = [f"numbers: {min(numbers):g} to {max(numbers):g}, mean {statistics.fmean(numbers):.3g}"]
    return _known(path, started, records, chosen, "numbers", lines)


def read_tagged(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes tagged sentences in columns."""
    splits = _splits(path)
    named = {"word": columns.text, "label": columns.label}
    own: dict[str, Plain] = {name: _column(column) for name, column in named.items() if column is not None}
    source = ConllConfig.from_dict({"path": path, **splits, **own})
    corpus = source.corpus()
    words = [len(text.text.split()) for text in islice(corpus.documents("train"), READ)]
    length = _rounded(1.6 * _long(words) + 2, started)
    tags = source.class_names[LABEL]
    lines = [f"tags: {', '.join(tags[:8])}{', ...' if len(tags) > 8 else ''}"]
    return OwnData({"kind": "conll", "path": path, **splits, **own}, corpus.count("train"), length, lines)


def read_answered(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes questions on passages."""
    plain: dict[str, Plain] = {"path": path, "language": None, **_splits(path)}
    length = _rounded(384, started)
    plain |= {"length": length, "stride": max(1, length // 3)}
    symbols: Plain = "bytes" if started.tokenizer is None else started.symbols
    questions = QuestionsConfig.from_dict({**plain, "tokenizer": symbols}).build()
    row = f"rows of {length} tokens; a longer passage is read in windows"
    return OwnData({"kind": "questions", **plain}, questions.count("train"), length, [row])


READERS: Mapping[Purpose, Any] = {
    "classify": read_labelled,
    "score": read_scored,
    "tag": read_tagged,
    "answer": read_answered,
}
"""The function that describes the data of each purpose."""


def columns_of(records: Sequence[Mapping[str, Any]], named: Columns, path: str) -> Columns:
    """Returns the columns of texts and labels: the named columns, or else columns with usual names. Raises DataError if
    a column is missing."""
    if not records:
        raise DataError(f"{path}: holds no record")
    names = [*records[0]]
    for option, column in named._asdict().items():
        if column is not None and column not in names:
            raise DataError(f"{path}: no column {column!r}; {nearest(column, names)} (set --{option})")
    free = [name for name in names if name not in named]
    label = named.label or _usual(free, LABEL_NAMES)
    text = named.text or _usual([name for name in free if name != label], TEXT_NAMES)
    for option, column in (("text", text), ("label", label)):
        if column is None:
            raise DataError(f"{path}: which column is the {option}? Name one by --{option}: {', '.join(names)}")
    second = named.second
    if second is None and named.text is None:
        second = _usual([name for name in free if name not in (text, label)], SECOND_NAMES)
    return Columns(text, second, label)


def _usual(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Returns the column with the most usual name, in any case; None if no name is usual."""
    by_case = {name.lower(): name for name in reversed(names)}
    return next((by_case[name] for name in usual if name in by_case), None)


def _records(path: str) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a table or of JSON lines. Raises DataError for a table without column names."""
    for record in RecordsConfig(path=path).all_records():
        if not isinstance(record.values, Mapping):
            raise DataError(f"{record.place}: no column names; begin a table with a line of names")
        yield record.values


def _known(
    path: str,
    started: Started,
    records: Sequence[Mapping[str, Any]],
    columns: Columns,
    labels: Plain,
    lines: Sequence[str],
) -> OwnData:
    """Describes labelled texts, given their records, columns and labels."""
    texts = [" ".join(str(record[name]) for name in columns[:2] if name is not None) for record in records]
    pieces = [_pieces(text, started) for text in texts[:: max(1, len(texts) // 2000)]]
    length, splits = _rounded(_long(pieces) + 3, started), _splits(path)
    named = {"text": columns.text, "second": columns.second, "label": columns.label}
    source = {"kind": "labelled_texts", "path": path, **{k: v for k, v in named.items() if v}, "labels": labels}
    chosen = ", ".join(f"{name} {json.dumps(column, ensure_ascii=False)}" for name, column in named.items() if column)
    share = 0.8 if splits["splits"] == "hash" else 1.0
    more = "" if len(records) < READ else f"; the first {READ:,} records were read"
    cut = sum(count + 3 > length for count in pieces) / len(pieces)
    row = f"rows of {length} tokens, which cut {cut:.1%} of the texts"
    return OwnData({**source, **splits}, round(share * len(records)), length, [f"columns: {chosen}{more}", *lines, row])


def _splits(path: str) -> dict[str, Plain]:
    """Returns the fields that split data: a folder by its file names; a file by hash, with a tenth each for validation
    and test."""
    return {"splits": "folders"} if Path(path).is_dir() else {"splits": "hash", "validation": 0.1, "test": 0.1}


def _column(name: str) -> Plain:
    """Returns a column's number if the text is a number, else its name."""
    return int(name) if name.isdigit() else name


def _pieces(text: str, started: Started) -> int:
    """Returns the number of symbols of a text; an estimate from its words if there is no tokenizer yet."""
    return round(1.4 * len(text.split())) if started.tokenizer is None else len(started.tokenizer.encode(text.encode()))


def _long(lengths: Sequence[int]) -> int:
    """Returns the 95th percentile of lengths."""
    return sorted(lengths)[min(len(lengths) - 1, int(0.95 * len(lengths)))]


def _rounded(length: float, started: Started) -> int:
    """Returns a length rounded up to a multiple of 8, at least 16 and at most the longest row of the network."""
    return min(started.longest, max(16, 8 * math.ceil(length / 8)))
