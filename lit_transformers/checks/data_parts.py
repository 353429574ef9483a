"""Checks of parts of data from outside: sources of text, labelled examples, pairs, generators, tokenizers, noises,
corruptions, and whole data modules."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datamodules import (
    Corpus,
    CorruptionConfig,
    Data,
    DataConfig,
    DataError,
    Document,
    Documents,
    ExamplesConfig,
    GeneratorConfig,
    Limit,
    NoiseConfig,
    PairsConfig,
    Shard,
    SourceConfig,
    TokenizerConfig,
    tokenizer_from_dict,
)
from datamodules.core.documents import SPLITS, Split
from datamodules.denoising.corruptions import PlainText
from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.pairs.source import PairsRead
from datamodules.rows.noises import PlainRow
from datamodules.rows.phrases import Phrases
from lit_transformers.batch import (
    IGNORED,
    LabelledBatch,
    Labels,
    RetrievalBatch,
    TagLabels,
    Vocabulary,
    WordTagLabels,
    labels_in,
)
from lit_transformers.checks.part_checks import PartChecks, require_effects
from lit_transformers.config import Config, ConfigError, existing, field_types
from lit_transformers.gates.gates import Broken

__all__ = ["batches_of_ranks", "checks"]

COUNT = 200
"""Documents, examples or pairs of each split that are looked at."""
BATCHES = 8
DRAWS = 20
LENGTH = 24
"""Symbols of the rows that noises, corruptions and generators are tried on."""
WORD = 3
"""Symbols between two places of a row that no word begins at, and the longest word."""
LARGEST = 10_000_000
"""Bytes of the largest file or folder that is copied."""
OPENED_AS = PairsRead(tokenizer=None, source_tokenizer=None, lengths=(), examples=COUNT)
"""Pairs are opened with their own tokenizer."""


def checks(case: Config) -> PartChecks:
    """Yields the checks of a part of data; none of another part."""
    match case:
        case SourceConfig() | ExamplesConfig() | PairsConfig():
            yield "opened twice alike", lambda: opens_twice_alike(case)
            yield "splits share nothing", lambda: splits_share_nothing(case)
            yield "every field changes the content", lambda: every_field_changes_the_content(case)
            yield "content follows its files", lambda: content_follows_its_files(case)
        case DataConfig():
            yield "opened twice alike", lambda: batches_are_alike(case)
            yield "described as it is", lambda: batches_are_described(case)
            yield "targets are not fed", lambda: targets_are_not_fed(case)
            yield "seeds order training alone", lambda: seeds_order_training_alone(case)
            yield "ranks share the batches of one", lambda: ranks_share_batches(case)
            yield "workers make the same batches", lambda: workers_make_the_same_batches(case)
            yield "resumes in the middle", lambda: batches_resume_in_the_middle(case)
            yield (
                "every field changes the content",
                lambda: require_effects(case, _batches_alike, "the fingerprint", ("workers",), True),
            )
        case GeneratorConfig() | NoiseConfig() | CorruptionConfig():
            yield "as described", lambda: draws_are_described(case)
            yield "drawn from its generator alone", lambda: draws_follow_from_the_generator(case)
            yield "the shortest rows", lambda: takes_the_shortest_rows(case)
            yield (
                "every field has an effect",
                lambda: require_effects(case, _draws_alike, "the draws", ("variants",), True),
            )
        case TokenizerConfig():
            yield "symbols of its vocabulary", lambda: symbols_are_of_the_vocabulary(case)
            yield "bytes of symbols add up", lambda: bytes_add_up(case)
            yield "read from a checkpoint", lambda: is_restored(case)
    match case:
        case SourceConfig():
            yield "a pass has every document", lambda: a_pass_has_every_document(case)
            yield "resumes in the middle", lambda: a_stream_resumes_in_the_middle(case)
        case ExamplesConfig():
            yield "described as they are", lambda: examples_are_described(case)
            yield "labels are not fed", lambda: labels_are_not_fed(case)
        case PairsConfig():
            yield "described as they are", lambda: pairs_are_described(case)


class Content(NamedTuple):
    """A fingerprint, and the first items of each split with their names."""

    fingerprint: str
    items: Mapping[Split, list[tuple[str, Any]]]


def _content(case: SourceConfig | ExamplesConfig | PairsConfig, backwards: bool = False) -> Content:
    """Opens a part of data and reads its first items; backwards: the last of them first, where they have numbers."""
    opened: Any = case.open(OPENED_AS) if isinstance(case, PairsConfig) else case.build()

    def item(split: Split, number: int) -> tuple[str, Any]:
        if isinstance(case, PairsConfig):
            pair = opened.pair(split, number)
            return opened.name(split, number), (tuple(map(int, pair.source)), tuple(map(int, pair.target)))
        example = opened.example(split, number)
        labels = {name: _hashable(label) for name, label in example.labels.items()}
        symbols, words = tuple(map(int, example.symbols)), _hashable(example.words)
        return opened.name(split, number), (symbols, (*labels.items(),), example.marked, example.second, words)

    def items(split: Split) -> list[tuple[str, Any]]:
        if isinstance(case, SourceConfig):
            return _documents(opened, split)
        numbers = range(min(opened.count(split), COUNT))
        by_number = {number: item(split, number) for number in (reversed(numbers) if backwards else numbers)}
        return [by_number[number] for number in numbers]

    return Content(opened.fingerprint, {split: items(split) for split in SPLITS})


def _hashable(label: Any) -> Any:
    """Returns a label whose lists, sets and arrays are tuples."""
    if isinstance(label, set | frozenset):
        return tuple(sorted(label))
    if isinstance(label, np.ndarray | Tensor):
        return _hashable(label.tolist())
    return tuple(map(_hashable, label)) if isinstance(label, list | tuple) else label


def _documents(corpus: Corpus, split: Split) -> list[tuple[str, Any]]:
    """Returns the first documents of a split; none where it has none."""
    try:
        return [(document.name, document.text) for document in islice(corpus.documents(split), COUNT)]
    except DataError:
        return []


def opens_twice_alike(case: SourceConfig | ExamplesConfig | PairsConfig) -> str:
    """Checks that a part gives the same content in every call and in any order of reading."""
    with _global_randomness(0):
        first = _content(case)
    with _global_randomness(1):
        second = _content(case, backwards=True)
    if not first.items["train"]:
        raise Broken("its split train holds nothing to read; correct where it looks, or how it splits")
    if first.fingerprint != second.fingerprint:
        raise Broken(
            "opened a second time, its content differs; hash the content that is read, without times and paths"
        )
    if first.items != second.items:
        raise Broken(
            "opened a second time under the same fingerprint it gives other items; draw from random.Random(seed and "
            "number of the item) alone, and sort the files of a folder"
        )
    return f"{sum(map(len, first.items.values()))} items"


def splits_share_nothing(case: SourceConfig | ExamplesConfig | PairsConfig) -> str:
    """Checks that no name of an evaluation split, and at most half of its items, are in training too."""
    content, shared = _content(case), list[int]()
    trained = content.items["train"]
    names, items = {name for name, _ in trained}, {item for _, item in trained}
    for split in SPLITS[1:]:
        measured = content.items[split]
        if both := names.intersection(name for name, _ in measured):
            raise Broken(f"train and {split} both have {min(both)}; split by documents, and name items by their split")
        shared.append(sum(item in items for _, item in measured))
        if 2 * shared[-1] > len(measured):
            raise Broken(
                f"of {len(measured)} items of {split} {shared[-1]} are in train too; split items by their content, or "
                "let the split decide the draws"
            )
    return f"{sum(shared)} of {sum(len(content.items[split]) for split in SPLITS[1:])} items are in train too"


def every_field_changes_the_content(case: SourceConfig | ExamplesConfig | PairsConfig) -> str:
    """Checks that another value of a field gives another fingerprint, by which runs and caches tell data apart."""

    def alike(part: Any, other: Any) -> bool:
        try:
            first, second = _content(part), _content(other)
        except (DataError, ConfigError):  # which is an effect
            return False
        if first.fingerprint == second.fingerprint and first.items != second.items:
            raise Broken(f"{part} reads other items than {other} under one fingerprint; hash every field in it")
        return first == second

    return require_effects(case, alike, "the content", ("piece",), together=True)  # which no document may be as long as


def content_follows_its_files(case: Config) -> str:
    """Checks that the fingerprint changes when a file that a field names does, as those are that runs are known by."""
    texts = {
        name: value
        for name, value in case.leaves()
        if isinstance(value, str) and value and name.rpartition(".")[2] != "kind"
    }
    paths = {name: existing(value, "LIT_DATA") for name, value in texts.items()}
    named = {name: path for name, path in paths.items() if path is not None}
    if not named:
        return "not asked: no field names a file that is there"
    with _empty_cache() as folder:
        for name, path in named.items():
            if sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file()) > LARGEST:
                return f"not asked: {path} is too large to be copied"
            copy = folder / path.name
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
            part: Any = case.override({name: str(copy)})
            before = _content(part)
            for file in [copy] if copy.is_file() else [file for file in copy.rglob("*") if file.is_file()]:
                _repeat_last_line(file)
            if _content(part).fingerprint == before.fingerprint:
                raise Broken(
                    f"with more lines in {path.name} its fingerprint stays the same, so that runs of the old "
                    "data would be taken for runs of the new; hash the content that is read"
                )
    return f"{len(named)} paths"


def _repeat_last_line(file: Path) -> None:
    lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    file.write_bytes(b"\n".join([*lines, *lines[-1:], b""]))


@contextmanager
def _empty_cache() -> Iterator[Path]:
    """Yields an empty folder, and has caches in another one within the block."""
    before = os.environ.get("LIT_CACHE")
    with TemporaryDirectory() as folder:
        os.environ["LIT_CACHE"] = str(Path(folder, "cache"))
        try:
            yield Path(folder)
        finally:
            os.environ.pop("LIT_CACHE")
            if before is not None:
                os.environ["LIT_CACHE"] = before


@contextmanager
def _global_randomness(seed: int) -> Iterator[None]:
    """Seeds the random numbers that nothing should draw from, within the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _taken(documents: Documents, seed: int, count: int, state: Any = None) -> tuple[list[int], Any]:
    """Returns the numbers of the next documents of training from a position on, and the position after them."""
    stream = documents.training(seed)
    if state is not None:
        stream.go_to(state)
    numbers = [taken[0] for _ in range(count) if (taken := stream.take()) is not None]
    return numbers, json.loads(json.dumps(stream.state()))


