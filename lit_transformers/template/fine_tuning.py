"""Writes the config of a run that fine-tunes a network on your own data, for ``init --classify FILE`` and others."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from datamodules import DataError
from datamodules.core.documents import SPLITS
from datamodules.core.reading import locate
from datamodules.core.tokenizers import Tokenizer, tokenizer_of_folder
from datamodules.labelled.conll import ConllConfig
from datamodules.labelled.labelled_records import LabelledRecordsConfig
from datamodules.labelled.question_files import Paragraph
from datamodules.labelled.questions import Questions, QuestionsConfig
from datamodules.pairs.source import PairsConfig
from datamodules.pairs.stored_pairs import TextPairsConfig, texts_of
from datamodules.text.nested_records import RecordsConfig
from lit_transformers.batch import LABEL
from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.exchange.folders import local_folder
from lit_transformers.exchange.transfer import imported
from lit_transformers.models.capabilities import RowModelConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.runs.starting_weights import StartingWeights
from lit_transformers.tasks import TaskConfig
from lit_transformers.template.training_time import Pace, about, measured_pace

__all__ = ["FOUND", "LEAST_UPDATES", "Columns", "Purpose", "write_fine_tuning"]

Purpose = Literal["classify", "score", "tag", "answer", "retrieve"]
"""The kind of prediction: a class or a number for a text or a pair of texts, a tag for each word, an answer in a
passage, or the passage that answers a question."""

TEXT_NAMES = (
    *("text", "sentence", "review", "question", "title", "content", "body", "document", "premise", "first"),
    *("sentence1", "text1", "sentence_a", "text_a", "query"),
)
SECOND_NAMES = ("second", "sentence2", "text2", "hypothesis", "text_b", "sentence_b", "passage", "answer")
LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "score", "rating", "topic", "intent", "stars", "y")
QUESTION_NAMES = ("question", "query", "title", "source", "text", "anchor")
PASSAGE_NAMES = ("passage", "context", "document", "answer", "paragraph", "content", "body", "target", "positive")
"""Usual names of columns, the most usual first."""
MOST_CLASSES = 256
MEASURED = 2_000
"""The most texts that are measured to choose the length of rows."""
MOST_VALIDATED = 2_000
"""The most examples of a validation."""
FEWEST_UPDATES, PASSES, MOST_PASSES = 200, 3, 20
"""The least updates, and the passes over the training data that usually suffice. Small data are read more often, to
have the least updates, but not more often than ``MOST_PASSES``."""
BUDGET, LEAST_UPDATES = 300.0, 20
"""The seconds of a first run: more data or a larger network get fewer updates, but these at least."""
WIDEST_WINDOW = 384
"""The most tokens of a row of a question and a window of its passage (arXiv:1810.04805, section 4.2, in its code)."""
PROBED = 128
"""The least tokens of a row of which the speed is measured: short rows alone would not fill the cores."""
KINDS: Mapping[Purpose, str] = {
    "classify": "classification",
    "score": "regression",
    "tag": "tagging",
    "answer": "question_answering",
    "retrieve": "retrieval",
}
"""The objective of each purpose."""
MOST_SYMBOLS = 8000
"""The symbols of a new tokenizer."""
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
    """A description of the user's data. fields: the field ``data`` of the run. examples, validated: the number
    of examples of training and of validation. length: the most tokens of a row. mean: the mean tokens of a row. names:
    the labels; None if they have no names. lines: a message for each choice. batch: the examples of an update."""

    fields: dict[str, Plain]
    examples: int
    validated: int
    length: int
    mean: float
    names: list[str] | None
    lines: list[str]
    batch: int = 32


class LabelledTable(NamedTuple):
    """A table of the user. columns: those of texts and labels. texts: the first ones, at most ``MEASURED``; both texts
    of a pair are joined. labels: of all records. incomplete: the number of records without a text or a label, which are
    omitted."""

    columns: Columns
    texts: list[str]
    labels: list[str]
    incomplete: int


class Started(NamedTuple):
    """The start of training. model: the network's config. tokenizer: its tokenizer; None for a new one. longest: the
    longest row that it reads, in tokens. start, symbols: the fields ``start`` and ``data.source.tokenizer`` of the run.
    rate: the learning rate. has_pooler: whether the weights have a pooler that heads can start from. task, labels: the
    objective of their fine-tuned head, and the names of its outputs; None if there are none."""

    model: dict[str, Plain]
    tokenizer: Tokenizer | None
    longest: int
    start: dict[str, Plain]
    symbols: dict[str, Plain]
    rate: float
    has_pooler: bool
    task: Plain = None
    labels: Plain = None


def write_fine_tuning(
    purpose: Purpose,
    data: str,
    directory: Path,
    weights: str | None = None,
    columns: Columns = FOUND,
    pace: Callable[[ModelConfig, TaskConfig, int, int], Pace] = measured_pace,
) -> list[str]:
    """Writes ``run.yaml`` into a folder, and returns a message for each choice.

    data: the file or folder. weights: a folder of Hugging Face, or a name on its hub; None for a small untrained
    network. pace: returns the speed of training of a network and a task, for a number of symbols and a length of rows,
    by which the updates of the run are chosen. Raises ConfigError if the file exists or the weights cannot be used, and
    DataError if the data cannot be read or a column is missing.
    """
    target = directory / "run.yaml"
    if target.exists():
        raise ConfigError("is there already; choose another folder", str(target))
    started = start_of(weights)
    path = str(locate(data, purpose).resolve())
    known: OwnData = READERS[purpose](path, started, columns)
    task, start, line = head_of(purpose, known, started)
    model = ModelConfig.from_dict(started.model)
    symbols = MOST_SYMBOLS if started.tokenizer is None else started.tokenizer.vocabulary.size
    speed = pace(model, TaskConfig.from_dict(task), symbols, min(started.longest, max(PROBED, known.length)))
    steps, lines = updates_of(known, speed, directory)
    plain = run_of(known, started, task, start, steps)
    command = f"init {directory} --{purpose} {data}{f' --weights {weights}' if weights else ''}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        target.write_text(text_of(command, purpose, target, plain, lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", str(target)) from None
    return [*known.lines, *([line] if line else []), *lines]


def start_of(weights: str | None) -> Started:
    """Returns the start of training. Raises ConfigError unless the weights are an encoder with a tokenizer."""
    if weights is None:
        return Started(SMALL, None, 512, {}, {"kind": "wordpiece", "size": MOST_SYMBOLS}, 1e-3, False)
    folder = local_folder(weights)
    network, _ = imported(folder)
    tokenizer = tokenizer_of_folder(folder)
    if not isinstance(network.model, RowModelConfig):
        raise ConfigError(f"is a {network.architecture}; name an encoder such as BERT", weights)
    if tokenizer is None:
        raise ConfigError("has no tokenizer.json and no vocab.txt that can be read", weights)
    name = "tokenizer.json" if (folder / "tokenizer.json").is_file() else "vocab.txt"
    start: dict[str, Plain] = {"network": {"kind": "import", "path": str(folder.resolve())}}
    has_pooler = "heads.relation.map.0.weight" in network.tensors and not network.unread_head
    labels = None if network.symbols is None else network.symbols.labels
    longest = positions_of(network)
    symbols: dict[str, Plain] = {"kind": "pretrained", "path": str((folder / name).resolve())}
    rate = 5e-5 * math.sqrt(768 / network.model.dim)
    own = (float(f"{rate:.1e}"), has_pooler, network.task, labels)
    return Started(network.model.to_dict(), tokenizer, longest, start, symbols, *own)


def positions_of(weights: StartingWeights) -> int:
    """Returns the longest row that a network reads, at most 512 tokens."""
    longest = weights.model.get("positions.max_length") if weights.model.get("positions") else None
    return min(512, longest or 512)


def head_of(purpose: Purpose, known: OwnData, started: Started) -> tuple[dict[str, Plain], dict[str, Plain], str]:
    """Returns the fields ``task`` and ``start`` of the run, and a message on a fine-tuned head of the weights. The head
    starts from it if both predict the same, and it has the labels of the data."""
    kind, trained = KINDS[purpose], started.task
    task: dict[str, Plain] = {"kind": kind}
    if purpose in ("classify", "score"):
        task |= {"pooling": "first", "hidden": "tanh"} if started.start else {"pooling": "mean"}
    if purpose == "retrieve":
        return task | {"pooling": "mean"}, started.start, ""
    if purpose != "answer":
        task["dropout"] = 0.1
    heads: dict[str, Plain] = {"heads": "network"}
    if not isinstance(trained, Mapping):
        return task, started.start | (heads if started.has_pooler else {}), ""
    known_names = started.labels if isinstance(started.labels, list) else None
    is_same = trained["kind"] == kind and (known.names is None or {*known.names} <= {*(known_names or ())})
    of = f" of {', '.join(known_names[:6])}{', ...' if len(known_names) > 6 else ''}" if known_names else ""
    if not is_same:
        return task, started.start, f"head: starts anew, for the head of the weights is for {trained['kind']}{of}"
    return task | dict(trained), started.start | heads, f"head: starts as the head of the weights, {kind}{of}"


def updates_of(known: OwnData, pace: Pace, directory: Path) -> tuple[int, list[str]]:
    """Returns the number of updates of a first run, and messages on its time and on a longer run."""
    of_pass = -(-known.examples // known.batch)
    wanted = min(max(FEWEST_UPDATES, PASSES * of_pass), MOST_PASSES * of_pass)
    each = pace.seconds_of_update(known.batch * known.mean)
    validations = 3 * pace.seconds_of_validation(min(known.validated, MOST_VALIDATED) * known.mean)
    steps = min(wanted, max(LEAST_UPDATES, int((BUDGET - validations) / each)))
    longer = wanted if steps < wanted else 2 * steps
    times = [about(count * each + validations) for count in (steps, longer)]
    return steps, [
        f"{known.examples:,} examples of training, {steps} updates of {known.batch}, {steps / of_pass:.1f} passes: "
        f"{times[0]} on this machine if it is idle",
        f"{longer / of_pass:.1f} passes take {times[1]}: python -m lit_transformers fit {directory / 'run.yaml'} "
        f"--set training.steps={longer} --to {directory / 'longer'}",
    ]


def run_of(
    known: OwnData, started: Started, task: dict[str, Plain], start: dict[str, Plain], steps: int
) -> dict[str, Plain]:
    """Returns the fields of the run."""
    data = known.fields | {"batch_size": known.batch}
    if known.validated > MOST_VALIDATED:
        data["evaluation"] = {"examples": MOST_VALIDATED}
    return {
        "task": task,
        "data": data,
        "training": {
            "steps": steps,
            "optimizer": {"kind": "adamw", "learning_rate": started.rate},
            "schedule": {"kind": "linear", "warmup": max(1, steps // 10)},
            "clip": 1.0,
            "validate_every": max(1, steps // 3),
        },
        **({"start": start} if start else {}),
        "model": started.model,
    }


def text_of(command: str, purpose: Purpose, target: Path, plain: Mapping[str, Plain], times: Sequence[str]) -> str:
    """Returns the text of ``run.yaml``, headed by the command that wrote it, by the commands that use it, and by lines
    on its time."""
    folder = target.parent
    lines = {"answer": "questions.jsonl > answers.jsonl", "retrieve": "questions.txt > found.jsonl"}
    files = lines.get(purpose, "lines.txt > predictions.jsonl")
    flag = {"answer": " --lines json", "retrieve": " --passages passages.txt"}.get(purpose, "")
    head = (
        f"# Written by: python -m lit_transformers {command}\n"
        f"#\n"
        f"#     python -m lit_transformers fit {target}\n"
        f"#     python -m lit_transformers predict {folder}/checkpoint.ckpt{flag} < {files}\n"
        f"#     python -m lit_transformers export {folder}/checkpoint.ckpt {folder}/exported\n"
        f"#\n"
        f"# python -m lit_transformers config {target} prints every field with its meaning.\n"
        f"#\n"
    )
    head += "".join(f"# {line}\n" for line in times)
    return head + yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True, width=120)


def read_labelled(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes a table of texts and classes. Raises DataError for fewer than 2 or too many classes."""
    table = table_of(path, columns)
    counts = Counter(table.labels)
    if not 2 <= len(counts) <= MOST_CLASSES:
        reason = f"the column {table.columns.label!r} has {len(counts):,} different labels in {len(table.labels):,}"
        raise DataError(f"{path}: {reason} records; name another column by --label, or predict numbers by --score")
    names = sorted(counts)
    shown = ", ".join(f"{label} ({counts[label]:,})" for label in names[:6])
    return _known(path, started, table, names, [f"classes: {shown}{', ...' if len(names) > 6 else ''}"])


