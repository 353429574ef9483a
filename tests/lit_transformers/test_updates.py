"""An update of several batches has the gradient of their rows in one batch: each loss is divided by its own targets."""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
from forked import Forked
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from sampler.promises import Joined, joined, weights_of
from sampler.trained import differences, stopped, trained
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lit_transformers.batch import (
    IGNORED,
    DataDescription,
    LabelledDescription,
    LanguageDescription,
    NumberLabels,
    PairDescription,
    RowDescription,
    StringDescription,
    Vocabulary,
)
from lit_transformers.config import ConfigError
from lit_transformers.models import ModelConfig
from lit_transformers.records.files import CURVES
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import Task, TaskConfig
from lit_transformers.training.callbacks import mean_of
from lit_transformers.training.config import TrainingConfig

LENGTH, SYMBOLS = 12, 11
VOCABULARY = Vocabulary(size=SYMBOLS, boundary=0, unit="piece", byte_lengths=None)
ROWS = RowDescription.for_probe(VOCABULARY, LENGTH)
PHRASES = replace(ROWS, phrases=True)
UNRELATED = replace(ROWS, relations=0)
TEXT = LanguageDescription.for_probe(VOCABULARY, LENGTH)
STRINGS = StringDescription.for_probe(VOCABULARY, LENGTH)
CLASSES = LabelledDescription.for_probe(VOCABULARY, LENGTH)
NUMBERS = LabelledDescription(vocabulary=VOCABULARY, length=LENGTH, labels=NumberLabels())
PAIRS = PairDescription.for_probe(VOCABULARY, LENGTH)

ENCODER = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 3, "positions": "learned", "segments": 2}
XLNET = ENCODER | {"query_stream": "learned"}
LANGUAGE = {"kind": "language_model", "dim": 8, "heads": 2, "depth": 3, "positions": "sinusoidal"}
BOTH_SIDES = {"kind": "encoder_decoder", "dim": 8, "heads": 2, "depth": 2, "positions": "sinusoidal"}
HALTING = {"stack": {"kind": "universal", "halting": {"ponder": 0.5}}}
ADAPTIVE = {"tokens": {"kind": "adaptive", "cutoffs": [4, 8], "shrink": 2}}
GENERATOR = {"overrides": {"dim": 4, "heads": 1}, "tie": "none"}


class Case(NamedTuple):
    """losses: the names of all that are trained besides the first head's."""

    model: dict[str, Any]
    task: dict[str, Any]
    data: DataDescription
    losses: tuple[str, ...] = ()


def causal(**fields: Any) -> dict[str, Any]:
    return {"kind": "causal_lm", "intermediate": True, "future": [0.5, 0.25]} | fields


