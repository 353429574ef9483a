"""Added positions, rotary turns and buckets, each against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from lit_transformers.config import ConfigError
from lit_transformers.encodings import LearnedRelativeConfig, RotaryConfig, XLConfig
from lit_transformers.encodings.positions import LearnedConfig, PositionError, SinusoidalConfig, sinusoids
from lit_transformers.mixer import Shape

SHAPE = Shape(dim=6, heads=2, max_length=4, layer=0, depth=3)


def at(*positions: int) -> torch.Tensor:
    return torch.tensor([positions])


@pytest.mark.parametrize("position", [0, 1, 7, 5000, -3])
def test_sinusoids_are_those_of_the_formula(position: int) -> None:
    values = sinusoids(torch.tensor(position), 6, torch.float64).tolist()
    angles = [position / 10_000 ** (pair / 6) for pair in (0, 2, 4)]
    assert values == pytest.approx([math.sin(a) for a in angles] + [math.cos(a) for a in angles], abs=1e-12)


def test_sinusoids_are_exact_at_far_positions_in_single_precision() -> None:
    """Angles are taken in double: at position 100,000 single precision would be off by a hundredth."""
    expected, in_float32 = (sinusoids(torch.tensor(100_003), 6, dtype) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(in_float32.double(), expected, atol=1e-7, rtol=0)


def test_sinusoids_are_added_to_the_input_of_the_first_layer_alone() -> None:
    positions = SinusoidalConfig().build(SHAPE)
    x = torch.zeros(1, 2, 6)
    torch.testing.assert_close(positions(x, at(0, 1), 0)[0], sinusoids(torch.arange(2), 6, x.dtype))
    assert torch.equal(positions(x, at(0, 1), 1), x)


@pytest.mark.parametrize("config", [SinusoidalConfig(), LearnedConfig()])
def test_positions_restart_with_each_segment(config: SinusoidalConfig | LearnedConfig) -> None:
    positions = config.build(SHAPE)
    x = torch.zeros(1, 1, 6)
    assert torch.equal(positions(x, at(6), 0), positions(x, at(2), 0))
    assert not torch.equal(positions(x, at(3), 0), positions(x, at(2), 0))


def test_positions_count_on_through_a_document_where_asked() -> None:
    positions = SinusoidalConfig(restart="document").build(SHAPE)
    x = torch.zeros(1, 1, 6)
    assert not torch.allclose(positions(x, at(6), 0), positions(x, at(2), 0))


def test_every_layer_has_learned_positions_of_its_own_where_asked() -> None:
    shared, per_layer = LearnedConfig().build(SHAPE), LearnedConfig(per_layer=True).build(SHAPE)
    x = torch.zeros(1, 1, 6)
    assert torch.equal(shared(x, at(1), 2), x)
    assert torch.equal(per_layer(x, at(1), 2)[0, 0], per_layer.weight[2, 1])
    assert per_layer.weight.shape == (3, 4, 6)


def test_a_position_beyond_the_table_names_the_ways_out() -> None:
    positions = LearnedConfig(restart="document", max_length=5).build(SHAPE)
    positions(torch.zeros(1, 1, 6), at(4), 0)
    with pytest.raises(PositionError, match=r"position 9 .*max_length to 10 .*restart to segment.*sinusoidal"):
        positions(torch.zeros(1, 1, 6), at(9), 0)


@pytest.mark.parametrize("build", [SinusoidalConfig().build, lambda shape: XLConfig().build(shape, 5)])
def test_an_odd_dim_has_no_sinusoids(build: object) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match="dim must be even, not 5"):
        build(Shape(5, 1, 4))


def test_rotary_turns_each_pair_by_its_angle() -> None:
    rotary = RotaryConfig(base=100.0).build(SHAPE, 4).double()
    x = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    rotated = rotary.rotate(x, torch.tensor([3]))[0, 0, 0]
    for channel, angle in ((0, 3.0), (1, 3.0 / 10)):  # pairs (0, 2) and (1, 3); base 100 to the power of -1/2
        first, second = x[0, 0, 0, channel], x[0, 0, 0, channel + 2]
        expected = [
            first * math.cos(angle) - second * math.sin(angle),
            second * math.cos(angle) + first * math.sin(angle),
        ]
        torch.testing.assert_close(rotated[[channel, channel + 2]], torch.stack(expected), atol=1e-6, rtol=0)


def test_products_of_turned_vectors_depend_on_the_distance_alone() -> None:
    rotary = RotaryConfig().build(SHAPE, 8).double()
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(i: int, j: int) -> float:
        return float((rotary.rotate(q, torch.tensor([i])) * rotary.rotate(k, torch.tensor([j]))).sum())

    assert product(7, 3) == pytest.approx(product(107, 103), abs=1e-4)
    assert product(7, 3) != pytest.approx(product(3, 7), abs=1e-4)


def test_unrotated_channels_stay_as_they_are() -> None:
    rotary = RotaryConfig(unrotated=0.5).build(SHAPE, 8)
    x = torch.randn(1, 1, 3, 8)
    rotated = rotary.rotate(x, torch.arange(3) + 1)
    assert torch.equal(rotated[..., 4:], x[..., 4:])
    assert (rotated[..., :4] - x[..., :4]).abs().min() > 0


def test_one_in_so_many_layers_turns_by_its_own_wavelengths() -> None:
    """arXiv:2412.13663, section 2.1.2."""
    config, x = RotaryConfig(base=100.0, long_every=2, long_base=900.0), torch.randn(1, 1, 5, 4)
    for layer, base in enumerate((900.0, 100.0, 900.0)):
        rotaries = (c.build(SHAPE._replace(layer=layer), 4) for c in (config, RotaryConfig(base=base)))
        assert torch.equal(*(rotary.rotate(x, torch.arange(5)) for rotary in rotaries))


def test_a_head_without_a_pair_cannot_turn() -> None:
    with pytest.raises(ConfigError, match=r"encoding.unrotated: no pair"):
        RotaryConfig(unrotated=0.9).build(SHAPE, 8)


@pytest.mark.parametrize(("buckets", "max_distance"), [(6, 128), (2, 128), (32, 16)])
def test_buckets_that_cannot_be_halved_are_refused(buckets: int, max_distance: int) -> None:
    with pytest.raises(ConfigError):
        LearnedRelativeConfig(buckets=buckets, max_distance=max_distance)
