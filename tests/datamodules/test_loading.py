"""Batches of a run on a GPU are put into pinned memory, and are otherwise what they were."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules import GeneratedDataConfig
from datamodules.core.data import Data
from datamodules.core.loading import pinned
from lit_transformers.batch import LabelledBatch, PairBatch


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Takes the place of pinned memory, which needs a GPU: the addresses of what was put there."""
    addresses: set[int] = set()

    def pin_memory(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        addresses.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    return addresses


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
