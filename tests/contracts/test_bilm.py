"""Language models of rows in both directions: who sees whom, their loss by the definition, and the reported metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from contract_cases import Case, mixers
from numerics import placed, same
from test_masked_lm import BERT, DATA, LENGTHS, minimal_pairs, one, rows
from torch import Tensor

from lit_transformers.batch import IGNORED, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.gates import gates
from lit_transformers.models import EncoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.tasks.bilm import BiLM, BiLMConfig
from lit_transformers.tasks.masked_lm import MaskedLMConfig
from lit_transformers.training.config import TrainingConfig

LEFT_TO_RIGHT = BERT.override({"causal": True})
SPECIAL = (10, 11, 12)


def bilm(model: ModelConfig = LEFT_TO_RIGHT, data: RowDescription = DATA, **fields: Any) -> BiLM:
    torch.manual_seed(0)
    return placed(BiLMConfig(**fields).build(model, data, TrainingConfig(device="cpu")).double())


def original(batch: RowBatch, row: int) -> Tensor:
    """The symbols of a row as they were before some were hidden, without padding."""
    symbols = torch.where(batch.targets == IGNORED, batch.inputs, batch.targets)
    return symbols[row, batch.padding_mask[row]]


def with_separators() -> RowBatch:
    """Rows whose fifth symbol and whose last one are [SEP]."""
    batch = rows(LENGTHS)
    last = torch.tensor(LENGTHS)[:, None] - 1
    inputs = batch.inputs.scatter(1, last, 11)
    inputs[:, 4] = 11
    return batch._replace(inputs=inputs)


@pytest.mark.any_device
@mixers("causal", encodings="none")
def test_symbols_are_predicted_alike_in_any_company(case: Case) -> None:
    task, batch = bilm(LanguageModelConfig(dim=8, heads=2, depth=1, mixer=case.config)), with_separators()
    task.training_step(batch, 0)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if p.requires_grad)
    task.eval()
    with torch.no_grad():
        together = task.predicted(batch)
        for row in range(len(LENGTHS)):
            for alone, beside in zip(task.predicted(one(batch, row)), together, strict=True):
                in_row = beside.positions.scored & (beside.positions.row == row)
                same(alone.positions.scored_alone(alone.nats), beside.nats[in_row], exact=1e-7)


@mixers("causal", encodings="none")
def test_no_prediction_depends_on_its_own_symbol_or_on_those_that_its_direction_has_not_read(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its gradient with respect to the embeddings of the row as the direction reads it; with attention, on all that
    were read."""
    task, batch = bilm(BERT.override({"causal": True, "mixer": case.config})).eval(), one(with_separators(), 1)
    for parameter in task.parameters():
        parameter.data.normal_(std=0.5)
    assert task.backward_network is not None
    for head, network in zip(task.directed(), (task.network, task.backward_network), strict=True):
        read = head.rows(batch)
        leaf = network.tokens.embed(read.inputs).detach().requires_grad_()
        with monkeypatch.context() as patched:
            patched.setattr(network, "embed", lambda symbols, segments, leaf=leaf: leaf)
            vectors = task.read(task.network, batch).parts[head.direction].vectors
        places = (read.targets != IGNORED)[0].nonzero().squeeze(1)
        assert not torch.isin(read.inputs[0, places], torch.tensor(SPECIAL)).any() and len(places) == 6
        for vector, place in zip(vectors, places.tolist(), strict=True):
            (gradient,) = torch.autograd.grad(vector.square().sum(), leaf, retain_graph=True)
            assert not gradient[0, place:].any()
            if case.config.kind == "attention":
                assert gradient[0, :place].any(dim=-1).all()


@pytest.mark.parametrize("directions", ["both", "forward"])
def test_the_loss_is_the_sum_over_directions_of_the_mean_over_symbols_each_after_its_prefix(directions: str) -> None:
    """Equation of arXiv:1802.05365, section 3.1: log p(t_k | t_1 ... t_k-1) + log p(t_k | t_k+1 ... t_N), with prefixes
    that are read by themselves, in the order of their direction."""
    task, batch = bilm(directions=directions), with_separators()
    nats: dict[str, list[Tensor]] = {"forward": [], "backward": []}
    for row in range(len(LENGTHS)):
        symbols, segments = original(batch, row), batch.segments[row, batch.padding_mask[row]]
        for place in (p for p in range(1, len(symbols)) if symbols[p] not in SPECIAL):
            for name, network, past in (
                ("forward", task.network, range(place)),
                ("backward", task.backward_network, range(len(symbols) - 1, place, -1)),
            ):
                if network is not None:
                    read = symbols[list(past)][None], segments[list(past)][None]
                    first = torch.arange(len(past))[None] == 0
                    hidden = network.read_row(read[0], None, first, read[1]).hidden[0, -1]
                    nats[name].append(-network.tokens.log_probabilities(network.predict(hidden))[symbols[place]])
    expected = sum(torch.stack(part).mean() for part in nats.values() if part)
    assert len(nats["backward"]) in (0, len(nats["forward"]))
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], expected)


