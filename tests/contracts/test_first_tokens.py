"""The first token of each row, computed alone in the last layer, has the same output as in a pass over all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_cases import DIM, HEADS, STACK_CASES, Case, each_mode, name, randomised
from numerics import placed, same
from torch import Tensor, nn

from lit_transformers.batch import LabelledBatch, LabelledDescription, Vocabulary
from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.mixer import Mode, Shape
from lit_transformers.mixers import AttentionConfig, WindowConfig
from lit_transformers.models import EncoderConfig
from lit_transformers.models.encoder import Encoder
from lit_transformers.models.model import ModelConfig
from lit_transformers.stacks import StackConfig
from lit_transformers.stacks.feedforward import SeparableConvolutionConfig
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.training.config import TrainingConfig

pytestmark = pytest.mark.any_device
LENGTHS = (5, 9, 1, 9, 4)
LONGEST = max(LENGTHS)
SMALL: dict[str, Any] = {"dim": DIM, "heads": HEADS, "depth": 3, "positions": SinusoidalConfig(restart="document")}
DATA = LabelledDescription.for_probe(Vocabulary(size=11, boundary=0, unit="byte", byte_lengths=None), LONGEST)


def network_of(config: ModelConfig) -> Encoder:
    network = placed(randomised(config.build(DATA).double())).eval()
    assert isinstance(network, Encoder)
    return network


def first_and_all(network: Encoder) -> tuple[Tensor, Tensor]:
    """The hidden vectors of the first symbols, computed alone and in a pass over all symbols."""
    torch.manual_seed(1)
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    symbols, places = torch.randint(1, 11, mask.shape), torch.arange(LONGEST).expand(mask.shape)
    inputs = placed(symbols), placed(mask), placed(places == 0), placed((places > 1).long())
    with torch.no_grad():
        return network.read_first(*inputs).hidden, network.read_row(*inputs).hidden[:, :1]


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "post", "segments": 2, "embedding_norm": True},
        {"unpadded": True, "adapter": "bottleneck"},
        {"stack": "shared", "norm": "pre", "feedforward.gated": True},
    ],
)
def test_an_encoder_computes_the_first_token_alone_in_its_last_layer(changes: dict[str, Any]) -> None:
    network = network_of(EncoderConfig(**SMALL).override(changes))
    assert network.reads_first
    widths: list[tuple[int, ...]] = []
    last = network.stack.steps()[-1].feedforward
    handle = last.register_forward_hook(lambda module, inputs, output: widths.append(tuple(inputs[0].shape[:2])))
    alone, expected = first_and_all(network)
    handle.remove()
    same(alone, expected)
    assert (len(LENGTHS), 1) in widths


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 1},
        {"extra_tokens": 2},
        {"causal": True},
        {"mixer.encoding": "rotary", "positions": None},
        {"mixer.encoding": "shaw"},
        {"mixer": WindowConfig(window=2, global_tokens="marked")},
        {"feedforward": SeparableConvolutionConfig()},
        {"stack": "universal"},
    ],
    ids=str,
)
def test_other_networks_compute_all_tokens(changes: dict[str, Any]) -> None:
    network = network_of(EncoderConfig(**SMALL).override(changes))
    assert not network.reads_first
    alone, expected = first_and_all(network)
    torch.testing.assert_close(alone, expected, rtol=0, atol=0)


@each_mode()
def test_mixers_that_cross_themselves_compute_the_same_for_tokens_alone(case: Case, mode: Mode) -> None:
    mixer = placed(randomised(case.config.build(Shape(DIM, HEADS, LONGEST)).double())).eval()
    assert not mixer.crosses_itself or isinstance(case.config, AttentionConfig)
    if mode == "bidirectional" and mixer.crosses_itself:
        network = network_of(EncoderConfig(**SMALL).override({"mixer": case.config}))
        assert network.reads_first
        same(*first_and_all(network))


@pytest.mark.parametrize("config", STACK_CASES, ids=name)
def test_every_stack_agrees_on_the_first_token(config: StackConfig) -> None:
    same(*first_and_all(network_of(EncoderConfig(**SMALL).override({"stack": config, "depth": 4}))))


@pytest.mark.parametrize("pooling", ["first", "mean", "max"])
def test_predictions_are_those_of_all_tokens(pooling: str) -> None:
    model = EncoderConfig(**SMALL)
    config = ClassificationConfig().override({"pooling": pooling})
    task = placed(randomised(config.build(model, DATA, TrainingConfig()).double())).eval()
    torch.manual_seed(1)
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    rows = torch.arange(len(LENGTHS))
    symbols = torch.randint(1, 11, mask.shape)
    batch = LabelledBatch(*map(placed, (symbols, mask, rows % 2)), None, placed(rows), None, padded=True)
    reads: list[bool] = []
    network: nn.Module = task.network
    handle = network.register_forward_pre_hook(
        lambda module, inputs, options: reads.append(bool(options.get("first"))), with_kwargs=True
    )
    with torch.no_grad():
        found = torch.tensor([prediction.probabilities for prediction in task.predict_step(batch, 0)])
        expected = task.evaluation_output(batch).softmax(dim=-1)
    handle.remove()
    torch.testing.assert_close(found.double(), expected.double().cpu(), atol=1e-6, rtol=0)  # both through float32
    assert reads == [pooling == "first", False]
