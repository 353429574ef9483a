"""The initial weights of a module depend on its name, its shape and the seed, and on nothing else."""

from __future__ import annotations

import torch
from contract_cases import DIM, SHAPE, Case, variants
from torch import Tensor

from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.initialisation import initialise_scaled


def start(config: LanguageModelConfig, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(config.build(probe_data(11, 8)).named_parameters())


def test_networks_of_one_seed_start_alike_wherever_their_parts_have_the_same_names() -> None:
    plain = LanguageModelConfig(dim=16, heads=2, depth=2, positions=LearnedConfig(), mixer=AttentionConfig())
    other = plain.override({"depth": 3, "positions": None, "mixer": AttentionConfig(encoding=XLConfig())})
    first, second = start(plain), start(other)
    shared = {name for name in first if name in second and first[name].shape == second[name].shape}
    assert len(shared) > 20 and set(first) - shared and set(second) - shared
    random = [name for name in shared if first[name].unique().numel() > 1]
    for name in shared:
        same = first[name] if "merge" not in name and "narrow" not in name else first[name] * (2 / 3) ** 0.5
        torch.testing.assert_close(second[name], same, msg=name)
    reseeded = start(plain, seed=1)
    assert all(not torch.allclose(first[name], reseeded[name]) for name in random)
    values = [first[name].flatten()[:16] for name in random]
    assert torch.stack(values).unique(dim=0).size(0) == len(random), "each part has its own numbers"


def test_no_mixer_starts_from_what_others_have_drawn_before_it() -> None:
    def weights(case: Case, drawn: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        torch.rand(drawn)
        mixer = case.config.build(SHAPE._replace(shared={}))
        initialise_scaled(mixer, DIM, 1.0)
        return mixer.state_dict()

    for case in variants("with attention"):
        first, second = weights(case, 0), weights(case, 7)
        assert all(torch.equal(first[name], second[name]) for name in first), case.config