FURTHER = ("layers", "future_1", "future_2")
CASES: dict[str, Case] = {
    "masked_lm": Case(
        ENCODER,
        {"kind": "masked_lm", "relation_weight": 0.7, "span_boundary": {"width": 4, "weight": 0.5}, "phrase_weight": 2},
        PHRASES,
        ("relation", "boundary", "phrase"),
    ),
    "masked_lm, detached": Case(ENCODER, {"kind": "masked_lm", "detach_relation": True}, ROWS, ("relation",)),
    "masked_lm, adaptive": Case(ENCODER | ADAPTIVE, {"kind": "masked_lm"}, ROWS, ("relation",)),
    "masked_lm, halting": Case(ENCODER | HALTING, {"kind": "masked_lm"}, ROWS, ("relation", "ponder")),
    "permutation_lm": Case(XLNET, {"kind": "permutation_lm"}, ROWS, ("relation",)),
    "permutation_lm, none": Case(XLNET, {"kind": "permutation_lm", "order": "none"}, UNRELATED),
    "permutation_lm, denoising": Case(XLNET, {"kind": "permutation_lm", "objective": "denoising"}, ROWS, ("relation",)),
    "replaced_tokens": Case(ENCODER, {"kind": "replaced_tokens", "generator": GENERATOR}, UNRELATED, ("generator",)),
    "replaced_tokens, at masks": Case(
        ENCODER, {"kind": "replaced_tokens", "predicts": "replaced_at_masks"}, UNRELATED, ("generator",)
    ),
    "replaced_tokens, symbols": Case(
        ENCODER | HALTING,
        {"kind": "replaced_tokens", "predicts": "symbols", "generator": GENERATOR},
        UNRELATED,
        ("generator", "ponder", "generator_ponder"),
    ),
    "replaced_tokens, uniform": Case(
        ENCODER, {"kind": "replaced_tokens", "predicts": "symbols_at_masks", "generator": {"draws": "uniform"}}, ROWS
    ),
    "bilm": Case(ENCODER | {"causal": True}, {"kind": "bilm", "directions": "both"}, UNRELATED, ("backward",)),
    "causal_lm, full": Case(LANGUAGE, causal(), TEXT, FURTHER),
    "causal_lm, half": Case(LANGUAGE, causal(loss="half"), TEXT, FURTHER),
    "causal_lm, last": Case(LANGUAGE, causal(loss="last", future=[]), TEXT, ("layers",)),
    "causal_lm, further head": Case(
        LANGUAGE, {"kind": "causal_lm", "heads": [{"kind": "future_symbol", "steps": 3}]}, TEXT, ("future_symbol",)
    ),
    "causal_lm, halting": Case(LANGUAGE | HALTING, {"kind": "causal_lm"}, TEXT, ("ponder",)),
    "seq2seq": Case(BOTH_SIDES, {"kind": "seq2seq", "metrics": ["accuracy"]}, PAIRS),
    "seq2seq, halting": Case(BOTH_SIDES | HALTING, {"kind": "seq2seq", "metrics": ["accuracy"]}, PAIRS, ("ponder",)),
    "strings": Case(LANGUAGE, {"kind": "strings"}, STRINGS),
    "classification": Case(ENCODER | HALTING, {"kind": "classification", "pooling": "mean"}, CLASSES, ("ponder",)),
    "regression": Case(ENCODER, {"kind": "regression"}, NUMBERS),
}
CUTS = {"two batches": (1, 5), "four batches": (1, 2, 1, 2)}
WITHOUT_TARGETS = 3
"""The row that has no target of any head where heads read columns of it. Among four batches it is a separate one."""


def built(case: Case, **training: Any) -> Task:
    """The task in float64, with weights large enough to matter, and gradients that are exact."""
    torch.manual_seed(0)
    config = TrainingConfig.from_dict({"steps": 20, "device": "cpu", "schedule": "constant", "clip": None, **training})
    task = TaskConfig.from_dict(case.task).build(ModelConfig.from_dict(case.model), case.data, config).double()
    with torch.no_grad():
        for parameter in task.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
    task.reports_training = False
    return task


