"""Families from outside of the library whose networks are parts put together: two networks that share embeddings, a
student with its teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy_pairs_of_networks
from contract_cases import randomised
from torch import Tensor
from toy_pairs_of_networks import DistilledConfig, ReplacedConfig
from toy_two_streams import PermutedConfig

from lit_transformers.config import ConfigError, register
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import miniature, probe_data
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import MODELS, EncoderConfig, LanguageModelConfig
from lit_transformers.models.cost import cost
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig
from lit_transformers.tasks import CausalLMConfig, ClassificationConfig, TaskConfig
from lit_transformers.training.config import TrainingConfig

SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 2, "mixer": AttentionConfig(memory=8)}
DATA = probe_data(11, 6)
SYMBOLS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])


def failed(config: ModelConfig) -> list[str]:
    return [f"{gate.name}: {gate.detail}" for gate in gates.check(config) if not gate.passed]


def learners(network: torch.nn.Module) -> list[str]:
    """The names of the parameters that a backward pass has reached."""
    return [name for name, parameter in network.named_parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    ("config", "task", "losses"),
    [
        (PermutedConfig(dim=16, heads=2, depth=2), ClassificationConfig(), {"permutation"}),
        (ReplacedConfig(dim=16, heads=2, depth=2), ClassificationConfig(), {"generator", "discriminator"}),
        (DistilledConfig(**SIZES, teacher=LanguageModelConfig(**SIZES)), CausalLMConfig(), {"distillation"}),
    ],
    ids=lambda part: part.kind if isinstance(part, ModelConfig) else "",
)
def test_each_is_trained_by_a_task_that_does_not_know_it(
    config: ModelConfig, task: TaskConfig, losses: set[str]
) -> None:
    register(MODELS, type(config))
    try:
        data = task.probe_data(DATA.vocabulary, DATA.length)
        named = ModelConfig.from_dict(config.to_dict())
        trained = task.build(named, data, TrainingConfig(device="cpu"))
        output = trained.training_step(task.random_batch(data), 0)
    finally:
        del MODELS[config.kind]
    assert {*output["aux"]} == losses
    output["loss"].backward()
    assert learners(trained.network)


REPLACED = ReplacedConfig(dim=16, heads=2, depth=3, masked=0.5)


def losses() -> tuple[toy_pairs_of_networks.Replaced, dict[str, Tensor]]:
    torch.manual_seed(0)
    network = REPLACED.build(DATA).train()
    return network, network.read_row(SYMBOLS, None, SYMBOLS == 1).aux


def test_two_parts_that_share_embeddings_both_train_them_and_nothing_else_of_the_other() -> None:
    for loss, prefixes in (
        ("generator", ("tokens.", "mask", "generator")),
        ("discriminator", ("tokens.table", "discriminator", "norm.", "head.")),
    ):
        network, aux = losses()
        aux[loss].backward()
        assert {*learners(network)} == {key for key, _ in network.named_parameters() if key.startswith(prefixes)}


def test_shared_embeddings_are_counted_once_and_both_parts_are() -> None:
    encoder = EncoderConfig(dim=16, heads=2, depth=4)
    both, alone = cost(REPLACED, DATA, 6), cost(encoder, DATA, 6)
    assert both.embedding_parameters == alone.embedding_parameters
    final_norm, mask, head = 2 * 16, 16, 17
    assert both.parameters == alone.parameters + final_norm + mask + head


def test_a_family_of_two_parts_passes_its_gates() -> None:
    assert failed(REPLACED) == []


TEACHER = LanguageModelConfig(dim=24, heads=2, depth=3, dropout=0.5, mixer=AttentionConfig(memory=8))
DISTILLED = DistilledConfig(**SIZES, teacher=TEACHER)


def test_a_student_learns_from_a_teacher_that_learns_nothing() -> None:
    network = DISTILLED.build(DATA).train()
    network(SYMBOLS).aux["distillation"].backward()
    assert learners(network) == [key for key, _ in network.named_parameters() if not key.startswith("teacher.")]


def test_a_student_with_the_weights_of_its_teacher_has_nothing_to_learn() -> None:
    network = DistilledConfig(**SIZES, teacher=LanguageModelConfig(**SIZES)).build(DATA)
    randomised(network.teacher)
    state = None
    for copied in (False, True):
        if copied:
            network.load_state_dict(network.teacher.state_dict(), strict=False)
        for _ in range(2):
            output = network(SYMBOLS, state)
            state = output.state
        assert (output.aux["distillation"] < 1e-6) == copied
        state = None


def test_a_teacher_counts_in_parameters_flops_and_state() -> None:
    both, student, teacher = (cost(config, DATA, 6) for config in (DISTILLED, LanguageModelConfig(**SIZES), TEACHER))
    assert both.parameters == student.parameters + teacher.parameters
    assert both.state_bytes == student.state_bytes + teacher.state_bytes
    softmax = 2 * DISTILLED.dim * DATA.vocabulary.size
    assert both.flops_per_token == student.flops_per_token + teacher.flops_per_token + softmax


def test_a_teacher_is_part_of_the_miniature_that_passes_the_gates() -> None:
    config = DISTILLED.override({"teacher.tokens": AdaptiveTokenEmbeddingConfig(cutoffs=(100,))})
    small = miniature(config, 24)
    assert small.depths() == {"depth": 2, "teacher.depth": 2}
    assert (small.teacher.dim, small.teacher.dropout, small.teacher.tokens.cutoffs) == (16, 0.0, (7, 15))
    assert failed(config) == []


def test_a_teacher_that_cannot_read_in_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model: distilled learns from a .*language_model, not a encoder"):
        DISTILLED.override({"teacher": EncoderConfig(dim=16, heads=2, depth=1)}).build(DATA)
