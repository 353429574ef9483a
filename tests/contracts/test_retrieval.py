"""Retrieval equals its definition: the loss by loops, ranks by sorting, and ranks of a run as one process."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Forked
from numerics import placed, same
from torch import Tensor

from datamodules import RetrievalData, RetrievalDataConfig
from datamodules.floors.measure import floors
from datamodules.floors.retrieval import bm25
from lit_transformers.batch import RetrievalBatch, RetrievalDescription, Vocabulary
from lit_transformers.config import ConfigError
from lit_transformers.models import EncoderConfig, LanguageModelConfig
from lit_transformers.tasks.retrieval import Retrieval, RetrievalConfig, RetrievalMetric, retrieval_scores
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=12, boundary=0, unit="byte", byte_lengths=None)
DATA = RetrievalDescription(vocabulary=VOCABULARY, length=9, source_length=6)
MODEL = EncoderConfig(dim=16, heads=2, depth=1)
STRINGS = {"kind": "strings", "max_length": 5, "generator": {"kind": "reverse", "alphabet": 4}, "train": 40}


def batch_of(seed: int = 0) -> RetrievalBatch:
    """Four questions and their passages, of which the first and the last share one."""
    torch.manual_seed(seed)
    masks = [torch.arange(n) < torch.tensor(lengths)[:, None] for n, lengths in ((6, [6, 3, 4, 5]), (9, [7, 9, 5, 7]))]
    source, inputs = (torch.randint(1, 12, mask.shape).masked_fill(~mask, 0) for mask in masks)
    inputs[3], numbers = inputs[0], torch.tensor([7, -8, 9, 7]) + 100 * seed
    return RetrievalBatch(source, masks[0], numbers, inputs, masks[1], numbers, torch.arange(4), None)


def task_of(**fields: Any) -> Retrieval:
    torch.manual_seed(0)
    return placed(RetrievalConfig(**fields).build(MODEL, DATA, TrainingConfig(device="cpu")).double())


def vector(network: Any, symbols: Tensor, mask: Tensor, config: RetrievalConfig) -> Tensor:
    """The vector of one text, read alone."""
    row = symbols[mask][None]
    hidden = network.read_row(row, None, (torch.arange(row.size(1)) == 0)[None]).hidden[0]
    summary = hidden.mean(dim=0) if config.pooling == "mean" else hidden[0]
    return summary / summary.norm() if config.similarity == "cosine" else summary


def by_definition(task: Retrieval, batch: RetrievalBatch) -> Tensor:
    """The mean loss of the questions, each by a loop over the passages of the batch."""
    config, networks = task.config, [task.network, task.passage_network or task.network]
    questions = [vector(networks[0], *row, config) for row in zip(batch.source, batch.source_padding_mask, strict=True)]
    passages = [vector(networks[1], *row, config) for row in zip(batch.inputs, batch.padding_mask, strict=True)]
    losses = []
    for row, question in enumerate(questions):
        others = [place for place in range(len(passages)) if batch.passage[place] != batch.passage[row]]
        scores = [question @ passages[place] / config.temperature for place in (row, *others)]
        losses.append(torch.logsumexp(torch.stack(scores), 0) - scores[0])
    return torch.stack(losses).mean()


@pytest.mark.any_device
@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": "mean"},
        {"similarity": "dot", "temperature": 2.0},
        {"pooling": "mean", "towers": "separate", "temperature": 0.5},
    ],
)
def test_the_loss_is_that_of_the_definition(fields: dict[str, Any]) -> None:
    task, batch = task_of(**fields), batch_of()
    output = task.training_step(batch, 0)
    same(output["loss"], by_definition(task, batch))
    output["loss"].backward()
    unused = {id(p) for p in task.unused()}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if id(p) not in unused)


def ranks_by_sorting(questions: Tensor, answers: list[int], passages: dict[int, Tensor]) -> list[int]:
    """The place of each answer after all passages with the same score."""
    ranks = []
    for question, answer in zip(questions, answers, strict=True):
        scores = {number: float((question.double() @ passage.double()).float()) for number, passage in passages.items()}
        order = sorted(scores, key=lambda number: (-scores[number], number == answer))
        ranks.append(order.index(answer) + 1)
    return ranks


def texts(vectors: Tensor, numbers: list[int], of_questions: bool) -> tuple[Tensor, Tensor, RetrievalBatch]:
    """The vectors of a batch of questions or of passages alone, with rows of padding for the other texts."""
    real, column, ordinals = torch.ones(len(vectors), 1).bool(), torch.tensor(numbers), torch.arange(len(vectors))
    mask, other = (real, ~real) if of_questions else (~real, real)
    batch = RetrievalBatch(mask.long(), mask, column, other.long(), other, column, ordinals, None)
    return vectors, vectors, batch


def metric_of(**fields: Any) -> RetrievalMetric:
    return RetrievalMetric({"passages": task_of(**fields).head})


def test_measures_rank_every_passage_of_the_split_and_equal_scores_count_against_the_answer() -> None:
    torch.manual_seed(0)
    questions, passages = torch.randn(30, 4), torch.randn(8, 4)
    passages[5], answers = passages[2], [int(number) * 10 for number in torch.randint(8, (30,))]
    numbers = [10 * place for place in range(8)]
    metric = metric_of(similarity="dot", temperature=2.0)
    metric.add_texts(*texts(passages[:3], numbers[:3], False))
    metric.add_texts(*texts(questions, answers, True))
    metric.add_texts(*texts(passages[2:], numbers[2:], False))  # the third one comes twice, as one that pads ranks
    ranks = ranks_by_sorting(questions, answers, dict(zip(numbers, passages, strict=True)))
    assert {2, 3} & {rank for rank, answer in zip(ranks, answers, strict=True) if answer in (20, 50)}
    assert [row.rank for row in metric.per_document()] == ranks
    results = metric.compute()
    assert results["hit_1"] == sum(rank == 1 for rank in ranks) / 30
    assert results["hit_5"] == sum(rank <= 5 for rank in ranks) / 30
    assert results["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 30)
    places = torch.tensor([numbers.index(answer) for answer in answers])
    nats = torch.nn.functional.cross_entropy(questions @ passages.T / 2.0, places)
    assert results["nats"] == pytest.approx(float(nats), rel=1e-5)


def test_scores_that_are_no_numbers_find_nothing() -> None:
    metric = metric_of(similarity="dot")
    metric.add_texts(*texts(torch.full((3, 4), torch.nan), [1, 2, 3], False))
    metric.add_texts(*texts(torch.ones(2, 4), [1, 2], True))
    assert metric.compute()["hit_1"] == 0 and [row.rank for row in metric.per_document()] == [3, 3]


def joined(first: RetrievalBatch, second: RetrievalBatch) -> RetrievalBatch:
    """The rows of both batches, in one."""
    return RetrievalBatch(*(torch.cat(pair) for pair in zip(first[:7], second[:7], strict=True)), None)


def gradients(task: Retrieval, batch: RetrievalBatch) -> dict[str, Tensor]:
    output = task.training_step(batch, 0)
    output["loss"].backward()
    return {name: p.grad for name, p in task.named_parameters() if p.grad is not None} | {"nats": output["nats"]}


def one_of_two(directory: Path) -> None:
    """Writes the mean over ranks of the gradients of a rank's rows, as DDP computes it, and the measurements of both
    ranks; for ``Forked``."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    results = gradients(task_of(pooling="mean"), batch_of(rank))
    for name, gradient in results.items():
        if name != "nats":
            torch.distributed.all_reduce(gradient)
            gradient /= 2
    data, metric = retrieval_data(), task_of(pooling="mean").float().eval()
    for batch in data.val_dataloader():
        with torch.no_grad():
            metric.validation_step(batch, 0)
    measured = {name: torch.tensor(value) for name, value in metric.metric.compute().items()}
    rows = {"rows": torch.tensor([list(row) for row in metric.metric.per_document()])}
    torch.save({"gradients": results, "measured": measured, **rows}, directory / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_learn_and_measure_what_one_process_does(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", one_of_two, tmp_path, ranks=2).finish()
    expected = gradients(task_of(pooling="mean"), joined(batch_of(0), batch_of(1)))
    task = task_of(pooling="mean").float()
    measured = retrieval_scores(task.network, retrieval_data().val_dataloader(), task.config)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(results["gradients"], expected)
        assert {name: float(value) for name, value in results["measured"].items()} == pytest.approx(measured, rel=1e-5)
        assert results["rows"][:, 0].tolist() == list(range(20))


def retrieval_data(**changes: Any) -> RetrievalData:
    evaluation = {"examples": 20, "batch_size": 6}
    sizes = {"longest_question": 6, "longest_passage": 9, "batch_size": 4, "window": 2}
    plain = {"kind": "retrieval", "source": STRINGS, "evaluation": evaluation, **sizes, **changes}
    return RetrievalDataConfig.from_dict(plain).build()


def test_an_evaluation_reads_every_question_and_every_different_passage_once() -> None:
    data, asked, read = retrieval_data(source=STRINGS | {"max_length": 2}), {}, []
    for batch in data.val_dataloader():
        real, real_passages = batch.source_padding_mask.any(dim=1), batch.padding_mask.any(dim=1)
        asked |= dict(zip(batch.example[real].tolist(), batch.source[real].tolist(), strict=True))
        read += [tuple(row[row > 0].tolist()) for row in batch.inputs[real_passages]]
        assert not (real & real_passages).any() and len(batch.source) <= 6
    pairs = [data.pairs.pair("validation", ordinal) for ordinal in range(20)]
    assert len(read) == len(set(read)) < 20 and set(read) == {tuple(pair.target.tolist()) for pair in pairs}
    assert {ordinal: [s for s in row if s] for ordinal, row in asked.items()} == {
        ordinal: pair.source.tolist() for ordinal, pair in enumerate(pairs)
    }


def test_rows_of_training_are_questions_with_their_passages_by_number() -> None:
    batch: RetrievalBatch = next(iter(retrieval_data().train_dataloader()))
    for source, inputs in zip(batch.source, batch.inputs, strict=True):
        assert [s for s in source.tolist() if s] == [s for s in inputs.tolist() if s][::-1]
    same = {(int(n), tuple(row.tolist())) for n, row in zip(batch.passage, batch.inputs, strict=True)}
    assert len(same) == len(set(batch.passage.tolist())) and torch.equal(batch.passage, batch.answer)


def squad(folder: Path, **changes: Any) -> Path:
    """A file in the layout of SQuAD: six paragraphs of three questions."""
    folder.mkdir()
    words = ["amber", "basalt", "cedar", "delta", "ember", "fjord"]
    paragraphs = [
        {
            "context": f"The {word} is in room {number}.",
            "qas": [
                {"id": f"{word}{ask}", "question": f"{ask} {word}?", "answers": [{"text": word, "answer_start": 4}]}
                for ask in ("Which", "What", "Whose")
            ],
        }
        for number, word in enumerate(words)
    ]
    paragraphs[0]["qas"][0] |= changes  # type: ignore[index]
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder


def squad_data(folder: Path, **changes: Any) -> RetrievalData:
    source = {"kind": "squad", "path": str(folder / "squad.json"), "validation": 0.4, "test": 0.2}
    return retrieval_data(source=source, tokenizer="bytes", longest_question=24, longest_passage=40, **changes)


def test_questions_of_a_paragraph_of_squad_share_a_split_and_their_passage(tmp_path: Path) -> None:
    data = squad_data(squad(tmp_path / "squad"))
    passages = {split: {*data.passages(split)} for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert sum(map(len, passages.values())) == len(set.union(*passages.values())) == 6
    assert [data.pairs.count(split) for split in passages] == [3 * len(numbers) for numbers in passages.values()]  # type: ignore[arg-type]
    batch = next(iter(data.train_dataloader()))
    assert bytes(batch.inputs[0, 1:].tolist()[: int(batch.padding_mask[0].sum()) - 2]).startswith(b"The ")
    separator = data.description.vocabulary.size - 2
    assert all(row[mask][-1] == separator for row, mask in zip(batch.inputs, batch.padding_mask, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": [{"text": "amber", "answer_start": 5}]}, "'amber' is not at character 5 of its paragraph"),
        ({"question": None}, r"data\[0\].paragraphs\[0\].qas\[0\]: no field question of SQuAD's layout"),
    ],
)
def test_a_file_that_is_not_as_squad_has_it_is_named_with_the_place(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=message):
        squad_data(squad(tmp_path / "squad", **changes)).prepare_data()


def test_what_cannot_be_retrieved_is_refused() -> None:
    with pytest.raises(ConfigError, match="the first token of a language_model sees only itself"):
        RetrievalConfig().build(LanguageModelConfig(dim=16, heads=2, depth=1), DATA, TrainingConfig())
    with pytest.raises(ConfigError, match=r"training\.accumulate: the loss passages compares the rows of a batch"):
        RetrievalConfig().build(MODEL, DATA, TrainingConfig(accumulate=2))
    with pytest.raises(ConfigError, match="longest_question exceeds longest_passage"):
        RetrievalDataConfig(longest_question=64, longest_passage=32)


def test_both_towers_begin_with_the_weights_of_one_network_and_part_in_training() -> None:
    shared, separate = task_of(pooling="mean"), task_of(pooling="mean", towers="separate")
    with torch.no_grad():
        for weight in shared.network.parameters():
            weight.add_(0.1)
    separate.load_state_dict(shared.state_dict())
    assert separate.passage_network is not None
    torch.testing.assert_close(dict(separate.passage_network.state_dict()), dict(shared.network.state_dict()))
    separate.training_step(batch_of(), 0)["loss"].backward()
    first, second = (network.tokens.table.weight.grad for network in (separate.network, separate.passage_network))
    assert first is not None and second is not None and not torch.equal(first, second)
    assert math.isclose(
        RetrievalConfig(pooling="mean", towers="separate").cost(MODEL, DATA).parameters,
        2 * RetrievalConfig(pooling="mean").cost(MODEL, DATA).parameters,
    )


def test_floors_are_chance_and_bm25(tmp_path: Path) -> None:
    texts = [[1, 2, 2, 3], [1, 1, 4], [5]]
    scores = bm25([np.array([2, 1, 2]), np.array([5])], [np.array(text) for text in texts], 6).toarray()
    for row, question in enumerate(([2, 1, 2], [5])):
        for column, text in enumerate(texts):
            expected = 0.0
            for symbol in question:
                holding, count = sum(symbol in other for other in texts), text.count(symbol)
                penalty = 1.2 * (0.25 + 0.75 * len(text) / (8 / 3))
                expected += math.log(1 + (3 - holding + 0.5) / (holding + 0.5)) * count * 2.2 / (count + penalty)
            assert scores[row, column] == pytest.approx(expected)
    data = squad_data(squad(tmp_path / "squad"))
    count = len(data.passages("validation"))
    assert floors(data, "hit_1", 1)["chance"] == 1 / count and floors(data, "nats", 1) == {"chance": math.log(count)}
    assert floors(data, "mrr", 1)["chance"] == pytest.approx(sum(1 / (rank + 1) for rank in range(count)) / count)
    assert floors(data, "hit_1", 1)["BM25"] > 1 / count


def test_passages_that_training_reads_too_are_counted(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = [{"source": f"{split} {number}?", "target": f"passage {number // 2}"} for number in range(6)]
        rows[-1]["target"] = f"of {split}"
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = retrieval_data(source={"kind": "records", "path": str(tmp_path)}, tokenizer="bytes", longest_passage=20)
    assert "3 of 4 passages of validation stand in train too" in data.reading_messages()


def test_records_split_by_their_target_share_no_passage(tmp_path: Path) -> None:
    rows = [{"source": f"{number}?", "target": f"passage {number // 4}"} for number in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"kind": "records", "path": str(tmp_path), "splits": "hash", "validation": 0.4, "test": 0.2}
    data = retrieval_data(source=source | {"split_by": "target"}, tokenizer="bytes", longest_passage=20)
    assert len(data.passages("validation")) > 2 and not {*data.passages("validation")} & {*data.passages("train")}
    data = retrieval_data(source=source, tokenizer="bytes", longest_passage=20)
    assert {*data.passages("validation")} & {*data.passages("train")}
