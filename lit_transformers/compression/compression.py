"""The base of compressions: how each changes the matrices of a network, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError, nearest
from lit_transformers.models.roles import vectors
from lit_transformers.training.groups import roles_of

__all__ = [
    "Compression",
    "CompressionConfig",
    "Matrices",
    "matrices_of",
    "random_scores",
    "require_order",
    "require_whole_groups",
]

Matrices = Mapping[str, Tensor]
"""The matrices that a compression changes in place, by their names in the state dict of the task."""


class CompressionConfig(Config, ABC):
    """Base of every compression's config; the table COMPRESSIONS lists the kinds.

    A run applies its compressions in the order of their list. Each changes values of matrices and no shape, or adds the
    quantisers of inputs, so that a checkpoint of the run is read as any other. Biases, norms and other vectors are not
    compressed.

    parameters: the roles of the matrices, as in ``training.groups``: network, heads, embeddings, layers, layer 1,
    mixers, feedforwards, query and others.
    """

    learns: ClassVar[bool] = False
    """Whether the compression learns in training, so that a run of no steps has none."""
    changes_passes: ClassVar[bool] = False
    """Whether it changes the forward pass itself, besides the weights."""

    parameters: tuple[str, ...] = ("network",)

    def conflicts(self) -> Iterator[str]:
        if not self.parameters:
            yield "a compression without parameters changes nothing; set parameters to roles such as [network]"

    @abstractmethod
    def build(self, task: nn.Module) -> Compression:
        """Returns the compression of the matrices of a task that have a role of ``parameters`` (``matrices_of``).
        Raises ConfigError, which names the field, where it has no place in one of them."""

    @property
    def needs_whole_batches(self) -> bool:
        """Whether it reads, in training, all rows of a batch at once."""
        return False

    def conflict_after(self, earlier: CompressionConfig) -> str | None:
        """Hook: returns why this compression cannot follow an earlier one on the same matrices; None where it can."""
        return None

    def conflict_before(self, later: CompressionConfig) -> str | None:
        """Hook: returns why a later compression cannot follow this one on the same matrices; None where it can."""
        return None

    def prepare(self, task: nn.Module) -> None:
        """Hook: acts on a task that has the weights of a finished run, before it is evaluated or predicts."""


class Compression:
    """Changes matrices in place. Hooks do nothing by default. ``done`` is the share of the updates that are done.

    ``calibration_batches``: the number of batches of training that ``calibrate`` reads.
    """

    calibration_batches: int = 0

    def begin(self) -> None:
        """Hook: acts before the first update, when starting weights are loaded; not where training resumes."""

    def before_forward(self) -> None:
        """Hook: acts before each forward pass of training or validation."""

    def after_backward(self) -> None:
        """Hook: acts after the backward pass of each batch, and after a validation, before the weights change."""

    def before_step(self) -> None:
        """Hook: acts before the optimizer's step, where each matrix holds the gradient of the update."""

    def after_step(self, done: float) -> None:
        """Hook: acts after the optimizer's step."""

    def calibrate(self, task: Any, batches: Iterable[Any]) -> None:
        """Hook: measures, before ``finish``, the statistics that the compression depends on. task: in evaluation mode.
        batches: of training, on its device."""

    def finish(self) -> None:
        """Hook: acts after the last update, before the network is measured and stored."""

    def state_dict(self) -> dict[str, Tensor]:
        """Hook: returns the state that training needs to resume."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Hook: restores a state that ``state_dict`` returned."""


def matrices_of(task: nn.Module, roles: Iterable[str]) -> dict[str, nn.Parameter]:
    """Returns the matrices of a task that have one of the roles, by name. Raises ConfigError for a role that none
    has."""
    members, without = roles_of(task), vectors(task)
    for role in roles:
        if role not in members:
            raise ConfigError(f"the network has no {role}; {nearest(role, members)}", "parameters")
    names = {name for role in roles for name in members[role]}
    matrices = {name: p for name, p in task.named_parameters() if name in names and id(p) not in without}
    if not matrices:
        raise ConfigError(f"{', '.join(roles)} has no matrix, and vectors are not compressed", "parameters")
    return matrices


def require_whole_groups(matrices: Matrices, size: int, field: str, remedy: str) -> None:
    """Raises ConfigError, which names the field, for a matrix whose rows do not divide into groups of ``size``
    weights."""
    for name, matrix in matrices.items():
        if matrix.size(-1) % size:
            reason = f"{name} has rows of {matrix.size(-1)} weights, which {size} does not divide"
            raise ConfigError(f"{reason}; {remedy}", field)


def random_scores(shape: Sequence[int], seed: int, number: int) -> Tensor:
    """Returns uniform random scores of the shape for matrix ``number``, the same on every device."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))


def require_order(configs: Sequence[CompressionConfig], task: nn.Module) -> None:
    """Raises ConfigError where compressions cannot be applied to common matrices of a task in their order."""
    matrices: list[frozenset[str]] = []
    for number, config in enumerate(configs):
        matrices.append(frozenset(matrices_of(task, config.parameters)))
        for first, earlier in enumerate(configs[:number]):
            common = matrices[first] & matrices[number]
            reason = config.conflict_after(earlier) or earlier.conflict_before(config) if common else None
            if reason is not None:
                raise ConfigError(f"follows compression.{first} on {min(common)}: {reason}", f"compression.{number}")
