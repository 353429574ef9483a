"""Results that are computed on a device stay there: every mixer and search on one that stands in for CUDA, see
``pretended_device``, where a tensor that the library left on the CPU meets one that lies elsewhere. Tasks are in
``test_task_waits``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pretended_device
import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, LONG, Case, context, dropouts_of, example, noise, randomised, variants
from pretended_device import DEVICE
from synchronisations import counted
from torch import Tensor
from torch.utils._pytree import tree_map

from lit_transformers.batch import Vocabulary
from lit_transformers.decoding.decode import BeamConfig, DecodingConfig, GreedyConfig, decode
from lit_transformers.decoding.generate import beam_search
from lit_transformers.encodings import RotaryConfig, XLConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Mixer, Mode
from lit_transformers.mixers import AttentionConfig, BiLSTMConfig, LSTMConfig
from lit_transformers.mixers.waits import most_waits
from lit_transformers.models import EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.tasks import CausalLMConfig
from lit_transformers.training.config import TrainingConfig


@pytest.fixture(autouse=True)
def _a_device() -> Iterator[None]:
    with pretended_device.pretended():
        yield


def to_device(tree: Any) -> Any:
    """Every tensor of a tree, copied to the device; a copy requires gradients where its original does."""

    def move(leaf: Any) -> Any:
        return leaf.detach().to(DEVICE).requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return tree_map(move, tree)


def test_tensors_of_two_devices_do_not_meet() -> None:
    on_cpu, on_device = torch.ones(2), torch.ones(2, device=DEVICE)
    assert on_device.device == (on_device + on_device).device == DEVICE and (on_device + 1).tolist() == [2, 2]
    for mix in (lambda: on_cpu + on_device, lambda: on_device.add_(on_cpu), lambda: torch.cat([on_cpu, on_device])):
        with pytest.raises(RuntimeError, match="same device"):
            mix()
    with pytest.raises(TypeError):
        on_device.numpy()


CASES = [
    (case, mode)
    for case in variants("with attention")
    for mode in (case.modes if case in KINDS.values() else case.modes[:1])
]
"""One case of each kind in all modes; the encodings that mixers share, with one of them."""


@pytest.mark.slow
@pytest.mark.parametrize(("case", "mode"), [example(case, mode) for case, mode in CASES])
def test_a_mixer_computes_elsewhere_what_it_computes_here(case: Case, mode: Mode) -> None:
    """Forward, backward, and after a state that it left; with padding. The host waits only where the mixer says so. One
    case of each kind reads several blocks, but for an LSTM, which knows none."""
    blockwise = case in KINDS.values() and not isinstance(case.config, LSTMConfig | BiLSTMConfig)
    length, causal = LONG if blockwise and mode == case.mode else 12, mode == "causal"
    padding_mask = torch.rand(2, length) < 0.8
    x, ctx = noise(2, length, DIM).requires_grad_(), context(2, length, causal, padding_mask)
    mixer, mixer_there = (case.build(mode, **dict.fromkeys(dropouts_of(case.config), 0.1)) for _ in range(2))

    def results(mixer: Mixer, placed_x: Tensor, placed_ctx: Context) -> list[Tensor]:
        torch.manual_seed(1)
        output = mixer(placed_x, placed_ctx)
        second_y = (
            mixer(placed_x, placed_ctx, output.state).y if causal and case.config.promises().streams else output.y
        )
        loss = second_y.square().sum() + output.y.square().sum() + sum(output.aux.values())
        leaves = [placed_x, *mixer.parameters()]
        return [output.y, *torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True)]

    there = (mixer_there.to(DEVICE), to_device(x), to_device(ctx))
    with counted() as waits:
        results_there = results(*there)
    assert len(waits) <= 2 * most_waits(case.config), waits
    for expected, result in zip(results(mixer, x, ctx), results_there, strict=True):
        assert result.device == DEVICE
        torch.testing.assert_close(expected, result.cpu(), atol=1e-9, rtol=1e-9)


VOCABULARY = Vocabulary(size=11, boundary=10, unit="byte", byte_lengths=tuple(range(1, 12)))


def test_a_network_as_it_is_measured_moves_with_its_task() -> None:
    """As a trainer moves it: to the device, and back when it is through."""
    config = CausalLMConfig(evaluation={"mixer.memory": 8})
    model = LanguageModelConfig(dim=DIM, heads=HEADS, mixer=AttentionConfig(encoding=RotaryConfig(), memory=4))
    data = config.probe_data(VOCABULARY, 9)
    task, batch = config.build(model, data, TrainingConfig(device="cpu")).eval(), config.random_batch(data)
    with torch.no_grad():
        task.to(DEVICE)
        with pretended_device.swapping(False):
            task.evaluator()
        assert task.evaluation_output(to_device(batch)).device == DEVICE
        task.to("cpu").begin_evaluation()
        with pretended_device.swapping(False):
            assert task.evaluation_output(batch).device.type == "cpu"


@pytest.mark.parametrize(
    "search", [GreedyConfig(extra=4), BeamConfig(extra=4, beams=3, coverage=0.2)], ids=lambda search: search.kind
)
def test_a_search_finds_elsewhere_what_it_finds_here(search: DecodingConfig) -> None:
    network = randomised(EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2).build(probe_data(11, 9)).double()).eval()
    source, padding_mask = torch.randint(1, 10, (3, 7)), torch.arange(7) < torch.tensor([[7], [3], [5]])
    expected = decode(network, source, padding_mask, search, boundary=10)
    result = decode(network.to(DEVICE), to_device(source), to_device(padding_mask), search, boundary=10)
    assert result.symbols == expected.symbols and result.scores.device == DEVICE
    torch.testing.assert_close(result.scores.cpu(), expected.scores)


def test_a_text_is_continued_elsewhere_as_here() -> None:
    mixer = AttentionConfig(encoding=XLConfig(), memory=4)
    model = LanguageModelConfig(dim=DIM, heads=HEADS, depth=2, mixer=mixer)
    network = randomised(model.build(probe_data(11, 9)).double()).eval()
    prompt = torch.tensor([10, 1, 2])
    expected, expected_score = beam_search(network, prompt, 6, beams=3, forbidden=10)
    symbols, score = beam_search(network.to(DEVICE), to_device(prompt), 6, beams=3, forbidden=10)
    assert symbols == expected and score == pytest.approx(expected_score)
