"""The knowledge that the demos of studies ascribe to arms follows from the positions that their networks see."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from ablations.catalog import find, load
from lit_transformers.mixer import Shape
from lit_transformers.mixers import DietConfig


def demo(name: str) -> dict[str, Any]:
    return load(find(name)).resolve("demo").configs


def blocks_of_the_first(config: Any) -> int:
    """Returns how many blocks reach the first one through all layers of an encoder; the first block keeps everything
    that has reached it."""
    length = torch.tensor([config.data.source.length + 1])
    sees_by_layer = []
    for layer in range(config.model.depth):
        mixer = config.model.mixer.build(Shape(config.model.dim, config.model.heads, int(length), layer))
        edges = mixer.drawing.edges(length, int(length))[0].any(dim=0)
        sees_by_layer.append(edges | torch.eye(len(edges), dtype=torch.bool))
    first = torch.arange(len(sees_by_layer[0])) == 0
    return int(reduce(lambda reached, sees: sees[reached].any(dim=0), reversed(sees_by_layer), first).sum())


def test_of_bigbirds_sixteen_blocks_each_choice_of_components_brings_its_share_to_the_first_token() -> None:
    configs = demo("bigbird_components")
    reached = {arm: blocks_of_the_first(config) for arm, config in configs.items() if arm != "blocks=all"}
    assert reached == {
        "baseline": 16,
        "blocks=window+global": 16,
        "blocks=random+window": 14,
        "blocks=random": 10,
        "blocks=window": 3,
    }


def test_a_cascade_sees_both_lags_and_dilated_diets_the_first_one_alone() -> None:
    """A symbol is predicted one place before it stands, so that a lag is seen at a distance of one less."""
    for arm, config in demo("diet_masks").items():
        mixer, lags = config.model.mixer, config.data.source.lags
        if isinstance(mixer, DietConfig):
            layers = [mixer.bands(layer) for layer in range(config.model.depth)]
            reach = sum(max(band.before * band.step for band in bands if band.before) for bands in layers)
            assert [lag for lag in lags if lag - 1 <= reach] == [*lags[: 2 if mixer.pattern == "cascade" else 1]], arm


def test_of_the_lags_of_sparse_patterns_one_is_a_multiple_of_the_stride_and_one_is_not() -> None:
    configs = demo("sparse_pattern")
    strided = {arm: config for arm, config in configs.items() if arm.endswith("strided")}
    distances = {arm: (config.data.source.lags[0] - 1) % config.model.mixer.block for arm, config in strided.items()}
    assert distances == {"data=periodic pattern=strided": 0, "data=off_the_stride pattern=strided": 8}
