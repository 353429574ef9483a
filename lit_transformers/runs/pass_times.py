"""The time of a run's network next to that of the network that it starts from, taken in turns in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import Tensor

from lit_transformers.runs.config import RunConfig, RunWeightsConfig
from lit_transformers.runs.starting_weights import StartingWeights, start_from
from lit_transformers.tasks import Task
from lit_transformers.tasks.labelled import LabelledTaskConfig
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["first_batches", "starting_network", "time_ratios"]

ROUNDS = 20
"""The rounds in which both networks read the batches. A further one before them is not counted."""
BATCHES = 4
"""The batches of validation that both read."""


def starting_network(config: RunConfig, task: Task, sources: Mapping[str, StartingWeights]) -> Task:
    """Returns a task with the network that a run starts from, as wide and deep as its source has it, whose inputs are
    not quantised, with the arithmetic of its source if that is a run. task: of the run. sources: of its parts."""
    objective, source = config.measured_task, config.start.network
    training = source.run.training if isinstance(source, RunWeightsConfig) else config.training
    if isinstance(objective, LabelledTaskConfig):
        objective = objective.by_labels_alone()
    with torch.random.fork_rng(devices=[]):
        other = objective.build(sources["network"].model, task.data, training)
        start_from(other, sources, config.start.head)
    return other.eval()


@torch.no_grad()
def time_ratios(task: Task, other: Task, batches: Sequence[Any]) -> dict[str, float]:
    """Returns the time of forward passes of a task's network as a share of that of another one: ``time_ratio``, of
    batches, and ``latency_ratio``, of the longest text of each batch alone. Each is the median over rounds, in which
    both read the same in turns. Both tasks are in evaluation mode, and the batches on their device."""
    texts = [longest_text(batch) for batch in batches]
    with torch.random.fork_rng():
        return {
            name: ratio_in_turns(passes(task, read), passes(other, read), ROUNDS)
            for name, read in (("time_ratio", batches), ("latency_ratio", texts))
        }


def ratio_in_turns(first: Callable[[], None], second: Callable[[], None], rounds: int) -> float:
    """Returns the median over rounds of the time of the first, as a share of that of the second. Which of them begins
    changes from round to round."""
    ratios = []
    for number in range(rounds + 1):
        order = (first, second) if number % 2 else (second, first)
        seconds = {call: seconds_of(call) for call in order}
        ratios.append(seconds[first] / seconds[second])
    return median(ratios[1:])


def seconds_of(call: Callable[[], None]) -> float:
    """Returns the seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def passes(task: Task, batches: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that runs a task's network on batches, in its own precision, and waits for the device."""
    is_mixed = task.training_config.precision == "bf16"

    def read() -> None:
        with arithmetic(task.training_config), torch.autocast(task.device.type, torch.bfloat16, is_mixed):
            for batch in batches:
                task.evaluation_output(batch)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)

    return read


def longest_text(batch: Any) -> Any:
    """Returns the batch of the longest text of a batch whose tensors have a row for each text."""
    row = int(batch.padding_mask.flatten(1).sum(dim=1).argmax())
    rows = len(batch.padding_mask)

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == rows:
            return value[row : row + 1]
        if isinstance(value, Mapping):
            return {name: cut(own) for name, own in value.items()}
        return value[row : row + 1] if type(value) is tuple and len(value) == rows else value

    return batch._replace(**{name: cut(value) for name, value in batch._asdict().items()})


def first_batches(batches: Any, task: Task) -> list[Any]:
    """Returns the batches that are timed, on the device of a task."""
    return [task.transfer_batch_to_device(batch, task.device, 0) for batch in islice(batches, BATCHES)]