def a_pass_has_every_document(case: SourceConfig) -> str:
    """Checks that training reads every document once in a pass, in an order that the seed gives, and evaluation reads
    them in the order of their numbers."""
    corpus = case.build()
    documents, names = corpus.documents("train"), [name for name, _ in _documents(corpus, "train")]
    if len(names) == COUNT:
        return f"not asked: there are {COUNT} documents or more"
    (first, _), (second, _) = (_taken(documents, seed, 2 * len(names)) for seed in (0, 1))
    for numbers in (first, second):
        if any(sorted(half) != [*range(len(names))] for half in (numbers[: len(names)], numbers[len(names) :])):
            read = numbers[: len(names)]
            raise Broken(f"a pass over {len(names)} documents reads {read}; read each once, then begin the next pass")
    if len(names) > 5 and (first == second or first[: len(names)] == first[len(names) :]):
        raise Broken("two seeds, or two passes, have one order; shuffle anew by the seed and the number of the pass")
    stream = documents.evaluation(Limit(documents=3))
    if [taken[1].name for _ in range(3) if (taken := stream.take())] != names[:3]:
        raise Broken("evaluation reads another order than that of the documents; read them by their numbers")
    return f"{len(names)} documents"


def a_stream_resumes_in_the_middle(case: SourceConfig) -> str:
    """Checks that from a position that was written as plain data the same documents follow."""
    documents = case.build().documents("train")
    whole, _ = _taken(documents, 0, 12)
    if _taken(documents, 0, 12)[0] != whole:
        raise Broken("a second stream of the same seed gives other documents; draw the order from the seed alone")
    for place in (1, 5):
        _, state = _taken(documents, 0, place)
        following, _ = _taken(documents, 0, 12 - place, state)
        if following != whole[place:]:
            raise Broken(
                f"after {place} documents {following[:4]} follow, and {whole[place : place + 4]} in one go: a run that "
                "resumes would read other data; hold all that decides the next document in state"
            )
    return "from 2 places"


