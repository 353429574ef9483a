"""Decoders of every mixer that streams: read symbol by symbol they give the same outputs as for a whole target, and
states that were made of a source once serve every symbol."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, Case, context, example, mixers, noise, promises, randomised, variants
from numerics import placed, same, same_gradients
from torch import Tensor

from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, state_tensors
from lit_transformers.mixers import AttentionConfig, CompressiveConfig
from lit_transformers.mixers.compressive.compressive import Compressive
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder

pytestmark = pytest.mark.any_device
TARGET = 12
STREAMING = [
    case
    for case in variants("with attention")
    if promises(case, "streams") and "causal" in case.modes and (case in KINDS.values() or case.encoded)
]
"""One case of each kind, and every encoding: tests of mixers alone prove that each case streams."""


def network_of(**fields: Any) -> EncoderDecoder:
    config = EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2, **fields)
    return placed(randomised(config.build(probe_data(11, TARGET)).double())).eval()


def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Sources, which of their symbols are real, and targets."""
    padding_mask = torch.arange(9) < torch.tensor([[9], [4], [7]])
    return torch.randint(1, 11, (3, 9)), padding_mask, torch.randint(1, 11, (3, TARGET))


@torch.no_grad()
def symbol_by_symbol(network: EncoderDecoder, source: Tensor, padding_mask: Tensor, target: Tensor) -> Tensor:
    encoded, state, hidden = network.encode(source, padding_mask).hidden, None, []
    for t in range(target.size(1)):
        output = network.decode(target[:, t : t + 1], encoded, padding_mask, state)
        state = output.state
        hidden.append(output.hidden)
    return torch.cat(hidden, dim=1)


@pytest.mark.parametrize("case", [example(case) for case in STREAMING])
def test_a_target_read_symbol_by_symbol_says_what_it_says_whole(case: Case) -> None:
    """With a memory of 0, which in a decoder forgets nothing."""
    config = case.config.override({"memory": 0}) if case.remembers else case.config
    network, (source, padding_mask, target) = network_of(decoder_mixer=config), texts()
    same(symbol_by_symbol(network, source, padding_mask, target), network(source, target, padding_mask).hidden)


@pytest.mark.parametrize("function", ["convolution", "mean", "most_used"])
def test_a_memory_that_compresses_is_exact_until_something_leaves_it(function: str) -> None:
    """Whole, a target is one segment, and nothing has left the memory before it is through; symbol by symbol, symbols
    older than the memory are seen compressed."""
    auxiliary = "attention_reconstruction" if function == "convolution" else "none"
    fields = {"memory": 6, "compressed_memory": 2, "rate": 3, "function": function, "auxiliary": auxiliary}
    network, (source, padding_mask, target) = network_of(decoder_mixer=CompressiveConfig.from_dict(fields)), texts()
    cached, expected = (
        symbol_by_symbol(network, source, padding_mask, target),
        network(source, target, padding_mask).hidden,
    )
    exact = 6 + 3  # a full memory, and a group that waits until it is whole
    same(cached[:, :exact], expected[:, :exact])
    assert (cached[:, exact:] - expected[:, exact:]).abs().amax(dim=-1).min() > 1e-6


def test_a_memory_of_a_decoder_is_everything_unless_a_length_is_asked_for() -> None:
    network = network_of(decoder_mixer=CompressiveConfig(memory=0))
    assert {module.memory for module in network.decoder.modules() if isinstance(module, Compressive)} == {EVERYTHING}
    source, padding_mask, target = texts()
    short_network = network_of(decoder_mixer=CompressiveConfig(memory=4, function="max", auxiliary="none"))
    assert {module.memory for module in short_network.decoder.modules() if isinstance(module, Compressive)} == {4}
    assert symbol_by_symbol(short_network, source, padding_mask, target).isfinite().all()


