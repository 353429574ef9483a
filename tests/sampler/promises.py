"""Promises about every run, for any combination of settings: each is a function that raises where it is broken."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from forked import Forked
from random_configs import random_value
from sampler.corpora import corpus
from sampler.draws import without_chance
from sampler.trained import Batches, Left, differences, left, same_weights, stopped, trained, without_gates
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from datamodules import Data
from lit_transformers.batch import IGNORED
from lit_transformers.config import ConfigError, Memory, field_types
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.models import ModelConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, describe, evaluate, fit, load, run_key
from lit_transformers.runs.rehearsal import rehearse
from lit_transformers.runs.starting_weights import own_names, read_weights
from lit_transformers.runs.train import train
from lit_transformers.training.stopping import Stop

ROUNDING = 2e-4
"""How far sums of float32 in another order may lie apart after some updates, relative to their size."""


class Case:
    """A drawn run in a folder, with its own random numbers. A run that several promises need is trained once."""

    def __init__(self, config: RunConfig, folder: Path, number: int) -> None:
        self.config, self.folder, self.random = config, folder, Random(number)
        self.batches = 0

    @cached_property
    def whole(self) -> Left:
        """The run, undisturbed."""
        with Batches().counted() as batches:
            result = trained(self.config, self.folder / "whole")
        self.batches = batches.count
        return result

    @property
    def checkpoint(self) -> Path:
        assert self.whole.finished
        return self.folder / "whole" / CHECKPOINT


class Promise(NamedTuple):
    """held: raises AssertionError where it is broken. applies: of which runs it is made. costly: whether it starts
    processes."""

    held: Callable[[Case], None]
    applies: Callable[[RunConfig], bool]
    costly: bool


PROMISES: dict[str, Promise] = {}
"""All promises by their names."""


def promise(
    name: str, applies: Callable[[RunConfig], bool] = lambda config: True, costly: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Enters a function into the table."""

    def add(held: Callable[[Case], None]) -> Callable[[Case], None]:
        PROMISES[name] = Promise(held, applies, costly)
        return held

    return add


def close(first: Mapping[str, float], second: Mapping[str, float], rounding: float = ROUNDING) -> None:
    """Asserts that two sets of numbers have the same names, and values equal to rounding."""
    assert first.keys() == second.keys(), (sorted(first), sorted(second))
    far = [
        name for name in first if first[name] != pytest.approx(second[name], rel=rounding, abs=rounding, nan_ok=True)
    ]
    assert not far, "; ".join(f"{name}: {first[name]} and {second[name]}" for name in far)


def same(first: Tensor, second: Tensor, name: str) -> None:
    """Asserts that a weight equals the result of another way to compute it, up to the rounding of some updates."""
    torch.testing.assert_close(first, second, rtol=1e-3, atol=2e-4, msg=lambda text: f"{name}: {text}")


@promise("what is not refused at the start trains and is measured")
def ends_as_it_should(case: Case) -> None:
    record = case.whole.record
    diverged = record["outcome"] == "failed" and "the loss is" in str(record["reason"])
    assert case.whole.finished or diverged, record["reason"]


@promise("stopped anywhere and resumed it equals the undisturbed run to the bit")
def resumed_equals_undisturbed(case: Case) -> None:
    whole = case.whole
    folder = case.folder / "stopped"
    stops, attempts = [case.random.randint(1, max(1, case.batches)) for _ in range(2)], []
    for batch in stops:
        attempts.append(stopped(case.config, folder, batch))
    resumed = trained(case.config, folder)
    unequal = differences(resumed, whole)
    assert not unequal, f"stopped at batches {stops} of {case.batches} ({attempts}): {unequal}"


@promise("measured again it has the numbers of its record")
def measured_again(case: Case) -> None:
    if case.whole.finished:
        close(evaluate(case.checkpoint), case.whole.metrics, 1e-6)


