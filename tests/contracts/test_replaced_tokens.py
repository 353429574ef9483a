"""Replaced token detection: its losses by hand, its draws, and the parts that its two networks share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract_cases import DIM
from numerics import placed
from test_masked_lm import BERT, DATA, LENGTHS, minimal_pairs, rows
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, RowBatch
from lit_transformers.config import ConfigError
from lit_transformers.models import EncoderConfig
from lit_transformers.tasks.replaced_tokens import Predicts, ReplacedTokens, ReplacedTokensConfig, SymbolGeneratorConfig
from lit_transformers.training.config import TrainingConfig

SMALL = {"overrides": {"depth": 1, "feedforward.width": 8}}
PREDICTS: tuple[Predicts, ...] = ("replaced", "replaced_at_masks", "symbols", "symbols_at_masks")


def electra(model: EncoderConfig = BERT, generator: dict[str, Any] = SMALL, **fields: Any) -> ReplacedTokens:
    config = ReplacedTokensConfig.from_dict({"kind": "replaced_tokens", "generator": generator, **fields})
    torch.manual_seed(0)
    return placed(config.build(model, DATA, TrainingConfig(device="cpu")).double())


def drawn(task: ReplacedTokens, batch: RowBatch) -> tuple[Tensor, Tensor]:
    """The rows that the discriminator reads, and the original ones."""
    symbols = task.drawn(batch).symbols
    return symbols, torch.where(batch.targets != IGNORED, batch.targets, batch.inputs)


@pytest.mark.parametrize("predicts", PREDICTS)
def test_the_loss_is_that_of_the_definition(predicts: Predicts) -> None:
    task, batch = electra(predicts=predicts, weight=3.0), rows(4 * LENGTHS)
    symbols, original = drawn(task, batch)
    draws = (symbols != original)[batch.targets != IGNORED]
    assert draws.any() and not draws.all(), "some draws are the original symbols, which count as these"
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    hidden = task.network.read_row(symbols, batch.padding_mask, first, batch.segments).hidden
    terms = []
    for row, length in enumerate(4 * LENGTHS):
        for place in (1, 3) if predicts.endswith("at_masks") else range(length):
            vector, target = hidden[row, place], original[row, place]
            softmax = task.network.tokens.log_probabilities(task.network.predict(vector)).exp()
            if predicts == "symbols_at_masks":
                probability = softmax[target]
            else:
                flagged = task.discriminator.detection(vector[None]).sigmoid()[0]
                is_replaced, is_read = symbols[row, place] != target, symbols[row, place] == target
                if predicts == "symbols":
                    probability = (1 - flagged) * softmax[target] + flagged * is_read
                else:
                    probability = flagged if is_replaced else 1 - flagged
            terms.append(-probability.log())
    assert task.generator is not None
    guessed = task.generator.predict(
        task.generator.read_row(batch.inputs, batch.padding_mask, first, batch.segments)[0]
    )
    generator = F.nll_loss(
        task.generator.tokens.log_probabilities(guessed)[:, (1, 3)].flatten(0, 1), original[:, (1, 3)].flatten()
    )
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], 3.0 * sum(terms) / len(terms) + generator)


def test_draws_follow_the_generator_and_carry_no_gradient() -> None:
    task = electra(generator={**SMALL, "tie": "none"}).eval()
    batch = rows((6,) * 4000)
    same_row = batch._replace(**{name: getattr(batch, name)[:1].expand(4000, -1) for name in ("inputs", "targets")})
    assert task.generator is not None
    with torch.no_grad():
        symbols = task.drawn(same_row).symbols[:, 3]
        first = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, torch.tensor([0]), True)
        output = task.generator.read_row(same_row.inputs[:1], same_row.padding_mask[:1], first, same_row.segments[:1])
        expected = task.generator.tokens.log_probabilities(task.generator.predict(output.hidden))[0, 3].exp()
    shares = symbols.bincount(minlength=len(expected)) / len(symbols)
    assert (shares - expected).abs().max() < 4 * (0.25 / len(symbols)) ** 0.5
    batch = rows(LENGTHS)
    task.discriminator.loss(task.train().training_reading(batch), batch).total.backward()
    assert all(parameter.grad is None for parameter in task.generator.parameters())


def test_networks_share_what_the_config_says() -> None:
    by_tie = {tie: electra(generator={"tie": tie}) for tie in ("none", "embeddings", "all")}
    sizes = {tie: sum(p.numel() for p in task.parameters()) for tie, task in by_tie.items()}
    shared = sum(sum(shape.numel() for shape in task.network.embedding_shapes().values()) for task in [by_tie["none"]])
    assert sizes["none"] - sizes["embeddings"] == shared
    assert by_tie["all"].generator is by_tie["all"].network
    task = by_tie["embeddings"]
    task.training_step(rows(LENGTHS), 0)["loss"].backward()
    assert all(p.grad is not None for p in task.parameters() if p.requires_grad)


def test_a_generator_has_its_share_of_dim_and_heads() -> None:
    config = SymbolGeneratorConfig(width=0.5, overrides={"depth": 2})
    narrow = config.model(BERT.override({"dim": 24, "heads": 4}))
    assert (narrow.dim, narrow.heads, narrow.depth) == (12, 2, 2)
    assert SymbolGeneratorConfig(width=0.1).model(BERT.override({"dim": 20, "heads": 2})).heads == 1
    with pytest.raises(ConfigError, match="drop overrides and width, or set tie: embeddings"):
        SymbolGeneratorConfig(width=0.5, tie="all")


def test_any_symbol_is_drawn_without_a_generator() -> None:
    task = electra(generator={"draws": "uniform"})
    symbols, original = drawn(task, rows((6,) * 500))
    assert task.generator is None and symbols[:, 3].unique().tolist() == list(range(13))
    torch.testing.assert_close(symbols[:, 4:], original[:, 4:])


def test_what_is_reported_is_counted_by_hand() -> None:
    task, batch = electra().eval(), rows(LENGTHS)
    with torch.no_grad():
        task.validation_step(batch, 0)
        reading = task.evaluation_reading(batch)
        judged = task.discriminator.predictions(reading, task.discriminator.at(batch))
    generator, replaced = reading.parts["generator"], reading.parts["drawn"] != reading.parts["original"]
    reported, hidden = task.metric.compute(), batch.targets != IGNORED
    assert reported["discriminator_nats"] == pytest.approx(judged.nats[batch.padding_mask].mean().item())
    assert reported["discriminator_accuracy"] == pytest.approx(
        judged.correct[batch.padding_mask].double().mean().item()
    )
    assert reported["noticed"] == pytest.approx(judged.correct[replaced].double().mean().item())
    assert reported["generator_nats"] == pytest.approx(generator.nats[hidden].mean().item())
    assert reported["generator_accuracy"] == pytest.approx(generator.correct[hidden].double().mean().item())


@pytest.mark.parametrize("predicts", PREDICTS)
def test_minimal_pairs_are_judged_by_how_likely_it_is_that_nothing_was_replaced(predicts: Predicts) -> None:
    task, batch = electra(predicts=predicts).eval(), minimal_pairs()
    with torch.no_grad():
        scores = task.log_likelihood_of_originals(batch)
        for row in range(6):
            symbols = batch.inputs[row, batch.padding_mask[row]]
            hidden = task.network.read_row(symbols[None], None, symbols[None] == 10).hidden[0, 1:]
            softmax = task.network.tokens.log_probabilities(task.network.predict(hidden)).exp()
            expected = softmax.gather(1, symbols[1:, None])[:, 0]
            if predicts != "symbols_at_masks":
                flagged = task.discriminator.detection(hidden).sigmoid()
                expected = (1 - flagged) * expected + flagged if predicts == "symbols" else 1 - flagged
            torch.testing.assert_close(scores[row], expected.log().sum(), rtol=1e-6, atol=1e-6)


def test_costs_count_both_networks() -> None:
    tied, alone = (
        ReplacedTokensConfig.from_dict({"kind": "replaced_tokens", "generator": generator}).cost(BERT, DATA)
        for generator in ({"tie": "all"}, {"draws": "uniform"})
    )
    assert tied.flops_per_token > 1.9 * alone.flops_per_token
    assert tied.parameters > alone.parameters, "a discriminator alone predicts no symbol"


def test_a_cost_counts_what_a_narrower_generator_predicts_by_its_own_width() -> None:
    model = BERT.override({"embedding_dim": 6})
    fields = {"overrides": {"dim": DIM // 2, "heads": 1}}
    generator = electra(model, generator=fields).generator
    narrow, alone = (
        ReplacedTokensConfig.from_dict({"kind": "replaced_tokens", "generator": each}).cost(model, DATA)
        for each in (fields, {"draws": "uniform"})
    )
    assert generator is not None
    map_to_embeddings, softmax = DIM // 2 * 6, 6 * DATA.vocabulary.size
    expected = generator.flops(DATA.length) + 2 * DATA.predictions * (map_to_embeddings + softmax)
    assert (narrow.flops_per_token - alone.flops_per_token) * DATA.length == pytest.approx(expected)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="same embedding_dim, positions and segments"):
        electra(generator={"overrides": {"dim": 2 * DIM}})
    with pytest.raises(
        ConfigError, match=r"drop generator.overrides and generator.width, or set generator.tie: embeddings"
    ):
        electra(generator={"overrides": {"depth": 2}, "tie": "all"})
    electra(BERT.override({"embedding_dim": 6}), generator={"overrides": {"dim": 8, "heads": 1}})
