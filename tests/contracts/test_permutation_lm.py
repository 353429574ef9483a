"""Permutation language modelling: who sees whom, its loss by the definition, its orders, and the streams that leak."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from contract_cases import DIM, HEADS, SHAPE, Case, mixers
from numerics import placed, same
from test_masked_lm import DATA, LENGTHS, VOCABULARY, one, related, rows
from torch import Tensor

from lit_transformers.attention.patterns import Ordered
from lit_transformers.batch import IGNORED, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.gates import gates
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig, ModelConfig
from lit_transformers.stacks import SharedConfig, UniversalConfig
from lit_transformers.tasks import MaskedLMConfig
from lit_transformers.tasks.counter_based import scrambled
from lit_transformers.tasks.permutation_lm import (
    Order,
    PermutationLM,
    PermutationLMConfig,
    each,
    ordered_rows,
)
from lit_transformers.training.config import TrainingConfig

XLNET = EncoderConfig(
    dim=DIM,
    heads=HEADS,
    depth=2,
    norm="post",
    mixer=AttentionConfig(encoding=XLConfig(biases="per_layer", segments=2)),
    query_stream="learned",
)
ABSOLUTE = EncoderConfig(
    dim=DIM,
    heads=HEADS,
    depth=3,
    norm="pre",
    positions=LearnedConfig(),
    stack=SharedConfig(),
    segments=2,
    embedding_norm=True,
    embedding_dim=6,
    transform="gelu",
    query_stream="learned",
)
ORDERS: tuple[Order, ...] = ("targets", "all", "none")


def permutation_lm(model: ModelConfig = XLNET, data: RowDescription = DATA, order: Order = "targets") -> PermutationLM:
    torch.manual_seed(0)
    config = PermutationLMConfig(order=order)
    return placed(config.build(model, data, TrainingConfig(device="cpu")).double())


def many(count: int, chosen: Tensor) -> RowBatch:
    """Rows of 12 symbols without padding, in each of which these places are predicted."""
    batch = rows((12,) * count)
    original = torch.where(batch.targets != IGNORED, batch.targets, batch.inputs)
    targets = torch.full_like(original, IGNORED).index_copy(1, chosen, original[:, chosen])
    return batch._replace(inputs=original, targets=targets)


@pytest.mark.any_device
@mixers("permuted")
def test_symbols_are_predicted_alike_in_any_company(case: Case) -> None:
    task = permutation_lm(XLNET.override({"mixer": case.config}))
    batch = rows(LENGTHS)
    task.training_step(batch, 0)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if p.requires_grad)
    task.eval()
    with torch.no_grad():
        symbols, relations = task.evaluation_output(batch), related(task, batch)
        for row in range(len(LENGTHS)):
            alone = one(batch, row)
            same(task.evaluation_output(alone), symbols[2 * row : 2 * row + 2], exact=1e-7)
            same(related(task, alone), relations[row : row + 1], exact=1e-7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("model", [XLNET, ABSOLUTE], ids=["xl", "absolute"])
def test_a_prediction_depends_on_the_symbols_before_it_alone(model: EncoderConfig, order: Order) -> None:
    """By its gradient: on no target at its place or a later one, on each before it, and on all of the context that the
    order leaves."""
    task, batch = permutation_lm(model, order=order).eval(), many(2, torch.tensor([1, 4, 5, 9]))
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.normal_(std=0.5)
    read = ordered_rows(batch, order)
    leaf = task.network.tokens.embed(read.symbols).detach().requires_grad_()
    task.network.tokens.embed = lambda _: leaf  # type: ignore[method-assign]
    hidden = task.network.read_in_order(read).hidden
    for row in range(2):
        for number, position in enumerate(read.at[row].tolist()):
            (gradient,) = torch.autograd.grad(hidden[row, number].square().sum(), leaf, retain_graph=True)
            assert torch.equal(gradient.any(dim=-1)[row], read.places[row] < read.places[row, position])
            assert not gradient[1 - row].any()


def test_the_loss_is_the_mean_over_symbols_that_are_each_predicted_alone() -> None:
    """A query by itself among the tokens gives the same output as next to others."""
    task, batch = permutation_lm(ABSOLUTE), rows(LENGTHS)
    read, nats = ordered_rows(batch, "targets"), []
    assert torch.equal(read.symbols[:, (1, 3)], batch.targets[:, (1, 3)]), "nothing is hidden"
    for row, place in ((row, place) for row in range(len(LENGTHS)) for place in (1, 3)):
        alone = read._replace(at=torch.full((len(LENGTHS), 1), place))
        vector = task.network.predict(task.network.read_in_order(alone).hidden[row, 0])
        nats.append(-task.network.tokens.log_probabilities(vector)[batch.targets[row, place]])
    content = task.network.read_in_order(read).content
    relations = torch.nn.functional.cross_entropy(task.heads["relation"].map(content[:, 0]), batch.relation)
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], sum(nats) / len(nats) + relations)


def test_without_an_order_context_is_read_as_if_the_others_were_not_there() -> None:
    """Each symbol is predicted as from a row in which no other one is."""
    task, chosen = permutation_lm(order="none").eval(), torch.tensor([1, 4, 9])
    batch = many(2, chosen)
    changed = torch.where(batch.targets != IGNORED, batch.targets % 9 + 1, batch.inputs)
    before, after = (
        task.network.read_in_order(ordered_rows(batch, "none")._replace(symbols=s)).hidden
        for s in (ordered_rows(batch, "none").symbols, changed)
    )
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ["targets", "all"])
def test_orders_are_drawn_uniformly_with_what_is_predicted_last(order: Order) -> None:
    chosen = torch.tensor([2, 3, 7])
    places = ordered_rows(many(6000, chosen), order).places
    others = torch.tensor([place for place in range(12) if place not in chosen])
    if order == "targets":
        assert not places[:, others].any()
    else:
        assert torch.equal(places.sort(dim=1).values, torch.arange(12).expand(6000, -1))
        first = places[:, others].argmin(dim=1).bincount(minlength=9) / 6000
        assert (first - 1 / 9).abs().max() < 4 * (1 / 9 / 6000) ** 0.5
    ranks = places[:, chosen] - places[:, others].max(dim=1, keepdim=True).values - 1
    shares = (ranks * torch.tensor([9, 3, 1])).sum(dim=1).bincount() / 6000
    assert (shares > 0).sum() == math.factorial(3)
    assert (shares[shares > 0] - 1 / 6).abs().max() < 4 * (1 / 6 / 6000) ** 0.5


def test_an_order_changes_with_the_row_and_with_what_is_predicted_and_with_nothing_else() -> None:
    batch = many(64, torch.tensor([1, 2, 3, 5, 6, 8, 9]))
    other = many(64, torch.tensor([1, 2, 3, 5, 6, 8, 10]))
    places, others = (ordered_rows(part, "targets").places[:, (1, 2, 3, 5, 6, 8)] for part in (batch, other))
    relative = [part.argsort(dim=1) for part in (places, others)]
    assert (relative[0] != relative[1]).any(dim=1).double().mean() > 0.9
    assert all(not torch.equal(first, second) for first, second in pairwise(relative[0][:8]))
    turned = RowBatch(*(part.flip(0) for part in batch[:6]), None)
    assert torch.equal(ordered_rows(turned, "targets").places.flip(0), ordered_rows(batch, "targets").places)


def test_a_row_without_predictions_and_a_batch_of_padding_cost_nothing() -> None:
    task, batch = permutation_lm(), rows(LENGTHS)
    empty = batch._replace(targets=torch.full_like(batch.targets, IGNORED))
    assert task.training_step(empty._replace(relation=empty.relation.fill_(IGNORED)), 0)["loss"] == 0
    task.eval().validation_step(empty, 0)
    assert task.metric.compute() == {}


def failed(config: ModelConfig) -> list[str]:
    return [gate.name for gate in gates.check(config) if not gate.passed]


GATE = "predictions in order see the symbols before them"


@pytest.mark.parametrize("memory", [0, 6])
def test_a_stream_that_reads_what_it_predicts_fails_its_gate(memory: int) -> None:
    with_memory = XLNET.override({"mixer.memory": memory})
    assert failed(with_memory) == []
    assert failed(with_memory.override({"query_stream": "content"})) == [GATE]


def test_a_leak_and_a_stream_that_reads_nothing_fail_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ordered, "sees", lambda self, b, h, i, j: self.places[b, j] <= self.places[b, i])
    assert failed(XLNET) == [GATE]
    monkeypatch.setattr(Ordered, "sees", lambda self, b, h, i, j: (i == j) & self.itself)
    assert GATE in failed(XLNET)


def test_memory_takes_the_first_symbols_of_a_row_and_knows_nothing_of_later_ones() -> None:
    """Where those that it takes stand before the others in the order, these may be predicted in the next row."""
    network = permutation_lm(XLNET.override({"mixer.memory": 6})).network.eval()
    read = ordered_rows(many(2, torch.tensor([2, 7])), "targets")
    in_turn = read._replace(places=(torch.arange(12) >= 5).long().expand(2, -1), reused=5)
    changed = in_turn._replace(symbols=torch.where(torch.arange(12) < 5, read.symbols, read.symbols % 9 + 1))
    states = [network.read_in_order(rows).state for rows in (in_turn, changed)]
    for first, second in zip(*(state for state in states), strict=True):
        assert first["mixer"]["hidden"].shape == (2, 5, DIM)
        torch.testing.assert_close(first["mixer"], second["mixer"])
    following = [network.read_in_order(read, state).hidden for state in (states[0], None)]
    assert (following[0] - following[1]).abs().max() > 1e-3, "memory is read"


RECURRENT = XLNET.override({"mixer.memory": 40})


def recurrent(model: ModelConfig = RECURRENT, **fields: Any) -> PermutationLM:
    torch.manual_seed(0)
    config = PermutationLMConfig.from_dict({"kind": "permutation_lm", "segment_length": 4, **fields})
    return placed(config.build(model, DATA, TrainingConfig(device="cpu")).double())


@pytest.mark.parametrize("memory", [40, 0])
def test_a_prediction_depends_on_what_memory_holds_and_on_no_segment_that_is_not_read_yet(memory: int) -> None:
    """In rows that are read from the end, on the segments after its own. Memory itself passes no gradient on."""
    task = recurrent(RECURRENT.override({"mixer.memory": memory}), directions="both").eval()
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.normal_(std=0.5)
    batch = many(8, torch.tensor([1, 5, 6, 10]))
    original, backward = task.read(task.network, batch, "targets").hidden, (scrambled(batch.example) & 1).bool()
    assert 0 < backward.sum() < 8
    for segment in range(3):
        of_segment = torch.arange(12) // 4 == segment
        changed = batch._replace(inputs=torch.where(of_segment & (batch.targets == IGNORED), 3, batch.inputs))
        moved = (task.read(task.network, changed, "targets").hidden - original).abs().amax(dim=-1) > 1e-9
        for row in range(8):
            segments = moved[row, (1, 5, 6, 10)].unflatten(0, (4,)).tolist()
            later = [(number <= segment if backward[row] else number >= segment) for number in (0, 1, 1, 2)]
            own = [number == segment for number in (0, 1, 1, 2)]
            assert segments == (later if memory else own)


def test_what_is_predicted_in_one_segment_is_remembered_in_the_next_and_never_known_before() -> None:
    task, batch = recurrent().eval(), many(2, torch.tensor([1, 5, 10]))
    original = task.evaluation_output(batch)
    for number, place in enumerate((1, 5, 10)):
        targets = batch.targets.clone()
        targets[:, place] = targets[:, place] % 9 + 1
        moved = (task.evaluation_output(batch._replace(targets=targets)) - original).abs().amax(dim=-1) > 1e-12
        assert torch.equal(moved.unflatten(0, (2, 3)), (torch.arange(3) > number).expand(2, -1))


@pytest.mark.parametrize("directions", ["forward", "both"])
@pytest.mark.parametrize(
    "fields",
    [{"measured": "none"}, {"order": "all", "measured": "none"}, {"order": "none"}, {"objective": "denoising"}],
)
def test_without_an_order_no_prediction_sees_another_one_in_memory_either(
    fields: dict[str, Any], directions: str
) -> None:
    """One symbol that is predicted is changed, and nothing moves; one that the input shows moves the outputs that read
    it."""
    task, places = recurrent(directions=directions, **fields).eval(), (1, 3, 5, 6, 10)
    batch = many(8, torch.tensor(places))
    batch = batch._replace(inputs=torch.where(batch.targets == IGNORED, batch.inputs, DATA.mask))
    with torch.no_grad():
        original = task.evaluation_output(batch)
        for place in places:
            targets = batch.targets.clone()
            targets[:, place] = targets[:, place] % 9 + 1
            torch.testing.assert_close(
                task.evaluation_output(batch._replace(targets=targets)), original, rtol=0, atol=0
            )
        inputs = batch.inputs.clone()
        inputs[:, 4] = inputs[:, 4] % 9 + 1
        moved = (task.evaluation_output(batch._replace(inputs=inputs)) - original).abs().amax(dim=-1) > 1e-9
    read_after = torch.tensor([place >= 4 for place in places]).expand(8, -1)
    if directions == "both":
        backward = (scrambled(batch.example) & 1).bool()[:, None]
        read_after = torch.where(backward, torch.tensor([place < 8 for place in places]), read_after)
    assert torch.equal(moved.unflatten(0, (8, 5)), read_after)


@pytest.mark.parametrize("encoding", ["xl", "rotary", "shaw", "learned_relative", None])
def test_a_row_in_reverse_is_the_same_row(encoding: str | None) -> None:
    positions = LearnedConfig() if encoding is None else None
    network = permutation_lm(
        EncoderConfig(
            dim=DIM,
            heads=HEADS,
            depth=2,
            positions=positions,
            mixer=AttentionConfig.from_dict({"kind": "attention", "encoding": encoding}),
            query_stream="learned",
        )
    ).network.eval()
    read = ordered_rows(many(2, torch.tensor([2, 3, 9])), "all")
    in_reverse = each(read, lambda part: part.flip(1))._replace(at=11 - read.at, backward=True)
    for first, second in zip(network.read_in_order(read)[:2], network.read_in_order(in_reverse)[:2], strict=True):
        second = second.flip(1) if second.size(1) == 12 else second
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", ["permutation", "denoising"])
def test_segments_in_both_directions_are_read_alike_in_any_company(objective: str) -> None:
    task, batch = recurrent(objective=objective, directions="both"), rows(LENGTHS)
    loss = task.training_step(batch, 0)["loss"]
    loss.backward()
    assert all(p.grad is not None for p in task.parameters() if p.requires_grad)
    task.eval()
    together = task.evaluation_output(batch)
    assert 0 < (scrambled(batch.example) & 1).sum() < 4
    for row in range(4):
        alone = task.evaluation_output(one(batch, row))
        torch.testing.assert_close(alone, together[2 * row : 2 * row + 2], rtol=0, atol=1e-12)


def test_denoising_at_once_is_masked_language_modelling() -> None:
    batch = rows(LENGTHS)
    config = PermutationLMConfig(objective="denoising")
    torch.manual_seed(0)
    ours = config.build(XLNET, DATA, TrainingConfig(device="cpu")).double()
    masked = MaskedLMConfig().build(XLNET, DATA, TrainingConfig(device="cpu")).double()
    masked.load_state_dict(ours.state_dict())
    assert ours.training_step(batch, 0)["loss"] == masked.training_step(batch, 0)["loss"]
    assert config.cost(XLNET, DATA) == MaskedLMConfig().cost(XLNET, DATA)


def test_flops_count_the_second_stream_for_what_is_predicted() -> None:
    costs = [PermutationLMConfig().cost(model, DATA).flops_per_token * DATA.length for model in (XLNET, ABSOLUTE)]
    single = [MaskedLMConfig().cost(model, DATA).flops_per_token * DATA.length for model in (XLNET, ABSOLUTE)]
    length, predictions, depth = SHAPE.max_length, DATA.predictions, 3
    maps = depth * predictions * (4 * DIM * DIM + 16 * DIM * DIM)
    attention = depth * 4 * length * length * DIM
    assert costs[1] - single[1] == maps + attention + 2 * predictions * 6 * DIM
    content = PermutationLMConfig().cost(XLNET.override({"query_stream": "content"}), DATA).flops_per_token
    assert content * DATA.length == single[0] < costs[0]


def test_what_predicts_in_no_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.query_stream: permutation_lm predicts in an order .* to learned"):
        permutation_lm(XLNET.override({"query_stream": "none"}))
    with pytest.raises(ConfigError, match="a universal stack reads no second stream of queries; set stack: sequential"):
        XLNET.override({"stack": UniversalConfig()})
    with pytest.raises(ConfigError, match="extra_tokens have no place in an order of the row"):
        XLNET.override({"extra_tokens": 1})
    with pytest.raises(ConfigError, match=r"Window cannot be permuted"):
        permutation_lm(XLNET.override({"mixer": "window"}))


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"rules": ("agreement",)}, "permutation_lm gives no row a likelihood, .* drop data.evaluation.pairs"),
        ({"ordered": True}, "permutation_lm draws its own order .* drop data.attention_masks"),
        ({"restarts": True}, "permutation_lm draws its own order .* and data.restart"),
    ],
)
def test_data_that_it_cannot_obey_are_refused(field: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PermutationLMConfig().build(XLNET, replace(DATA, **field), TrainingConfig())


def test_other_objectives_train_the_network_without_its_queries() -> None:
    task = MaskedLMConfig().build(XLNET, DATA, TrainingConfig(device="cpu"))
    task.training_step(rows(LENGTHS), 0)["loss"].backward()
    idle = [name for name, p in task.named_parameters() if p.grad is None]
    assert idle == ["network.query.weight"] and not task.network.query.weight.requires_grad  # type: ignore[union-attr]
    assert VOCABULARY.size == task.network.tokens.table.num_embeddings  # type: ignore[union-attr]
