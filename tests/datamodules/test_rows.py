"""RowData: sentences packed into rows, relations that are true, noise of a row that only seed, epoch and row decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from datamodules import (
    DataError,
    Document,
    FilesConfig,
    PretrainedTokenizerConfig,
    RowData,
    RowDataConfig,
    RowEvaluationConfig,
    Shard,
    TopicsConfig,
    WordsConfig,
)
from datamodules.core.windows import Visit
from datamodules.rows import packings
from datamodules.rows.packings import Packing, packed
from datamodules.rows.stored_sentences import sentences_of
from lit_transformers.batch import IGNORED, RowBatch, Vocabulary
from lit_transformers.config import ConfigError, canonical_hash

TOPICS = TopicsConfig(documents=30, sentences=6, content=2, validation=0.3, test=0.2)
ROWS = 45
"""The pairs of two sentences in the train split of these documents."""
Words = list[str]


def config(**changes: Any) -> RowDataConfig:
    return RowDataConfig(source=TOPICS, tokenizer=WordsConfig(), length=24, batch_size=2, window=2).override(changes)


def training_batches(data_config: RowDataConfig, count: int) -> list[RowBatch]:
    return list(islice(data_config.build().train_dataloader(), count))


def plain_batches(batches: list[RowBatch]) -> list[list[Any]]:
    return [[part.tolist() if isinstance(part, Tensor) else part for part in batch[:6]] for batch in batches]


def rows_of(batches: list[RowBatch]) -> dict[int, list[Any]]:
    """Returns each row by its ordinal, without its padding."""
    rows = {}
    for batch in batches:
        for number, ordinal in enumerate(batch.example.tolist()):
            real = batch.padding_mask[number]
            parts = [part[number][real].tolist() for part in (batch.inputs, batch.targets, batch.segments)]
            rows[ordinal] = [*parts, int(batch.relation[number])]
    return rows


def words_of(data: RowData, inputs: list[int], targets: list[int]) -> Words:
    """Returns the words of a row as they were before any was hidden."""
    names = [*data.tokenizer.to_dict()["words"], "[CLS]", "[SEP]", "[MASK]"]
    return [names[symbol if target == IGNORED else target] for symbol, target in zip(inputs, targets, strict=True)]


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[[list[list[Words]]], RowDataConfig]:
    """Returns a function that writes documents of sentences, each of its words, as a train split and a validation split
    of the first two of them."""

    def write(documents: list[list[Words]]) -> RowDataConfig:
        for split, part in (("train", documents), ("validation", documents[:2])):
            (tmp_path / split).mkdir()
            for number, document in enumerate(part):
                text = "\n".join(" ".join(sentence) for sentence in document) + "\n"
                (tmp_path / split / f"{number:02}.txt").write_text(text)
        source = FilesConfig(path=str(tmp_path), splits="folders")
        return RowDataConfig(source=source, tokenizer=WordsConfig(), length=16, batch_size=2)

    return write


def random_documents(lengths: Sequence[Sequence[int]]) -> list[list[Words]]:
    """Returns documents of sentences of these lengths, in which no word is twice."""
    counter = iter(range(10_000))
    return [[[f"w{next(counter)}" for _ in range(length)] for length in document] for document in lengths]


LENGTHS = [[5, 4, 3, 6, 1], [2], [], [6, 6, 1, 1, 1, 1, 9], [3, 5], [1, 1, 1], [20, 2, 6], [13], [6, 5, 2], [4] * 9]
"""The words of the sentences of ten documents: one is empty, some have one sentence, or a long one."""


def pieces(document: list[Words], most: int) -> list[Words]:
    """Cuts sentences that are longer than ``most``, as no row has room for them."""
    return [sentence[start : start + most] for sentence in document for start in range(0, len(sentence), most)]


def full_sentences(documents: list[list[Words]], length: int) -> Iterator[Words]:
    """FULL-SENTENCES: sentences of one document or more, as many as fit, with a separator between documents."""
    row = ["[CLS]"]
    for document in documents:
        for number, sentence in enumerate(pieces(document, length - 2)):
            separator = ["[SEP]"] if number == 0 and len(row) > 1 else []
            if len(row + separator + sentence) + 1 > length:
                yield [*row, "[SEP]"]
                row, separator = ["[CLS]"], []
            row += separator + sentence
    yield [*row, "[SEP]"]


def doc_sentences(documents: list[list[Words]], length: int) -> Iterator[Words]:
    """DOC-SENTENCES: the same, but no row crosses from one document to the next."""
    for document in documents:
        if document:
            yield from full_sentences([document], length)


def segment_pairs(documents: list[list[Words]], length: int) -> Iterator[list[Words]]:
    """SEGMENT-PAIR: the sentences of a row, which are of one document, and which two segments share."""
    for document in documents:
        sentences, row = pieces(document, (length - 3) // 2), []
        for sentence in sentences:
            if sum(map(len, row)) + len(sentence) + 3 > length:
                yield row
                row = []
            row = [*row, sentence]
        if len(row) > 1:
            yield row
        elif len(sentences) > 1:
            yield sentences[-2:]


def sentence_pairs(documents: list[list[Words]], length: int) -> Iterator[list[Words]]:
    """SENTENCE-PAIR: two sentences that follow each other."""
    for document in documents:
        sentences = pieces(document, (length - 3) // 2)
        for start in range(0, len(sentences) - 1, 2):
            yield sentences[start : start + 2]
        if len(sentences) % 2 and len(sentences) > 1:
            yield sentences[-2:]


@pytest.mark.parametrize("length", [8, 16, 40])
@pytest.mark.parametrize("packing", ["full_sentences", "doc_sentences"])
def test_rows_of_one_segment_are_packed_as_the_paper_says(
    corpus: Callable[[list[list[Words]]], RowDataConfig], packing: str, length: int
) -> None:
    documents = random_documents(LENGTHS)
    data = corpus(documents).override({"packing": packing, "length": length}).build()
    reader = data.reader("train", (0,))
    rows = [reader.row(Visit(ordinal, 0)) for ordinal in range(reader.total)]
    expected = {"full_sentences": full_sentences, "doc_sentences": doc_sentences}[packing](documents, length)
    assert [words_of(data, row.inputs.tolist(), row.targets.tolist()) for row in rows] == [*expected]
    assert not any(row.segments.any() for row in rows) and {row.relation for row in rows} == {IGNORED}
    assert data.description.segments == 1 and data.description.relations == 0


def both_segments(words: Words) -> tuple[Words, Words]:
    assert words[0] == "[CLS]" and words[-1] == "[SEP]" and words.count("[SEP]") == 2
    place = words.index("[SEP]")
    return words[1:place], words[place + 1 : -1]


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        ("full_sentences", "6c7a1bfafd036282"),
        ("doc_sentences", "31621750827339de"),
        ("segment_pair", "d4fdd266dbbcaf18"),
        ("sentence_pair", "ba95e0fbee9428b6"),
    ],
)
def test_rows_are_the_same_however_many_sentences_are_packed_at_a_time(
    corpus: Callable[[list[list[Words]]], RowDataConfig],
    packing: Packing,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = corpus(random_documents(LENGTHS * 4)).override({"packing": packing}).build()
    folder = data.store.folder_of("train")
    for block in (1, 2, 7, 1 << 16):
        monkeypatch.setattr(packings, "BLOCK", block)
        monkeypatch.setattr(packings, "VERSION", -block)
        rows = packed.__wrapped__(folder, packing, 16)
        assert canonical_hash([part.tolist() for part in rows], 16) == expected, "as all arrays were held in memory"


@pytest.mark.parametrize("length", [8, 16, 40])
@pytest.mark.parametrize("packing", ["segment_pair", "sentence_pair"])
def test_pairs_are_packed_as_the_paper_says(
    corpus: Callable[[list[list[Words]]], RowDataConfig], packing: str, length: int
) -> None:
    documents = random_documents(LENGTHS)
    data = corpus(documents).override({"packing": packing, "length": length}).build()
    reader = data.reader("train", (0,))
    expected = [*{"segment_pair": segment_pairs, "sentence_pair": sentence_pairs}[packing](documents, length)]
    assert reader.total == len(expected)
    splits = set()
    for ordinal, sentences in enumerate(expected):
        for epoch in range(6):
            row = reader.row(Visit(ordinal, epoch))
            first, second = both_segments(words_of(data, row.inputs.tolist(), row.targets.tolist()))
            assert first + second == [word for sentence in sentences for word in sentence]
            assert len(first) in accumulate(map(len, sentences[:-1])), "a part of a sentence"
            assert row.segments.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
            assert row.relation == IGNORED
            splits.add((ordinal, len(first)))
    assert (len(splits) > len(expected)) == (packing == "segment_pair")


@pytest.mark.parametrize("packing", ["segment_pair", "sentence_pair"])
def test_half_of_the_next_sentences_are_next_and_half_of_another_document(
    corpus: Callable[[list[list[Words]]], RowDataConfig], packing: str
) -> None:
    documents = random_documents(LENGTHS)
    data = corpus(documents).override({"packing": packing, "relation": "next_sentence"}).build()
    reader = data.reader("train", (0,))
    sentences = [(number, piece) for number, document in enumerate(documents) for piece in pieces(document, 6)]
    document_of = {word: number for number, piece in sentences for word in piece}
    following = {before[-1]: after[0] for (a, before), (b, after) in pairwise(sentences) if a == b}
    others, labels = set(), []
    for ordinal in range(reader.total):
        for epoch in range(60):
            row = reader.row(Visit(ordinal, epoch))
            first, second = both_segments(words_of(data, row.inputs.tolist(), row.targets.tolist()))
            labels.append(row.relation)
            assert 5 <= len(row.inputs) <= 16
            if row.relation == 0:
                assert following[first[-1]] == second[0]
            else:
                assert {document_of[word] for word in second}.isdisjoint(document_of[word] for word in first)
                assert any(second[0] == piece[0] for _, piece in sentences)
                others.add((document_of[first[0]], document_of[second[0]]))
    assert abs(sum(labels) / len(labels) - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    assert {second for _, second in others} == {number for number, _ in sentences}, "of every document"
    assert data.description.segments == data.description.relations == 2


def test_half_of_the_pairs_are_swapped_where_their_order_is_asked_for() -> None:
    data = config(packing="sentence_pair", relation="sentence_order").build()
    reader, straight = data.reader("train", (0,)), config(packing="sentence_pair").build().reader("train", (0,))
    labels = []
    for ordinal in range(reader.total):
        plain = straight.row(Visit(ordinal, 0))
        in_order = both_segments(words_of(data, plain.inputs.tolist(), plain.targets.tolist()))
        for epoch in range(8):
            row = reader.row(Visit(ordinal, epoch))
            labels.append(row.relation)
            words = both_segments(words_of(data, row.inputs.tolist(), row.targets.tolist()))
            assert words == (in_order[::-1] if row.relation else in_order)
    assert abs(sum(labels) / len(labels) - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_a_third_of_the_pairs_each_are_in_order_swapped_and_of_two_documents_where_their_structure_is_asked_for(
    corpus: Callable[[list[list[Words]]], RowDataConfig],
) -> None:
    documents = random_documents(LENGTHS)
    data_config = corpus(documents).override({"packing": "sentence_pair"})
    straight = data_config.build().reader("train", (0,))
    data = data_config.override({"relation": "sentence_structure"}).build()
    reader, document_of = data.reader("train", (0,)), {w: n for n, d in enumerate(documents) for s in d for w in s}
    labels = []
    for ordinal in range(reader.total):
        plain = straight.row(Visit(ordinal, 0))
        in_order = both_segments(words_of(data, plain.inputs.tolist(), plain.targets.tolist()))
        for epoch in range(60):
            row = reader.row(Visit(ordinal, epoch))
            first, second = both_segments(words_of(data, row.inputs.tolist(), row.targets.tolist()))
            labels.append(row.relation)
            if row.relation == 2:
                assert first == in_order[0]
                assert {document_of[word] for word in second}.isdisjoint(document_of[word] for word in first)
            else:
                assert (first, second) == (in_order[::-1] if row.relation else in_order)
    for relation in range(3):
        assert abs(labels.count(relation) / len(labels) - 1 / 3) < 4 * (2 / 9 / len(labels)) ** 0.5
    assert data.description.relations == 3


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One line\n\n  another \n", ["One line", "another"]),
        ("It ends. So does this! Does it? 3 do.", ["It ends.", "So does this!", "Does it?", "3 do."]),
        ("He said “go.” Élan (all. of it) e.g. this. (X.)", ["He said “go.”", "Élan (all. of it) e.g. this.", "(X.)"]),
        ("v2.0 is out.then. not", ["v2.0 is out.then. not"]),
        (" \n\t\n", []),
        ("Far." + " " * 100_000 + "off.\r\n \nNow", ["Far." + " " * 100_000 + "off.", "Now"]),
    ],
)  # fmt: skip
def test_sentences_end_at_lines_and_at_marks_before_what_begins_one(text: str, sentences: list[str]) -> None:
    document = Document("d", text.encode(), offset=100)
    parts = [*sentences_of(document)]
    assert [part.text.decode() for part in parts] == [f" {sentence}" for sentence in sentences]
    for part in parts:
        place = part.offset - 100 + 1
        assert text.encode()[place : place + len(part.text) - 1] == part.text[1:], "each at its own offset"


def test_a_row_is_padded_to_the_longest_or_to_a_fixed_length() -> None:
    batch = training_batches(config(batch_size=8), 1)[0]
    lengths = batch.padding_mask.sum(dim=1)
    assert batch.inputs.shape == (8, int(lengths.max())) and len(set(lengths.tolist())) > 1
    assert torch.equal(batch.padding_mask, torch.arange(batch.inputs.size(1)) < lengths[:, None])
    for part, empty in ((batch.inputs, 0), (batch.segments, 0), (batch.targets, IGNORED)):
        assert (part[~batch.padding_mask] == empty).all()
    assert {batch.inputs.size(1) for batch in training_batches(config(padding="fixed"), 6)} == {24}


def test_what_is_hidden_depends_on_seed_epoch_and_row_and_on_nothing_else() -> None:
    """In two passes, each of which is read in two orders."""
    passes = []
    for window in (1, ROWS):
        data = config(batch_size=1, window=window, packing="sentence_pair", relation="next_sentence").build()
        batches = data.training().batches()
        passes.append([rows_of([*islice(batches, ROWS)]) for _ in range(2)])
    assert passes[0] == passes[1] and [len(epoch) for epoch in passes[0]] == [ROWS, ROWS]


def epochs(data_config: RowDataConfig, count: int) -> list[dict[int, list[Any]]]:
    """Returns the rows of the first passes over all of them."""
    total = data_config.build().reader("train", ()).total
    batches = training_batches(data_config.override({"batch_size": 1, "window": 1}), total * count)
    return [rows_of(batches[start : start + total]) for start in range(0, len(batches), total)]


def test_dynamic_noise_is_drawn_anew_and_static_noise_returns() -> None:
    first, second = epochs(config(), 2)
    assert first.keys() == second.keys() and sum(first[row] == second[row] for row in first) <= 0.1 * len(first)
    relations = {"packing": "segment_pair", "relation": "next_sentence"}
    passes = epochs(config(**{"noise.variants": 2}, **relations), 4)
    assert passes[0] == passes[2] != passes[1] == passes[3]


def test_an_evaluation_hides_the_same_for_every_seed_and_every_time() -> None:
    shown = []
    for seed in (0, 1):
        data = config(seed=seed, **{"evaluation.batch_size": 3}).build()
        shown += [plain_batches(list(data.val_dataloader())) for _ in range(2)]
    assert shown[0] == shown[1] == shown[2] == shown[3] and max(len(batch[0]) for batch in shown[0]) == 3
    trained = {seed: rows_of(training_batches(config(seed=seed), 20)) for seed in (0, 1)}
    common = trained[0].keys() & trained[1].keys()
    assert common and any(trained[0][row] != trained[1][row] for row in common)


def test_an_evaluation_may_hide_otherwise_than_training() -> None:
    measured = {"evaluation.noise": {"kind": "mask_tokens", "rate": 0.5, "unchanged": 0.0, "replaced": 0.0}}
    same, other = config(**{"noise.rate": 0.5, "noise.unchanged": 0.0, "noise.replaced": 0.0}), config(**measured)
    evaluations = [plain_batches(list(each.build().val_dataloader())) for each in (same, other)]
    assert evaluations[0] == evaluations[1] != plain_batches(list(config().build().val_dataloader()))
    assert plain_batches(training_batches(other, 5)) == plain_batches(training_batches(config(), 5))


def test_an_evaluation_may_ask_for_another_relation_than_training() -> None:
    pairs = {"packing": "segment_pair", "relation": "next_sentence"}
    other = config(**pairs, **{"evaluation.relation": "sentence_order"})
    expected = config(packing="segment_pair", relation="sentence_order")
    assert plain_batches(list(other.build().val_dataloader())) == plain_batches(list(expected.build().val_dataloader()))
    assert plain_batches(training_batches(other, 5)) == plain_batches(training_batches(config(**pairs), 5))
    assert other.protocol()["relation"] == "sentence_order" and other.build().description.relations == 2
    with pytest.raises(ConfigError, match="predicted by a head that relation none does not train; set relation too"):
        config(packing="segment_pair", **{"evaluation.relation": "sentence_order"})


def test_an_evaluation_may_pack_otherwise_than_training() -> None:
    pairs = {"packing": "segment_pair", "relation": "next_sentence"}
    other = config(**pairs, **{"evaluation.packing": "doc_sentences", "evaluation.relation": "none"})
    expected = config(packing="doc_sentences").build()
    assert plain_batches(list(other.build().val_dataloader())) == plain_batches(list(expected.val_dataloader()))
    assert plain_batches(training_batches(other, 5)) == plain_batches(training_batches(config(**pairs), 5))
    assert other.build().example_name(3) == expected.example_name(3)
    with pytest.raises(
        ConfigError, match=r"evaluation\.relation next_sentence is one of two segments, and packing doc"
    ):
        config(**pairs, **{"evaluation.packing": "doc_sentences"})


def test_minimal_pairs_follow_the_rows_of_an_evaluation_and_differ_in_one_thing() -> None:
    """For one reader and for three that read a share each, in any batches."""
    data = config(length=26, **{"evaluation.pairs": 5}).build()
    batches = [*data.val_dataloader()]
    pairs = [batch for batch in batches if batch.rule is not None]
    assert batches[: -len(pairs)] and not any(batch.rule is not None for batch in batches[: -len(pairs)])
    assert plain_batches(batches[: -len(pairs)]) == plain_batches([*config(length=26).build().val_dataloader()])
    assert data.description.rules == ("agreement", "order", "topic")
    rules = torch.cat([batch.rule for batch in pairs])
    assert rules[::2].tolist() == rules[1::2].tolist() == [0, 1, 2] * 5
    for batch in pairs:
        assert {*batch.relation.tolist()} == {IGNORED} and batch.targets[:, 0].eq(IGNORED).all()
        assert (batch.inputs == batch.targets)[:, 1:-1].all() and (batch.targets[:, -1] == IGNORED).all()
        for (obeying, breaking), rule in zip(batch.inputs.unflatten(0, (-1, 2)), batch.rule[::2], strict=True):
            assert (obeying != breaking).sum() == (2 if rule == 1 else 1)
            assert sorted(obeying.tolist()) == sorted(breaking.tolist()) if rule == 1 else True
    shares = [[*data.evaluation("validation")._replace(rank=Shard(number, 3)).batches()] for number in range(3)]
    together = sorted(
        row for share in shares for batch in share if batch.rule is not None for row in batch.inputs.tolist()
    )
    assert together == sorted(row for batch in pairs for row in batch.inputs.tolist())
    assert plain_batches(training_batches(data.config, 3)) == plain_batches(training_batches(config(length=26), 3))


@pytest.mark.parametrize("kind", ["mask_spans", "mask_ngrams"])
def test_a_span_that_no_row_has_room_for_is_refused(kind: str) -> None:
    assert config(noise={"kind": kind, "longest": 10}, length=12).length == 12
    with pytest.raises(ConfigError, match=r"noise\.longest 10 is more than the 9 symbols that a row of length 11"):
        config(noise={"kind": kind, "longest": 10}, length=11)


def test_minimal_pairs_that_cannot_be_made_or_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.pairs are made by rules, and source stdlib has none"):
        RowDataConfig(evaluation=RowEvaluationConfig(pairs=3))
    with pytest.raises(DataError, match=r"a pair has rows of 17 tokens, and data.length is 16"):
        next(iter(config(length=16, **{"evaluation.pairs": 3}).build().val_dataloader()))


@pytest.mark.parametrize("noise", ["mask_tokens", "mask_spans", "mask_and_shuffle"])
def test_a_batch_says_on_the_host_how_many_targets_its_rows_have_at_most(noise: str) -> None:
    batches = training_batches(config(noise=noise, batch_size=8, window=1), 5)
    counts = [(batch.targets != IGNORED).sum(dim=1).tolist() for batch in batches]
    assert [batch.most_targets for batch in batches] == [*map(max, counts)] != [*map(min, counts)]


def test_a_description_counts_the_symbols_of_the_longest_row_that_are_predicted() -> None:
    for packing, count in (("full_sentences", round(0.3 * 22)), ("segment_pair", round(0.3 * 21))):
        data = config(packing=packing, **{"noise.rate": 0.3}).build()
        shown = max(int((batch.targets != IGNORED).sum(dim=1).max()) for batch in data.val_dataloader())
        assert shown <= data.description.predictions == count


def test_an_evaluation_shows_every_row_once_or_a_part_that_no_seed_changes() -> None:
    data = config().build()
    ordinals = [ordinal for batch in data.val_dataloader() for ordinal in batch.example.tolist()]
    assert sorted(ordinals) == list(range(data.reader("validation", ()).total))
    parts = [
        [b.example.tolist() for b in config(seed=seed, **{"evaluation.examples": 5}).build().val_dataloader()]
        for seed in (0, 1)
    ]
    assert parts[0] == parts[1] and sum(map(len, parts[0])) == 5
    names = [data.example_name(ordinal) for ordinal in ordinals]
    assert len(set(names)) == len(names) and all(name.startswith("document ") for name in names)


@pytest.mark.parametrize("window", [1, 3])
def test_a_cursor_makes_the_next_batch_come(window: int) -> None:
    """This holds in the middle of a window too, and of a pass."""
    total = config().build().reader("train", ()).total

    def open_stream(cursor: str = "") -> Iterator[RowBatch]:
        changes = {"relation": "next_sentence", "packing": "sentence_pair"}
        return config(window=window, **changes).build().training().batches(cursor)

    batches = list(islice(open_stream(), 2 * total))
    for taken in (1, 2, 3, total - 1, total + 2):
        resumed = open_stream(batches[taken - 1].cursor)
        assert plain_batches(list(islice(resumed, 5))) == plain_batches(batches[taken : taken + 5])


class RowRecorder(L.LightningModule):
    """A model that learns nothing and stores the batches that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[RowBatch] = []

    def training_step(self, batch: RowBatch, index: int) -> Tensor:
        self.batches.append(batch)
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_fit_gets_exactly_the_next_batch(tmp_path: Path, workers: int) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> tuple[RowRecorder, L.Trainer]:
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = L.Trainer(
            accelerator="cpu", enable_checkpointing=False, use_distributed_sampler=False,
            max_steps=steps, max_epochs=-1, **quiet,
        )  # fmt: skip
        model = RowRecorder()
        trainer.fit(model, config(workers=workers, window=3).build(), ckpt_path=checkpoint, weights_only=True)
        return model, trainer

    uninterrupted, _ = fit(90)
    first, trainer = fit(50)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    second, _ = fit(90, tmp_path / "stopped.ckpt")
    assert len(second.batches) == 40
    assert plain_batches(first.batches + second.batches) == plain_batches(uninterrupted.batches)


