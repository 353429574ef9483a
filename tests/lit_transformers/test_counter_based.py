"""Numbers from counters: those of SplitMix64, uniform ones, and draws that have the probabilities asked for."""

from __future__ import annotations

import pytest
import torch

from lit_transformers.tasks.counter_based import GOLDEN, draw, random_numbers, scrambled, uniform


@pytest.mark.any_device
def test_the_numbers_are_those_of_splitmix64() -> None:
    """The first outputs of its reference implementation for the seeds 0 and 1234567 (Vigna 2015, splitmix64.c)."""
    seeds = torch.tensor([0, 0, 1234567, 1234567])
    states = seeds + torch.tensor([1, 2, 1, 2]) * GOLDEN
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 6457827717110365317, 3203168211198807973]
    assert [number % 2**64 for number in scrambled(states).tolist()] == outputs


def test_uniform_numbers_fill_the_interval() -> None:
    assert uniform(torch.tensor([-(2**63), 0, 2**63 - 1])).tolist() == [0.0, 0.5, 1 - 2.0**-53]
    counts = torch.histc(uniform(scrambled(torch.arange(100_000))), bins=10, min=0, max=1)
    assert (counts - 10_000).abs().max() < 4 * (100_000 * 0.09) ** 0.5


def test_numbers_change_with_the_row_what_is_predicted_and_the_step() -> None:
    scored = torch.zeros(2, 6, dtype=torch.bool).index_fill(1, torch.tensor([1, 3]), True)
    rows = torch.tensor([4, 5])
    numbers = random_numbers(rows, scored)
    others = random_numbers(rows, scored.roll(1, dims=1)), random_numbers(rows, scored, step=3)
    assert all(not (other == numbers).any() for other in (*others, numbers.flip(0)))
    # not with padding
    padded = torch.cat([scored, torch.zeros_like(scored)], dim=1)
    torch.testing.assert_close(random_numbers(rows, padded)[:, :6], numbers)


def test_draws_have_the_probabilities_and_never_a_symbol_without_any() -> None:
    log_probabilities = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0]).log().expand(5, -1)
    chance = torch.tensor([0.0, 0.21, 0.65, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(log_probabilities, chance).tolist() == [1, 3, 3, 4, 4]
