"""Every mixer that sees both ways predicts hidden symbols: padding and other rows change nothing that is predicted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from contract_cases import DIM, HEADS, SHAPE, Case, mixers
from numerics import placed, same
from torch import Tensor

from lit_transformers.batch import IGNORED, RowBatch, RowDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.heads.relation import Relation
from lit_transformers.models import EncoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.tasks.masked_lm import MaskedLM, MaskedLMConfig
from lit_transformers.tasks.task import Task
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=13, boundary=10, unit="word", byte_lengths=None)
DATA = RowDescription(
    vocabulary=VOCABULARY, length=SHAPE.max_length, mask=12, separator=11, segments=2, predictions=4, relations=2
)
BERT = EncoderConfig(
    dim=DIM,
    heads=HEADS,
    depth=1,
    norm="post",
    positions=LearnedConfig(),
    segments=2,
    embedding_norm=True,
    transform="gelu",
)
LENGTHS = (23, 9, 14, 5)


def rows(lengths: tuple[int, ...]) -> RowBatch:
    """Rows of two segments, of which the fourth symbol is hidden and the second is predicted where it stands."""
    padding_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    symbols = torch.randint(1, 10, padding_mask.shape).masked_fill(~padding_mask, 0)
    symbols[:, 0] = 10
    targets = torch.full_like(symbols, IGNORED)
    targets[:, (1, 3)] = symbols[:, (1, 3)]
    symbols[:, 3] = 12
    segments = (torch.arange(max(lengths)) > 3).long() * padding_mask
    relation = torch.arange(len(lengths)) % 2
    return RowBatch(symbols, targets, padding_mask, segments, relation, torch.arange(len(lengths)), None)


def one(batch: RowBatch, row: int) -> RowBatch:
    """A row of a batch by itself, without its padding."""
    length = int(batch.padding_mask[row].sum())
    tokens = (part[row : row + 1, :length] for part in batch[:4])
    return RowBatch(*tokens, batch.relation[row : row + 1], batch.example[row : row + 1], None)


def masked_lm(model: ModelConfig = BERT, data: RowDescription = DATA) -> MaskedLM:
    torch.manual_seed(0)
    return placed(MaskedLMConfig().build(model, data, TrainingConfig(device="cpu")).double())


def related(task: Task, batch: RowBatch) -> Tensor:
    """The logits of relations in evaluation."""
    head = task.heads["relation"]
    assert isinstance(head, Relation)
    return head.logits(task.evaluation_reading(batch))


@pytest.mark.any_device
@mixers("bidirectional", encodings="none")
def test_hidden_symbols_are_predicted_alike_in_any_company(case: Case) -> None:
    task = masked_lm(BERT.override({"mixer": case.config}))
    batch = rows(LENGTHS)
    task.training_step(batch, 0)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if p.requires_grad)
    task.eval()
    with torch.no_grad():
        symbols, relations = task.evaluation_output(batch), related(task, batch)
        for row in range(len(LENGTHS)):
            alone = one(batch, row)
            same(task.evaluation_output(alone), symbols[2 * row : 2 * row + 2], exact=1e-7)
            if case.config.kind == "attention":  # others need not keep the output of the first position alone
                same(related(task, alone), relations[row : row + 1], exact=1e-7)


def test_the_loss_is_that_of_chosen_symbols_and_of_relations_by_their_own_numbers() -> None:
    task, batch = masked_lm(), rows(LENGTHS)
    hidden = task.network.read_row(batch.inputs, batch.padding_mask, batch.inputs == 10, batch.segments).hidden
    logits = task.network.tokens.log_probabilities(task.network.predict(hidden))
    nats = [-logits[row, place, batch.targets[row, place]] for row in range(len(LENGTHS)) for place in (1, 3)]
    relations = torch.nn.functional.cross_entropy(task.heads["relation"].map(hidden[:, 0]), batch.relation)
    torch.testing.assert_close(task.training_step(batch, 0)["loss"], sum(nats) / len(nats) + relations)


def test_a_detached_relation_trains_its_head_alone() -> None:
    """The network learns the same as without a relation, and the head the same as on that network."""
    gradients = {}
    for detached, weight in ((True, 1.0), (True, 3.0), (False, 3.0)):
        config = MaskedLMConfig(detach_relation=detached, relation_weight=weight)
        torch.manual_seed(0)
        task = placed(config.build(BERT, DATA, TrainingConfig(device="cpu")).double())
        torch.manual_seed(1)
        task.training_step(rows(LENGTHS), 0)["loss"].backward()
        network, head = (
            torch.cat([p.grad.flatten() for p in part.parameters() if p.grad is not None])
            for part in (task.network, task.heads["relation"])
        )
        gradients[detached, weight] = network, head
    torch.testing.assert_close(gradients[True, 1.0][0], gradients[True, 3.0][0])
    assert not torch.allclose(gradients[True, 3.0][0], gradients[False, 3.0][0])
    torch.testing.assert_close(gradients[True, 3.0][1], gradients[False, 3.0][1])
    torch.testing.assert_close(3 * gradients[True, 1.0][1], gradients[True, 3.0][1])


def test_what_is_reported_is_counted_by_hand() -> None:
    task, batch = masked_lm().eval(), rows(LENGTHS)
    with torch.no_grad():
        for row in (2, 0, 3, 1):
            task.validation_step(one(batch, row), row)
        symbols, relations = task.evaluation_output(batch), related(task, batch)
    targets = batch.targets[batch.targets != IGNORED]
    nats = -symbols[torch.arange(len(targets)), targets].mean().item()
    reported = task.metric.compute()
    assert reported["nats"] == pytest.approx(nats) and reported["perplexity"] == pytest.approx(math.exp(nats))
    assert reported["accuracy"] == (symbols.argmax(dim=-1) == targets).double().mean().item()
    assert reported["relation_accuracy"] == (relations.argmax(dim=-1) == batch.relation).double().mean().item()
    assert [row.tokens for row in task.metric.per_document()] == [2] * len(LENGTHS)


def test_rows_without_a_relation_count_for_symbols_alone() -> None:
    task, batch = masked_lm().eval(), rows(LENGTHS)
    task.validation_step(batch._replace(relation=torch.tensor([0, IGNORED, IGNORED, 1])), 0)
    assert [row.relations for row in task.metric.per_document()] == [1, 0, 0, 1]


def minimal_pairs() -> RowBatch:
    """Three pairs of two rules, whose rows differ in the third symbol."""
    batch = rows((9, 9, 6, 6, 14, 14))
    symbols = batch.inputs.masked_fill(batch.inputs == 12, 4)
    symbols[1::2] = symbols[::2]
    symbols[1::2, 2] = symbols[::2, 2] % 9 + 1
    targets = symbols.masked_fill(~batch.padding_mask | (symbols == 10), IGNORED)
    relation, segments = torch.full((6,), IGNORED), torch.zeros_like(symbols)
    return batch._replace(
        inputs=symbols, targets=targets, relation=relation, segments=segments, rule=torch.tensor([0, 0, 1, 1, 0, 0])
    )


def test_minimal_pairs_are_judged_by_each_symbol_behind_a_mask_of_its_own() -> None:
    """Salazar et al. 2020, equation 2, one symbol of one row at a time."""
    torch.manual_seed(0)
    data = replace(DATA, rules=("one", "other"))
    task, batch = (
        placed(MaskedLMConfig().build(BERT, data, TrainingConfig(device="cpu")).double()).eval(),
        minimal_pairs(),
    )
    scores = []
    with torch.no_grad():
        for row in range(6):
            symbols = batch.inputs[row, batch.padding_mask[row]]
            score = 0.0
            for place in range(1, len(symbols)):
                masked = symbols.clone()
                masked[place] = 12
                hidden = task.network.read_row(masked[None], None, masked[None] == 10).hidden[0, place]
                score += task.network.tokens.log_probabilities(task.network.predict(hidden))[symbols[place]].item()
            scores.append(score)
        task.validation_step(batch, 0)
        task.validation_step(rows(LENGTHS), 1)
        reported = task.metric.compute()
    better = [scores[row] > scores[row + 1] for row in (0, 2, 4)]
    assert reported["one_accuracy"] == (better[0] + better[2]) / 2 and reported["other_accuracy"] == better[1]
    assert reported["pairs_accuracy"] == pytest.approx(sum(better) / 3)
    assert reported["pseudo_nats"] == pytest.approx(-sum(scores[::2]) / (8 + 5 + 13), rel=1e-6)
    assert [row.tokens for row in task.metric.per_document()] == [2] * len(LENGTHS), "pairs are no rows"
    task.metric.reset()
    assert task.metric.compute() == {}


def test_a_network_that_holds_both_rows_of_a_pair_for_equally_likely_knows_no_rule() -> None:
    metric = masked_lm(data=replace(DATA, rules=("one", "other"))).metric
    metric.update_pairs(torch.tensor([1.0, 1.0, 0.0, 1.0, 2.0, 1.0]), minimal_pairs())
    assert metric.pair_results()["one_accuracy"] == 0.5 and metric.pair_results()["other_accuracy"] == 0.0


def test_segments_and_narrow_embeddings_reach_the_output() -> None:
    narrow = BERT.override({"embedding_dim": 6})
    assert isinstance(narrow, EncoderConfig)
    task, batch = masked_lm(narrow).eval(), rows(LENGTHS)
    assert task.network.tokens.table.weight.shape == (13, 6)  # type: ignore[union-attr]
    one_segment = batch._replace(segments=torch.zeros_like(batch.segments))
    assert not torch.allclose(task.evaluation_output(batch), task.evaluation_output(one_segment))


def test_flops_count_the_symbols_that_are_predicted() -> None:
    costs = [MaskedLMConfig().cost(BERT, data).flops_per_token for data in (DATA, DATA_OF_MORE)]
    softmax = 2 * DIM * VOCABULARY.size + 2 * DIM * DIM
    assert (costs[1] - costs[0]) * DATA.length == pytest.approx(3 * softmax)


DATA_OF_MORE = RowDescription(
    vocabulary=VOCABULARY, length=SHAPE.max_length, mask=12, separator=11, segments=2, predictions=7, relations=2
)


def test_what_sees_one_side_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="language_model sees only the symbols before a hidden one"):
        masked_lm(LanguageModelConfig(dim=DIM, heads=HEADS, depth=1))
    with pytest.raises(ConfigError, match="transform"):
        BERT.override({"embedding_dim": 6, "transform": None})
    with pytest.raises(ConfigError, match="makes one channel zero; set embedding_dim: 2 or more"):
        BERT.override({"embedding_dim": 1})


def test_positions_begin_again_with_the_second_segment_where_the_data_say_so() -> None:
    """A row then is read as by a network that is given the positions of each of its segments, with padding after it."""
    restarting, plain = (
        masked_lm(BERT.override({"depth": 2}), replace(DATA, restarts=restarts)).network for restarts in (True, False)
    )
    batch = rows(LENGTHS)
    table = plain.stack.entry.positions.weight[0]
    x = plain.tokens.embed(batch.inputs) + plain.segments(batch.segments)
    places = torch.tensor([[t - 4 * segment for t, segment in enumerate(row)] for row in batch.segments.tolist()])
    plain.tokens.embed = lambda symbols: x - plain.segments(batch.segments) - table[: x.size(1)] + table[places]
    outputs = [
        network.read_row(batch.inputs, batch.padding_mask, batch.inputs == 10, batch.segments).hidden
        for network in (restarting, plain)
    ]
    same(outputs[0][batch.padding_mask], outputs[1][batch.padding_mask], exact=1e-9)


def test_positions_that_no_symbol_is_given_cannot_restart() -> None:
    for changes in ({"positions": None}, {"mixer.encoding": "rotary"}):
        with pytest.raises(
            ConfigError, match=r"^model: only positions that are added to symbols restart with a segment"
        ):
            masked_lm(BERT.override(changes), replace(DATA, restarts=True))