@promise("measured in other batches it has the numbers of its record", lambda config: not reads_the_batch(config))
def measured_in_other_batches(case: Case) -> None:
    if case.whole.finished:
        name = "batch_size" if "batch_size" in field_types(type(case.config.data.get("evaluation"))) else None
        if name is None:
            return
        close(evaluate(case.checkpoint, {f"data.evaluation.{name}": case.random.choice([1, 2, 6])}), case.whole.metrics)


@promise("validations change nothing of training", lambda config: config.training.stop is None)
def validations_change_nothing(case: Case) -> None:
    every = None if case.config.training.validate_every else 1
    other = trained(case.config.override({"training.validate_every": every}), case.folder / "validated")
    if case.whole.finished:
        assert same_weights(other, case.whole)


@promise("per-document values sum to the metric")
def documents_sum_to_the_metric(case: Case) -> None:
    whole = case.whole
    if not whole.finished:
        return
    rows = whole.documents
    tokens = sum(float(row["tokens"]) for row in rows)
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        for name, value in row.items():
            if name not in ("document", "name"):
                sums[name] += float(value or 0)
    if "val/nats" in whole.metrics and case.config.task.kind not in ("contrastive",):
        assert sums["nats"] / tokens == pytest.approx(whole.metrics["val/nats"], rel=1e-6)
    if "val/bpb" in whole.metrics:
        assert sums["nats"] / math.log(2) / sums["bytes"] == pytest.approx(whole.metrics["val/bpb"], rel=1e-6)


@promise("two runs that are measured otherwise and trained alike have the numbers of two that are trained apart")
def taken_over_equals_trained(case: Case) -> None:
    plain, other = measured_otherwise(case.config, case.random)
    together, apart = case.folder / "together", case.folder / "apart"
    trained(plain, together / "plain")
    borrowed, own = trained(other, together / "other"), trained(other, apart / "other")
    unequal = differences(borrowed, own)
    assert not unequal, unequal


@promise("what a run with shared weights leaves behind measures what its record says")
def taken_over_measures_its_record(case: Case) -> None:
    plain, other = measured_otherwise(case.config, case.random)
    trained(plain, case.folder / "pair" / "plain")
    borrowed = trained(other, case.folder / "pair" / "other")
    if borrowed.finished:
        close(evaluate(case.folder / "pair" / "other" / CHECKPOINT), borrowed.metrics, 1e-6)


@promise("other numbers imply another key")
def other_numbers_another_key(case: Case) -> None:
    changed = with_one_other_value(case.config, case.random)
    if changed is None or run_key(changed[1]) != run_key(case.config):
        return
    path, config = changed
    other = trained(config, case.folder / "changed")
    assert other.metrics == case.whole.metrics and other.curves == case.whole.curves, f"{path} changes them"


@promise(
    "batches that are accumulated equal their rows in one batch",
    lambda config: config.training.accumulate > 1 and config.data.kind != "language" and not reads_the_batch(config),
)
def accumulated_equals_joined(case: Case) -> None:
    config = without_chance(case.config).override({"training.average": None})
    if config.training.stop:
        config = config.override({"training.stop": None, "training.keep": "last"})
    count = config.training.accumulate
    accumulated = weights_of(config, case.folder / "accumulated", config.data.build())
    data = config.data.build()
    loader = data.train_dataloader
    with patch.object(data, "train_dataloader", lambda: Joined(loader(), count)):
        joined = weights_of(config.override({"training.accumulate": 1}), case.folder / "joined", data)
    for name, weight in accumulated.items():
        same(weight, joined[name], name)