def test_directions_share_the_embeddings_of_symbols_and_the_softmax_and_nothing_else() -> None:
    task = bilm()
    assert task.backward_network is not None and task.backward_network.tokens is task.network.tokens
    own = {id(p) for p in task.network.parameters()} & {id(p) for p in task.backward_network.parameters()}
    assert own == {id(p) for p in task.network.tokens.parameters()}
    for config in (BiLMConfig(), BiLMConfig(directions="forward")):
        counted = config.cost(LEFT_TO_RIGHT, DATA)
        assert counted.parameters == sum(p.numel() for p in bilm(directions=config.directions).parameters())
    both, forward = (BiLMConfig(directions=d).cost(LEFT_TO_RIGHT, DATA).flops_per_token for d in ("both", "forward"))
    symbols = DATA.length - 3
    predicted = task.network.predict_flops(symbols) + task.network.tokens.flops(symbols)
    assert forward * DATA.length == pytest.approx(task.network.flops(DATA.length) + predicted)
    assert round(both * DATA.length) == 2 * round(forward * DATA.length)


def test_a_family_whose_flops_have_a_softmax_costs_that_of_its_predictions_alone() -> None:
    model = LanguageModelConfig(dim=8, heads=2, depth=1)
    network = model.build(DATA)
    expected = network.flops(DATA.length) - network.tokens.flops(DATA.length) + network.tokens.flops(DATA.length - 3)
    cost = BiLMConfig(directions="forward").cost(model, DATA)
    assert cost.flops_per_token * DATA.length == pytest.approx(expected)


def test_what_is_reported_is_counted_by_hand() -> None:
    task, batch = bilm().eval(), with_separators()
    with torch.no_grad():
        for row in (2, 0, 3, 1):
            task.validation_step(one(batch, row), row)
        directions = dict(zip(("forward", "backward"), task.predicted(batch), strict=True))
    reported = task.metric.compute()
    for name, direction in directions.items():
        assert reported[f"{name}_nats"] == pytest.approx(direction.nats.mean().item())
        assert reported[f"{name}_accuracy"] == direction.correct.double().mean().item()
    assert [row.tokens for row in task.metric.per_document()] == [20, 6, 11, 3]
    forward = bilm(directions="forward").eval()
    forward.validation_step(batch, 0)
    assert forward.metric.compute().keys() == {"forward_nats", "forward_accuracy"}


def test_minimal_pairs_are_judged_by_the_log_likelihood_of_a_row_in_all_directions() -> None:
    task, batch = bilm(data=replace(DATA, rules=("even", "odd"))).eval(), minimal_pairs()
    with torch.no_grad():
        task.validation_step(rows(LENGTHS), 0)
        task.validation_step(batch, 1)
        scores = torch.stack(
            [-torch.cat([part.nats for part in task.predicted(one(batch, row))]).sum() for row in range(6)]
        )
    right = (scores[::2] > scores[1::2]).tolist()
    reported = task.metric.compute()
    assert reported["even_accuracy"] == (right[0] + right[2]) / 2 and reported["odd_accuracy"] == right[1]
    assert reported["obeying_nats"] == pytest.approx(-scores[::2].sum().item() / (8 + 5 + 13))


@pytest.mark.parametrize(
    ("model", "data", "refusal"),
    [
        (BERT, DATA, r"^model: encoder sees the symbols that bilm predicts; set model.causal: true"),
        (LEFT_TO_RIGHT, replace(DATA, restarts=True), "^task: bilm reads rows as they are.*drop data.attention_masks"),
        (LEFT_TO_RIGHT, replace(DATA, phrases=True), "^task: bilm reads rows as they are.*replaces no phrases"),
    ],
)
def test_what_cannot_be_read_in_two_directions_is_refused(
    model: EncoderConfig, data: RowDescription, refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        bilm(model, data)


def test_what_is_of_one_network_is_refused_where_there_are_two() -> None:
    with pytest.raises(ConfigError, match=r"evaluation changes one network.* set directions: forward"):
        BiLMConfig(evaluation={"dropout": 0.0})
    with pytest.raises(ConfigError, match=r"^task.directions: fsdp cannot share weights"):
        BiLMConfig().build(LEFT_TO_RIGHT, DATA, TrainingConfig(device="cuda", devices=2, strategy="fsdp"))


def test_a_causal_encoder_has_one_order_and_predicts_nothing_from_both_sides() -> None:
    with pytest.raises(ConfigError, match="one order of its rows; set causal: false"):
        LEFT_TO_RIGHT.override({"query_stream": "learned"})
    with pytest.raises(ConfigError, match=r"^model.causal: rows have one order"):
        LEFT_TO_RIGHT.build(replace(DATA, ordered=True))
    with pytest.raises(ConfigError, match="encoder sees only the symbols before a hidden one"):
        MaskedLMConfig().build(LEFT_TO_RIGHT, DATA, TrainingConfig(device="cpu"))


def test_a_gate_says_of_a_causal_encoder_whether_it_sees_what_is_later() -> None:
    results = {gate.name: gate for gate in gates.check(LEFT_TO_RIGHT)}
    assert all(gate.passed for gate in results.values())
    assert "largest change" in results["no future where causal"].detail
    (both,) = (gate for gate in gates.check(BERT) if gate.name == "no future where causal")
    assert both.passed and both.detail.startswith("not asked")
