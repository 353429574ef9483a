"""Pieces of a tensor that are read together are those read one by one, and gradients add up where they were read."""

from __future__ import annotations

import pytest
import torch

from lit_transformers.attention.recompute import Stretch, TensorSlice, product, values_unread, zeros_for

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
    starts = [time * stretch.stride for time in range(stretch.times)]
    row_lists = [list(range(stretch.first + start, stretch.stop + start, stretch.step)) for start in starts]
    slices, total = TensorSlice("keys", rows=stretch).read(tensor), zeros_for(tensor)
    expected = torch.stack([tensor[:, :, rows] for rows in row_lists], dim=1).flatten(0, 1)
    assert torch.equal(slices, expected)

    gradient, expected_total = torch.randn_like(slices), torch.zeros_like(tensor)
    TensorSlice("keys", rows=stretch).add(total, gradient)
    for index, rows in enumerate(row_lists):
        expected_total.index_add_(2, torch.tensor(rows), gradient[index :: stretch.times])
    torch.testing.assert_close(total, expected_total)


@pytest.mark.parametrize("heads_last", [True, False])
def test_rows_that_are_listed_are_those_that_gather_finds(heads_last: bool) -> None:
    tensor = torch.randn(2, 3, 17, 5, dtype=torch.float64)
    if heads_last:
        tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
    chosen = torch.randint(17, (4, 3, 6))  # two blocks of each row
    gather_index, repeated = chosen[..., None].expand(-1, -1, -1, 5), tensor.repeat_interleave(2, dim=0)
    slices, total = TensorSlice("keys", chosen=chosen).read(tensor), zeros_for(tensor)
    assert torch.equal(slices, repeated.gather(2, gather_index))

    gradient = torch.randn_like(slices)
    TensorSlice("keys", chosen=chosen).add(total, gradient)
    expected_total = torch.zeros_like(repeated).scatter_add_(2, gather_index, gradient).unflatten(0, (2, 2)).sum(dim=1)
    torch.testing.assert_close(total, expected_total)


def test_a_product_whose_values_are_unread_has_its_gradients() -> None:
    leaves = [torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    weights, v = leaves[0], leaves[1].mT
    probe = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    with values_unread():
        unread = product(weights, v)
    expected = product(weights, v)
    assert torch.equal(expected, weights @ v) and unread.shape == expected.shape and not unread.any()
    for gradient, reference in zip(*(torch.autograd.grad(y, leaves, probe) for y in (unread, expected)), strict=True):
        torch.testing.assert_close(gradient, reference)