@promise(
    "lanes that carry state accumulate what a loop by hand adds up",
    lambda config: config.training.accumulate > 1 and config.data.kind == "language",
)
def lanes_equal_a_loop_by_hand(case: Case) -> None:
    """The gradient of an update is that of the sum of the losses of its segments, each divided by its targets in all of
    them."""
    changes = {"training.average": None, "training.stop": None, "training.keep": "last", "data.workers": 0}
    config = without_chance(case.config).override(changes)
    trained_weights = weights_of(config, case.folder / "lanes", config.data.build())
    data, count = config.data.build(), config.training.accumulate
    task = config.override({"training.accumulate": 1}).build_task(data).train()
    optimizer, schedule = config.training.learn(task)
    batches = iter(data.train_dataloader())
    for step in range(config.training.steps):
        optimizer.zero_grad()
        segments = [next(batches) for _ in range(count)]
        task.begin_update(segments)
        with patch.object(type(task), "progress", step / config.training.steps):
            for segment in segments:
                task.training_step(segment, 0)["loss"].backward()
        if config.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.parameters(), config.training.clip)
        optimizer.step()
        schedule.step()
        task.after_step()
    for name, weight in task.state_dict().items():
        torch.testing.assert_close(
            trained_weights[name], weight, rtol=1e-3, atol=2e-4, msg=lambda text, n=name: f"{n}: {text}"
        )


@promise(
    "no prediction sees another one where predictions have no order",
    lambda config: (
        config.task.kind == "permutation_lm"
        and config.task.get("measured") == "none"
        and config.model.get("query_stream") != "content"  # which reads its targets, and fails its gate
    ),
)
def predictions_are_apart(case: Case) -> None:
    """Another hidden symbol in one place moves no prediction, for any memory of the segment before."""
    data = case.config.data.build()
    task = case.config.build_task(data).eval()
    batch = next(iter(data.val_dataloader()))
    hidden = [(int(r), int(t)) for r, t in (batch.inputs == data.description.mask).nonzero()]
    assert hidden, "nothing is hidden"
    with torch.no_grad():
        original = task.evaluation_output(batch)
        for row, place in case.random.sample(hidden, min(5, len(hidden))):
            targets = batch.targets.clone()
            targets[row, place] = targets[row, place] % 20 + 7
            moved = task.evaluation_output(batch._replace(targets=targets))
            torch.testing.assert_close(moved, original, rtol=0, atol=1e-6)


TRUE_ROWS = ("strings", "classification", "regression")
"""The objectives whose random batch is of rows that nothing came before."""
SHARED_WORK = ("compressive", "synthesizer")
"""The mixers that work less than their formula in two rows of which nothing leaves memory: nothing is compressed, or
all rows of a batch share weights."""


@promise("parameters equal the count", lambda config: config.model.to_dict().get("query_stream", "none") == "none")
def parameters_equal_the_count(case: Case) -> None:
    data = case.config.data.build()
    task, described = case.config.build_task(data), describe(case.config, data)
    idle = {id(parameter) for parameter in task.network.unused()}
    if case.config.task.kind in ("classification", "regression", "replaced_tokens"):  # which predict no symbol
        idle |= {id(parameter) for parameter in task.network.prediction_only()}
    total = sum(parameter.numel() for parameter in task.parameters() if id(parameter) not in idle)
    assert described.parameters == total, f"{described.parameters} in the plan, {total} in the task: {case.config.task}"


@promise(
    "FLOPs equal the count", lambda config: config.task.kind in TRUE_ROWS and config.model.mixer.kind not in SHARED_WORK
)
def flops_equal_the_count(case: Case) -> None:
    """Within a twentieth, of a row without anything remembered, for the products alone are counted."""
    config = without_chance(case.config)
    data = config.data.build()
    task = config.build_task(data)
    batch = config.task.random_batch(data.description)
    task.double()  # the fused kernels of float32 are counted as nothing
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.training_step(batch, 0)
    tokens = batch.inputs.numel()
    planned = config.task.cost(without_memory(config.model), data.description).flops_per_token * tokens
    counted = counter.get_total_flops()
    assert counted == pytest.approx(planned, rel=0.05), f"{planned:,.0f} in the plan, {counted:,} counted"


