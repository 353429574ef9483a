"""Encoder-decoders whose stacks share their layers: both compute with the same weights, whose gradients add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, STACK_CASES, Case, name, randomised
from numerics import same
from starting import start_from_file
from torch import Tensor

from lit_transformers.batch import PairDescription, SpelledNumbers, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.gates import gates
from lit_transformers.mixers import AttentionConfig, SynthesizerConfig
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.cost import cost
from lit_transformers.models.encoder_decoder import EncoderDecoder
from lit_transformers.runs.starting_weights import StartingWeights, own_names, write_weights
from lit_transformers.stacks import SequentialConfig, StackConfig
from lit_transformers.tasks import Seq2SeqConfig
from lit_transformers.tasks.seq2seq import Seq2Seq
from lit_transformers.training.config import TrainingConfig

SYMBOLS, LENGTH = 11, 9
DATA = PairDescription.for_probe(Vocabulary(size=SYMBOLS, boundary=0, unit="byte", byte_lengths=None), LENGTH)
SHARED = EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, shared_stacks=True)
BOTH_WAYS = [case for case in KINDS.values() if {"causal", "bidirectional"} <= set(case.config.promises().modes)]
PARTS = ("mixer", "mixer_norm", "feedforward", "feedforward_norm")
NETWORKS = [
    *(pytest.param(SequentialConfig(), case, id=name(case.config)) for case in BOTH_WAYS),
    *(pytest.param(stack, KINDS["attention"], id=name(stack)) for stack in STACK_CASES),
]


def is_shared(parameter: str) -> bool:
    """Whether a parameter of the decoder, by its name in the network, is to be the encoder's."""
    return parameter.startswith("decoder.") and any(part in parameter.split(".") for part in PARTS)


def counterpart(parameter: str) -> str:
    """The name of the same parameter in the encoder."""
    return parameter.replace("decoder.", "encoder.", 1)


def loss(network: EncoderDecoder) -> Tensor:
    """The sum of all losses for symbols that are always the same, with the same random choices."""
    torch.manual_seed(1)
    source, target = (torch.arange(2 * LENGTH).view(2, LENGTH) * step % SYMBOLS for step in (3, 7))
    output = network(source, target)
    return network.tokens.nll(output.hidden, target).sum() + sum(output.aux.values())


@pytest.mark.parametrize(("stack", "case"), NETWORKS)
def test_both_stacks_compute_with_the_same_weights_whose_gradients_add_up(stack: StackConfig, case: Case) -> None:
    """Compared with two stacks that have copies of these weights."""
    config = SHARED.override({"stack": stack, "mixer": case.config, "decoder_mixer": case.config})
    shared = randomised(config.build(DATA).double())
    apart = config.override({"shared_stacks": False}).build(DATA).double()
    apart.load_state_dict(shared.state_dict())
    assert len({*map(id, apart.parameters())}) > len({*map(id, shared.parameters())})
    for network in (shared, apart):
        loss(network).backward()
    same(loss(shared), loss(apart))
    of_shared = dict(shared.named_parameters(remove_duplicate=False))
    of_apart = dict(apart.named_parameters(remove_duplicate=False))
    tied = [parameter for parameter in of_shared if is_shared(parameter)]
    assert len(tied) >= 8 and not any(is_shared(parameter) for parameter, _ in shared.named_parameters())
    for parameter in tied:
        assert of_shared[parameter] is of_shared[counterpart(parameter)], parameter
    for parameter, weight in shared.named_parameters():
        gradients = [of_apart[parameter].grad]
        if parameter.startswith("encoder.") and is_shared(decoders := parameter.replace("encoder.", "decoder.", 1)):
            gradients.append(of_apart[decoders].grad)
        added = [gradient for gradient in gradients if gradient is not None]
        if weight.grad is None:
            assert not added, parameter
        else:
            same(weight.grad, sum(added))


@pytest.mark.parametrize("stack", STACK_CASES, ids=name)
def test_networks_of_shared_stacks_pass_their_gates(stack: StackConfig) -> None:
    config = SHARED.override({"stack": stack, "positions": {"kind": "sinusoidal"}, "dropout": 0.1})
    assert [gate for gate in gates.check(config) if not gate.passed] == []


