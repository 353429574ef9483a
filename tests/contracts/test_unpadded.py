"""Rows that layers read without their padding have the outputs, the losses and the gradients of padded rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from contract_cases import (
    DIM,
    FEEDFORWARD_CASES,
    HEADS,
    STACK_CASES,
    Case,
    context,
    each_mode,
    name,
    noise,
    randomised,
)
from numerics import placed, same, same_gradients
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledDescription, PairDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.mixer import Mode, Shape
from lit_transformers.mixers import AttentionConfig, LSHConfig, WindowConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.row_groups import RowGroup, Unpadding
from lit_transformers.stacks import SequentialConfig, Stack, StackConfig, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import TransitionConfig
from lit_transformers.stacks.unpadded import pass_without_padding, require_unpadded

pytestmark = pytest.mark.any_device
LENGTHS = (5, 9, 3, 9, 0, 1, 5)
LONGEST = max(LENGTHS)
SMALL: dict[str, Any] = {"dim": DIM, "heads": HEADS, "depth": 2, "positions": SinusoidalConfig(restart="document")}
DATA = LabelledDescription.for_probe(Vocabulary(size=11, boundary=0, unit="byte", byte_lengths=None), LONGEST)


def padding_mask() -> Tensor:
    return torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]


class Read(NamedTuple):
    """The outputs of all layers at real tokens, the losses, and the gradients of inputs and parameters."""

    layers: tuple[Tensor, ...]
    losses: dict[str, Tensor]
    gradients: list[Tensor]


def read(stack: Stack, causal: bool, unpadded: bool) -> Read:
    torch.manual_seed(1)
    mask, x = padding_mask(), noise(len(LENGTHS), LONGEST, DIM).requires_grad_()
    ctx = context(len(LENGTHS), LONGEST, causal, mask)
    ctx = ctx._replace(marked=ctx.positions == 0, padding_last=True)
    output = pass_without_padding(stack, x, ctx, True) if unpadded else stack(x, ctx, keep_hidden=True)
    assert output.entered is not None
    layers = tuple(layer[mask] for layer in (output.entered, *output.hidden, output.y))
    trained = [p for p in stack.parameters() if p.requires_grad]
    loss = sum(((layer**2).sum() for layer in layers), torch.zeros(())) + sum(output.aux.values())
    gradients = torch.autograd.grad(loss, [x, *trained], allow_unused=True, materialize_grads=True)
    return Read(layers, dict(output.aux), [gradients[0][mask], *gradients[1:]])


def require_same(stack: Stack, causal: bool) -> None:
    padded, unpadded = (read(stack, causal, unpadded) for unpadded in (False, True))
    for expected, found in zip(padded.layers, unpadded.layers, strict=True):
        same(found, expected)
    assert padded.losses.keys() == unpadded.losses.keys()
    for loss, expected in padded.losses.items():
        same(unpadded.losses[loss], expected)
    same_gradients(unpadded.gradients, padded.gradients)


def stack_of(block: BlockConfig, mode: Mode, config: StackConfig | None = None) -> Stack:
    shape = Shape(DIM, HEADS, 16, 0, 2, shared={})
    entry = StackInput(LearnedConfig(per_layer=True).build(shape))

    def make(layer: int, depth: int) -> Block:
        return block.build_block(shape._replace(layer=layer, depth=depth), mode)

    return placed(randomised((config or SequentialConfig()).build(shape, make, entry).double())).eval()


def refused(case: Case) -> bool:
    return isinstance(case.config, LSHConfig) and case.config.rounds is not None


@each_mode()
def test_every_mixer_reads_rows_without_padding_or_is_refused(case: Case, mode: Mode) -> None:
    if refused(case):
        with pytest.raises(ConfigError, match="set it to false"):
            require_unpadded(case.config, None, mode)
        return
    require_unpadded(case.config, None, mode)
    require_same(stack_of(BlockConfig(mixer=case.config), mode), mode == "causal")


@pytest.mark.parametrize("feedforward", FEEDFORWARD_CASES, ids=name)
def test_every_feedforward_reads_rows_without_padding(feedforward: TransitionConfig) -> None:
    require_same(stack_of(BlockConfig(feedforward=feedforward, norm="post"), "bidirectional"), False)


@pytest.mark.parametrize("config", STACK_CASES, ids=name)
def test_every_stack_reads_rows_without_padding(config: StackConfig) -> None:
    require_same(stack_of(BlockConfig(mixer=AttentionConfig()), "causal", config), True)


FAMILIES = (
    EncoderConfig(**SMALL, segments=2, extra_tokens=2, embedding_norm=True),
    EncoderConfig(**SMALL, mixer=WindowConfig(window=2, global_tokens="marked")),
    LanguageModelConfig(**SMALL),
    LanguageModelConfig(**SMALL, mixer=AttentionConfig(memory=3)),
    EncoderDecoderConfig(**SMALL),
)


def hidden(config: ModelConfig) -> Tensor:
    """The output of a network at the real tokens of rows."""
    is_pair = isinstance(config, EncoderDecoderConfig)
    data = PairDescription.for_probe(DATA.vocabulary, LONGEST) if is_pair else DATA
    network: Any = placed(randomised(config.build(data).double())).eval()
    torch.manual_seed(1)
    mask, symbols = padding_mask(), torch.randint(1, 11, (len(LENGTHS), LONGEST))
    places = torch.arange(LONGEST).expand_as(symbols)
    if is_pair:
        found: Tensor = network.encode(symbols, mask).hidden
    else:
        found = network.read_row(symbols, mask, places == 0, (places > 1).long()).hidden
    return found[mask]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: f"{config.kind}-{config.mixer.kind}")
def test_every_family_reads_rows_without_padding(config: ModelConfig) -> None:
    passes = []

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, Block):
            passes.append(inputs[0].shape[0])

    with nn.modules.module.register_module_forward_hook(count):
        padded, unpadded = (hidden(config.override({"unpadded": unpadded})) for unpadded in (False, True))
    same(unpadded, padded)
    assert passes == [len(LENGTHS)] * 2 + [1] * 2


@pytest.mark.parametrize(
    ("config", "data", "reason"),
    [
        (EncoderConfig(**SMALL, query_stream="learned", unpadded=True), DATA, "rows are read in an order"),
        (EncoderConfig(**SMALL, unpadded=True), replace(DATA, question_width=4), "padding between two texts"),
        (EncoderConfig(**SMALL, mixer=LSHConfig(), unpadded=True), DATA, "other outputs of LSH in each pass"),
        (
            EncoderConfig(**SMALL | {"positions": SinusoidalConfig(restart="document", offset=3)}, unpadded=True),
            DATA,
            "draws a number for each padded row",
        ),
    ],
)
def test_a_network_that_needs_padded_rows_is_refused(config: ModelConfig, data: DataDescription, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*set it to false") as refusal:
        config.build(data)
    assert refusal.value.path.endswith("unpadded")


def test_rows_of_equal_length_form_groups() -> None:
    unpadding = Unpadding.of(padding_mask())
    assert unpadding is not None
    assert unpadding.groups == (RowGroup(0, 1, 1), RowGroup(1, 1, 3), RowGroup(4, 2, 5), RowGroup(14, 2, 9))
    rows = torch.arange(63).reshape(7, 9)
    torch.testing.assert_close(unpadding.restored(unpadding.taken(rows)), rows * padding_mask())
    assert Unpadding.of(torch.zeros(2, 3, dtype=torch.bool)) is None


def test_attention_weights_of_rows_without_padding_are_refused() -> None:
    mixer = placed(AttentionConfig().build(Shape(DIM, HEADS, 16)))
    ctx = context(1, 6, causal=False)._replace(groups=(RowGroup(0, 2, 3),))
    with pytest.raises(ConfigError, match=r"model\.unpadded"):
        mixer.prepared(noise(1, 6, DIM), ctx, None)