def _symbols_fit(symbols: Any, vocabulary: Vocabulary, place: str) -> None:
    """Raises Broken for symbols that no vocabulary of this size has."""
    wrong = [int(symbol) for symbol in symbols if not 0 <= symbol < vocabulary.size]
    if wrong:
        raise Broken(f"{place} holds symbol {wrong[0]}, and its vocabulary has {vocabulary.size}; correct its size")


def examples_are_described(case: ExamplesConfig) -> str:
    """Checks that symbols, lengths, labels and marks agree with the description."""
    description, longest = case.description, 0
    counts: dict[str, Counter[Any]] = {name: Counter() for name in description.label_columns}
    for split, items in _content(case).items.items():
        for name, (symbols, labels, marked, second, words) in items:
            place = f"{split}: {name}"
            _symbols_fit(symbols, description.vocabulary, place)
            longest = max(longest, len(symbols) + 1)
            if len(symbols) + 1 > description.longest_row:
                raise Broken(
                    f"{place} has {len(symbols)} symbols and a boundary; description.length is {description.length}; "
                    "make it as long as the longest"
                )
            if unknown := dict(labels).keys() - counts.keys():
                raise Broken(f"{place} has labels of {min(unknown)!r}, which is no column; describe it in columns")
            for column, kind in description.label_columns.items():
                label = dict(labels).get(column)
                _label_fits(kind, label, len(symbols), f"{place}: column {column!r}")
                counts[column].update(label if isinstance(kind, TagLabels) and label else [label])
            if second is not None and not (description.segments > 1 and 0 < second < len(symbols)):
                raise Broken(
                    f"{place} has its second text at {second} of {len(symbols)} symbols, and a row has "
                    f"{description.segments}; count without the boundary, and describe both in segments"
                )
            if (words is not None) != description.of_words or len(words or symbols) != len(symbols):
                raise Broken(f"{place} has the words {words}; number the word of each symbol where labels are of words")
            if any(not 0 <= mark < len(symbols) for mark in marked or ()):
                raise Broken(f"{place} marks {marked} of {len(symbols)} symbols; count them without the boundary")
    for column, labels in counts.items():
        if len(labels) < 2:
            only = next(iter(labels))
            raise Broken(f"all labels of column {column!r} are {only}, so that there is nothing to tell; draw both")
    shares = (f"{max(own.values()) / own.total():.0%} with one {column}" for column, own in counts.items())
    return f"at most {longest} symbols, {', '.join(shares)}"


