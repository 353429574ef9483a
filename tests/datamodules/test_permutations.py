"""The order of a pass: each ordinal once, another order for each seed and epoch, and no memory where there are many."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from datamodules.core import permutations
from datamodules.core.index import IndexedDocuments
from datamodules.core.permutations import MANY, ComputedPermutation, shuffled
from datamodules.core.windows import Endless, Once

MakeDocuments = Callable[[Sequence[bytes]], IndexedDocuments]


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Computes the order of more than four examples."""
    shuffled.cache_clear()
    monkeypatch.setattr(permutations, "MANY", 4)
    yield
    shuffled.cache_clear()


@pytest.mark.parametrize("count", [*range(1, 34), 255, 256, 257, 5000])
def test_a_computed_order_has_each_ordinal_once(count: int) -> None:
    order = ComputedPermutation(count, seed=3, epoch=1)
    ordinals = order[:].tolist()
    assert sorted(ordinals) == list(range(count))
    places = range(0, count, max(count // 50, 1))
    assert [order[place] for place in places] == [ordinals[place] for place in places]
    assert order[count // 3 : count // 2].tolist() == ordinals[count // 3 : count // 2]


@pytest.mark.parametrize("by", ["seed", "epoch"])
@pytest.mark.parametrize("place", [0, 1, 99])
def test_each_ordinal_is_at_each_place_as_often(by: str, place: int) -> None:
    draws, count = 4000, 100
    drawn = [ComputedPermutation(count, **{"seed": 0, "epoch": 0, by: key})[place] for key in range(draws)]
    counts = np.bincount(drawn, minlength=count)
    chi_square = ((counts - draws / count) ** 2 / (draws / count)).sum()
    assert 50 < chi_square < 163, "99 degrees of freedom: probability 1e-4 outside"


def test_neighbours_are_not_related() -> None:
    ordinals = ComputedPermutation(10**9, 0, 0)[5000:105_000].astype(np.float64)
    assert len(set(ordinals)) == 100_000 and ordinals.max() < 10**9
    assert abs(np.corrcoef(ordinals[:-1], ordinals[1:])[0, 1]) < 0.015


def test_few_examples_have_the_order_that_they_always_had() -> None:
    assert shuffled(9, 3, 1)[:].tolist() == np.random.default_rng([3, 1]).permutation(9).tolist()
    assert Once(9, 4).slice(0, 9) == sorted(np.random.default_rng([0, 0]).permutation(9)[:4].tolist())


def test_the_order_of_many_examples_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        training, part, whole = Endless(MANY + 1, 0), Once(MANY + 1, 5), Once(MANY + 1, None)
        assert training.slice(MANY - 1, MANY + 3)[2:] == shuffled(MANY + 1, 0, 1)[:2].tolist()
        assert len(set(part.slice(0, 9))) == 5 and whole.slice(MANY, MANY + 9) == [MANY]
        assert tracemalloc.get_traced_memory()[1] < 4_000_000, "a stored order has 134 MB"
    finally:
        tracemalloc.stop()


def test_documents_are_read_in_a_computed_order(make_documents: MakeDocuments, few_are_many: None) -> None:
    documents = make_documents([b"text %d" % number for number in range(30)])
    stream = documents.training(1)
    passes = [[stream.take()[0] for _ in range(30)] for _ in range(2)]  # type: ignore[index]
    assert [sorted(ordinals) for ordinals in passes] == [list(range(30))] * 2 and passes[0] != passes[1]
    stream.go_to(17)
    assert [stream.take()[0] for _ in range(20)] == (passes[0] + passes[1])[17:37]  # type: ignore[index]


def test_a_part_of_documents_is_read_with_all_that_belongs_to_them() -> None:
    documents = np.array([0, 0, 1, 3, 3, 3, 4])
    chosen = sorted(np.random.default_rng([0, 0]).permutation(5)[:3].tolist())
    assert Once(7, 3, documents).ordinals == [place for place in range(7) if documents[place] in chosen]
    assert Once(7, None, documents).slice(0, 9) == list(range(7))
