"""Pieces of a tensor that are read together are those read one by one, and gradients add up where they were read."""

from __future__ import annotations

import pytest
import torch

from lit_transformers.mixers.memory import unless_all
from lit_transformers.recompute import Part, Stretch, zeros_for

STRETCHES = {
    "one": Stretch(2, 9, 2),
    "side by side": Stretch(1, 4, times=3, stride=3),
    "overlapping": Stretch(0, 7, times=4, stride=2),
    "overlapping with steps": Stretch(0, 6, 2, times=3, stride=2),
    "phases": Stretch(0, 13, 4, times=4, stride=1),
}


@pytest.mark.parametrize("stretch", STRETCHES.values(), ids=STRETCHES)
def test_stretches_read_together_are_those_read_one_by_one(stretch: Stretch) -> None:
    tensor = torch.randn(2, 3, 17, 5, dtype=torch.float64).transpose(1, 2).contiguous().transpose(1, 2)
    starts = [place * stretch.stride for place in range(stretch.times)]
    listed = [list(range(stretch.first + start, stretch.stop + start, stretch.step)) for start in starts]
    found, total = Part(0, rows=stretch).read([tensor]), zeros_for(tensor)
    alone = torch.stack([tensor[:, :, rows] for rows in listed], dim=1).flatten(0, 1)
    assert torch.equal(found, alone)

    gradient, wanted = torch.randn_like(found), torch.zeros_like(tensor)
    Part(0, rows=stretch).add(total, gradient)
    for number, rows in enumerate(listed):
        wanted.index_add_(2, torch.tensor(rows), gradient[number :: stretch.times])
    torch.testing.assert_close(total, wanted)


@pytest.mark.parametrize("heads_last", [True, False])
def test_rows_that_are_listed_are_those_that_gather_finds(heads_last: bool) -> None:
    tensor = torch.randn(2, 3, 17, 5, dtype=torch.float64)
    if heads_last:
        tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
    chosen = torch.randint(17, (4, 3, 6))  # two blocks of each row
    wide, twice = chosen[..., None].expand(-1, -1, -1, 5), tensor.repeat_interleave(2, dim=0)
    found, total = Part(0, chosen=chosen).read([tensor]), zeros_for(tensor)
    assert torch.equal(found, twice.gather(2, wide))

    gradient = torch.randn_like(found)
    Part(0, chosen=chosen).add(total, gradient)
    wanted = torch.zeros_like(twice).scatter_add_(2, wide, gradient).unflatten(0, (2, 2)).sum(dim=1)
    torch.testing.assert_close(total, wanted)


def test_no_mask_is_kept_where_every_key_is_seen() -> None:
    seen = torch.tensor([[True, True], [True, False]])
    assert unless_all(seen[:1]) is None and unless_all(seen) is seen and unless_all(None) is None