def _label_fits(kind: Labels, label: Any, symbols: int, place: str) -> None:
    """Raises Broken for a label that cannot be laid out, or is none of its kind."""
    try:
        column = kind.tensor([label], symbols + 1)
        fault = kind.fault(column, torch.ones(1, symbols + 1, dtype=torch.bool))
        if isinstance(kind, TagLabels) and label is not None and len(label) != symbols:
            fault = f"it has {len(label)} tags for {symbols} symbols"
    except (ValueError, TypeError, IndexError) as error:
        fault = str(error)
    if fault:
        raise Broken(f"{place} has the label {label}: {fault}; give labels that {type(kind).__name__} describes")


def labels_are_not_fed(case: ExamplesConfig) -> str:
    """Checks that no symbol at one place tells the labels of a column in every example, in training and validation; of
    rows of two texts no symbol of either."""
    content = _content(case).items
    rows = [item for split in SPLITS[:2] for _, item in content[split]]
    if len(rows) < COUNT // 2:
        return f"not asked: there are {len(rows)} examples"
    if min(len(symbols) for symbols, *_ in rows) < 3:
        return "not asked: a row has fewer than 3 symbols"
    for column, kind in case.description.label_columns.items():
        symbols, labels = [row[0] for row in rows], [dict(row[1]).get(column) for row in rows]
        leak = kind.leak(symbols, labels)
        if isinstance(kind, WordTagLabels):
            tags = [_tags_of_symbols(own, row[4]) for own, row in zip(labels, rows, strict=True)]
            leak = leak or TagLabels(count=len(kind.names)).leak(symbols, tags)
        if leak:
            raise Broken(f"column {column!r}: {leak}; leave labels out of the symbols")
        if isinstance(kind, TagLabels | WordTagLabels) or any(second is None for *_, second, _ in rows):
            continue
        for noun, texts in (
            ("first", [row[:second] for row, *_, second, _ in rows]),
            ("second", [row[second:] for row, *_, second, _ in rows]),
        ):
            if leak := kind.leak(texts, labels):
                raise Broken(f"column {column!r}: in the {noun} text {leak}; leave labels out of the symbols")
    return "no one place tells it"


def _tags_of_symbols(labels: Any, words: Sequence[int]) -> list[int | None]:
    """Returns the tag of each word at its first symbol, and None at all others."""
    return [labels[word - 1][0] if word and word not in words[:place] else None for place, word in enumerate(words)]


def pairs_are_described(case: PairsConfig) -> str:
    """Checks that symbols are of their vocabularies, which plain data make again, and that lengths are those of the
    pairs."""
    pairs = case.open(OPENED_AS)
    restored = case.vocabularies({"tokenizers": json.loads(json.dumps(pairs.tokenizers()))} | pairs.tokenizers())
    for side in ("source", "target"):
        if getattr(restored, side) != getattr(pairs.vocabularies, side):
            raise Broken(f"from a checkpoint the vocabulary of {side}s is another one; return all of it in tokenizers")
    lengths = pairs.lengths("train")
    for number in range(min(pairs.count("train"), COUNT)):
        pair = pairs.pair("train", number)
        _symbols_fit(pair.source, pairs.vocabularies.source, f"the source of {pairs.name('train', number)}")
        _symbols_fit(pair.target, pairs.vocabularies.target, f"the target of {pairs.name('train', number)}")
        counts = (len(pair.source), len(pair.target))
        if lengths is not None and counts != (lengths.source[number], lengths.target[number]):
            raise Broken(f"pair {number} has {counts} symbols, not those of lengths; count symbols without boundaries")
        if not all(isinstance(reference, str) for reference in pairs.references("train", number)):
            raise Broken(f"the references of pair {number} are no texts; return str")
    return f"{min(pairs.count('train'), COUNT)} pairs"


