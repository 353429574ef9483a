"""Scores of texts are those of the packages that define them, on the whole corpus, each example once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import sacrebleu
import torch
from forked import Forked
from rouge_score.rouge_scorer import RougeScorer

from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.tasks.text_metric import TextMetric, signatures

HYPOTHESES = [
    "The cat sat on the mat .",
    "A dog runs, fast.",
    "",
    "Two birds \u2028 fly\nover us",
    "nothing alike here at all",
]
REFERENCES = [
    ("The cat sat on a mat .", "On the mat sat the cat ."),
    ("A dog running fast.",),
    ("A line that was not translated.",),
    ("Two birds fly over us.", "Birds are flying over us", "Two birds above"),
    ("quite another sentence in these words",),
]
ALL = ("bleu", "chrf", "rouge", "accuracy")


def batch_of(examples: Sequence[int], requested_lengths: Sequence[int] | None = None) -> PairBatch:
    """Rows of two symbols each, of which only the texts matter."""
    rows, count = torch.tensor(examples, dtype=torch.long), len(examples)
    targets = torch.tensor([[1, 2, IGNORED]]).repeat(count, 1)
    padding_mask = targets != IGNORED
    lengths = torch.tensor(requested_lengths or [0] * count, dtype=torch.long)
    references = tuple(REFERENCES[example] for example in examples)
    return PairBatch(
        targets * padding_mask,
        padding_mask,
        targets * padding_mask,
        targets,
        padding_mask,
        rows,
        lengths,
        references,
        "",
    )


def update_metric(metric: TextMetric, examples: Sequence[int], requested_lengths: Sequence[int] | None = None) -> None:
    """Updates with the hypotheses of some examples, each said with probability 1/4 a symbol."""
    uniform = torch.full((len(examples), 3, 4), math.log(1 / 4))
    metric.update(uniform, batch_of(examples, requested_lengths), [HYPOTHESES[example] for example in examples])


def padded() -> list[list[str | None]]:
    return [[references[n] if n < len(references) else None for references in REFERENCES] for n in range(3)]


def expected_score(name: str) -> float:
    """The score as its package gives it."""
    if name == "bleu":
        return sacrebleu.corpus_bleu(HYPOTHESES, padded(), force=True).score  # type: ignore[arg-type]
    if name == "chrf":
        return sacrebleu.corpus_chrf(HYPOTHESES, padded()).score  # type: ignore[arg-type]
    scorer = RougeScorer([name], use_stemmer=True)
    best_scores = [
        max(scorer.score(reference, hypothesis)[name].fmeasure for reference in references)
        for hypothesis, references in zip(HYPOTHESES, REFERENCES, strict=True)
    ]
    return 100 * sum(best_scores) / len(best_scores)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "rouge2", "rougeL"])
def test_a_score_is_that_of_its_package_with_several_references(name: str) -> None:
    metric = TextMetric(ALL)
    update_metric(metric, range(5))
    assert 0 < metric.compute()[name] == pytest.approx(expected_score(name), rel=1e-12)


def test_scores_are_of_the_corpus_however_it_is_batched_and_ordered() -> None:
    whole_metric, batched_metric = TextMetric(ALL), TextMetric(ALL)
    update_metric(whole_metric, range(5))
    for examples in ([4, 1], [3], [0, 2]):
        update_metric(batched_metric, examples)
    assert batched_metric.compute() == whole_metric.compute()
    assert batched_metric.outputs() == whole_metric.outputs()


def test_an_example_that_comes_twice_counts_once_as_a_text() -> None:
    metric = TextMetric(("bleu",))
    update_metric(metric, range(5))
    update_metric(metric, [1, 3])
    assert metric.compute()["bleu"] == pytest.approx(expected_score("bleu"))
    assert [output["id"] for output in metric.outputs()] == [0, 1, 2, 3, 4]


def test_outputs_hold_the_texts_as_they_are() -> None:
    metric = TextMetric(ALL)
    update_metric(metric, [3, 2])
    assert metric.outputs() == [
        {"id": index, "hypothesis": HYPOTHESES[index], "references": [*REFERENCES[index]]} for index in (2, 3)
    ]
    metric.reset()
    assert metric.outputs() == [] and metric.compute() == {}


def test_lengths_that_were_asked_for_are_told_apart() -> None:
    metric = TextMetric(("bleu", "accuracy"))
    update_metric(metric, [0, 1, 4], [7, 7, 0])
    scores = metric.compute()
    subset_metric = TextMetric(("bleu", "accuracy"))
    update_metric(subset_metric, [0, 1])
    assert {name: scores[f"{name}@7"] for name in subset_metric.compute()} == subset_metric.compute()
    assert not [name for name in scores if name.endswith("@0")]


def test_only_what_is_asked_for_is_told() -> None:
    metric = TextMetric(("rouge",))
    update_metric(metric, range(5))
    assert metric.compute().keys() == {"nats", "rouge1", "rouge2", "rougeL"}
    assert metric.compute()["nats"] == pytest.approx(math.log(4))


def test_the_signature_is_the_package_s_own() -> None:
    signature_by_name = signatures(ALL)
    metric = sacrebleu.metrics.bleu.BLEU()
    metric.corpus_score(HYPOTHESES[:1], [["The cat sat"]])
    assert f"nrefs:1|{signature_by_name['bleu']}" == str(metric.get_signature())
    assert signature_by_name["rouge"] == "F-measure, stems, best reference|rouge-score:0.1.2"
    assert signatures(("accuracy",)) == {}


def score(folder: Path) -> None:
    """One rank of two: what both find together, and where the other has nothing."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    metric, one_rank_metric = TextMetric(ALL), TextMetric(ALL)
    update_metric(metric, [1, 3] if rank else [0, 2, 4])
    update_metric(one_rank_metric, [] if rank else range(5))
    results = [metric.compute(), metric.outputs(), one_rank_metric.compute(), one_rank_metric.outputs()]
    (folder / f"{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_score_what_one_process_does_also_where_one_has_nothing(tmp_path: Path) -> None:
    Forked(tmp_path / "output.txt", score, tmp_path, ranks=2).finish()
    metric = TextMetric(ALL)
    update_metric(metric, range(5))
    scores, outputs, one_rank_scores, one_rank_outputs = json.loads((tmp_path / "0.json").read_text())
    assert scores == one_rank_scores == metric.compute()
    assert outputs == one_rank_outputs == metric.outputs()