def read_scored(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes a table of texts and numbers. Raises DataError for a label that is not a number."""
    table = table_of(path, columns)
    try:
        numbers = [float(label) for label in table.labels]
    except ValueError as error:
        reason = f"the column {table.columns.label!r} holds a label that is not a number ({error})"
        raise DataError(f"{path}: {reason}; name another one by --label, or predict classes by --classify") from None
    line = f"numbers: {min(numbers):g} to {max(numbers):g}, mean {statistics.fmean(numbers):.3g}"
    return _known(path, started, table, None, [line])


def read_tagged(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes tagged sentences in columns."""
    splits = _splits(path)
    named = {"word": columns.text, "label": columns.label}
    own: dict[str, Plain] = {name: _column(column) for name, column in named.items() if column is not None}
    source = ConllConfig.from_dict({"path": path, **splits, **own})
    corpus = source.corpus()
    words = [1.6 * len(text.text.split()) + 2 for text in islice(corpus.documents("train"), MEASURED)]
    tags = source.class_names[LABEL]
    lines = [f"tags: {', '.join(tags[:8])}{', ...' if len(tags) > 8 else ''}"]
    plain: dict[str, Plain] = {"kind": "conll", "path": path, **splits, **own}
    counts = corpus.count("train"), corpus.count("validation")
    length = _rounded(_long(words), started)
    return OwnData(_labelled(plain, length, started), *counts, length, statistics.fmean(words), tags, lines)


def read_answered(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes questions on passages. Rows are as long as the longest questions with their passages, up to
    ``WIDEST_WINDOW`` tokens; longer passages are read in windows."""
    plain: dict[str, Plain] = {"path": path, "language": None, **_splits(path)}
    read = QuestionsConfig.from_dict({**plain, "tokenizer": started.symbols, "length": started.longest, "stride": 1})
    tokenizer, widest, rows = read.built_tokenizer, 0, list[float]()
    corpus = read.corpus()
    splits = [corpus.documents(split) for split in SPLITS if corpus.count(split)]
    for document in islice(chain.from_iterable(splits), MEASURED):
        paragraph = Paragraph.restored(document.text)
        passage = len(tokenizer.encode(paragraph.passage.encode()))
        lengths = [len(tokenizer.encode(question.text.encode())) for question in paragraph.questions]
        widest = max(widest, *lengths)
        rows += [passage + question + 3 for question in lengths]
    length = _rounded(min(WIDEST_WINDOW, max(rows)), started)
    plain |= {"length": length, "stride": max(1, min(length // 3, length - 3 - widest))}
    questions = Questions(QuestionsConfig.from_dict({**plain, "tokenizer": started.symbols}), corpus)
    windows = questions.count("train")
    sample = range(0, windows, max(1, windows // 200))
    mean = statistics.fmean(len(questions.example("train", ordinal).symbols) + 1 for ordinal in sample)
    cut = sum(row > length for row in rows) / len(rows)
    line = f"rows of {length} tokens; {cut:.1%} of the questions have a longer passage, which is read in windows"
    fields = _labelled({"kind": "questions", **plain}, length, started)
    return OwnData(fields, windows, questions.count("validation"), length, mean, None, [line], batch=16)


def read_retrieved(path: str, started: Started, columns: Columns) -> OwnData:
    """Describes questions and the passages that answer them. All questions on a passage are in one split. Raises
    DataError if a column is missing, and for fewer than two questions of training."""
    source, lines = retrieved_source(path, columns)
    pairs = PairsConfig.from_dict(source)
    assert isinstance(pairs, TextPairsConfig)
    corpus = pairs.corpus()
    if corpus.count("train") < 2:
        reason = f"holds {corpus.count('train')} questions of training, and needs 2 or more"
        raise DataError(f"{path}: {reason}; add questions on other passages")
    texts = [texts_of(document) for document in islice(corpus.documents("train"), MEASURED)]
    sides = [[text.source for text in texts], [text.targets[0] for text in texts]]
    rows = [[_pieces(text, started) + 2.0 for text in side] for side in sides]
    question, passage = (_rounded(_long(side), started) for side in rows)
    passage = max(question, passage)
    cut = [
        sum(row > length for row in side) / len(side) for side, length in zip(rows, (question, passage), strict=True)
    ]
    fields: dict[str, Plain] = {"kind": "retrieval", "source": source, "tokenizer": started.symbols}
    fields |= {"longest_question": question, "longest_passage": passage}
    lines += [
        f"questions of {question} tokens, which cut {cut[0]:.1%} of them",
        f"passages of {passage} tokens, which cut {cut[1]:.1%} of them",
    ]
    mean = sum(map(statistics.fmean, rows))
    return OwnData(fields, corpus.count("train"), corpus.count("validation"), passage, mean, None, lines)


def retrieved_source(path: str, columns: Columns) -> tuple[dict[str, Plain], list[str]]:
    """Returns the field ``data.source`` of questions and passages, and a message on its columns: JSON of SQuAD, or a
    table. Raises DataError if a column is missing."""
    if columns.label is not None:
        raise DataError(f"{path}: a passage that answers a question has no label; drop --label")
    first = [*islice(_records(path), 1)]
    names = [*first[0]] if first else []
    if columns == FOUND and isinstance(first[0].get("data") if first else None, list):
        return {"kind": "squad", "path": path}, ["questions and paragraphs of SQuAD's JSON"]
    require_columns(columns, names, path)
    question = columns.text or _usual(names, QUESTION_NAMES)
    passage = columns.second or _usual([name for name in names if name != question], PASSAGE_NAMES)
    for option, noun, column in (("text", "question", question), ("second", "passage", passage)):
        if column is None:
            raise DataError(f"{path}: which column is the {noun}? Name one by --{option}: {', '.join(names)}")
    source: dict[str, Plain] = {"kind": "records", "path": path, "source": question, "target": passage}
    shown = f"question {json.dumps(question, ensure_ascii=False)}, passage {json.dumps(passage, ensure_ascii=False)}"
    return source | {"split_by": "target", "incomplete": "leave_out", **_splits(path)}, [f"columns: {shown}"]


READERS: Mapping[Purpose, Any] = {
    "classify": read_labelled,
    "score": read_scored,
    "tag": read_tagged,
    "answer": read_answered,
    "retrieve": read_retrieved,
}
"""The function that describes the data of each purpose."""


def columns_of(records: Sequence[Mapping[str, Any]], named: Columns, path: str) -> Columns:
    """Returns the columns of texts and labels: the named columns, or else columns with usual names. Raises DataError if
    a column is missing."""
    names = [*records[0]] if records else []
    require_columns(named, names, path)
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


def require_columns(named: Columns, names: Sequence[str], path: str) -> None:
    """Raises DataError if a table has no records, or lacks a column that the user names."""
    if not names:
        raise DataError(f"{path}: holds no record")
    for option, column in named._asdict().items():
        if column is not None and column not in names:
            raise DataError(f"{path}: no column {column!r}; {nearest(column, names)} (set --{option})")


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


def table_of(path: str, named: Columns) -> LabelledTable:
    """Reads a table of texts and labels. Raises DataError if a column is missing."""
    records = _records(path)
    first = [*islice(records, 1)]
    columns = columns_of(first, named, path)
    texts, labels, incomplete = list[str](), list[str](), 0
    for record in chain(first, records):
        *own, label = ("" if (cell := record.get(name)) is None else str(cell).strip() for name in columns if name)
        if not label or not all(own):
            incomplete += 1
            continue
        labels.append(label)
        if len(texts) < MEASURED:
            texts.append(" ".join(own))
    if not labels:
        reason = f"no record has a text in {columns.text!r} and a label in {columns.label!r}"
        raise DataError(f"{path}: {reason}; name other columns by --text and --label")
    if not any(map(_has_letter, texts)):
        reason = f"no text in the column {columns.text!r} has a letter, such as {texts[0]!r}"
        raise DataError(f"{path}: {reason}; name another column by --text")
    return LabelledTable(columns, texts, labels, incomplete)


def _known(path: str, started: Started, table: LabelledTable, names: list[str] | None, lines: Sequence[str]) -> OwnData:
    """Describes labelled texts, given their table and the names of their classes; None for numbers."""
    rows = [_pieces(text, started) + 3.0 for text in table.texts]
    length, columns = _rounded(_long(rows), started), table.columns._asdict().items()
    chosen = {name: column for name, column in columns if column is not None}
    labels: Plain = [*names] if names else "numbers"
    source: dict[str, Plain] = {"path": path, **chosen, "labels": labels, **_splits(path)}
    if table.incomplete:
        source["incomplete"] = "leave_out"
        records, are = ("record", "is") if table.incomplete == 1 else ("records", "are")
        lines = [*lines, f"{table.incomplete:,} {records} without a text or a label {are} omitted"]
    if bare := [text for text in table.texts if not _has_letter(text)]:
        lines = [*lines, f"{len(bare):,} of {len(table.texts):,} texts have no letter, such as {bare[0]!r}"]
    corpus = LabelledRecordsConfig.from_dict(source).corpus()
    shown = ", ".join(f"{name} {json.dumps(column, ensure_ascii=False)}" for name, column in chosen.items())
    cut = sum(row > length for row in rows) / len(rows)
    row = f"rows of {length} tokens, which cut {cut:.1%} of the texts"
    counts = corpus.count("train"), corpus.count("validation")
    mean = statistics.fmean(min(row, length) for row in rows)
    messages = [f"columns: {shown}", *lines, row]
    fields = _labelled({"kind": "labelled_texts", **source}, length, started)
    return OwnData(fields, *counts, length, mean, names, messages)


def _labelled(source: Mapping[str, Plain], length: int, started: Started) -> dict[str, Plain]:
    """Returns the field ``data`` of a run on labelled sequences of at most ``length`` tokens."""
    return {"kind": "labelled", "source": {**source, "tokenizer": started.symbols, "length": length}}


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


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


def _long(lengths: Sequence[float]) -> float:
    """Returns the 95th percentile of lengths."""
    return sorted(lengths)[min(len(lengths) - 1, int(0.95 * len(lengths)))]


def _rounded(length: float, started: Started) -> int:
    """Returns a length rounded up to a multiple of 8, at least 16 and at most the longest row of the network."""
    return min(started.longest, max(16, 8 * math.ceil(length / 8)))
