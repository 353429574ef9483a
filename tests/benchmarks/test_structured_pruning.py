"""The benchmark of narrower networks compares networks of the sizes that it names."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ablations.fine_tuning import MINILM_NETWORK
from benchmarks.structured_pruning import NARROWED, SCRATCH, TINY, WHOLE, main, networks_of


def test_a_narrower_network_has_the_size_of_the_one_made_from_scratch_and_weights_of_the_whole(tmp_path: Path) -> None:
    networks = networks_of(MINILM_NETWORK.override(TINY), heads=6, width=48, length=8)
    sizes = {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}
    assert sizes[NARROWED] == sizes[SCRATCH] < sizes[WHOLE]
    tables = [networks[name].tokens.state_dict() for name in (WHOLE, NARROWED)]
    assert all(torch.equal(tensor, tables[1][name]) for name, tensor in tables[0].items())
    main(heads=6, width=48, batch=2, length=8, rounds=2, tiny=True, json=str(tmp_path / "speeds.json"))
    numbers = json.loads((tmp_path / "speeds.json").read_text())
    assert numbers["ratios"].keys() == {WHOLE, SCRATCH} and len(numbers["texts_per_second"][NARROWED]) == 2