CHANGES: list[dict[str, Any]] = [
    {"seed": 1},
    {"window": 5},
    {"padding": "fixed"},
    {"length": 25},
    {"batch_size": 8},
    {"packing": "doc_sentences"},
    {"noise.rate": 0.2},
    {"noise": "mask_spans"},
    {"tokenizer": "bytes"},
    {"source.seed": 1},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_decides_a_batch_is_told_apart_and_a_position_of_other_data_refused(changes: dict[str, Any]) -> None:
    data, changed = config().build(), config(**changes).build()
    assert config().build().fingerprint == data.fingerprint != changed.fingerprint
    batch = next(iter(data.train_dataloader()))
    data._cursor = batch.cursor
    changed.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match=r"^data\.\w+: the checkpoint's position in the data"):
        next(iter(changed.train_dataloader()))


def test_two_symbols_are_added_to_those_of_a_tokenizer_that_has_none_of_its_own() -> None:
    description = config(tokenizer="bytes").build().description
    assert description.vocabulary == Vocabulary(size=259, boundary=256, unit="byte", byte_lengths=(*[1] * 256, 0, 0, 0))
    assert (description.separator, description.mask, description.length) == (257, 258, 24)


def test_special_symbols_of_a_pretrained_tokenizer_are_used_and_never_hidden_nor_drawn(tmp_path: Path) -> None:
    words = sorted({word for number in range(30) for word in TOPICS.document(number).decode().split()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    tokenizer = {"kind": "pretrained", "path": str(tmp_path / "vocab.txt")}
    data_config = config(tokenizer=tokenizer, batch_size=8, **{"noise.replaced": 0.9})
    description = data_config.build().description
    assert description.vocabulary.size == len(words) + 5
    assert (description.vocabulary.boundary, description.separator, description.mask) == (2, 3, 4)
    for batch in training_batches(data_config, 20):
        chosen = batch.targets != IGNORED
        assert batch.targets[chosen].min() >= 5 and batch.inputs[chosen].min() >= 5
        assert (batch.inputs[:, 0] == 2).all()


def test_a_checkpoint_needs_no_data_to_describe_them() -> None:
    data_config = config(packing="segment_pair", relation="sentence_order", **{"evaluation.examples": 3})
    data = data_config.build()
    assert data_config.description_from(data.checkpoint_metadata()) == data.description
    assert data_config.with_default_evaluation() == config(packing="segment_pair", relation="sentence_order")
    assert RowDataConfig.from_dict(data_config.to_dict()) == data_config
    assert data_config.tokens_per_step == 48 and data_config.protocol()["noise"]["rate"] == 0.15
    assert "batch_size: 2 rows cannot be shared by 4 ranks" in next(data_config.rank_conflicts(4))


def test_what_a_rank_shows_without_a_share_of_a_batch_is_one_row_of_padding() -> None:
    reading = config(**{"evaluation.batch_size": 1}).build().evaluation("test")
    batch = next(reading._replace(rank=Shard(1, 2)).batches())
    assert batch.padding_mask.tolist() == [[False]] and batch.relation.tolist() == [IGNORED]
    assert batch.targets.tolist() == [[IGNORED]] and batch.inputs.tolist() == batch.segments.tolist() == [[0]]


def test_a_relation_needs_two_segments_and_another_document(
    corpus: Callable[[list[list[Words]]], RowDataConfig],
) -> None:
    with pytest.raises(
        ConfigError, match=r"packing doc_sentences has one; set packing to segment_pair or sentence_pair"
    ):
        config(packing="doc_sentences", relation="sentence_order")
    data_config = corpus(random_documents([[3, 3, 3]])).override({"packing": "segment_pair"})
    assert data_config.override({"relation": "sentence_order"}).build().reader("train", ()).total == 1
    for relation in ("next_sentence", "sentence_structure"):
        with pytest.raises(DataError, match=r"the split 'train' has one document, and no other one for a sentence"):
            data_config.override({"relation": relation}).build().prepare_data()


def test_a_split_without_a_row_and_one_without_text_are_refused(
    corpus: Callable[[list[list[Words]]], RowDataConfig],
) -> None:
    data_config = corpus(random_documents([[3], [2]]))
    with pytest.raises(DataError, match=r"the split 'train' has no document of two sentences, so no row of packing"):
        data_config.override({"packing": "sentence_pair"}).build().prepare_data()
    [path] = Path(data_config.source.path).glob("validation/01.txt")  # type: ignore[attr-defined]
    path.write_text("\n")
    path.with_name("00.txt").write_text(" \n \n")
    with pytest.raises(DataError, match=r"the split 'validation' has no sentence, so no row of packing full_sentences"):
        next(iter(data_config.build().val_dataloader()))
    with pytest.raises(DataError, match="no document falls to the split 'test'"):
        next(iter(data_config.build().test_dataloader()))


def test_words_are_hidden_where_symbols_tell_where_they_begin() -> None:
    with pytest.raises(DataError, match=r"^data.noise: the symbols of tokenizer bytes do not tell where words begin"):
        config(tokenizer="bytes", **{"noise.whole_words": True}).build().training()
    data = config(tokenizer={"kind": "bpe", "size": 300}, length=60, **{"noise.whole_words": True}).build()
    spaces = {symbol for symbol in range(300) if data.tokenizer.decode([symbol]).startswith(" ")}
    for inputs, targets, _, _ in rows_of(list(islice(data.train_dataloader(), 10))).values():
        original = [symbol if target == IGNORED else target for symbol, target in zip(inputs, targets, strict=True)]
        for before, after in pairwise(range(1, len(original) - 1)):
            if original[after] not in spaces:
                assert (targets[before] == IGNORED) == (targets[after] == IGNORED), "a part of a word"


def test_bytes_that_are_no_text_are_named_where_they_stand(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        (tmp_path / "corpus" / split / "a.txt").write_bytes(b"Fine.\nGood \xff one.\n")
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    source = FilesConfig(path=str(tmp_path / "corpus"), splits="folders")
    tokenizer = PretrainedTokenizerConfig(path=str(tmp_path / "vocab.txt"))
    data_config = RowDataConfig(source=source, tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"^train/a.txt: byte 11 is not UTF-8") as error:
        data_config.build().prepare_data()
    assert "\n" not in str(error.value)
    data_config.override({"tokenizer.errors": "replace"}).build().prepare_data()


def test_a_damaged_cache_says_what_to_remove(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    folder = config().build().store.folder_of("train")
    (folder / "starts.npy").write_bytes(b"")
    with pytest.raises(DataError, match="damaged cache; remove this folder and it is made again"):
        config().build().prepare_data()


def test_least_losses_are_known_of_words_that_are_all_behind_masks() -> None:
    known = config(**{"noise.unchanged": 0.0, "noise.replaced": 0.0}).known_values()
    assert known is not None and known.metric == "nats"
    assert known.values == {name: bits * math.log(2) for name, bits in TOPICS.known_masked_losses().items()}
    assert config().known_values() is None is config(tokenizer="bytes").known_values()


@pytest.mark.slow
def test_an_article_of_wikitext_is_packed_into_full_rows(real_data: Path) -> None:
    data_config = RowDataConfig(length=128, batch_size=8).override({"source": "wikitext", "tokenizer": "words"})
    data = data_config.build()
    batches = list(data.val_dataloader())
    symbols = sum(int(batch.padding_mask.sum()) for batch in batches)
    assert 0.8 < symbols / sum(128 * len(batch.example) for batch in batches) < 1
    assert data.reader("train", ()).total > 15_000
    assert Random(0).choice(batches).targets.ne(IGNORED).any(dim=1).all()