@promise("tokens equal the count")
def tokens_equal_the_count(case: Case) -> None:
    """No run reads more tokens than its record says; where every row is full, as many."""
    read = 0
    config = case.config
    batches = iter(config.data.build().train_dataloader())
    for _ in range(config.training.steps * config.training.accumulate):
        batch = next(batches)
        read += int(batch.padding_mask.sum())
    planned = describe(config).tokens
    assert read <= planned, f"{planned} in the plan, {read} read"
    if config.get("data").to_dict().get("documents") == "stream":
        assert read == planned, f"{planned} in the plan, {read} read"


@promise(
    "measured on other data it has the numbers of the same symbols that are fed by hand",
    lambda config: config.data.to_dict().get("source", {}).get("kind") == "files",
)
def other_data_equal_fed_by_hand(case: Case) -> None:
    if not case.whole.finished:
        return
    changes = {"data.source.path": corpus("other")}
    measured = evaluate(case.checkpoint, changes)
    task, config, _ = load(case.checkpoint, changes)
    data = config.data.build()
    vars(data)["tokenizer"] = case.config.data.build().tokenizer  # type: ignore[attr-defined]
    task.metric.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        task.begin_evaluation()
        for index, batch in enumerate(data.val_dataloader()):
            task.validation_step(batch, index)
    close(measured, {f"val/{name}": value for name, value in task.metric.compute().items()}, 1e-5)


@promise(
    "exported and imported it computes the same", lambda config: config.task.kind in ("masked_lm", "causal_lm", "bilm")
)
def exported_equals_imported(case: Case) -> None:
    if not case.whole.finished:
        return
    try:
        export_weights(case.checkpoint, case.folder / "exported")
    except ConfigError:
        return  # no architecture of transformers has this network
    import_weights(str(case.folder / "exported"), case.folder / "imported")
    imported = read_weights(case.folder / "imported" / "weights.safetensors")
    task, config, _ = load(case.checkpoint)
    again = config.task.build(imported.model, task.data, config.training).eval()
    names = own_names(again)
    missing = {names[name] for name in again.load_state_dict(imported.tensors, strict=False).missing_keys}
    missing -= imported.tensors.keys()
    assert not any(name.startswith("network.") for name in missing), missing  # heads have no place in an architecture
    batch = config.task.random_batch(task.data)
    torch.testing.assert_close(again.evaluation_output(batch), task.evaluation_output(batch), rtol=1e-4, atol=1e-5)


@promise("two ranks have the numbers of one process", lambda config: not draws_in_training(config), costly=True)
def two_ranks_equal_one(case: Case) -> None:
    config = without_chance(case.config)
    if config.training.stop:
        config = config.override({"training.stop": None, "training.keep": "last"})
    one = trained(config, case.folder / "one")
    if not one.finished:
        return
    both = config.override({"training.devices": 2})
    (case.folder / "two").mkdir()
    Forked(case.folder / "ranks.txt", fit_quietly, both.to_dict(), case.folder / "two", ranks=2).finish()
    two = left(case.folder / "two")
    close(two.metrics, one.metrics, 2e-3)
    assert [row["document"] for row in two.documents] == [row["document"] for row in one.documents]
    assert [row["tokens"] for row in two.documents] == [row["tokens"] for row in one.documents]


def fit_quietly(plain: dict[str, Any], folder: Path) -> None:
    """Does a run without its gates, as one of several ranks; for ``Forked``."""
    with without_gates():
        fit(RunConfig.from_dict(plain), folder)


def measured_otherwise(config: RunConfig, random: Random) -> tuple[RunConfig, RunConfig]:
    """The run with a single validation, at its end, and the same run measured on fewer examples or by other noise."""
    plain = config.override({"training.validate_every": None, "training.stop": None, "training.keep": "last"})
    changes = {"documents" if config.data.kind == "language" else "examples": 5}
    other = plain.override({f"data.evaluation.{name}": value for name, value in changes.items()})
    if config.data.kind == "denoising":
        with suppress(ConfigError):  # of learned positions that the other noise needs more of
            noisy = other.override({"data.evaluation.noise": random.choice(["span_corruption", "text_infilling"])})
            rehearse(noisy)
            other = noisy
    return plain, other


