"""Checks of compressions from outside: the weights that they change, and whether a stopped run compresses alike."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn

from lit_transformers.batch import LanguageDescription, Vocabulary
from lit_transformers.checks.network_parts import DIM, HEADS
from lit_transformers.checks.part_checks import PartChecks
from lit_transformers.compression import Compression, CompressionConfig
from lit_transformers.config import Config
from lit_transformers.gates.gates import Broken
from lit_transformers.gates.miniature import VOCABULARY, seeded
from lit_transformers.models import LanguageModelConfig
from lit_transformers.quantisation import FORM
from lit_transformers.tasks import CausalLMConfig, Task
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import roles_of

__all__ = ["checks"]

STEPS, LAYERS, LENGTH = 4, 2, 12
PART = "layer 1"
"""The role that a compression may be limited to."""


def checks(case: Config) -> PartChecks:
    """Yields the checks of a compression; none of another part."""
    if isinstance(case, CompressionConfig):
        yield "changes its parameters alone", lambda: other_parameters_stay(case)
        yield "has an effect on training or weights", lambda: weights_are_compressed(case)
        yield "resumes as if never stopped", lambda: a_stopped_training_is_compressed_alike(case)


def _task() -> Task:
    """Builds a small language model, of which a third of the weights are zero, as after a pruning."""
    data = LanguageDescription.for_probe(
        Vocabulary(size=VOCABULARY, boundary=0, unit="byte", byte_lengths=None), LENGTH
    )
    with seeded():
        task = CausalLMConfig().build(LanguageModelConfig(dim=DIM, heads=HEADS, depth=LAYERS), data, TrainingConfig())
        for parameter in task.parameters():
            nn.init.normal_(parameter).flatten().data[::3] = 0
    return task


def _finish(compression: Compression, task: Task) -> None:
    """Calibrates a compression on random batches, and finishes it."""
    if compression.calibration_batches:
        with seeded():
            batches = [task.config.random_batch(task.data) for _ in range(compression.calibration_batches)]
            compression.calibrate(task, batches)
    compression.finish()


def _trained(case: CompressionConfig | None, stopped_after: int | None = None) -> dict[str, Tensor]:
    """Returns the weights of a small training that ends with a compression. stopped_after: the update after which task
    and compression are built anew from their states in a checkpoint."""
    task = _task()
    compression = Compression() if case is None else case.build(task)
    compression.begin()
    for number in range(STEPS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            batch = task.config.random_batch(task.data)
            compression.before_forward()
            task.zero_grad()
            task.training_step(batch, 0)["loss"].backward()
        compression.after_backward()
        compression.before_step()
        for parameter in task.parameters():
            parameter.data -= 0.1 * parameter.grad if parameter.grad is not None else 0.0
        compression.after_step((number + 1) / STEPS)
        if number + 1 == stopped_after and case is not None:
            file = io.BytesIO()
            torch.save((task.state_dict(), compression.state_dict()), file)
            file.seek(0)
            weights, state = torch.load(file, weights_only=True)
            task = _task()
            task.load_state_dict(weights)
            compression = case.build(task)
            compression.load_state_dict(state)
    _finish(compression, task)
    return task.state_dict()


def other_parameters_stay(case: CompressionConfig) -> str:
    """Checks that all shapes stay, and all parameters that the compression does not name."""
    task = _task()
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    _finish(case.override({"parameters": (PART,)}).build(task), task)
    after = {name: tensor for name, tensor in task.state_dict().items() if not name.endswith(f".{FORM}")}
    if [(name, tensor.shape) for name, tensor in before.items()] != [(n, t.shape) for n, t in after.items()]:
        raise Broken("names or shapes of tensors change, so that no checkpoint is read; change values in place")
    named = roles_of(task)[PART]
    if others := [name for name in before.keys() - named if not torch.equal(before[name], after[name])]:
        raise Broken(f"{min(others)} changes, and {PART} alone is named; compress matrices_of(task, self.parameters)")
    return f"{len(named)} tensors of {PART}"


def weights_are_compressed(case: CompressionConfig) -> str:
    """Checks that a training with the compression ends with other tensors than one without, and twice with the same."""
    with_it, again, without = _trained(case), _trained(case), _trained(None)
    if not _equal(with_it, again):
        raise Broken("a second compression of the same training differs; draw random numbers from a seeded generator")
    if _equal(with_it, without):
        raise Broken("training ends with the weights of one without it; change the matrices in place in a hook")
    return "other weights"


def a_stopped_training_is_compressed_alike(case: CompressionConfig) -> str:
    """Checks that a compression that is built anew amid training, with its state, ends with the same tensors."""
    if not _equal(_trained(case), _trained(case, stopped_after=STEPS // 2)):
        raise Broken("from a checkpoint weights differ; return from state_dict all that later hooks depend on")
    return "equal weights"


def _equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
