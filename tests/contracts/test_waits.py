"""No mixer makes the host wait for a device, except for the waits that ``mixers/waits.py`` lists: forward, backward,
after a state, without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pretended_device
import pytest
import torch
from contract_cases import DIM, HEADS, KINDS, Case, context, dropouts_of, example, noise, variants
from pretended_device import DEVICE
from synchronisations import counted
from torch import Tensor

from lit_transformers.batch import LabelledDescription, SpanLabels
from lit_transformers.encodings.positions import PositionError
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, Mixer, Mode, detach
from lit_transformers.mixers import MIXERS, WindowConfig
from lit_transformers.mixers.waits import WAITS, most_waits
from lit_transformers.models import EncoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.models.capabilities import RowNetwork


@pytest.fixture(autouse=True)
def _a_device() -> Iterator[None]:
    with pretended_device.pretended():
        yield


def placed(mode: Mode, length: int, padded: bool) -> Context:
    """A context on the device; in the mode "cross" with a source, which is longer."""
    ctx = context(2, length, mode == "causal")
    mask = (torch.arange(length + 3) < torch.tensor([[length + 3], [length - 2]])).to(DEVICE) if padded else None
    ctx = ctx._replace(positions=ctx.positions.to(DEVICE), padding_mask=None if mask is None else mask[:, :length])
    if mode != "cross":
        return ctx
    return ctx._replace(source=noise(2, length + 3, DIM).to(DEVICE), source_padding_mask=mask, padding_mask=None)


def passes(mixer: Mixer, x: Tensor, ctx: Context, streams: bool) -> int:
    """Runs the mixer in all ways that a run does, and returns in how many passes."""
    output = mixer(x, ctx)
    (output.y.square().sum() + sum(output.aux.values())).backward()
    if streams:
        mixer(x, ctx, detach(output.state)).y.square().sum().backward()
    mixer.after_step()
    mixer.eval()
    with torch.no_grad():
        state = mixer(x, ctx).state
        if streams:
            one = ctx._replace(positions=ctx.positions[:, :1], padding_mask=None)
            mixer(x[:, :1], one, state)
    return 4 if streams else 2


MODES = [
    (case, mode)
    for case in KINDS.values()
    for mode in [*case.modes, *(["cross"] if "cross" in case.config.promises().modes else [])]
]


@pytest.mark.parametrize(("case", "mode"), [example(case, mode) for case, mode in MODES])
def test_the_host_waits_for_a_device_only_where_it_says_so(case: Case, mode: Mode) -> None:
    """Other cases, and rows of several blocks, are those of ``test_devices``."""
    mixer = case.build(mode, **dict.fromkeys(dropouts_of(case.config), 0.1)).to(DEVICE)
    streams = mode == "causal" and case.config.promises().streams
    for padded in (True, False):
        x, ctx = noise(2, 12, DIM).to(DEVICE).requires_grad_(), placed(mode, 12, padded)
        with counted() as waits:
            number = passes(mixer.train(), x, ctx, streams)
        assert len(waits) <= number * most_waits(case.config, padded), waits


def test_the_list_of_waits_is_of_mixers_and_each_of_them_waits() -> None:
    """So that none stays on the list when it no longer waits."""
    assert {*WAITS} == {kind for kind in MIXERS if any(most_waits(case.config) for case in cases_of(kind))}
    for kind in WAITS:
        case = next(case for case in cases_of(kind) if most_waits(case.config))
        mixer, x, ctx = case.build().to(DEVICE), noise(2, 12, DIM).to(DEVICE), placed(case.mode, 12, padded=True)
        with counted() as waits:
            mixer(x, ctx)
        assert len(waits) == most_waits(case.config), waits


def cases_of(kind: str) -> list[Case]:
    return [case for case in variants("none") if case.config.kind == kind]


@pytest.mark.parametrize("kind", ["first", "periodic"])
def test_global_tokens_are_planned_from_positions_that_the_host_knows(kind: str) -> None:
    case = Case(WindowConfig(window=2, global_tokens=kind, global_count=3, global_projections="separate"))
    mixer, x, ctx = case.build().to(DEVICE), noise(2, 12, DIM).to(DEVICE), placed("causal", 12, padded=True)
    expected = mixer(x, ctx)
    with counted() as waits:
        output = mixer(x, ctx._replace(start=0))
    assert waits == [] and torch.equal(output.y.cpu(), expected.y.cpu())


@pytest.mark.parametrize("config", [LanguageModelConfig, EncoderConfig], ids=["language_model", "encoder"])
def test_a_network_tells_its_mixers_where_a_row_begins(config: type[LanguageModelConfig | EncoderConfig]) -> None:
    mixer = WindowConfig(window=2, global_tokens="first")
    network = config(dim=DIM, heads=HEADS, depth=2, mixer=mixer).build(probe_data(11, 9)).to(DEVICE)
    symbols = torch.zeros(2, 9, dtype=torch.long, device=DEVICE)
    with counted() as waits:
        network(symbols)
    assert waits == []


LEARNED = {"kind": "learned", "restart": "document", "per_layer": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "encoder"},
        {"kind": "encoder", "stack": "reversible"},
        {"kind": "encoder", "stack": "universal"},
        {"kind": "language_model"},
        {"kind": "deformer", "segments": 2, "apart": 1},
        {"kind": "deformer", "segments": 2, "apart": 1, "passage_positions": "restart"},
    ],
    ids=lambda fields: ", ".join(str(value) for value in fields.values()),
)
def test_learned_positions_are_known_to_reach_far_enough_before_they_are_read(fields: dict[str, Any]) -> None:
    config = ModelConfig.from_dict({"dim": DIM, "heads": HEADS, "depth": 2, "positions": LEARNED} | fields)
    data = LabelledDescription(
        vocabulary=probe_data(11, 9).vocabulary, length=9, labels=SpanLabels(), segments=2, question_width=4
    )
    network = config.build(data).to(DEVICE)
    assert isinstance(network, RowNetwork)
    symbols = torch.zeros(2, 9, dtype=torch.long, device=DEVICE)
    segments = (torch.arange(9, device=DEVICE) >= 4).long().expand(2, 9)
    with counted() as waits:
        network.read_row(symbols, None, symbols > 0, segments if "segments" in fields else None)
        if fields["kind"] == "deformer":
            states = network.lower_states(symbols[:, 4:])
            network.read_with(symbols[:, :4], None, states)
    assert waits == []
    longer = torch.zeros(1, 12, dtype=torch.long, device=DEVICE)
    with pytest.raises(PositionError, match="position 11 lies beyond the 9 learned positions"):
        network.read_row(longer, None, longer > 0, torch.zeros_like(longer) if "segments" in fields else None)


def test_what_waits_is_counted() -> None:
    """Otherwise the tests above could not fail."""
    x, mask = torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE) > 0
    waiting = [
        lambda: x.sum().item(),
        lambda: bool(mask.all()),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: mask.nonzero(),
        lambda: x[mask],
        lambda: x[[0, 2]],
        lambda: torch.tensor([1, 2], device=DEVICE),
        lambda: torch.ones(3).to(DEVICE),
        lambda: torch.ones(3).copy_(x),
        lambda: x.copy_(torch.ones(3)),
        lambda: x.repeat_interleave(mask.long()),
        lambda: x.unique(),
    ]
    free = [
        lambda: x.masked_fill(mask, 0.0),
        lambda: torch.where(mask, x, 0.0),
        lambda: torch.ones(3).to(DEVICE, non_blocking=True),
        lambda: x[mask.long()],
        lambda: x + 1,
        lambda: torch.arange(3, device=DEVICE),
        lambda: x.to(torch.float64),
        lambda: x.new_zeros(3).copy_(x),
    ]
    for expected, operations in ((1, waiting), (0, free)):
        for operation in operations:
            with counted() as waits:
                operation()
            assert len(waits) == expected, waits