def test_shared_stacks_spend_what_two_spend_and_have_the_parameters_of_one_and_of_cross_attention() -> None:
    shared, apart = (cost(SHARED.override({"shared_stacks": tied}), DATA, LENGTH, LENGTH) for tied in (True, False))
    attention, feedforward, norm = 4 * DIM**2, 8 * DIM**2 + 5 * DIM, 2 * DIM
    layer = attention + norm + feedforward + norm
    cross = attention + norm
    softmax = SYMBOLS * DIM + SYMBOLS
    assert shared.parameters == softmax + 2 * (layer + cross) + 2 * norm
    assert apart.parameters == shared.parameters + 2 * layer
    assert shared.flops_per_token == apart.flops_per_token


def test_shared_stacks_start_from_the_weights_of_an_encoder_that_is_not_shared() -> None:
    def start(config: EncoderDecoderConfig) -> dict[str, Tensor]:
        torch.manual_seed(0)
        return config.build(DATA).state_dict()

    shared, apart = start(SHARED), start(SHARED.override({"shared_stacks": False}))
    assert shared.keys() == apart.keys()
    for parameter, weight in shared.items():
        expected = apart[counterpart(parameter) if is_shared(parameter) else parameter]
        assert torch.equal(weight, expected), parameter


def test_a_memory_of_the_decoder_alone_is_no_other_mixer() -> None:
    network = SHARED.override({"decoder_mixer.memory": 3}).build(DATA)
    assert network.decoder.steps()[0].mixer.query.weight is network.encoder.steps()[0].mixer.query.weight


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decoder_depth": 3}, "are equally deep; set decoder_depth: null"),
        ({"decoder_mixer": "window"}, "decoder_mixer has another kind than mixer; give it the value of mixer"),
        ({"mixer.bias": True}, "decoder_mixer has another bias than mixer"),
    ],
)
def test_stacks_that_cannot_be_shared_are_refused_with_a_way_out(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SHARED.override(changes)


def test_weights_that_are_as_long_as_rows_are_shared_between_rows_of_one_length_alone() -> None:
    mixer = SynthesizerConfig(members=("random",))
    config = SHARED.override({"mixer": mixer, "decoder_mixer": mixer})
    assert config.build(DATA)
    vocabulary = DATA.vocabulary
    longer = PairDescription(
        vocabulary=vocabulary, length=LENGTH, source=vocabulary, source_length=12, detokenize=SpelledNumbers()
    )
    with pytest.raises(ConfigError, match=r"shared_stacks: .* depends on the length of rows .* make rows equally long"):
        config.build(longer)


def task_of(config: EncoderDecoderConfig, seed: int) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2SeqConfig(metrics=("accuracy",)).build(config, DATA, TrainingConfig())


def test_a_file_of_weights_holds_shared_ones_once_and_fills_both_stacks(tmp_path: Path) -> None:
    first, second, path = task_of(SHARED, 0), task_of(SHARED, 1), tmp_path / "weights.safetensors"
    names = own_names(first)
    tensors = {parameter: tensor for parameter, tensor in first.state_dict().items() if names[parameter] == parameter}
    assert not any(is_shared(parameter.removeprefix("network.")) for parameter in tensors)
    write_weights(path, StartingWeights(SHARED, "", tensors))
    assert start_from_file(second, path) == []
    same(loss(second.network), loss(first.network))
    with pytest.raises(ConfigError, match=r"model\.shared_stacks is True there and False here"):
        start_from_file(task_of(SHARED.override({"shared_stacks": False}), 0), path)


def test_training_moves_both_stacks_alike() -> None:
    network = SHARED.override({"mixer": AttentionConfig(bias=True), "decoder_mixer": AttentionConfig(bias=True)}).build(
        DATA
    )
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    before = network.decoder.steps()[0].mixer.query.weight.clone()
    loss(network).backward()
    optimizer.step()
    weights = network.state_dict()
    assert not torch.equal(before, weights["decoder.blocks.0.mixer.query.weight"])
    assert all(torch.equal(weights[p], weights[counterpart(p)]) for p in weights if is_shared(p))
