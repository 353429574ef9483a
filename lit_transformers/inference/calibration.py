"""Calibrates the probabilities of a trained classifier by temperature scaling (Guo et al. 2017, arXiv:1706.04599)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.config import ConfigError, Plain
from lit_transformers.heads.pooled import ClassLabel, ClassSetLabel
from lit_transformers.records.files import CALIBRATION, write_json
from lit_transformers.runs.evaluate import load, open_data, require_numbers
from lit_transformers.runs.starting_weights import digest_of
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["Calibration", "calibrate", "calibration_error", "fitted_temperature", "temperature_of"]

BINS = 15
"""The number of bins of the expected calibration error, of equal width (Guo et al. 2017, table 1)."""
LEAST = 20
"""The fewest examples of each half of the validation split."""


class Outputs(NamedTuple):
    """The outputs of a head for n examples, and their labels: classes (n,), or sets of classes as 0 and 1 (n, c)."""

    outputs: Float[Tensor, "n c"]
    labels: Int[Tensor, n * c]

    def nats(self, temperature: Float[Tensor, ""] | float) -> Float[Tensor, ""]:
        """Returns the mean loss of an example in nats, with outputs divided by a temperature."""
        scaled = self.outputs / temperature
        if self.labels.dim() == 1:
            return F.cross_entropy(scaled, self.labels)
        losses = F.binary_cross_entropy_with_logits(scaled, self.labels.to(scaled.dtype), reduction="none")
        return losses.sum(dim=1).mean()

    def error(self, temperature: float) -> float:
        """Returns the expected calibration error of the likeliest class of each example; for sets, of every class."""
        scaled = self.outputs / temperature
        if self.labels.dim() == 1:
            confidence, predicted = scaled.softmax(dim=1).max(dim=1)
            return calibration_error(confidence, predicted == self.labels)
        return calibration_error(scaled.sigmoid().flatten(), self.labels.flatten() == 1)


@dataclass(frozen=True)
class Calibration:
    """A fitted temperature and its effect.

    digest: of the weights. fitted, measured: the numbers of validation examples that it was fitted and measured on.
    nats, error: the mean loss and the expected calibration error of the measured examples, before and after.
    """

    digest: str
    temperature: float
    fitted: int
    measured: int
    nats: tuple[float, float]
    error: tuple[float, float]

    def lines(self) -> Iterator[str]:
        """Yields the lines of a report: the temperature, and its effect on the measured examples."""
        yield f"temperature: {self.temperature:.4g}, fitted on {self.fitted:,} examples of validation"
        yield f"measured on {self.measured:,} other examples of validation:"
        yield f"expected calibration error: {self.error[0]:.2%} before, {self.error[1]:.2%} after ({BINS} bins)"
        yield f"nats: {self.nats[0]:.4f} before, {self.nats[1]:.4f} after"


def calibrate(checkpoint: Path) -> Calibration:
    """Fits a temperature on a random half of the validation split and measures it on the other half. Writes the result
    next to the checkpoint, where ``predict`` reads it.

    Raises ConfigError for a checkpoint that predicts no classes or a split with too few examples, and DataError if the
    data cannot be read.
    """
    task, config, extra = load(checkpoint, {"data.evaluation.split": "validation", "data.evaluation.examples": None})
    require_numbers(task, checkpoint)
    if not isinstance(task, PooledTask) or not isinstance(task.label_head, ClassLabel | ClassSetLabel):
        raise ConfigError(f"predicts no probabilities, for its task is {config.task.kind}", str(checkpoint))
    data = open_data(checkpoint, task, config, extra)
    torch.manual_seed(0)  # as in an evaluation, for mixers that draw random numbers
    with torch.no_grad(), arithmetic(config.training):
        parts = [outputs_of(task, batch) for batch in data.val_dataloader()]
    outputs, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    count = len(labels)
    if count < 2 * LEAST:
        raise ConfigError(f"{count} examples of validation are too few to fit and to measure; use {2 * LEAST}", "data")
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    fitted, other = (
        Outputs(outputs[half].double(), labels[half]) for half in (order[: count // 2], order[count // 2 :])
    )
    temperature = fitted_temperature(fitted)
    both = (1.0, temperature)
    nats, error = (tuple(float(measure(one)) for one in both) for measure in (other.nats, other.error))
    digest = digest_of(checkpoint)
    calibration = Calibration(digest, temperature, len(fitted.labels), len(other.labels), nats, error)  # type: ignore[arg-type]
    write_json(checkpoint.with_name(CALIBRATION), asdict(calibration))
    return calibration


def outputs_of(task: PooledTask, batch: object) -> Outputs:
    """Returns the outputs and labels of a batch, without rows that have no label."""
    there = task.label_head.labelled(batch)  # type: ignore[arg-type]
    return Outputs(task.evaluation_output(batch)[there], task.label_head.labels(batch)[there])  # type: ignore[arg-type]


def fitted_temperature(outputs: Outputs) -> float:
    """Returns the temperature, above 0, that minimizes the mean loss of the examples, by L-BFGS."""
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logarithm], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = outputs.nats(logarithm.exp())
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    return float(logarithm.detach().exp())


def calibration_error(confidence: Float[Tensor, " n"], right: Tensor, bins: int = BINS) -> float:
    """Returns the expected calibration error, from 0 to 1: the mean over bins of |accuracy - confidence|, weighted by
    the examples in each bin (Naeini et al. 2015; arXiv:1706.04599, equation 3)."""
    places = (confidence * bins).ceil().long().clamp(1, bins) - 1  # bin m holds ((m - 1) / M, m / M]
    sure, correct = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, places, values.double()) for values in (confidence, right)
    )
    return float((sure - correct).abs().sum() / len(confidence))


def temperature_of(checkpoint: Path) -> float | None:
    """Returns the temperature that was fitted to a checkpoint; None without a calibration. Raises ConfigError if the
    file is damaged or belongs to other weights."""
    path = checkpoint.with_name(CALIBRATION)
    if not path.is_file():
        return None
    remedy = f"calibrate again, or remove {path.name}"
    try:
        plain: dict[str, Plain] = json.loads(path.read_text(encoding="utf-8"))
        digest, temperature = plain["digest"], float(plain["temperature"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"holds no calibration ({type(error).__name__}); {remedy}", str(path)) from None
    if digest != digest_of(checkpoint):
        raise ConfigError(f"is of other weights than {checkpoint.name}; {remedy}", str(path))
    return temperature