PREDICTED = ("targets", "labels", "relation", "phrases")
"""The columns of batches whose padding is IGNORED."""


def rows_of(batch: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of a batch without their padding, and without rows that are nothing else."""
    fields = {name: part for name, part in batch._asdict().items() if isinstance(part, Tensor) and name != "rule"}
    further = getattr(batch, "columns", None) or {}
    fields |= {name: further[name] for name in sorted(further)}
    predicted, rows = [name in further or name in PREDICTED for name in fields], []
    for number, row in enumerate(zip(*fields.values(), strict=True)):
        if batch.padding_mask[number].any():
            cells = zip(row, predicted, strict=True)
            rows.append(tuple(cell.tolist() if cell.dim() == 0 else _without_padding(cell, of) for cell, of in cells))
    return rows


def _without_padding(cell: Tensor, predicted: bool) -> list[Any]:
    """Returns a row of a tensor up to the last number above 0; if its numbers are ``predicted``, up to the last one
    that is not IGNORED."""
    numbers = cell.reshape(len(cell), -1)
    is_real = numbers != IGNORED if predicted else numbers > 0
    places = is_real.any(dim=1).nonzero()
    return cell[: int(places[-1]) + 1 if len(places) else 0].tolist()


def batches_of_ranks(
    data: Data, ranks: int, split: Split, cursor: str = "", count: int = BATCHES
) -> list[tuple[str, list[Any]]]:
    """Returns the batches that ``ranks`` ranks read together, each as its cursor and its rows in the order of one
    process. Raises Broken where ranks have other cursors."""
    reading = data.training() if split == "train" else data.evaluation(split)
    shares = [[*islice(reading._replace(rank=Shard(r, ranks)).batches(cursor), count)] for r in range(ranks)]
    if len({*map(len, shares)}) > 1:
        raise Broken(f"{split}: ranks read {[*map(len, shares)]} batches, and would wait for each other; end together")
    together = []
    for parts in zip(*shares, strict=True):
        if len({part.cursor for part in parts}) > 1:
            raise Broken(f"{split}: ranks have different cursors; a cursor is the position of all ranks")
        rows = [rows_of(part) for part in parts]
        longest = max(map(len, rows))
        dealt = [row for place in range(longest) for share in rows for row in share[place : place + 1]]
        together.append((parts[0].cursor, dealt))
    return together


def _one_process(case: DataConfig, split: Split = "train", **changes: Any) -> list[tuple[str, list[Any]]]:
    return batches_of_ranks(case.override(changes).build(), 1, split)


def _batches_alike(part: DataConfig, case: DataConfig) -> bool:
    """Whether two data have one fingerprint and one description. Raises Broken for other batches under one."""
    try:
        data, original = part.build(), case.build()
    except (DataError, ConfigError):  # which is an effect
        return False
    if data.fingerprint != original.fingerprint:
        return False
    if _one_process(part) != _one_process(case):
        raise Broken(f"{part} gives other batches under the same fingerprint; name every field in identity")
    return data.description.to_dict() == original.description.to_dict()


def batches_are_alike(case: DataConfig) -> str:
    """Checks that data give the same fingerprint and batches in every call."""
    read = []
    for seed in (0, 1):
        with _global_randomness(seed):
            read.append((case.build().fingerprint, _one_process(case), _one_process(case, "validation")))
    if read[0] != read[1]:
        raise Broken("built a second time, it gives other batches; draw from its own seed alone")
    if not read[0][1] or not read[0][2]:
        raise Broken("it has no batches of training, or none of validation; yield batches of both")
    return f"{BATCHES} batches"


def batches_are_described(case: DataConfig) -> str:
    """Checks that symbols, lengths and labels agree with the description, and that a checkpoint restores the
    description."""
    data = case.build()
    description = data.description
    if not isinstance(description, case.describes):
        raise Broken(
            f"its description is {type(description).__name__}, and describes names {case.describes.__name__}; correct "
            "it"
        )
    restored = case.description_from(json.loads(json.dumps(data.checkpoint_metadata())))
    if restored.to_dict() != description.to_dict():
        raise Broken("the description of a checkpoint is another one; return in metadata all that restored needs")
    for batch in islice(data.training().batches(), BATCHES):
        _symbols_fit(batch.inputs[batch.padding_mask], description.vocabulary, "a batch of training")
        if batch.inputs.size(1) > description.longest_row:
            raise Broken(
                f"a row has {batch.inputs.size(1)} tokens, and description.length is {description.length}; correct it"
            )
        if not batch.padding_mask.any():
            raise Broken("a batch of training is padding alone; leave it out")
        for flag, mask in (("padded", "padding_mask"), ("source_padded", "source_padding_mask")):
            if not getattr(batch, flag, True) and not getattr(batch, mask).all():
                raise Broken(f"a batch has padding and says {flag}=False: networks would read it; leave {flag} out")
        most = getattr(batch, "most_targets", None)
        if most is not None and (targets := int((batch.targets != IGNORED).sum(dim=1).max())) > most:
            raise Broken(
                f"a row of a batch has {targets} targets and most_targets is {most}: a GPU predicts no more; count "
                "the targets of each row"
            )
        for name, labels in description.label_columns.items():
            if fault := labels.fault(labels_in(batch, name), batch.padding_mask):
                raise Broken(f"column {name!r} of a batch: {fault}; lay it out as {type(labels).__name__} describes")
    return f"at most {description.length} tokens of {description.vocabulary.size} symbols"


def targets_are_not_fed(case: DataConfig) -> str:
    """Checks that not every target stands in the inputs where it is predicted."""
    alike = count = 0
    for batch in islice(case.build().training().batches(), BATCHES):
        if isinstance(batch, LabelledBatch):
            return "not asked: its batches have labels, which are no inputs"
        if isinstance(batch, RetrievalBatch):
            return "not asked: both texts of a pair are inputs, each of an encoder"
        scored = batch.targets != IGNORED
        alike, count = alike + int((batch.targets == batch.inputs)[scored].sum()), count + int(scored.sum())
    if count == 0:
        raise Broken("no symbol is a target, so that nothing is learned; set targets where symbols are predicted")
    if alike == count:
        raise Broken("every target is the input at its place, so that there is nothing to learn; shift or hide inputs")
    return f"{alike / count:.0%} of targets"


def seeds_order_training_alone(case: DataConfig) -> str:
    """Checks that another seed gives other batches of training and the same of validation."""
    if "seed" not in field_types(type(case)):
        return "not asked: it has no field seed"
    other = {"seed": case.get("seed") + 1}
    if [rows for _, rows in _one_process(case)] == [rows for _, rows in _one_process(case, **other)]:
        raise Broken("another seed gives the same batches; draw the order of training from it")
    validations = [[rows for _, rows in _one_process(case, "validation", **changes)] for changes in ({}, other)]
    if validations[0] != validations[1]:
        raise Broken("another seed gives another validation, so that seeds do not compare; use seeds in training alone")
    return "other batches, one validation"


def ranks_share_batches(case: DataConfig) -> str:
    """Checks that ranks together read the batches that one process reads, in training and in validation."""
    tried = [ranks for ranks in (2, 4) if not list(case.rank_conflicts(ranks))]
    for ranks in tried:
        for split in SPLITS[:2]:
            if batches_of_ranks(case.build(), ranks, split) != _one_process(case, split):
                raise Broken(
                    f"{split}: {ranks} ranks read other rows than one process; deal each batch by Shard.of, and let "
                    "nothing else depend on the rank"
                )
    return f"{' and '.join(map(str, tried))} ranks" if tried else "not asked: ranks cannot share its batches"


def workers_make_the_same_batches(case: DataConfig) -> str:
    """Checks that worker processes make the batches of one process, in its order."""
    if "workers" not in field_types(type(case)):
        return "not asked: it has no field workers"
    if _one_process(case, workers=2) != _one_process(case, workers=0):
        raise Broken("two workers make other batches than one process; let nothing depend on which chunks were made")
    return "2 workers"


def batches_resume_in_the_middle(case: DataConfig) -> str:
    """Checks that from each cursor the batches follow that came next, for one rank and for two."""
    whole = _one_process(case)
    rank_counts = [ranks for ranks in (1, 2) if ranks == 1 or not list(case.rank_conflicts(ranks))]
    for place, (cursor, _) in enumerate(whole[:-1]):
        ranks = rank_counts[place % len(rank_counts)]
        following = batches_of_ranks(case.build(), ranks, "train", cursor, len(whole) - place - 1)
        if following != whole[place + 1 :]:
            raise Broken(
                f"from the cursor of batch {place} on other batches follow than in one go: a run that was killed would "
                "read other data; hold all that decides the next batch in the cursor"
            )
    return f"from {len(whole) - 1} places"


Drawn = list[tuple[Any, ...]]


def _rows_to_draw(count: int) -> tuple[PlainRow, PlainText, DenoisingSymbols]:
    """Returns a row and a text of ``count`` symbols from 1 to 40, some of them phrases, and the symbols of
    denoising."""
    symbols = np.arange(1, 41)[np.random.default_rng(0).permutation(40)[:count]].astype(np.int64)
    allowed = np.ones(count, np.bool_)
    if count > 2:
        allowed[[0, -1]] = False
    begins = np.arange(count) % WORD != 1
    phrases = Phrases({(number,): number % 2 for number in range(1, 13)})
    vocabulary = Vocabulary(size=80, boundary=0, unit="word", byte_lengths=None)
    row = PlainRow(symbols, allowed, begins, 41, np.arange(1, 41), phrases)
    text = PlainText(symbols, np.arange(0, count, 8))
    return row, text, DenoisingSymbols(vocabulary, 41, 42, np.arange(43, 80), np.arange(1, 41))


def _drawn(case: Any, seed: int, count: int = LENGTH) -> tuple[Any, ...]:
    """Returns the draws of a part with a seed, from a row of ``count`` symbols; a corruption draws in the epoch
    ``seed``."""
    chance = np.random.default_rng(seed)
    row, text, symbols = _rows_to_draw(count)
    match case:
        case GeneratorConfig():
            return tuple(case.make(count, chance))
        case NoiseConfig():
            replaced, phrases = case.replace(row, chance)
            return (*case.hide(replaced, chance), replaced.symbols, replaced.allowed, phrases)
        case CorruptionConfig():
            return tuple(case.at(seed).corrupt(text, symbols, chance))
    raise TypeError(type(case).__name__)


def _draws(case: Any, count: int | None = None) -> list[str]:
    """Returns the draws of a part with the first DRAWS seeds, as texts, which can be compared."""
    count = _length(case) if count is None else count
    return [str([_plain(part) for part in _drawn(case, seed, count)]) for seed in range(DRAWS)]


def _draws_alike(part: Any, case: Any) -> bool:
    """Whether two parts draw the same."""
    return _draws(part) == _draws(case)


def _plain(part: Any) -> Any:
    return part.tolist() if isinstance(part, np.ndarray) else part


def _length(case: Any) -> int:
    """Returns the length that a part is tried on: of a generator the longest one up to LENGTH that strings can have."""
    if not isinstance(case, GeneratorConfig):
        return LENGTH
    lengths = case.lengths_to(LENGTH) or case.lengths_to(8 * LENGTH)
    if not lengths:
        raise Broken(f"no string has a length up to {8 * LENGTH}; correct refusal")
    return lengths[-1]


def draws_are_described(case: GeneratorConfig | NoiseConfig | CorruptionConfig) -> str:
    """Checks that draws have the lengths and symbols that the config states."""
    length = _length(case)
    for seed in range(DRAWS):
        _require_described(case, _drawn(case, seed, length), length)
    return f"{DRAWS} rows of {length}"


def _require_described(case: Any, drawn: tuple[Any, ...], length: int) -> None:
    match case:
        case GeneratorConfig():
            inputs, targets = drawn
            vocabulary = Vocabulary(size=case.symbols, boundary=0, unit="piece", byte_lengths=None)
            _symbols_fit(inputs, vocabulary, "a string")
            _symbols_fit(targets[targets != IGNORED], vocabulary, "a string's targets")
            if len(inputs) != len(targets) or len(inputs) > case.row(length):
                raise Broken(
                    f"{len(inputs)} inputs have {len(targets)} targets, and row says {case.row(length)}; correct row"
                )
            if (targets == IGNORED).all():
                raise Broken("a string has no answer, so that nothing is learned; give targets")
        case NoiseConfig():
            inputs, targets, symbols, allowed, _ = drawn
            hidden = targets != IGNORED
            if (hidden & ~allowed).any():
                raise Broken("it hides a special symbol, or one of a replaced phrase; choose among row.allowed alone")
            if (targets[hidden] != symbols[hidden]).any():
                raise Broken("a target is not the symbol that stood there; set targets from row.symbols")
            count, most = int(allowed.sum()), case.predictions(int(allowed.sum()))
            if not min(count, 1) <= hidden.sum() <= min(count, max(most, WORD)):  # one word is hidden where none fits
                raise Broken(
                    f"{hidden.sum()} of {count} symbols are hidden, and predictions says {most}; correct choose"
                )
        case CorruptionConfig():
            source, target, start, ends = drawn
            longest, symbols = case.longest(length + 1), _rows_to_draw(length)[2]
            _symbols_fit(chain(source, target), symbols.vocabulary, "a damaged row")
            if 0 in source or 0 in target:
                raise Broken("a source or target holds the boundary, which is added behind it; leave it out")
            if len(source) + 1 > longest.source or len(target) + int(ends) + start > longest.target:
                raise Broken(
                    f"{len(source)} and {len(target)} symbols are more than longest says, {longest}; correct it"
                )
            if len(target) == 0:
                raise Broken("a target is empty, so that nothing is learned; let the decoder write something")


def draws_follow_from_the_generator(case: GeneratorConfig | NoiseConfig | CorruptionConfig) -> str:
    """Checks that draws follow from the generator that is passed in, and differ between generators."""
    with _global_randomness(0):
        first = _draws(case)
    with _global_randomness(1):
        second = _draws(case)
    if first != second:
        raise Broken("with the same generator it draws something else; use no random numbers but those of the argument")
    if len({*first}) == 1 and not isinstance(case, CorruptionConfig):
        raise Broken(f"{DRAWS} generators give one result; draw from the argument")
    return f"{len({*first})} results of {DRAWS}"


def takes_the_shortest_rows(case: GeneratorConfig | NoiseConfig | CorruptionConfig) -> str:
    """Checks that rows of one symbol, and of few, are taken, as texts have them; of strings those of every length."""
    lengths = case.lengths_to(LENGTH) if isinstance(case, GeneratorConfig) else [1, 2, 3]
    for length in lengths:
        try:
            for seed in range(3):
                _require_described(case, _drawn(case, seed, length), length)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise Broken(f"a row of {length} fails ({error}); take it, or say so in refusal") from None
    return f"from {min(lengths)} on" if lengths else "not asked: strings are longer"


TEXTS = ("", "a", "the cat sat on the mat .\nthe naïve dog — ate it\n", " \n\n ", "Ωψ 漢字 🙂 e\u0301", "zzz " * 50)
CORPUS = (Document("one", TEXTS[2].encode()), Document("two", b"a cat and a cat\n"))


def symbols_are_of_the_vocabulary(case: TokenizerConfig) -> str:
    """Checks that every text, the empty one too, has symbols of the vocabulary, none of them the boundary, and that
    these have a text again."""
    tokenizer = case.build(CORPUS)
    vocabulary, continuing = tokenizer.vocabulary, tokenizer.continuing()
    for text in TEXTS:
        symbols = tokenizer.encode(text.encode()).tolist()
        _symbols_fit(symbols, vocabulary, repr(text))
        if vocabulary.boundary in symbols:
            raise Broken(f"{text!r} holds the boundary, which begins a document; number it after all other symbols")
        if not isinstance(tokenizer.decode([*symbols, vocabulary.boundary]), str):
            raise Broken(f"the symbols of {text!r} are decoded to no text; return str")
    if tokenizer.encode(b"").tolist():
        raise Broken("a text of nothing has symbols; return none")
    if continuing is not None and len(continuing) != vocabulary.size:
        raise Broken(f"continuing has {len(continuing)} values for {vocabulary.size} symbols; give one for each")
    known = tokenizer.decode(tokenizer.encode(TEXTS[2].encode()).tolist()) == TEXTS[2]
    return f"{vocabulary.size} symbols, {'which' if known else 'not all of which'} give back the text"


def bytes_add_up(case: TokenizerConfig) -> str:
    """Checks that the bytes of symbols are those of the text that it learned from, as bits per byte need."""
    vocabulary = (tokenizer := case.build(CORPUS)).vocabulary
    if vocabulary.byte_lengths is None:
        return "not asked: it does not know them, and bits per byte are not reported"
    if len(vocabulary.byte_lengths) != vocabulary.size:
        raise Broken(f"byte_lengths has {len(vocabulary.byte_lengths)} numbers for {vocabulary.size} symbols; give all")
    text = CORPUS[0].text
    total = sum(vocabulary.byte_lengths[symbol] for symbol in tokenizer.encode(text).tolist())
    if total != len(text):
        raise Broken(
            f"the symbols of {len(text)} bytes stand for {total}, so that bits per byte would be wrong; count bytes of "
            "UTF-8, or set byte_lengths to None"
        )
    return f"{total} bytes"


def is_restored(case: TokenizerConfig) -> str:
    """Checks that the plain data in a checkpoint make a tokenizer with the same symbols."""
    tokenizer = case.build(CORPUS)
    try:
        restored = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    except (DataError, TypeError) as error:
        raise Broken(f"{error}; return in to_dict the kind of its class and the values that restored reads") from None
    encoded = [[each.encode(text.encode()).tolist() for text in TEXTS] for each in (tokenizer, restored)]
    if encoded[0] != encoded[1] or restored.vocabulary != tokenizer.vocabulary:
        raise Broken("made again from plain data it gives other symbols; return all of it in to_dict")
    return "equal symbols"
