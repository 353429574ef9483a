"""Memory is used again by the next block of a pass, and by nothing else."""

from __future__ import annotations

import torch

from lit_transformers.attention.workspace import empty, next_block, workspace

LIKE = torch.empty(0)


def test_the_matrices_of_a_block_have_the_memory_of_those_of_the_block_before() -> None:
    with workspace():
        first, second = empty(LIKE, 4, 3), empty(LIKE, 4, 3)
        next_block()
        smaller, larger = empty(LIKE, 5), empty(LIKE, 4, 4)
    assert smaller.data_ptr() == first.data_ptr() != second.data_ptr()
    assert larger.shape == (4, 4)
    assert larger.data_ptr() != first.data_ptr()


def test_memory_is_not_shared_with_what_is_outside_of_the_pass() -> None:
    with workspace():
        inside = empty(LIKE, 4)
        with workspace():
            nested = empty(LIKE, 4)
        next_block()
        after = empty(LIKE, 4)
    outside = empty(LIKE, 4)
    assert after.data_ptr() == inside.data_ptr()
    assert len({inside.data_ptr(), nested.data_ptr(), outside.data_ptr()}) == 3