def without_memory(model: ModelConfig) -> ModelConfig:
    """The network without anything remembered, whose first row costs as much as every row."""
    return model.override({path: 0 for path, value in model.leaves_with(Memory) if value})


class Joined:
    """A loader whose batches hold the rows of several of another one's."""

    def __init__(self, loader: Any, count: int) -> None:
        self.loader, self.count = loader, count

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            yield joined([next(batches) for _ in range(self.count)])


PADDING = {"targets": IGNORED, "phrases": IGNORED}
"""The padding behind the end of a row, by the name of the column; 0 in other columns."""


def joined(batches: Sequence[Any]) -> Any:
    """The rows of several batches of one kind as one batch."""
    columns = {}
    for name in batches[0]._fields:
        values = [getattr(batch, name) for batch in batches]
        if not isinstance(values[0], Tensor):
            columns[name] = joined_plain(name, values)
            continue
        longest = max(value.size(1) for value in values) if values[0].dim() > 1 else 0
        columns[name] = torch.cat([padded(value, longest, PADDING.get(name, 0)) for value in values])
    for flag, mask in (("padded", "padding_mask"), ("source_padded", "source_padding_mask")):
        if flag in columns:
            columns[flag] = not bool(columns[mask].all())
    return type(batches[0])(**columns)


def joined_plain(name: str, values: list[Any]) -> Any:
    """A field of several batches that is not a tensor: all tuples in one, the number that is true of all rows, or the
    last value."""
    if isinstance(values[0], tuple):
        return sum(values, start=())
    if isinstance(values[0], int):
        return min(values) if name == "unbroken" else max(values)
    return values[-1]


def padded(column: Tensor, length: int, padding: int) -> Tensor:
    """A column with rows of a length."""
    if column.dim() == 1 or column.size(1) == length:
        return column
    rest = column.new_full((column.size(0), length - column.size(1), *column.shape[2:]), padding)
    return torch.cat([column, rest], dim=1)


def weights_of(config: RunConfig, folder: Path, data: Data) -> dict[str, Tensor]:
    """The weights of a run after training."""
    folder.mkdir()
    train(config, data, folder, f"its own {folder.name}", Stop())
    weights: dict[str, Tensor] = torch.load(folder / CHECKPOINT, weights_only=True)["state_dict"]
    return weights


def with_one_other_value(config: RunConfig, random: Random) -> tuple[str, RunConfig] | None:
    """The run with another value in one of its fields, and the path of that, where one is taken; else None."""
    paths = [path for path, _ in config.leaves()]
    for _ in range(20):
        path = random.choice(paths)
        if path.startswith(("data.source", "training.steps", "training.device", "start")):
            continue
        parent, _, name = path.rpartition(".")
        try:
            owner = config.get(parent) if parent else config
            value = random_value(field_types(type(owner))[name], random)
            changed = config.override({path: value})
            describe(changed, changed.data.build())
        except (ConfigError, KeyError, AssertionError, TypeError):
            continue
        if changed != config:
            return path, changed
    return None


def reads_the_batch(config: RunConfig) -> bool:
    """Whether the numbers of a run depend on its batches by definition: a loss against the other rows of a batch, lanes
    in which documents follow each other, random buckets that are drawn for a batch."""
    stream = config.data.kind == "language" and config.data.get("documents") == "stream"
    return stream or config.task.kind == "contrastive" or draws_when_measured(config)


def draws_in_training(config: RunConfig) -> bool:
    """Whether a part of the run draws random numbers in training besides dropout, in the order of its batches."""
    return config.task.kind == "replaced_tokens" or draws_when_measured(config)


def draws_when_measured(config: RunConfig) -> bool:
    """Whether a mixer of the network draws when it is measured: buckets of a hash, one after another batch."""
    return "lsh" in str(config.model.to_dict())
