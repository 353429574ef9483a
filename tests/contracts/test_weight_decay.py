"""Weight decay shrinks matrices and tables of vectors alone: of every mixer, encoding, stack and family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from contract_cases import ADAPTER_CASES, DIM, HEADS, MODEL_CASES, POSITION_CASES, STACK_CASES, TOKEN_CASES, variants
from torch import nn

from lit_transformers.batch import DataDescription, LanguageDescription, PairDescription, RowDescription, Vocabulary
from lit_transformers.config import Config, ConfigError
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.roles import vectors
from lit_transformers.training.config import AdamWConfig, decay_groups

MATRICES = {
    ("Linear", "weight"), ("LinearMap", "weight"), ("OutputProjection", "weight"), ("Conv1d", "weight"),
    ("Convolution", "weight"), ("LowRank", "down"), ("LowRank", "up"), ("Bottleneck", "down"), ("Bottleneck", "up"),
    ("DoRA", "down"), ("DoRA", "up"),
    ("ConvolutionProjection", "weight"), ("LinearProjection", "weight"), ("PerHead", "weight"), ("Random", "weight"),
    ("FactorisedRandom", "left"), ("FactorisedRandom", "right"), ("Dynamic", "direction"),
    ("LSTM", "weight_ih_l0"), ("LSTM", "weight_hh_l0"),
    ("LSTM", "weight_ih_l0_reverse"), ("LSTM", "weight_hh_l0_reverse"),
}  # fmt: skip
"""Maps, by the class and the name of their weights: the weights of a sum over inputs."""
TABLES = {("Embedding", "weight"), ("Learned", "weight"), ("DistanceVectors", "weight"), ("RelativeSegments", "weight")}
"""Vectors of symbols, positions, distances and segments, which are chosen by a number."""
VECTORS = {("HeadBias", "weight"), ("PerHead", "bias"), ("Synthesizer", "mixture"), ("BucketBiases", "weight")}
"""Parameters that are added to all inputs alike, or weigh whole parts, of any number of dimensions."""


def networks() -> Iterator[nn.Module]:
    """Every mixer with every encoding, and a network of every family with every stack, positions and tokens."""
    for case in variants("with every mixer"):
        yield case.build()
    vocabulary = Vocabulary(size=12, boundary=0, unit="piece", byte_lengths=None)
    kinds: dict[str, type[DataDescription]] = {
        "language_model": LanguageDescription, "encoder": RowDescription, "encoder_decoder": PairDescription,
        "deformer": RowDescription,
    }  # fmt: skip
    parts: dict[str, Sequence[Config]] = {
        "positions": POSITION_CASES, "stack": STACK_CASES, "tokens": TOKEN_CASES, "adapter": ADAPTER_CASES,
    }  # fmt: skip
    for model in MODEL_CASES:
        data = kinds[str(model.kind)].for_probe(vocabulary, 8)
        for name, choices in parts.items():
            for choice in choices:
                with suppress(ConfigError):  # not every family has every part
                    yield model.override({name: choice}).build(data)


def test_every_parameter_has_a_role_and_vectors_of_any_shape_are_exempt() -> None:
    """Whoever adds a parameter of more than one dimension states its role here, and names a vector in
    ``vector_parameters``."""
    met = set()
    for network in networks():
        exempt = vectors(network)
        for module in network.modules():
            for name, parameter in module.named_parameters(recurse=False):
                role = (type(module).__name__, name)
                is_vector = parameter.dim() <= 1 or role in VECTORS
                assert is_vector or role in MATRICES | TABLES, f"{role} of {tuple(parameter.shape)} has no role"
                assert (id(parameter) in exempt) == is_vector, role
                met.add(role)
    assert met >= VECTORS | TABLES, "each is in some case"


def test_decay_leaves_u_and_v_of_xl_as_they_are_and_shrinks_all_matrices() -> None:
    model = LanguageModelConfig(dim=DIM, heads=HEADS, depth=1).override({"mixer.encoding": {"kind": "xl"}})
    vocabulary = Vocabulary(size=12, boundary=0, unit="piece", byte_lengths=None)
    network = model.build(LanguageDescription.for_probe(vocabulary, 8))
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for parameter in network.parameters():
        nn.init.normal_(parameter)
        before |= {name: p.detach().clone() for name, p in network.named_parameters() if p is parameter}
        parameter.grad = torch.zeros_like(parameter)
    AdamWConfig(learning_rate=0.1, weight_decay=0.5).build(network).step()
    kept = {name for name, parameter in network.named_parameters() if torch.equal(parameter, before[name])}
    assert {name for name in kept if "relative" in name} == {
        name for name in before if name.endswith(("content.weight", "position.weight"))
    }
    assert all(torch.equal(p, 0.95 * before[name]) for name, p in network.named_parameters() if name not in kept)
    assert sum(len(group["params"]) for group in decay_groups(network, 0.5)) == len(before)