def rows_of(case: Case, count: int = 6) -> Any:
    """A batch of rows of unequal lengths with unequal numbers of targets, of which one has none."""
    config = TaskConfig.from_dict(case.task)
    batch = joined([config.random_batch(case.data) for _ in range(count // 2)])
    for name in ("example", "document"):
        if name in batch._fields:
            numbers = torch.arange(count)
            spread = numbers if getattr(batch, name).dim() == 1 else numbers[:, None].expand_as(batch.inputs)
            batch = batch._replace(**{name: spread.clone()})
    lengths = torch.tensor([LENGTH - 2 * (row % 4) for row in range(count)])
    real = torch.arange(batch.inputs.size(1)) < lengths[:, None]
    batch = batch._replace(padding_mask=real, inputs=batch.inputs * real, padded=True)
    if "fresh" in batch._fields:
        batch = batch._replace(fresh=torch.ones_like(batch.fresh))
    if "targets" not in batch._fields:
        return batch
    position = torch.arange(batch.targets.size(1))
    few = (position % 2 == 0) | (torch.arange(count) % 3 != 1)[:, None]
    kept = real & few & (torch.arange(count) != WITHOUT_TARGETS)[:, None]
    batch = batch._replace(targets=batch.targets.masked_fill(~kept, IGNORED))
    if case.task["kind"] == "bilm":  # which predicts all symbols but special ones
        batch.inputs[WITHOUT_TARGETS] = VOCABULARY.boundary
    for name in ("relation", "phrases"):
        if isinstance(column := getattr(batch, name, None), Tensor):
            column = column.clone()
            column[[WITHOUT_TARGETS, 0]] = IGNORED
            batch = batch._replace(**{name: column})
    return batch


def cut(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """The rows of a batch in several, one after another."""
    edges = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    spans = [slice(start, stop) for start, stop in pairwise(edges)]
    return [
        type(batch)(*(part[span] if isinstance(part, Tensor | tuple) else part for part in batch)) for span in spans
    ]


def gradients(task: Task, batches: Sequence[Any], begin: bool = True) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The gradients of an update, by name, and the outputs of each of its batches."""
    task.zero_grad()
    if begin:
        task.begin_update(batches)
    outputs = []
    for batch in batches:
        if hasattr(task, "state"):
            task.state = None
        outputs.append(task.training_step(batch, 0))
        outputs[-1]["loss"].backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in task.named_parameters()
        if p.requires_grad
    }, outputs


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            second[name], gradient, rtol=1e-9, atol=1e-9 * max(scale, 1e-3), msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("sizes", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("name", CASES)
def test_batches_of_an_update_have_the_gradient_of_their_rows_in_one(name: str, sizes: tuple[int, ...]) -> None:
    """For every loss of every task; and their outputs add up to the output of one batch."""
    case = CASES[name]
    task, batch = built(case), rows_of(case)
    expected, (whole,) = gradients(task, [batch], begin=False)
    assert {*whole["heads"], *whole["aux"]} == {*case.losses}, "each loss has its name"
    again, _ = gradients(task, [batch])
    assert all(torch.equal(gradient, again[name]) for name, gradient in expected.items()), "one batch counts itself"
    found, outputs = gradients(task, cut(batch, sizes))
    same(expected, found)
    torch.testing.assert_close(sum(output["total"] for output in outputs), whole["total"])
    assert mean_of([(output["nats"], output["targets"]) for output in outputs]) == pytest.approx(float(whole["nats"]))
    for head, (nats, targets) in whole["heads"].items():
        of_batches = [output["heads"][head] for output in outputs]
        assert mean_of(of_batches) == pytest.approx(float(nats)) and sum(count for _, count in of_batches) == targets
    for loss, value in whole["aux"].items():
        torch.testing.assert_close(sum(output["weighted_aux"][loss] for output in outputs), value)


@pytest.mark.parametrize("name", CASES)
def test_every_loss_is_cut_unequally(name: str) -> None:
    """The test above relies on batches with unequal shares of each loss's targets, and on one with none of them."""
    case = CASES[name]
    task, batch = built(case), rows_of(case)
    batches, heads = cut(batch, CUTS["four batches"]), task.trained_heads
    counts = {head: [int(heads[head].targets(part)) for part in batches] for head in heads}
    assert all(sum(each) for each in counts.values())
    if "targets" in batch._fields and "discriminator" not in heads:
        assert all(0 in each for each in counts.values()), counts
        assert all(len({*each}) > 2 for name, each in counts.items() if name not in ("relation", "phrase"))
    trained = [parameter for parameter in task.parameters() if parameter.requires_grad]
    for loss, head in heads.items():
        total = head.loss(task.training_reading(batch), batch).total
        found = torch.autograd.grad(total, trained, allow_unused=True)
        assert any(gradient is not None and gradient.any() for gradient in found), loss


class Listed(Dataset[Any]):
    """A data set of known length, whose items are batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


class Streamed(IterableDataset[Any]):
    """The same of unknown length."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def loader(batches: Sequence[Any], sized: bool) -> DataLoader[Any]:
    return DataLoader(Listed(batches) if sized else Streamed(batches), batch_size=None)


def trainer_of(folder: Path, **options: Any) -> L.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return L.Trainer(default_root_dir=folder, **quiet, **options)


SGD = {"optimizer": {"kind": "sgd", "learning_rate": 0.05}}
COUNT = 3
"""The batches of an update."""


def by_hand(task: Task, updates: Sequence[Sequence[Any]]) -> Task:
    """Trains a task by updates of batches, each as one batch of their rows."""
    optimizer, schedule = task.training_config.learn(task)
    for batches in updates:
        optimizer.zero_grad()
        task.training_step(joined(batches), 0)["loss"].backward()
        optimizer.step()
        schedule.step()
    return task


def groups(batches: Sequence[Any], epochs: int = 2) -> list[Sequence[Any]]:
    """The batches of each update of some epochs; the last one of an epoch may have fewer."""
    return [batches[start : start + COUNT] for start in range(0, len(batches), COUNT)] * epochs


def same_weights(first: Task, second: Task) -> None:
    for (name, weight), other in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


def batches_of(case: Case, count: int) -> list[Any]:
    return [part for _ in range(3) for part in cut(rows_of(case), CUTS["four batches"])][:count]


TRAINED = ("masked_lm", "bilm", "seq2seq", "classification")


@pytest.mark.parametrize("limit", [None, 8, 7, 6], ids=lambda limit: f"limit {limit}")
@pytest.mark.parametrize("sized", [True, False], ids=["sized", "unsized"])
@pytest.mark.parametrize("name", TRAINED)
def test_a_trainer_that_accumulates_trains_as_one_batch_does(
    name: str, sized: bool, limit: int | None, tmp_path: Path
) -> None:
    """Two epochs, of which each ends in an update of fewer batches, or in a whole one. A validation after each."""
    case = CASES[name]
    task, batches = built(case, **SGD), batches_of(case, 11)
    expected = by_hand(copy.deepcopy(task), groups(batches[:limit]))
    trainer = trainer_of(
        tmp_path,
        max_epochs=2,
        accumulate_grad_batches=COUNT,
        limit_train_batches=limit,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(task, loader(batches, sized), loader(batches[:1], sized))
    assert trainer.global_step == 2 * -(-len(batches[:limit]) // COUNT) and trainer.current_epoch == 2
    assert "val/nats" in trainer.callback_metrics or "val/forward_nats" in trainer.callback_metrics
    same_weights(expected, task)


@pytest.mark.parametrize("sized", [True, False], ids=["sized", "unsized"])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_trainer_that_resumes_between_updates_goes_on_as_if_it_had_not_stopped(
    sized: bool, stop: int, tmp_path: Path
) -> None:
    case = CASES["masked_lm"]
    batches = batches_of(case, 8)
    whole, first, second = (built(case, **SGD) for _ in range(3))
    options: dict[str, Any] = {"accumulate_grad_batches": COUNT, "enable_checkpointing": False}
    trainer_of(tmp_path, max_steps=6, **options).fit(whole, loader(batches, sized))
    trainer = trainer_of(tmp_path, max_steps=stop, **options)
    trainer.fit(first, loader(batches, sized))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = batches[COUNT * (stop % 3) :] if stop % 3 else batches

    class Rest(Streamed):
        """The rest of the epoch, and all batches in the epochs after it."""

        def __iter__(self) -> Iterator[Any]:
            left, self.batches = self.batches, batches
            return iter(left)

    resumed = trainer_of(tmp_path, max_steps=6, **options)
    resumed.fit(second, DataLoader(Rest(rest), batch_size=None), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert resumed.global_step == 6
    same_weights(whole, second)


def test_a_schedule_of_accumulation_counts_the_batches_of_each_epoch(tmp_path: Path) -> None:
    case = CASES["masked_lm"]
    task, batches = built(case, **SGD), batches_of(case, 6)
    updates = [[batch] for batch in batches] + groups(batches, epochs=1)
    expected = by_hand(copy.deepcopy(task), updates)
    schedule = GradientAccumulationScheduler({0: 1, 1: COUNT})
    trainer = trainer_of(tmp_path, max_epochs=2, callbacks=[schedule], enable_checkpointing=False)
    trainer.fit(task, loader(batches, sized=True))
    assert trainer.global_step == 8
    same_weights(expected, task)


RUN = RunConfig.from_dict(
    {
        "model": ENCODER | {"depth": 1},
        "task": {"kind": "masked_lm", "relation_weight": 0.7, "span_boundary": {"width": 4}},
        "data": {
            "kind": "rows", "packing": "segment_pair", "relation": "next_sentence", "tokenizer": "words", "length": 24,
            "source": {"kind": "topics", "documents": 21, "sentences": 6, "validation": 0.3, "test": 0.1},
            "noise": {"kind": "mask_spans", "unchanged": 0.0, "replaced": 0.0},
            "batch_size": 3, "window": 2, "evaluation": {"examples": 6},
        },
        "training": {"steps": 5, "device": "cpu", "log_every": 1, "validate_every": 5, "accumulate": COUNT, **SGD},
    }
)  # fmt: skip


def curves(folder: Path) -> dict[tuple[str, str], float]:
    return {(row["step"], row["name"]): float(row["value"]) for row in csv.DictReader((folder / CURVES).open())}


def test_a_run_that_accumulates_trains_as_one_batch_does(tmp_path: Path) -> None:
    """The weights, and on the curve each loss by its name."""
    accumulated, joined = tmp_path / "accumulated", tmp_path / "joined"
    weights = weights_of(RUN, accumulated, RUN.data.build())
    data = RUN.data.build()
    together = Joined(data.train_dataloader(), COUNT)
    data.train_dataloader = lambda: together  # type: ignore[method-assign]
    expected = weights_of(RUN.override({"training.accumulate": 1}), joined, data)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    found = curves(accumulated)
    assert found == pytest.approx(curves(joined), rel=1e-4)
    names = {name for _, name in found}
    assert {"train/nats", "train/loss", "train/relation_nats", "train/boundary_nats"} < names


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 3, 10])
def test_a_run_that_is_stopped_amid_an_update_goes_on_as_if_it_had_not_stopped(batch: int, tmp_path: Path) -> None:
    whole = trained(RUN, tmp_path / "whole")
    assert stopped(RUN, tmp_path / "stopped", batch)
    assert not differences(trained(RUN, tmp_path / "stopped"), whole)


@pytest.mark.parametrize("name", ["training", "forward", "keys", "class", "_own", "two words", "a.b", "layers"])
def test_a_head_has_a_name_that_its_columns_and_weights_can_have(name: str) -> None:
    case = Case(LANGUAGE, causal(heads=[{"kind": "future_symbol", "name": name}]), TEXT)
    with pytest.raises(ConfigError, match=r"^task\.heads\.0\.name: "):
        built(case)


CONTRAST = Case(ENCODER, {"kind": "contrastive"}, UNRELATED)


def test_a_loss_that_compares_the_rows_of_a_batch_refuses_to_accumulate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^training\.accumulate: the loss ngrams compares .* data\.batch_size"):
        built(CONTRAST, accumulate=2)
    task, batches = built(CONTRAST), cut(rows_of(CONTRAST), (2, 2, 2))
    trainer = trainer_of(tmp_path, max_steps=1, accumulate_grad_batches=2, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"^Trainer\.accumulate_grad_batches: the loss ngrams compares"):
        trainer.fit(task, loader(batches, sized=True))
    schedule = GradientAccumulationScheduler({0: 1, 1: 2})
    trainer = trainer_of(tmp_path, max_epochs=2, callbacks=[schedule], enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"^Trainer\.accumulate_grad_batches: the loss ngrams compares"):
        trainer.fit(task, loader(batches, sized=True))
    assert trainer.global_step == 3, "one batch at a time is trained"


def gradients_of_ranks(folder: Path) -> None:
    """Writes the gradients of all cases, each rank with separate rows; for ``Forked``."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    for name, case in CASES.items():
        task, batch = built(case), rows_of(case)
        own = cut(batch, (2, 1, 1, 2))[2 * rank : 2 * rank + 2]  # of which the second rank has the one without targets
        for begin in (True, False):
            parts = own if begin else [joined(own)]
            found[f"{name} {begin}"], _ = gradients(task, parts, begin)
    for values in found.values():
        for gradient in values.values():
            torch.distributed.all_reduce(gradient)
            gradient /= 2  # as DDP does
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_with_unequal_targets_have_the_gradient_of_one(tmp_path: Path) -> None:
    """Each with one batch, or with two of an update."""
    Forked(tmp_path / "output.txt", gradients_of_ranks, tmp_path, ranks=2).finish()
    found = torch.load(tmp_path / "gradients.pt")
    for name, case in CASES.items():
        expected, _ = gradients(built(case), [rows_of(case)], begin=False)
        for begin in (True, False):
            same(expected, found[f"{name} {begin}"])