@mixers("cross")
def test_what_was_made_of_a_source_serves_every_later_call(case: Case) -> None:
    mixer, x, source = case.build("cross"), noise(2, 5, DIM), noise(2, 7, DIM)
    padding_mask = torch.arange(7) < torch.tensor([[7], [3]])
    ctx: Context = context(2, 5)._replace(source=source, source_padding_mask=padding_mask)
    with torch.no_grad():
        first_output = mixer(x, ctx)
        later_x = noise(2, 3, DIM)
        later_output = mixer(
            later_x,
            context(2, 3)._replace(source=torch.zeros_like(source), source_padding_mask=padding_mask),
            first_output.state,
        )
        same(later_output.y, mixer(later_x, context(2, 3)._replace(source=source, source_padding_mask=padding_mask)).y)
    for first_tensor, later_tensor in zip(
        state_tensors(first_output.state), state_tensors(later_output.state), strict=True
    ):
        assert first_tensor is later_tensor, "nothing is made anew"


@mixers("cross")
def test_while_gradients_are_on_a_source_is_read_anew(case: Case) -> None:
    mixer, x, source = case.build("cross"), noise(2, 5, DIM), noise(2, 7, DIM)
    ctx: Context = context(2, 5)._replace(source=source)
    assert mixer(x, ctx).state is None
    with torch.no_grad():
        state = mixer(x, ctx).state
    with pytest.raises(ValueError, match="this state was made without gradients"):
        mixer(x, ctx, state)


@pytest.mark.parametrize(
    ("case", "stack"),
    [
        *(example(case, "sequential") for case in variants("none") if promises(case, "cross")),
        *(example(Case(AttentionConfig()), stack) for stack in ("universal", "reversible")),
    ],
)
def test_hypotheses_read_the_source_of_their_row(case: Case, stack: str) -> None:
    """As if it were copied for each of them; and they continue in any order, with the rows that are left. Every mixer
    is tried in one stack and every stack with one mixer, for neither looks into the other's state."""
    network = network_of(cross_mixer=case.config, decoder_mixer={"kind": "attention", "encoding": "xl"}, stack=stack)
    source, padding_mask, _ = texts()
    target = torch.randint(1, 11, (3 * 4, 7))
    with torch.no_grad():
        encoded = network.encode(source, padding_mask).hidden
        repeated = encoded.repeat_interleave(4, dim=0), padding_mask.repeat_interleave(4, dim=0)
        expected = network.decode(target, *repeated).hidden
        prefix = network.decode(target[:, :3], encoded, padding_mask)
        same(prefix.hidden, expected[:, :3])
        rows, order = torch.tensor([2, 0]), torch.tensor([9, 11, 8, 8, 1, 0, 3, 2])
        state = network.take_hypotheses(prefix.state, order, rows)
        same(network.decode(target[order, 3:], encoded[rows], padding_mask[rows], state).hidden, expected[order, 3:])
        assert all(part.size(0) == 8 for part in state_tensors([layer["mixer"] for layer in state["layers"]]))
        assert all(part.size(0) == 2 for part in state_tensors([layer["cross"] for layer in state["layers"]]))


@pytest.mark.parametrize("stack", ["sequential", "shared", "universal", "reversible"])
def test_gradients_of_hypotheses_are_those_of_copies(stack: str) -> None:
    network, (source, padding_mask, _) = network_of(stack=stack), texts()
    target, direction = torch.randint(1, 11, (6, 5)), noise(6, 5, DIM)

    def gradients(times: int) -> list[Tensor]:
        encoded = network.encode(source, padding_mask).hidden.repeat_interleave(times, dim=0)
        y = network.decode(target, encoded, padding_mask.repeat_interleave(times, dim=0)).hidden
        parameters = [p for key, p in network.named_parameters() if "logits.bias" not in key]
        return list(torch.autograd.grad((y * direction).sum(), parameters))

    same_gradients(gradients(1), gradients(2), exact=1e-8)
