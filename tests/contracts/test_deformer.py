"""DeFormer: rows of two texts against both texts read alone, states of passages computed before, for every mixer,
encoding and stack; its start from the weights of an encoder, and the configs that it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract_cases import DIM, ENCODING_CASES, HEADS, KINDS, POSITION_CASES, STACK_CASES, Case, randomised
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lit_transformers.batch import (
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    MixedDescription,
    RetrievalDescription,
    RowDescription,
    SpanLabels,
    Vocabulary,
    row_lengths,
)
from lit_transformers.checked_files import Precision, VectorLayout
from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import LearnedConfig, PositionsConfig, SinusoidalConfig
from lit_transformers.exchange.transfer import export_weights
from lit_transformers.gates import gates
from lit_transformers.gates.miniature import miniature
from lit_transformers.heads.answer_span import answerable
from lit_transformers.heads.pooling import pooled
from lit_transformers.mixer import Context, Mode
from lit_transformers.mixers import AdaptiveSpanConfig, AttentionConfig
from lit_transformers.models import DeFormerConfig, EncoderConfig, ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.encoder import DeFormer
from lit_transformers.models.two_texts import Division
from lit_transformers.runs.starting_weights import StartingWeights, own_names, start_from, write_weights
from lit_transformers.stacks import HaltingConfig, ReversibleConfig, StackConfig, UniversalConfig
from lit_transformers.tasks import QuestionAnsweringConfig
from lit_transformers.tasks.features import row_keys
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=30, boundary=0, unit="byte", byte_lengths=None)
WIDTH, LENGTH = 7, 21
QUESTIONS, PASSAGES = (7, 4, 5), (14, 12, 9)
"""Tokens of the questions and of the passages of three rows."""
DATA = LabelledDescription(vocabulary=VOCABULARY, length=LENGTH, labels=SpanLabels(), segments=2, question_width=WIDTH)
ANY_WIDTH = replace(DATA, question_width=None)
MIXERS: list[tuple[MixerConfig, Mode]] = [
    (case.config, mode)
    for case in (*KINDS.values(), *(Case(AttentionConfig(encoding=encoding)) for encoding in ENCODING_CASES))
    for mode in case.modes
]
"""Each kind of mixer, and attention with each encoding, in each mode of a network that reads rows."""
SIZES: dict[str, Any] = {"dim": DIM, "heads": HEADS, "depth": 3, "segments": 2}


def built(data: DataDescription = DATA, **fields: Any) -> DeFormer:
    torch.manual_seed(0)
    config = DeFormerConfig(**SIZES | {"positions": LearnedConfig(), "apart": 1} | fields)
    return randomised(config.build(data).double()).eval()


def texts(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Random symbols of the question and of the passage of each row."""
    torch.manual_seed(seed)
    return [
        (torch.randint(1, VOCABULARY.size, (question,)), torch.randint(1, VOCABULARY.size, (passage,)))
        for question, passage in zip(QUESTIONS, PASSAGES, strict=True)
    ]


Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""Symbols, the padding mask, marked symbols and segments, as ``read_row`` takes them."""


def rows(width: int | None = WIDTH, seed: int = 0) -> Rows:
    """Rows of the texts: questions padded to a width, or each passage behind its question; other symbols at padding."""
    torch.manual_seed(seed + 1)
    symbols, mask = torch.randint(1, VOCABULARY.size, (3, LENGTH)), torch.zeros(3, LENGTH, dtype=torch.bool)
    segments = torch.zeros(3, LENGTH, dtype=torch.long)
    for row, (question, passage) in enumerate(texts()):
        second = len(question) if width is None else width
        end = second + len(passage)
        symbols[row, : len(question)], symbols[row, second:end] = question, passage
        mask[row, : len(question)], mask[row, second:end], segments[row, second:end] = True, True, 1
    return symbols, mask, (torch.arange(LENGTH) == 0).expand(3, -1), segments


def largest(first: Tensor, second: Tensor, mask: Tensor) -> float:
    """The largest difference at real symbols, as a share of the largest number there."""
    return float(((first - second)[mask].abs().max() / first[mask].abs().max()).detach())


def read_alone(network: DeFormer, row: int, width: int | None, restarts: bool) -> Tensor:
    """The output (1, t, d) of a network for one row, from its texts without padding: each alone, and then both.
    restarts: whether positions begin again with the passage."""
    (question, passage), stack = texts()[row], network.stack
    second = len(question) if width is None else width
    starts = (0, 0 if restarts else second)
    symbols, mask, marked, segments = (part[row : row + 1, : second + len(passage)] for part in rows(width))
    parts = []
    for number, (text, start) in enumerate(zip((question, passage), starts, strict=True)):
        x = network.embed(text[None], torch.full_like(text[None], number))
        ctx = Context((start + torch.arange(len(text)))[None], network.causal)
        first = (torch.arange(len(text)) == 0)[None] & (number == 0)
        lower = stack if network.apart == len(stack.steps()) else stack.split(network.apart)[0]
        parts.append(lower(x, ctx._replace(marked=first, segments=torch.full_like(text[None], number))).y)
    joined = parts[0].new_zeros(1, symbols.size(1), parts[0].size(-1))
    joined[:, : len(question)], joined[:, second:] = parts
    if network.apart < len(stack.steps()):
        places = torch.arange(symbols.size(1))
        positions = torch.where(places < second, places, places - second + starts[1])[None]
        ctx = Context(positions, network.causal, mask, marked=marked, segments=segments)
        joined = stack.split(network.apart)[1](joined, ctx).y
    return network.norm(joined)


@pytest.mark.parametrize(("mixer", "mode"), MIXERS, ids=str)
@torch.no_grad()
def test_rows_are_read_with_states_of_passages_that_were_computed_before(mixer: MixerConfig, mode: Mode) -> None:
    network = built(mixer=mixer, causal=mode == "causal")
    symbols, mask, marked, segments = rows()
    read = network.read_row(symbols, mask, marked, segments).hidden
    states = torch.zeros(3, max(PASSAGES), DIM, dtype=torch.float64)
    for row, (_, passage) in enumerate(texts()):
        states[row, : len(passage)] = network.lower_states(passage[None])[0]
    cached = network.read_with(symbols[:, :WIDTH], mask[:, :WIDTH], states, mask[:, WIDTH:]).hidden
    assert largest(read, cached, mask) < 1e-12
    other_padding = network.read_row(torch.where(mask, symbols, 1), mask, marked, segments).hidden
    assert largest(read, other_padding, mask) < 1e-12


@torch.no_grad()
def test_states_of_a_question_are_read_with_any_number_of_passages() -> None:
    network = built(apart=2)
    symbols, mask, marked, segments = rows()
    symbols[:, :WIDTH], mask[:, :WIDTH] = symbols[:1, :WIDTH], mask[:1, :WIDTH]
    expected = network.read_row(symbols, mask, marked, segments).hidden
    states = network.lower_states(symbols[:, WIDTH:], mask[:, WIDTH:])
    question = network.question_states(symbols[:1, :WIDTH], mask[:1, :WIDTH]).expand(3, -1, -1)
    assert (
        largest(expected, network.read_states(question, mask[:, :WIDTH], states, mask[:, WIDTH:]).hidden, mask) < 1e-12
    )


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rounded_states_of_passages_are_those_that_a_cache_of_the_precision_holds(precision: Precision) -> None:
    network, exact, layout = built(apart=2, passage_states=precision), built(apart=2), VectorLayout(precision, DIM)
    symbols, mask, marked, segments = rows()
    read = network.read_row(symbols, mask, marked, segments).hidden
    states = torch.zeros(3, LENGTH - WIDTH, DIM)
    for row, real in enumerate(mask[:, WIDTH:].sum(dim=1).tolist()):
        written = layout.written(exact.lower_states(symbols[row : row + 1, WIDTH : WIDTH + real])[0])
        states[row, :real] = layout.read(np.frombuffer(written, np.uint8), real)
    cached = exact.read_with(symbols[:, :WIDTH], mask[:, :WIDTH], states, mask[:, WIDTH:]).hidden
    assert largest(read, cached, mask) < 1e-12
    unrounded = network.lower_states(symbols[:, WIDTH:], mask[:, WIDTH:])
    again = network.read_with(symbols[:, :WIDTH], mask[:, :WIDTH], unrounded, mask[:, WIDTH:]).hidden
    assert largest(read, again, mask) < 1e-12
    assert largest(read, exact.read_row(symbols, mask, marked, segments).hidden, mask) > 1e-4
    (gradient,) = torch.autograd.grad(again[mask].square().sum(), unrounded)
    assert gradient[mask[:, WIDTH:]].all(dim=-1).all()


@pytest.mark.parametrize("passage_positions", ["keep", "restart"])
@torch.no_grad()
def test_upper_layers_add_the_positions_of_the_row_to_states_that_were_computed_before(passage_positions: Any) -> None:
    network = built(positions=SinusoidalConfig(per_layer=True), passage_positions=passage_positions)
    symbols, mask, marked, segments = rows()
    states = network.lower_states(symbols[:, WIDTH:], mask[:, WIDTH:])
    cached = network.read_with(symbols[:, :WIDTH], mask[:, :WIDTH], states, mask[:, WIDTH:]).hidden
    assert largest(network.read_row(symbols, mask, marked, segments).hidden, cached, mask) < 1e-12


@pytest.mark.parametrize("width", [WIDTH, None])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"apart": 3},
        {"passage_positions": "restart"},
        {"causal": True, "apart": 2},
        {"positions": SinusoidalConfig(per_layer=True), "passage_positions": "restart", "apart": 2},
        {"positions": None, "mixer": AttentionConfig(encoding=XLConfig(segments=2))},
        {"stack": UniversalConfig(), "positions": SinusoidalConfig(per_layer=True)},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_row_is_both_texts_alone_and_then_together(fields: dict[str, Any], width: int | None) -> None:
    network = built(replace(DATA, question_width=width), **fields)
    _, mask, _, _ = batch = rows(width)
    read = network.read_row(*batch).hidden
    for row in range(3):
        alone = read_alone(network, row, width, fields.get("passage_positions") == "restart")
        real = mask[row : row + 1, : alone.size(1)]
        assert largest(alone, read[row : row + 1, : alone.size(1)], real) < 1e-12
    layers = network.read_layers(*batch).layers
    assert len(layers) == 4
    assert torch.equal(layers[-1], read)


@pytest.mark.slow
def test_compiled_it_computes_the_same() -> None:
    """With questions of one width; the lower layers are compiled for both texts."""
    network, (_, mask, _, _) = built(), rows()
    expected = network.read_row(*rows()).hidden
    expected.square().sum().backward()
    gradient = network.tokens.table.weight.grad.clone()
    network.zero_grad()
    network.compile(backend=(counter := CompileCounterWithBackend("aot_eager")))
    found = network.read_row(*rows()).hidden
    found.square().sum().backward()
    assert counter.frame_count and largest(expected, found, mask) < 1e-12
    torch.testing.assert_close(network.tokens.table.weight.grad, gradient, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_on_a_device_texts_are_divided_without_knowing_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (_, mask, _, segments) = built(ANY_WIDTH), rows(None)
    expected = network.read_row(*rows(None)).hidden
    assert Division.of(segments)[:3] == (LENGTH, 7, LENGTH - 4)
    monkeypatch.setattr("lit_transformers.models.two_texts.reads_at_once", lambda tensor: False)
    assert Division.of(segments)[:3] == (LENGTH, LENGTH, LENGTH)
    assert largest(expected, network.read_row(*rows(None)).hidden, mask) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_without_layers_apart_it_is_the_encoder_to_the_bit(causal: bool) -> None:
    fields: dict[str, Any] = {**SIZES, "positions": LearnedConfig(), "causal": causal, "dropout": 0.1}
    networks: list[RowNetwork] = []
    for config in (EncoderConfig(**fields), DeFormerConfig(**fields)):
        torch.manual_seed(0)
        networks.append(config.build(DATA))
    encoder, deformer = networks
    assert [*encoder.state_dict()] == [*deformer.state_dict()]
    for mode in (True, False):
        outputs = []
        for network in networks:
            torch.manual_seed(1)
            outputs.append(network.train(mode).read_row(*rows()).hidden)
        assert torch.equal(*outputs)


@torch.no_grad()
def test_an_encoder_reads_padding_between_texts_as_padding() -> None:
    """A causal one too, whose padding elsewhere is at the end, where no token sees it."""
    for causal in (False, True):
        torch.manual_seed(0)
        encoder = EncoderConfig(**SIZES, causal=causal).build(DATA).double().eval()
        _, mask, _, _ = batch = rows()
        read, other = encoder.read_row(*batch).hidden, encoder.read_row(*rows(seed=5)).hidden
        assert not torch.equal(*(part[0][~part[1]] for part in (batch[:2], rows(seed=5)[:2])))
        assert largest(read, other, mask) < 1e-12


def test_rows_end_at_their_last_real_symbol_whatever_padding_they_hold() -> None:
    symbols, mask, _, segments = rows()
    ends = [WIDTH + length for length in PASSAGES]
    assert row_lengths(mask).tolist() == ends
    assert row_lengths(mask & False).tolist() == [0, 0, 0]
    vectors = torch.arange(LENGTH).expand(3, -1)[..., None]
    assert pooled(vectors, mask, "last")[:, 0].tolist() == [end - 1 for end in ends]
    numbers = torch.arange(3)
    batch = LabelledBatch(symbols, mask, torch.zeros(3, 2), None, numbers, None, segments=segments)
    for row, end in enumerate(ends):
        assert answerable(batch)[row].nonzero().flatten().tolist() == [0, *range(WIDTH, end - 1)]
    assert [row.tokens for row in row_keys(batch)] == ends
    question = batch._replace(padding_mask=mask | (torch.arange(LENGTH) < WIDTH))
    keys, other_keys = ([row.key for row in row_keys(part)] for part in (batch, question))
    assert [key == other for key, other in zip(keys, other_keys, strict=True)] == [True, False, False]


@torch.no_grad()
def test_a_row_of_one_text_is_read_as_by_an_encoder_and_is_a_text_of_the_lower_layers() -> None:
    network = built(apart=3)
    torch.manual_seed(0)
    encoder = randomised(EncoderConfig(**SIZES, positions=LearnedConfig()).build(DATA).double()).eval()
    symbols, mask, marked, _ = batch = rows()
    question = symbols[:, :WIDTH], mask[:, :WIDTH], marked[:, :WIDTH]
    alone = network.read_row(*question).hidden
    assert torch.equal(alone, encoder.read_row(*question).hidden)
    assert largest(network.read_row(*batch).hidden[:, :WIDTH], alone, mask[:, :WIDTH]) < 1e-12


def test_losses_of_the_lower_layers_are_means_over_the_tokens_of_both_texts() -> None:
    halting = UniversalConfig(halting=HaltingConfig(ponder=1.0))
    network = built(stack=halting, apart=3, positions=None)
    symbols, mask, marked, segments = rows()
    aux = network.read_row(symbols, mask, marked, segments).aux
    sums = torch.zeros(2, dtype=torch.float64)
    for part in (slice(0, WIDTH), slice(WIDTH, None)):
        x = network.embed(symbols[:, part], segments[:, part])
        ctx = Context(torch.arange(x.size(1)).expand(3, -1), False, mask[:, part], marked=marked[:, part])
        count = mask[:, part].sum()
        sums += torch.stack([network.stack(x, ctx).aux["ponder"] * count, count.double()])
    assert aux["ponder"].item() == pytest.approx((sums[0] / sums[1]).item(), rel=1e-12)
    span = built(mixer=AdaptiveSpanConfig(span=8, ramp=4, learns="dynamic"), causal=True, apart=2)
    assert span.read_row(symbols, mask, marked, segments).aux.keys() == {"span"}
    assert not span.read_row(symbols, mask & False, marked, segments).aux["span"].isnan()


def test_both_texts_and_both_together_have_one_offset_of_positions() -> None:
    network = built(positions=SinusoidalConfig(restart="document", offset=1000, per_layer=True), apart=1).train()
    seen: list[Tensor] = []
    vectors = network.stack.entry.positions.vectors  # type: ignore[union-attr]

    def recorded(layer: int, positions: Tensor, dtype: torch.dtype, last: int | None) -> Tensor | None:
        seen.append(positions - torch.arange(positions.size(1)))
        return vectors(layer, positions, dtype, last)

    network.stack.entry.positions.vectors = recorded  # type: ignore[union-attr, assignment]
    network.read_row(*rows())
    first, second, *joint = seen
    assert first.unique(dim=1).size(1) == 1
    assert first[:, 0].unique().numel() > 1
    for positions, start in ((second, WIDTH), *((positions, 0) for positions in joint)):
        assert torch.equal(positions, (first[:, :1] + start).expand_as(positions))


@pytest.mark.parametrize("positions", POSITION_CASES, ids=str)
@pytest.mark.parametrize("stack", STACK_CASES, ids=str)
@torch.no_grad()
def test_the_parts_of_a_stack_are_the_stack(stack: StackConfig, positions: PositionsConfig) -> None:
    torch.manual_seed(0)
    whole = randomised(EncoderConfig(**SIZES | {"depth": 4}, stack=stack, positions=positions).build(DATA)).stack
    x, ctx = torch.randn(2, 9, DIM), Context(torch.arange(9).expand(2, -1), False)
    entered = whole.eval()(x, ctx, keep_hidden=True).entered
    try:
        below = whole.without_steps()(x, ctx).y
        assert torch.equal(below, entered)
        lower, upper = whole.split(1)
    except ConfigError as refused:
        assert "halting" in str(refused) or "two streams" in str(refused)
        assert isinstance(stack, ReversibleConfig | UniversalConfig)
        return
    middle, last = upper.split(1)
    assert torch.equal(whole(x, ctx).y, last(middle(lower(x, ctx).y, ctx).y, ctx).y)
    assert [len(part.steps()) for part in (lower, middle, last)] == [1, 1, 2]
    assert sum(part.flops(9, 0) for part in (lower, middle, last)) == whole.flops(9, 0)
    for step in (0, 4):
        with pytest.raises(ConfigError, match=f"^depth: a stack of 4 layers cannot be divided after {step} of them$"):
            whole.split(step)


def test_layers_are_counted_for_the_tokens_that_they_read() -> None:
    def flops(apart: int, data: DataDescription = DATA, length: int = LENGTH) -> int:
        return DeFormerConfig(**SIZES, apart=apart).build(data).flops(length)

    encoder = EncoderConfig(**SIZES).build(DATA)
    layer = {length: encoder.flops(length) // 3 for length in (WIDTH, 10, 11, LENGTH - WIDTH, LENGTH)}
    for apart in range(4):
        assert flops(apart) == apart * (layer[WIDTH] + layer[LENGTH - WIDTH]) + (3 - apart) * layer[LENGTH]
        assert flops(apart, ANY_WIDTH) == apart * (layer[10] + layer[11]) + (3 - apart) * layer[LENGTH]
    for one_text in (
        replace(ANY_WIDTH, segments=1),
        RetrievalDescription(vocabulary=VOCABULARY, length=LENGTH, source_length=WIDTH),
    ):
        assert flops(2, one_text) == 3 * layer[LENGTH]
    assert flops(2, RowDescription.for_probe(VOCABULARY, LENGTH)) == flops(2, ANY_WIDTH)


def test_a_network_whose_upper_layers_are_omitted_reads_texts_apart_below() -> None:
    for apart, kept in ((1, 2), (2, 1), (3, 2), (2, 0)):
        network, shallow = built(apart=apart), built(apart=apart)
        shallow.keep_layers(kept)
        assert torch.equal(shallow.read_row(*rows()).hidden, network.read_layers(*rows()).layers[kept])


@pytest.mark.parametrize(
    ("fields", "data", "reason"),
    [
        ({"apart": 4}, DATA, "apart: 4 of 3 layers cannot read texts apart; set it to 3 or fewer"),
        ({"extra_tokens": 1}, DATA, "extra_tokens see both texts"),
        ({"apart": 0, "passage_states": "int8"}, DATA, "rounds states of lower layers; set apart: 1 or more"),
        ({"causal": True, "passage_states": "int8"}, DATA, "scales of whole texts, which show later symbols"),
        (
            {"query_stream": "content"},
            DATA,
            "query_stream follows an order that spans both texts; set query_stream: none",
        ),
        (
            {"positions": None, "passage_positions": "restart"},
            DATA,
            "only positions that are added to symbols restart with a segment",
        ),
        (
            {"mixer": AttentionConfig(encoding=XLConfig()), "passage_positions": "restart"},
            DATA,
            "only positions that are added to symbols restart with a segment",
        ),
        (
            {},
            replace(RowDescription.for_probe(VOCABULARY, LENGTH), ordered=True),
            "model.apart: data.attention_masks order a row across both texts; set apart: 0, or drop "
            "data.attention_masks",
        ),
        (
            {"stack": ReversibleConfig()},
            DATA,
            "stack: a reversible stack passes two streams from layer to layer, so it cannot be divided; set "
            "stack: sequential",
        ),
        (
            {"stack": UniversalConfig(halting=HaltingConfig())},
            DATA,
            "stack.halting: halting adds up over all steps, so the stack cannot be divided between them; set "
            "halting: null",
        ),
    ],
    ids=lambda value: "" if isinstance(value, DataDescription) else str(value)[:30],
)
def test_what_cannot_be_read_apart_is_refused(fields: dict[str, Any], data: DataDescription, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        built(data, **fields)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_states_of_passages_that_depend_on_questions_are_refused() -> None:
    symbols = torch.ones(1, 3, dtype=torch.long)
    states = torch.zeros(1, 3, DIM, dtype=torch.float64)
    for network, reason in (
        (built(apart=0), "model.apart: no layer reads a passage apart from its question; set apart: 1 or more"),
        (
            built(ANY_WIDTH),
            "data.source.question_width: the positions of a passage depend on the length of its question",
        ),
        (EncoderConfig(**SIZES).build(DATA), "model: no layer of this network reads a text apart; set model: deformer"),
    ):
        with pytest.raises(ConfigError) as error:
            network.lower_states(symbols)
        assert str(error.value).startswith(reason)
        with pytest.raises(ConfigError):
            network.read_with(symbols, None, states)
    with pytest.raises(ConfigError, match="passages begin at 7, and questions have 3 symbols with their padding"):
        built().read_with(symbols, None, states)
    restarting = built(ANY_WIDTH, passage_positions="restart")
    assert restarting.read_with(symbols, None, restarting.lower_states(symbols)).hidden.shape == (1, 6, DIM)


def test_sources_of_several_widths_have_none_in_common() -> None:
    one_text = replace(ANY_WIDTH, segments=1)
    for widths, common in (((WIDTH, WIDTH), WIDTH), ((WIDTH, 9), None), ((WIDTH, None), None), ((None, None), None)):
        sources = {f"source {n}": replace(DATA, question_width=width) for n, width in enumerate(widths)}
        mixed = MixedDescription.of_sources(sources | {"one text": one_text})
        assert mixed.question_width == common
        assert mixed.padding_last == (widths == (None, None))


@pytest.mark.parametrize(("apart", "positions"), [(1, "keep"), (3, "keep"), (6, "restart")])
def test_gates_hold_where_layers_read_texts_apart(apart: int, positions: Any) -> None:
    config = DeFormerConfig(apart=apart, passage_positions=positions, positions=LearnedConfig(), segments=2)
    small = miniature(config, 24)
    assert (small.get("depth"), small.get("apart")) == (2, 2 if apart == 6 else 1)
    checked = {gate.name: gate for gate in gates.check(config)}
    assert not [gate for gate in checked.values() if not gate.passed]
    for name in ("texts pass the lower layers apart", "passages are read before their questions"):
        assert checked[name].detail.startswith("largest ")
    assert gates.check(DeFormerConfig(depth=2))[-1].detail == "not asked: every layer reads whole rows"


def weights_of(config: ModelConfig) -> StartingWeights:
    torch.manual_seed(3)
    task = QuestionAnsweringConfig().build(config, DATA, TrainingConfig(device="cpu"))
    return StartingWeights(config, "", task.state_dict(), place="there")


def test_it_starts_from_an_encoder_and_an_encoder_from_it() -> None:
    encoder = EncoderConfig(**SIZES, positions=LearnedConfig())
    shallow, deep = (DeFormerConfig(**SIZES, positions=LearnedConfig(), apart=apart) for apart in (1, 3))
    for there, here in ((encoder, shallow), (shallow, deep), (deep, encoder)):
        weights, task = weights_of(there), QuestionAnsweringConfig().build(here, DATA, TrainingConfig(device="cpu"))
        assert start_from(task, {"network": weights, "heads": weights}) == []
        assert all(torch.equal(tensor, weights.tensors[name]) for name, tensor in task.state_dict().items())
    wider = weights_of(encoder.override({"segments": 3}))
    task = QuestionAnsweringConfig().build(deep, DATA, TrainingConfig(device="cpu"))
    with pytest.raises(ConfigError, match=r"there: holds the weights of another network: model\.segments is 3 there"):
        start_from(task, {"network": wider})


BERT: dict[str, Any] = {
    "dim": 8, "heads": 2, "depth": 2, "norm": "post", "norm_epsilon": 1e-12, "segments": 2, "embedding_norm": True,
    "mixer": AttentionConfig(bias=True), "feedforward": {"activation": "gelu"}, "transform": "gelu",
    "tokens": {"scaled": False}, "positions": {"kind": "learned", "restart": "document", "max_length": 32},
}  # fmt: skip


def test_it_is_exported_where_it_is_an_encoder(tmp_path: Path) -> None:
    exported = {}
    for name, config in (("encoder", EncoderConfig.from_dict(BERT)), ("deformer", DeFormerConfig.from_dict(BERT))):
        torch.manual_seed(0)
        network = config.build(DATA)
        names = {*own_names(network).values()}
        weights = {f"network.{key}": network.get_parameter(key).detach() for key in names}
        write_weights(tmp_path / f"{name}.safetensors", StartingWeights(config, "", weights))
        export_weights(tmp_path / f"{name}.safetensors", tmp_path / name)
        exported[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert exported["encoder"] == exported["deformer"]
    for fields, reason in (
        ({"apart": 1}, "apart: 1 of its layers read two texts apart, which no architecture of transformers does"),
        ({"passage_positions": "restart"}, "passage_positions: restart begins the positions of the second text at 0"),
    ):
        config = DeFormerConfig.from_dict(BERT | fields)
        write_weights(tmp_path / "apart.safetensors", StartingWeights(config, "", weights))
        with pytest.raises(ConfigError, match=reason):
            export_weights(tmp_path / "apart.safetensors", tmp_path / "apart")
        assert not (tmp_path / "apart").exists()
