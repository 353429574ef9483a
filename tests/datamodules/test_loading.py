"""Batches of a run on a GPU are put into pinned memory, and are otherwise unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from datamodules import DataError, GeneratedDataConfig
from datamodules.core.data import Data
from datamodules.core.documents import Shard
from datamodules.core.loading import Reading, pinned
from lit_transformers.batch import LabelledBatch, PairBatch


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Replaces pinned memory, which needs a GPU, and gives the addresses of the tensors that were put there."""
    addresses: set[int] = set()

    def pin_memory(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        addresses.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    return addresses


class Numbers(NamedTuple):
    """A batch with tensors of many types and shapes."""

    whole: Tensor
    real: Tensor | None
    columns: dict[str, Tensor]
    name: str

    @classmethod
    def numbered(cls, number: int) -> Numbers:
        half = torch.full((3, number), 0.5 + number, dtype=torch.bfloat16)
        columns = {"scalar": torch.tensor(number), "across": torch.arange(6).view(2, 3).mT + number, "half": half}
        return cls(torch.arange(number + 1), torch.arange(7) > number if number % 2 else None, columns, f"{number}")


class Failing:
    """Batches in chunks of ten, of which the fourth chunk fails after some."""

    def __init__(self) -> None:
        self.chunks = 0

    def chunk(self) -> Iterator[Numbers]:
        first, self.chunks = 10 * self.chunks, self.chunks + 1
        for number in range(first, first + 10):
            if number == 36:
                raise DataError("no thirty-sixth")
            yield Numbers.numbered(number)

    def skip(self) -> None:
        self.chunks += 1

    def go_to(self, cursor: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_send_all_batches_before_a_failure_as_they_are(workers: int) -> None:
    batches = Reading(lambda _: Failing(), Shard(), workers).batches()
    received = []
    with pytest.raises(DataError, match=r"^no thirty-sixth$"):
        received.extend(batch for batch in iter(lambda: next(batches), None))
    expected = [Numbers.numbered(number) for number in range(36)]
    for batch, other in zip(received, expected, strict=True):
        assert batch.name == other.name and (batch.real is None) == (other.real is None)
        tensors, others = ([t for t in (b.whole, b.real, *b.columns.values()) if t is not None] for b in (batch, other))
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def test_every_tensor_of_a_batch_is_pinned_and_nothing_else_is_changed(copies: set[int]) -> None:
    tensors = [torch.randint(9, (2, 3)) for _ in range(8)]
    pairs = PairBatch(*tensors[:7], references=(("a", "b"), ("c",)), cursor="1", start=tensors[7], padded=False)
    labelled = LabelledBatch(*tensors[:3], None, tensors[4], "2", {"other": tensors[5]})
    for batch, count in ((pairs, 8), (labelled, 5)):
        copies.clear()
        moved = pinned(batch)
        assert type(moved) is type(batch) and len(copies) == count
        for before, after in zip(batch, moved, strict=True):
            if isinstance(before, Tensor):
                assert torch.equal(before, after) and after.data_ptr() in copies
            elif isinstance(before, dict):
                assert before.keys() == after.keys() and after["other"].data_ptr() in copies
            else:
                assert before == after and type(before) is type(after)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_loaders_of_a_trainer_with_a_gpu_pin_their_batches(device: str, copies: set[int]) -> None:
    data: Data[Any] = GeneratedDataConfig(max_length=4, batch_size=4).build()
    strategy = SimpleNamespace(root_device=torch.device(device))
    data.trainer = SimpleNamespace(strategy=strategy, global_rank=0, world_size=1, overfit_batches=0)  # type: ignore[assignment]
    for loader in (data.train_dataloader(), data.val_dataloader()):
        copies.clear()
        batches = [*islice(loader, 3)]
        assert len(batches) == 3 and (len(copies) > 0) == (device == "cuda")
        assert all(batch.inputs.data_ptr() in copies for batch in batches if device == "cuda")
