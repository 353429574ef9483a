"""Measures on this machine how fast a network trains, to choose the updates of a first run."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from lit_transformers.batch import RetrievalBatch, Vocabulary
from lit_transformers.machine.cores import limit_threads, one_thread
from lit_transformers.models import ModelConfig
from lit_transformers.tasks import TaskConfig
from lit_transformers.training.config import TrainingConfig

__all__ = ["Pace", "about", "measured_pace"]

REPEATS = 2
"""The passes that are timed. The fastest counts."""
SHARED = 0.8
"""The share of the time of a thread that several threads use, each, of a pass."""
PADDED = 1.1
"""The tokens of a batch of rows of like length, with padding, for each token of its rows."""


class Pace(NamedTuple):
    """The speed of training. token: seconds for a token, forward and backward. update: seconds of an optimizer step."""

    token: float
    update: float

    def seconds_of_update(self, tokens: float) -> float:
        """Returns the seconds of an update of this many tokens without padding."""
        return PADDED * tokens * self.token + self.update

    def seconds_of_validation(self, tokens: float) -> float:
        """Returns the seconds of one pass over these tokens without gradients, a third of the work of training."""
        return PADDED * tokens * self.token / 3


def measured_pace(model: ModelConfig, task: TaskConfig, symbols: int, length: int) -> Pace:
    """Trains a network with random weights on two random rows, a few times. symbols: the size of the vocabulary.
    length: of the rows, in tokens. Takes seconds for a large network, and does not change the random state. On a CPU
    the time is the work of one thread, divided among those of a run, so that other processes do not change it. Raises
    ConfigError if the network cannot be built for the task."""
    limit_threads()
    device, threads = torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.get_num_threads()
    data = task.probe_data(Vocabulary(size=symbols, boundary=0, unit="piece", byte_lengths=None), length)
    passes, steps = [], []
    with torch.random.fork_rng(), one_thread():
        built = task.build(model, data, TrainingConfig()).to(device).train()
        batch = task.random_batch(data)
        tokens = batch.inputs.numel() + (batch.source.numel() if isinstance(batch, RetrievalBatch) else 0)
        batch = built.transfer_batch_to_device(batch, device, 0)
        optimizer = torch.optim.AdamW([each for each in built.parameters() if each.requires_grad], lr=1e-9)
        for _ in range(REPEATS):
            start = _clock(device)
            built.training_step(batch, 0)["loss"].backward()
            middle = _clock(device)
            optimizer.step()
            optimizer.zero_grad()
            passes.append(middle - start)
            steps.append(_clock(device) - middle)
    share = threads * SHARED if threads > 1 and device.type == "cpu" else 1.0
    return Pace(min(passes) / tokens / share, min(steps) / share)


def about(seconds: float) -> str:
    """Formats a rough time: "less than a minute", "about 5 minutes", "about 2.5 hours"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"about {minutes} minute{'s' if minutes > 1 else ''}"
    return f"about {seconds / 3600:.2g} hours"


def _clock(device: torch.device) -> float:
    """Returns the seconds that this process has worked, on a CPU, or that have passed."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()
