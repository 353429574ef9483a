"""Pruning of single weights, which become zero: the smallest, random ones, or those that move towards zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.compression.compression import (
    Compression,
    CompressionConfig,
    Matrices,
    matrices_of,
    random_scores,
    require_whole_groups,
)
from lit_transformers.config import Seed

__all__ = ["PruneWeightsConfig"]

STAGES = 100
"""The most prunings of a gradual one: sorting all weights takes longer than an update of a small network."""
GROUP = 4
"""The neighbouring weights of which the pattern 2:4 keeps two."""


@final
class PruneWeightsConfig(CompressionConfig, kind="prune_weights"):
    """Sets the weights with the lowest scores to zero, and holds them there.

    sparsity: the share of weights that are zero in the end. score: of a weight: its ``magnitude``; ``random``, a
    control; or ``movement``: the sum of -w dL/dw over all updates up to the pruning (Sanh et al. 2020,
    arXiv:2005.07683, equation 4). pattern: ``free``, or ``2:4``: two of each four neighbours in a row. scope: scores
    are compared within each ``matrix``, or over ``all`` matrices. begin, end: shares of the updates. From begin to end
    the sparsity rises along a cubic (Zhu and Gupta 2017, arXiv:1710.01878, equation 1); if both are equal, weights are
    pruned at once: 0 for before training, which then recovers, and 1 for after it. A cubic has at most ``STAGES``
    prunings. seed: of random scores.
    """

    sparsity: Annotated[float, Field(gt=0, lt=1)] = 0.5
    score: Literal["magnitude", "random", "movement"] = "magnitude"
    pattern: Literal["free", "2:4"] = "free"
    scope: Literal["matrix", "all"] = "matrix"
    begin: Annotated[float, Field(ge=0, le=1)] = 1.0
    end: Annotated[float, Field(ge=0, le=1)] = 1.0
    seed: Seed = 0

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.end < self.begin:
            yield f"end: pruning ends at {self.end:g}, before it begins at {self.begin:g}; raise end, or lower begin"
        if self.pattern == "2:4" and (self.sparsity != 0.5 or self.scope != "matrix" or self.begin != self.end):
            yield "pattern 2:4 prunes half of each matrix at once; set sparsity: 0.5, scope: matrix, and end to begin"
        if self.score == "movement" and self.end == 0:
            yield "score movement needs updates before the pruning; raise end, or set score: magnitude"

    def build(self, task: nn.Module) -> Compression:
        matrices = matrices_of(task, self.parameters)
        if self.pattern == "2:4":
            require_whole_groups(matrices, GROUP, "pattern", "set pattern: free, or other parameters")
        return PruneWeights(self, matrices)

    def conflict_after(self, earlier: CompressionConfig) -> str | None:
        if earlier.kind == "share_values":
            return "shared values are computed of the weights that are left; put prune_weights first"
        return None

    def sparsity_at(self, done: float) -> float:
        """Returns the share of weights to prune when the share ``done`` of the updates is done."""
        if done < self.begin:
            return 0.0
        if done >= self.end:
            return self.sparsity
        left = 1 - (done - self.begin) / (self.end - self.begin)
        return self.sparsity * (1 - left**3)


@final
class PruneWeights(Compression):
    """Holds pruned weights at zero. ``kept`` is a mask of each matrix, True for weights that are left."""

    def __init__(self, config: PruneWeightsConfig, matrices: Matrices) -> None:
        self.matrices = matrices
        self.config = config
        self.kept: dict[str, Tensor] = {
            name: torch.ones_like(matrix, dtype=torch.bool) for name, matrix in matrices.items()
        }
        self.moved: dict[str, Tensor] = {}
        self.reached = 0.0

    def begin(self) -> None:
        self.prune(0.0)
        self.apply()

    def before_step(self) -> None:
        if self.config.score == "movement" and self.reached < self.config.sparsity:
            for name, matrix in self.matrices.items():
                if matrix.grad is not None:
                    change = -(matrix.detach() * matrix.grad)
                    self.moved[name] = self.moved[name] + change if name in self.moved else change

    def after_step(self, done: float) -> None:
        if done < 1:
            self.prune(done)
        self.apply()

    def finish(self) -> None:
        self.prune(1.0)
        self.apply()

    def prune(self, done: float) -> None:
        """Chooses the weights to prune up to the sparsity that is due; a weight that was pruned stays so."""
        due = self.config.sparsity_at(done)
        if due - self.reached < self.config.sparsity / STAGES and (due <= self.reached or done < self.config.end):
            return
        self.reached = due
        scores = {name: self.scores(number, name) for number, name in enumerate(self.matrices)}
        scores = {
            name: score.masked_fill(~self.kept[name].to(score.device), -torch.inf) for name, score in scores.items()
        }
        if self.config.pattern == "2:4":
            self.kept = {name: two_of_four(score) for name, score in scores.items()}
        elif self.config.scope == "all":
            kept = most_of(torch.cat([score.flatten() for score in scores.values()]), due)
            parts = kept.split([score.numel() for score in scores.values()])
            self.kept = {name: part.view_as(scores[name]) for name, part in zip(scores, parts, strict=True)}
        else:
            self.kept = {name: most_of(score.flatten(), due).view_as(score) for name, score in scores.items()}

    def scores(self, number: int, name: str) -> Tensor:
        """Returns the score of each weight of a matrix."""
        matrix = self.matrices[name].detach()
        if self.config.score == "magnitude":
            return matrix.abs()
        if self.config.score == "movement":
            return self.moved.get(name, torch.zeros_like(matrix))
        return random_scores(matrix.shape, self.config.seed, number).to(matrix)

    def apply(self) -> None:
        """Sets pruned weights to zero."""
        for name, matrix in self.matrices.items():
            self.kept[name] = self.kept[name].to(matrix.device)
            matrix.data.masked_fill_(~self.kept[name], 0)

    def state_dict(self) -> dict[str, Tensor]:
        masks = {f"kept.{name}": mask for name, mask in self.kept.items()}
        moved = {f"moved.{name}": score for name, score in self.moved.items()}
        return masks | moved | {"reached": torch.tensor(self.reached, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.reached = float(state["reached"])
        for name, matrix in self.matrices.items():
            self.kept[name] = state[f"kept.{name}"].to(matrix.device)
            if f"moved.{name}" in state:
                self.moved[name] = state[f"moved.{name}"].to(matrix.device)


def most_of(scores: Tensor, sparsity: float) -> Tensor:
    """Returns a mask of the scores (n,) that is False for the n * sparsity lowest, rounded; of equal ones, the
    first."""
    kept = torch.ones_like(scores, dtype=torch.bool)
    kept[scores.argsort(stable=True)[: round(len(scores) * sparsity)]] = False
    return kept


def two_of_four(scores: Tensor) -> Tensor:
    """Returns a mask that is True for the two highest of each four neighbours in a row."""
    groups = scores.reshape(-1, GROUP)
    best = groups.argsort(dim=1, descending=True, stable=True)[:, : GROUP // 2]
    return torch.zeros_like(groups, dtype=torch.bool).scatter(1, best, True).view_as(scores)
