"""Tasks compute the same on a device as on the CPU, and wait for it only where it is declared, see
``lit_transformers/tasks/waits.py``: training, gradients and measurements, on the device that stands in for CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pretended_device
import pytest
import torch
from contract_cases import DIM, HEADS
from pretended_device import DEVICE
from synchronisations import counted
from torch import Tensor
from torch.utils._pytree import tree_map

from lit_transformers.batch import IGNORED, RowBatch, TextBatch, Vocabulary
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, ModelConfig
from lit_transformers.stacks import HaltingConfig, UniversalConfig
from lit_transformers.tasks import TASKS, Task
from lit_transformers.tasks.waits import most_waits
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=11, boundary=10, unit="byte", byte_lengths=tuple(range(1, 12)))
LM = LanguageModelConfig(dim=DIM, heads=HEADS, depth=2)
ENCODER = EncoderConfig(dim=DIM, heads=HEADS, depth=2)
ROWS = ENCODER.override({"segments": 2, "transform": "gelu"})
ORDERED = ROWS.override({"query_stream": "learned", "mixer": {"kind": "attention", "encoding": "xl", "memory": 5}})
LEARNED = {"kind": "learned", "restart": "document", "max_length": 40}
ADAPTIVE = {"tokens": {"kind": "adaptive", "cutoffs": [3, 6], "shrink": 2}}
CASES: dict[str, tuple[ModelConfig, Mapping[str, Any], Mapping[str, Any]]] = {
    "causal_lm": (LM.override({"mixer": AttentionConfig(encoding=XLConfig(), memory=4)}), {}, {}),
    "causal_lm, learned positions": (LM.override({"positions": LEARNED, "mixer": AttentionConfig(memory=4)}), {}, {}),
    "causal_lm, all losses": (LM, {"intermediate": True, "future": [0.5]}, {}),
    "causal_lm, halting": (LM.override({"stack": UniversalConfig(halting=HaltingConfig())}), {}, {}),
    "causal_lm, adaptive": (LM.override(ADAPTIVE), {"intermediate": True}, {}),
    "causal_lm, adaptive and untied": (LM.override({"tokens": ADAPTIVE["tokens"] | {"tied": False}}), {}, {}),
    "strings": (LM, {}, {}),
    "classification": (ENCODER, {"pooling": "mean"}, {}),
    "regression": (ENCODER, {"pooling": "last"}, {}),
    "tagging": (ENCODER, {"word": "mean"}, {}),
    "question_answering": (ENCODER, {"threshold": 0.0, "longest_answer": 4}, {}),
    "masked_lm": (ROWS, {"span_boundary": {"longest": 1, "width": 3}}, {"phrases": True}),
    "masked_lm, adaptive": (ENCODER.override({"segments": 2} | ADAPTIVE), {}, {}),
    "masked_lm, pairs": (ROWS, {}, {"rules": ("one", "two")}),
    "contrastive": (ROWS, {}, {}),
    "replaced_tokens": (ROWS, {}, {}),
    "replaced_tokens, at masks": (ROWS, {"predicts": "replaced_at_masks", "generator.draws": "uniform"}, {}),
    "replaced_tokens, symbols": (ROWS, {"predicts": "symbols"}, {}),
    "replaced_tokens, pairs": (ROWS, {"predicts": "symbols_at_masks"}, {"rules": ("one", "two")}),
    "bilm": (ROWS.override({"causal": True}), {}, {}),
    "bilm, pairs": (ROWS.override({"causal": True}), {}, {"rules": ("one", "two")}),
    "permutation_lm": (ORDERED, {"segment_length": 5}, {}),
    "permutation_lm, both directions": (ORDERED, {"segment_length": 5, "directions": "both"}, {}),
    "permutation_lm, denoising": (ORDERED, {"objective": "denoising"}, {}),
    "seq2seq": (EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=2), {"metrics": ["accuracy"]}, {}),
}
"""By a name that begins with the kind of the task: its model, and changes of it and of the data."""


def built(name: str) -> Task:
    model, changes, of_data = CASES[name]
    config = TASKS[name.partition(",")[0]]().override(changes)
    torch.manual_seed(0)
    data = replace(config.probe_data(VOCABULARY, 9), **of_data)
    return config.build(model, data, TrainingConfig(device="cpu")).double()


def uneven(batch: Any) -> Any:
    """Five rows of several lengths with several numbers of targets, one of which is padding alone."""
    batch = tree_map(lambda part: torch.cat([part, part, part[:1]]) if isinstance(part, Tensor) else part, batch)
    padding_mask = torch.arange(9) < torch.tensor([[9], [7], [9], [4], [0]])
    changed: dict[str, Any] = {"padding_mask": padding_mask, "padded": True}
    if "targets" in batch._fields:
        changed["targets"] = batch.targets.masked_fill(~padding_mask, IGNORED)
        changed["targets"][2, :5] = IGNORED
    if isinstance(batch, RowBatch):
        changed["relation"] = batch.relation.masked_fill(~padding_mask.any(dim=1), IGNORED)
    if not isinstance(batch, TextBatch):
        changed["example"] = torch.arange(5)
    if getattr(batch, "passages", None):
        changed["passages"] = (*batch.passages, *batch.passages, batch.passages[0])
        changed["labels"] = torch.tensor([[0, 1]] * 4 + [[IGNORED, IGNORED]])
    return batch._replace(**changed)


def in_pairs(batch: RowBatch) -> RowBatch:
    """Minimal pairs of two rules, with all symbols as targets."""
    batch = tree_map(lambda part: torch.cat([part, part]) if isinstance(part, Tensor) else part, batch)
    targets = batch.inputs.masked_fill(batch.inputs > 8, IGNORED)
    return batch._replace(targets=targets, rule=torch.tensor([0, 0, 1, 1]), most_targets=9, phrases=None)


class Results(NamedTuple):
    """The results of a task: losses and gradients of training, its measurements, and where it waits for a device."""

    numbers: list[Tensor]
    measured: dict[str, float]
    training: list[str]
    measuring: list[str]


def results(task: Task, batches: list[Any], device: torch.device) -> Results:
    task.to(device)
    placed = [tree_map(lambda part: part.to(device) if isinstance(part, Tensor) else part, each) for each in batches]
    with counted() as training:
        losses = [task.training_step(placed[0], number)["loss"] for number in range(2)]
        torch.stack(losses).sum().backward()
        task.after_step()
    gradients = [parameter.grad for parameter in task.parameters() if parameter.requires_grad]
    assert all(gradient is not None for gradient in gradients), "each parameter takes part in every step"
    task.eval()
    task.begin_evaluation()
    with torch.no_grad(), counted() as measuring:
        for batch in placed:
            task.validation_step(batch, 0)
    task.begin_evaluation()
    with torch.no_grad():
        output = task.evaluation_output(placed[0])
    return Results([*losses, *gradients, output], task.metric.compute(), training, measuring)


@pytest.mark.parametrize("name", CASES)
def test_a_task_computes_elsewhere_what_it_computes_here_and_waits_where_it_is_declared(name: str) -> None:
    torch.manual_seed(1)
    config, task = built(name).config, built(name)
    plain = config.random_batch(task.data)
    batches = [uneven(plain), *([in_pairs(plain)] if name.endswith("pairs") else [])]
    expected = results(task, batches, torch.device("cpu"))
    with pretended_device.pretended():
        there = results(built(name), batches, DEVICE)
    for here, elsewhere in zip(expected.numbers, there.numbers, strict=True):
        assert elsewhere.device == DEVICE
        torch.testing.assert_close(elsewhere.cpu(), here, atol=1e-12, rtol=1e-9)
    assert there.measured == pytest.approx(expected.measured, rel=1e-9) and expected.measured
    for waits, batches_read, is_training in ((there.training, 2, True), (there.measuring, len(batches), False)):
        most = batches_read * most_waits(config, task.model_config, task.data, is_training)
        assert len(waits) <= most and (waits or not most or not is_training), "\n\n".join(waits)
    assert not expected.training


def test_each_cluster_of_an_adaptive_softmax_takes_part_in_every_update() -> None:
    """Where a cluster has no target, its weights have a gradient of zeros: ranks wait for that of each weight."""
    task = built("causal_lm, adaptive and untied")
    batch = task.config.random_batch(task.data)
    task.training_step(batch._replace(targets=batch.targets.clamp(max=2)), 0)["loss"].backward()
    assert all(parameter.grad is not None for parameter in task.parameters())
