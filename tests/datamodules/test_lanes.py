"""Lanes: every symbol is predicted exactly once, rows continue, and a cursor resumes exactly."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datamodules.core.documents import Limit, Shard
from datamodules.core.index import IndexedDocuments
from datamodules.core.loading import Reading, in_order
from datamodules.core.shared_symbols import SharedSymbols
from datamodules.core.tokenizers import Bytes, Words
from datamodules.text.lanes import Lanes, LaneShape
from lit_transformers.batch import IGNORED, TextBatch

MakeDocuments = Callable[[Sequence[bytes]], IndexedDocuments]
BOUNDARY = 256
ALONE = Shard()
fixed = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@st.composite
def shapes(draw: st.DrawFn) -> LaneShape:
    segment_length = draw(st.integers(1, 9))
    return LaneShape(draw(st.integers(1, 4)), segment_length, draw(st.integers(1, segment_length)), draw(st.booleans()))


def counting_documents(lengths: list[int]) -> list[bytes]:
    """Returns documents of these lengths, in which each symbol is its own position."""
    return [bytes(range(length)) for length in lengths]


def evaluation_lanes(
    documents: IndexedDocuments, shape: LaneShape, share: Shard = ALONE, cursor: str = ""
) -> Iterator[TextBatch]:
    lanes = Lanes(documents.evaluation(Limit()), Bytes(), shape, share)
    return Reading(lambda _: lanes, share, 0).batches(cursor)


def training_lanes(
    documents: IndexedDocuments, shape: LaneShape, share: Shard = ALONE, cursor: str = ""
) -> Iterator[TextBatch]:
    lanes = Lanes(documents.training(0), Bytes(), shape, share)
    return Reading(lambda _: lanes, share, 0).batches(cursor)


def scored_counts(batches: list[TextBatch]) -> Counter[tuple[int, int, int]]:
    """Counts how often each (document, input, target) is scored."""
    counts: Counter[tuple[int, int, int]] = Counter()
    for batch in batches:
        is_scored = batch.targets != IGNORED
        columns = (batch.document[is_scored], batch.inputs[is_scored], batch.targets[is_scored])
        counts.update(zip(*(column.tolist() for column in columns), strict=True))
    return counts


def equal_batches(first: TextBatch, second: TextBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first[:5], second[:5], strict=True)) and first[5:] == second[5:]


@pytest.mark.slow
@fixed
@given(lengths=lengths, shape=shapes(), ranks=st.integers(1, 3))
def test_evaluation_scores_every_symbol_exactly_once(
    make_documents: MakeDocuments, lengths: list[int], shape: LaneShape, ranks: int
) -> None:
    documents = make_documents(counting_documents(lengths))
    shares = [Shard(number, ranks) for number in range(ranks)]
    counts = scored_counts([batch for share in shares for batch in evaluation_lanes(documents, shape, share)])
    expected = {
        (ordinal, place - 1 if place else BOUNDARY, place): 1
        for ordinal, length in enumerate(lengths)
        for place in range(length)
    }
    assert counts == expected


@fixed
@given(lengths=lengths, passes=st.integers(1, 3))
def test_a_training_pass_is_complete(make_documents: MakeDocuments, lengths: list[int], passes: int) -> None:
    stream = make_documents(counting_documents(lengths)).training(0)
    for _ in range(passes):
        items = [stream.take() for _ in lengths]
        assert sorted(item[0] for item in items if item) == list(range(len(lengths)))


@fixed
@given(lengths=lengths, shape=shapes(), keeps_symbols=st.booleans())
def test_symbols_that_are_stored_change_nothing_and_others_are_entered(
    make_documents: MakeDocuments, lengths: list[int], shape: LaneShape, keeps_symbols: bool
) -> None:
    documents = make_documents(counting_documents(lengths))
    with TemporaryDirectory() as folder:
        for _ in range(2):
            store = SharedSymbols(Path(folder), Bytes().vocabulary, keeps_symbols)
            batches = [*in_order(Lanes(documents.evaluation(Limit()), Bytes(), shape, ALONE, store))]
            assert all(map(equal_batches, batches, evaluation_lanes(documents, shape))) and batches
            assert [store.length(ordinal) for ordinal in range(len(lengths))] == [length + 1 for length in lengths]


@fixed
@given(lengths=lengths, shape=shapes(), skip=st.integers(0, 12), endless=st.booleans())
def test_a_cursor_resumes_with_exactly_the_next_batch(
    make_documents: MakeDocuments, lengths: list[int], shape: LaneShape, skip: int, endless: bool
) -> None:
    documents = make_documents(counting_documents(lengths))
    make_lanes = training_lanes if endless else evaluation_lanes
    batches = list(islice(make_lanes(documents, shape), skip + 8))
    if len(batches) <= skip:
        return
    resumed = make_lanes(documents, shape, cursor=batches[skip].cursor)
    resumed_batches = list(islice(resumed, len(batches) - skip - 1))
    assert len(resumed_batches) == len(batches) - skip - 1
    assert all(equal_batches(a, b) for a, b in zip(batches[skip + 1 :], resumed_batches, strict=True))


@fixed
@given(lengths=lengths, shape=shapes(), ranks=st.integers(1, 2), skip=st.integers(0, 12), endless=st.booleans())
def test_a_batch_says_whether_it_is_padded_and_how_many_tokens_stand_before_it(
    make_documents: MakeDocuments, lengths: list[int], shape: LaneShape, ranks: int, skip: int, endless: bool
) -> None:
    documents = make_documents(counting_documents(lengths))
    make_lanes = training_lanes if endless else evaluation_lanes
    cursors = [batch.cursor or "" for batch in islice(make_lanes(documents, shape), 24)]
    for share in (Shard(number, ranks) for number in range(ranks)):
        said, before = [], [0] * shape.rows
        for batch in islice(make_lanes(documents, shape, share), 24):
            assert batch.padded == (not batch.padding_mask.all())
            before = [0 if fresh else count for fresh, count in zip(batch.fresh.tolist(), before, strict=False)]
            has_inputs, is_full = batch.padding_mask.any(dim=1).tolist(), batch.padding_mask.all(dim=1).tolist()
            assert batch.unbroken == min((n for n, real in zip(before, has_inputs, strict=True) if real), default=0)
            before = [n + shape.segment_length if full else 0 for n, full in zip(before, is_full, strict=True)]
            said.append((batch.padded, batch.unbroken))
        if len(said) > skip:  # from the cursor of one process
            resumed = islice(make_lanes(documents, shape, share, cursors[skip]), len(said) - skip - 1)
            assert [(batch.padded, batch.unbroken) for batch in resumed] == said[skip + 1 :]


def test_a_lane_continues_where_it_stopped(make_documents: MakeDocuments) -> None:
    lanes = training_lanes(make_documents(counting_documents([100, 90, 80])), LaneShape(3, 8, 8, joined=False))
    batches = list(islice(lanes, 60))
    continued = 0
    for before, after in pairwise(batches):
        for row in range(3):
            if not after.fresh[row]:
                continued += 1
                assert after.inputs[row, 0] == before.targets[row, -1]
                assert after.document[row, 0] == before.document[row, -1]
    assert continued > 100


def test_a_reset_document_starts_a_fresh_row_and_pads_its_last(make_documents: MakeDocuments) -> None:
    [first, second] = evaluation_lanes(make_documents([b"abcdef"]), LaneShape(1, 4, 4, joined=False))
    assert first.fresh.tolist() == [True]
    assert second.fresh.tolist() == [False]
    assert first.inputs.tolist() == [[BOUNDARY, *b"abc"]]
    assert first.targets.tolist() == [[*b"abcd"]]
    assert second.inputs.tolist() == [[*b"de", 0, 0]]
    assert second.targets.tolist() == [[*b"ef", IGNORED, IGNORED]]
    assert second.padding_mask.tolist() == [[True, True, False, False]]


def test_a_stream_joins_documents_without_padding_or_reset(make_documents: MakeDocuments) -> None:
    batches = list(evaluation_lanes(make_documents([b"abc", b"de", b"fgh"]), LaneShape(1, 4, 4, joined=True)))
    assert [batch.inputs.tolist()[0] for batch in batches] == [
        [BOUNDARY, *b"ab", BOUNDARY],
        [*b"d", BOUNDARY, *b"fg"],
    ]
    assert [batch.targets.tolist()[0] for batch in batches] == [[*b"abcd"], [*b"efgh"]]
    assert [batch.document.tolist()[0] for batch in batches] == [[0, 0, 0, 1], [1, 2, 2, 2]]
    assert [batch.fresh.tolist() for batch in batches] == [[True], [False]]


def test_sliding_rows_are_fresh_and_score_only_what_is_new(make_documents: MakeDocuments) -> None:
    batches = list(evaluation_lanes(make_documents([b"abcdefg"]), LaneShape(1, 4, 2, joined=False)))
    assert [batch.inputs.tolist()[0] for batch in batches] == [
        [BOUNDARY, *b"abc"],
        [*b"bcde"],
        [*b"def", 0],
    ]
    assert [batch.targets.tolist()[0] for batch in batches] == [
        [*b"abcd"],
        [IGNORED, IGNORED, *b"ef"],
        [IGNORED, IGNORED, *b"g", IGNORED],
    ]
    assert all(batch.fresh.item() for batch in batches)


def test_lanes_that_are_through_show_padding_until_all_are(make_documents: MakeDocuments) -> None:
    batches = list(evaluation_lanes(make_documents([b"abcdefgh", b"x"]), LaneShape(3, 2, 2, joined=False)))
    assert len(batches) == 4
    assert not batches[0].padding_mask[2].any()
    assert not any(batch.padding_mask[1].any() for batch in batches[1:])
    assert all(batch.padding_mask[0].all() for batch in batches)


def test_a_seed_decides_the_order_and_each_pass_has_its_own(make_documents: MakeDocuments) -> None:
    documents = make_documents(counting_documents([5] * 30))

    def order(seed: int, passes: int) -> list[list[int]]:
        stream = documents.training(seed)
        return [[item[0] for item in (stream.take() for _ in range(30)) if item] for _ in range(passes)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 1) != order(2, 1)
    first, second = order(1, 2)
    assert first != second
    assert first != list(range(30))


def test_documents_without_symbols_are_passed_over(make_documents: MakeDocuments) -> None:
    words = Words(["<unk>", "<eos>", "a"], "strict")
    documents = make_documents([b"   ", b"a a", b" "])
    [batch] = Lanes(documents.evaluation(Limit()), words, LaneShape(1, 4, 4, joined=False)).chunk()
    assert batch.document[batch.padding_mask].tolist() == [1, 1]


def test_a_limit_takes_the_first_documents(make_documents: MakeDocuments) -> None:
    documents = make_documents(counting_documents([10, 20, 30, 40]))

    def ordinals(limit: Limit) -> list[int]:
        stream = documents.evaluation(limit)
        return [item[0] for item in iter(stream.take, None)]

    assert ordinals(Limit(documents=3)) == [0, 1, 2]
    assert ordinals(Limit(bytes=30)) == [0, 1]
    assert ordinals(Limit(bytes=31)) == [0, 1, 2]
    assert ordinals(Limit(bytes=10**9)) == [0, 1, 2, 3]


def test_the_last_document_ends_with_the_bytes_before_a_character_that_goes_beyond(
    make_documents: MakeDocuments,
) -> None:
    documents = make_documents([b"0123456789", "äöü".encode() * 4, b"more"])

    def texts(size: int) -> list[bytes]:
        stream = documents.evaluation(Limit(bytes=size, cut=True))
        return [item[1].text for item in iter(stream.take, None)]

    assert texts(4) == [b"0123"] and texts(10) == [b"0123456789"]
    assert texts(14) == texts(15) == [b"0123456789", "äö".encode()]
    assert texts(11) == [b"0123456789", "ä".encode()], "a document has at least one character"
    assert sum(map(len, texts(36))) == 36 and sum(map(len, texts(1000))) == 38
