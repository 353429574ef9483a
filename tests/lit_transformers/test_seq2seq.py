"""Runs on pairs: a smoothed loss of real symbols alone, metrics without smoothing, and stored outputs."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import Data, Shard
from lit_transformers.batch import IGNORED, PairBatch
from lit_transformers.config import ConfigError
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.inference.write import write
from lit_transformers.models.tokens import AdaptiveTokenEmbeddingConfig, FullTokenEmbeddingConfig, TokenEmbeddingConfig
from lit_transformers.records.files import CHECKPOINT, OUTPUTS
from lit_transformers.runs import RunConfig, describe, evaluate, fit, load
from lit_transformers.tasks.seq2seq import Seq2Seq, real_rows
from lit_transformers.training.stopping import Interrupted

CONFIG = RunConfig.from_dict(
    {
        "model": {"kind": "encoder_decoder", "dim": 32, "heads": 2, "depth": 1, "positions": "sinusoidal"},
        "task": {"kind": "seq2seq", "metrics": ["bleu", "chrf", "rouge", "accuracy"], "decoding": "greedy"},
        "data": {
            "kind": "pairs",
            "source": {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 5},
            "tokens_per_batch": 192,
            "window": 64,
            "evaluation": {"lengths": [3, 5], "examples": 30},
        },
        "training": {"steps": 180, "device": "cpu", "optimizer": {"kind": "adam", "learning_rate": 0.005}},
    }
)  # fmt: skip
SHORT = CONFIG.override({"training.steps": 12, "model.dropout": 0.1, "training.log_every": 3})


def task_of(config: RunConfig) -> tuple[Seq2Seq, Data]:
    torch.manual_seed(0)
    data = config.data.build()
    task = config.build_task(data)
    assert isinstance(task, Seq2Seq)
    return task, data


def first_batch(data: Data) -> PairBatch:
    return next(iter(data.train_dataloader()))


def artifacts(directory: Path) -> tuple[Any, ...]:
    """All that a report reads of a run, without its times."""
    record = json.loads((directory / "record.json").read_text())
    del record["measured"]
    return record, *((directory / name).read_bytes() for name in ("metrics.csv", "documents.csv", OUTPUTS))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that learned to copy."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("copy")
    record = fit(CONFIG.override({"model.positions": "learned"}), directory)
    assert record["outcome"] == "finished", record["reason"]
    return directory


def test_the_padding_of_a_target_that_begins_late_needs_no_position_beyond_the_table() -> None:
    """MASS writes symbols at their original positions, in a batch that is as wide as its longest span."""
    task, _ = task_of(SHORT.override({"model.positions": "learned", "model.dropout": 0.0}))
    network = task.eval().network
    last = network.decoder.entry.positions.max_length - 1
    source, symbols = torch.randint(4, (2, 5)), torch.randint(4, (2, 4))
    padding_mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    start = torch.tensor([last - 1, 0])
    padded = network(source, symbols, None, padding_mask, start).hidden
    alone = network(source[:1], symbols[:1, :2], start=start[:1]).hidden
    torch.testing.assert_close(padded[:1, :2], alone)


@pytest.mark.slow
def test_a_model_learns_to_copy_and_every_length_is_measured_apart(learned: Path) -> None:
    record = json.loads((learned / "record.json").read_text())
    metrics = record["metrics"]
    assert all(gate["passed"] for gate in record["gates"])
    assert metrics["val/sequence_accuracy"] > 0.9 and metrics["val/bleu@5"] > 90 and metrics["val/rougeL"] > 90
    names = {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "accuracy", "sequence_accuracy", "nats"}
    assert metrics.keys() == {f"val/{name}{at}" for name in names for at in ("", "@3", "@5")}
    assert record["protocol"]["decoding"]["kind"] == "greedy"
    assert "tok:13a" in record["protocol"]["scores"]["bleu"] and "case:mixed" in record["protocol"]["scores"]["bleu"]


@pytest.mark.slow
def test_the_outputs_of_the_last_evaluation_are_kept_for_every_example(learned: Path) -> None:
    outputs = [json.loads(line) for line in (learned / OUTPUTS).open(encoding="utf-8")]
    assert [output["id"] for output in outputs] == list(range(30))
    exact = sum(output["hypothesis"] == output["references"][0] for output in outputs) / 30
    assert exact == json.loads((learned / "record.json").read_text())["metrics"]["val/sequence_accuracy"], (
        "greedy decoding says all symbols right where each is the likeliest after the right ones"
    )


@pytest.mark.slow
def test_a_checkpoint_is_measured_again_and_decoded_otherwise(learned: Path) -> None:
    metrics = json.loads((learned / "record.json").read_text())["metrics"]
    assert evaluate(learned / CHECKPOINT) == pytest.approx(metrics, rel=1e-6)
    beam = evaluate(learned / CHECKPOINT, {"task.decoding": {"kind": "beam", "beams": 3}, "task.metrics": ["bleu"]})
    assert beam.keys() == {f"val/{name}{at}" for name in ("bleu", "nats") for at in ("", "@3", "@5")}
    one_symbol = evaluate(learned / CHECKPOINT, {"task.decoding": {"kind": "greedy", "ratio": 0.0, "extra": 1}})
    assert one_symbol["val/bleu"] < 1 and one_symbol["val/accuracy"] == pytest.approx(metrics["val/accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("counted", [None, (4, 9)])
def test_costs_at_growing_lengths_begin_with_the_cost_of_the_run(
    counted: tuple[int, int] | None, tmp_path: Path
) -> None:
    record = fit(SHORT.override({"training.steps": 1, "task.counted": counted}), tmp_path)
    flops_by_length = record["observed"]["flops_by_length"]
    assert flops_by_length[0][1] == record["cost"]["flops_per_token"]
    assert [length // flops_by_length[0][0] for length, _ in flops_by_length] == [1, 2, 4, 8]
    assert all(longer[1] > shorter[1] for shorter, longer in itertools.pairwise(flops_by_length)), (
        "of source and target both"
    )


@pytest.mark.slow
def test_a_text_is_not_written_on_and_the_error_says_what_writes(tmp_path: Path) -> None:
    fit(SHORT.override({"training.steps": 1}), tmp_path)
    with pytest.raises(ConfigError, match="task: a seq2seq writes from a source; give it lines with: translate"):
        list(write(tmp_path / CHECKPOINT, "", 3, sampling=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [FullTokenEmbeddingConfig(), AdaptiveTokenEmbeddingConfig(cutoffs=(5,), shrink=2)])
def test_smoothing_spreads_its_share_over_the_vocabulary_and_gives_padding_nothing(
    tokens: TokenEmbeddingConfig,
) -> None:
    torch.manual_seed(0)
    embedding = tokens.build(11, 8)
    hidden = torch.randn(2, 3, 8, requires_grad=True)
    targets = torch.tensor([[1, 9, IGNORED], [0, IGNORED, IGNORED]])
    loss, nats = embedding.smoothed(hidden, targets, 0.1)
    log_probabilities = embedding.log_probabilities(hidden)
    for b, t in ((0, 0), (0, 1), (1, 0)):
        target_distribution = torch.full((11,), 0.1 / 11)
        target_distribution[targets[b, t]] += 0.9
        assert loss[b, t].item() == pytest.approx(
            -(target_distribution * log_probabilities[b, t]).sum().item(), rel=1e-5
        )
        assert nats[b, t].item() == pytest.approx(-log_probabilities[b, t, targets[b, t]].item(), rel=1e-5)
    assert loss[targets == IGNORED].tolist() == nats[targets == IGNORED].tolist() == [0.0] * 3
    loss.sum().backward()
    assert hidden.grad is not None and not hidden.grad[targets == IGNORED].any()
    unsmoothed = embedding.smoothed(hidden, targets, 0.0)
    torch.testing.assert_close(unsmoothed[0], unsmoothed[1])
    torch.testing.assert_close(unsmoothed[1], nats)


def test_smoothing_is_as_torch_has_it() -> None:
    built = FullTokenEmbeddingConfig().build(11, 8)
    hidden, targets = torch.randn(4, 8), torch.tensor([1, 2, IGNORED, 3])
    ours = built.smoothed(hidden, targets, 0.2)[0]
    theirs = torch.nn.functional.cross_entropy(built.logits(hidden), targets, reduction="none", label_smoothing=0.2)
    torch.testing.assert_close(ours, theirs)


def test_the_loss_is_smoothed_and_the_reported_nats_are_not() -> None:
    task, data = task_of(CONFIG)
    batch = first_batch(data)
    unsmoothed_step = task_of(CONFIG.override({"task.label_smoothing": 0.0}))[0].training_step(batch, 0)
    smoothed_step = task.training_step(batch, 0)
    assert smoothed_step["nats"].item() == pytest.approx(unsmoothed_step["loss"].item(), rel=1e-5)
    assert unsmoothed_step["nats"] == unsmoothed_step["loss"] and smoothed_step["loss"] != smoothed_step["nats"]
    with torch.no_grad():
        task.eval().measure(task.evaluation_reading(batch), batch)
    assert task.metric.compute()["nats"] == pytest.approx(smoothed_step["nats"].item(), rel=1e-5)


def test_padding_adds_nothing_to_the_loss() -> None:
    task, data = task_of(CONFIG)
    batch, pad = first_batch(data), torch.nn.functional.pad
    padded_batch = batch._replace(
        source=pad(batch.source, (0, 3), value=2),
        source_padding_mask=pad(batch.source_padding_mask, (0, 3)),
        inputs=pad(batch.inputs, (0, 2), value=1),
        targets=pad(batch.targets, (0, 2), value=IGNORED),
        padding_mask=pad(batch.padding_mask, (0, 2)),
    )
    step, padded_step = (task.training_step(example, 0) for example in (batch, padded_batch))
    torch.testing.assert_close(step["loss"], padded_step["loss"])
    assert padded_step["targets"] == step["targets"] == (batch.targets != IGNORED).sum()


def test_numbers_do_not_depend_on_how_pairs_are_batched() -> None:
    metrics = []
    for tokens in (400, 13):
        task, data = task_of(CONFIG.override({"data.evaluation.tokens_per_batch": tokens}))
        with torch.no_grad():
            for batch in data.val_dataloader():
                task.eval().validation_step(batch, 0)
        metrics.append(task.metric.compute())
    assert metrics[0].keys() == metrics[1].keys()
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


def test_a_row_that_holds_nothing_counts_for_nothing() -> None:
    task, data = task_of(CONFIG)
    batch = next(iter(data.val_dataloader()))
    empty = next(data.evaluation("validation")._replace(rank=Shard(63, 64)).batches())
    assert len(real_rows(empty).source) == 0 and len(real_rows(batch).source) == len(batch.source)
    with torch.no_grad():
        task.eval().validation_step(batch, 0)
        expected = task.metric.compute()
        task.metric.reset()
        for rows in (batch, empty):
            task.validation_step(rows, 0)
    assert task.metric.compute() == expected and len(task.metric.outputs()) == len(batch.source)


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_as_if_it_never_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SHORT.override({"training.accumulate": 2, "training.average": {"last": 3, "every": 2}})
    fit(config, tmp_path / "alone" / "whole")
    step = Seq2Seq.training_step

    def step_and_stop(task: Seq2Seq, batch: PairBatch, index: int) -> dict[str, Any]:
        if task.global_step == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(task, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2Seq, "training_step", step_and_stop)
        with pytest.raises(Interrupted, match="stopped at step 10"):
            fit(config, tmp_path / "stopped")
    fit(config, tmp_path / "stopped")
    assert artifacts(tmp_path / "stopped") == artifacts(tmp_path / "alone" / "whole")


@pytest.mark.slow
def test_runs_that_are_decoded_otherwise_are_trained_once(tmp_path: Path) -> None:
    fit(SHORT, tmp_path / "first")
    record = fit(SHORT.override({"data.evaluation.lengths": [4]}), tmp_path / "second")
    assert record["measured"]["trained_by"] == "first" and "val/bleu@4" in record["metrics"]


def test_what_changes_when_it_is_measured_shares_the_weights(tmp_path: Path) -> None:
    fit(SHORT, tmp_path)
    task, _, _ = load(tmp_path / CHECKPOINT, {"task.evaluation": {"cross_mixer.scaled": False}})
    trained, evaluated = dict(task.network.named_parameters()), dict(task.evaluator().named_parameters())
    assert all(trained[name] is evaluated[name] for name in trained) and task.evaluator() is not task.network


def test_what_needs_no_decoding_decodes_nothing_and_keeps_no_outputs(tmp_path: Path) -> None:
    record = fit(SHORT.override({"task.metrics": ["accuracy"], "data.evaluation.lengths": []}), tmp_path)
    assert set(record["metrics"]) == {
        f"val/{name}{at}" for name in ("accuracy", "sequence_accuracy", "nats") for at in ("", "@5")
    }
    assert not (tmp_path / OUTPUTS).exists() and "decoding" not in record["protocol"]


@pytest.mark.slow
def test_every_field_of_the_task_makes_a_difference() -> None:
    base = CONFIG.override({"task.decoding": "beam"})
    assert changes_nothing(base, base)
    for path, value in {
        "task.label_smoothing": 0.2,
        "task.metrics": ["bleu"],
        "task.decoding": "greedy",
        "task.decoding.beams": 2,
        "task.decoding.length_penalty": 1.0,
        "task.evaluation": {"cross_mixer.scaled": False},
        "model.cross_mixer.scaled": False,
        "training.accumulate": 2,
        "training.average": {"last": 2, "every": 5},
    }.items():
        assert not changes_nothing(base.override({path: value}), base), path


def test_flops_are_told_for_the_lengths_that_are_counted() -> None:
    default_cost = describe(CONFIG)
    assert describe(CONFIG.override({"task.counted": [6, 6]})) == default_cost, "the longest of training"
    longer_cost = describe(CONFIG.override({"task.counted": [60, 6]}))
    assert (
        longer_cost.flops_per_token > default_cost.flops_per_token and longer_cost.parameters == default_cost.parameters
    )


def test_a_model_of_another_kind_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: seq2seq trains an encoder_decoder, not a language_model"):
        fit(CONFIG.override({"model": "language_model"}), tmp_path)
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "strings"}, "task strings does not learn from data pairs, .* set data to generated"),
        ({"data": "generated"}, "task seq2seq does not learn from data generated, .* set data to pairs"),
        ({"task.metrics": ["blue"]}, "task.metrics.0: input should be 'bleu', 'chrf', 'rouge' or 'accuracy'"),
        ({"task.label_smoothing": 1.0}, "task.label_smoothing: .*less than 1"),
        ({"task.counted": [0, 3]}, "task.counted.0: .*greater than or equal to 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_when_the_config_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIG.override(changes)


def test_a_smoothed_loss_of_a_uniform_model_is_the_logarithm_of_the_vocabulary() -> None:
    task, data = task_of(CONFIG)
    with torch.no_grad():
        for parameter in task.network.tokens.parameters():
            parameter.zero_()
    step = task.training_step(first_batch(data), 0)
    size = data.description.vocabulary.size
    assert step["loss"].item() == pytest.approx(math.log(size)) == pytest.approx(step["nats"].item())


@pytest.mark.slow
def test_an_encoder_of_windows_reads_documents_of_16k_symbols(tmp_path: Path) -> None:
    """Longer ones are cut and counted; full attention would need 2 GiB a document and head for its weights alone."""
    longest, corpus = 16_384, tmp_path / "corpus"
    corpus.mkdir()
    lengths = [longest + 100, longest - 100, 300, 20_000]
    for split, repeats in (("train", 3), ("validation", 1), ("test", 1)):
        documents = [{"source": " ".join(f"w{i % 7}" for i in range(n)), "target": f"of w{n % 7}"} for n in lengths]
        lines = [json.dumps(document) + "\n" for document in documents * repeats]
        (corpus / f"{split}.jsonl").write_text("".join(lines))
    config = RunConfig.from_dict(
        {
            "model": {
                "kind": "encoder_decoder",
                "dim": 8,
                "heads": 2,
                "depth": 1,
                "mixer": {"kind": "window", "window": 32},
            },
            "task": {"kind": "seq2seq", "metrics": ["rouge"], "decoding": "greedy"},
            "data": {
                "kind": "pairs",
                "source": {"kind": "jsonl", "path": str(corpus)},
                "tokenizer": "words",
                "tokens_per_batch": 2 * longest,
                "longest_source": longest,
            },
            "training": {"steps": 1, "device": "cpu"},
        }
    )
    record = fit(config, tmp_path / "run")
    assert record["outcome"] == "finished", record["reason"]
    assert config.data.build().checkpoint_metadata()["counts"]["sources cut"] == 6
    outputs = [json.loads(line) for line in (tmp_path / "run" / OUTPUTS).open(encoding="utf-8")]
    assert [output["references"] for output in outputs] == [[f"of w{n % 7}"] for n in lengths]
    batches = itertools.islice(config.data.build().train_dataloader(), 12)
    assert max(batch.source.size(1) for batch in batches) == longest


@pytest.mark.parametrize(
    ("source", "expected"),
    [("qmsum", ("rouge",)), ("scisummnet", ("rouge",)), ("multi30k", ("bleu", "chrf")), ("jsonl", ("bleu", "chrf"))],
)
def test_metrics_that_are_not_named_are_those_of_the_data(source: str, expected: tuple[str, ...]) -> None:
    source_config = {"kind": "jsonl", "path": "mine"} if source == "jsonl" else source
    plain = {"model": {"kind": "encoder_decoder"}, "data": {"kind": "pairs", "source": source_config}}
    config = RunConfig.from_dict(plain | {"task": "seq2seq"})
    assert config.to_dict()["task"]["metrics"] == [*expected] and RunConfig.from_dict(config.to_dict()) == config
    named = RunConfig.from_dict(plain | {"task": {"kind": "seq2seq", "metrics": ["bleu"]}})
    assert named.to_dict()["task"]["metrics"] == ["bleu"]


def test_a_run_says_where_its_texts_are_like_documents_with_summaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "validation", "test"):
        document = json.dumps({"source": "word " * 120, "target": "some of these words"})
        (tmp_path / f"{split}.jsonl").write_text(f"{document}\n" * 4)
    files = {"kind": "jsonl", "path": str(tmp_path)}
    changes = {"data.source": files, "data.tokenizer": "words", "data.evaluation.lengths": [], "training.steps": 1}
    config = CONFIG.override(changes | {"data.tokens_per_batch": 600, "task.metrics": ["bleu", "accuracy"]})
    assert fit(config, tmp_path / "run")["outcome"] == "finished"
    (advice,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("task.metrics: ")]
    assert "sources are 30 times as long as targets" in advice and "set task.metrics=[rouge]" in advice
    for metrics, *lengths in (
        (["bleu", "rouge"], 120, 4),
        (["accuracy"], 120, 4),
        (["bleu"], 120, 60),
        (["bleu"], 9, 1),
    ):
        assert config.override({"task.metrics": metrics}).task.advice(*lengths) is None
