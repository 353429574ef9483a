"""Pruning of attention heads: those of least importance to the loss, or random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from lit_transformers.compression.compression import Compression, CompressionConfig, matrices_of, random_scores
from lit_transformers.compression.importance import heads_of, importance_of, norms_of
from lit_transformers.config import ConfigError, Positive, Seed
from lit_transformers.mixers.qkv import QKVMixer

__all__ = ["PruneHeadsConfig", "mixers_with_heads", "set_to_zero"]


@final
class PruneHeadsConfig(CompressionConfig, kind="prune_heads"):
    """Sets all weights of some attention heads to zero after training. A network without these heads computes the same.

    heads: the number of heads to prune, over all mixers with heads of the layers that ``parameters`` name. score: of a
    head: ``importance``, the mean over training examples of |y dL/dy| with the head's output y, divided by the
    Euclidean norm of the scores of its layer (Michel et al. 2019, arXiv:1905.10650, equation 2 and section 4.1);
    ``magnitude``, the Euclidean norm of its columns of the output map; or ``random``, a control. batches: of training,
    from which importance is estimated. seed: of random scores.
    """

    heads: Positive = 1
    score: Literal["importance", "magnitude", "random"] = "importance"
    batches: Positive = 16
    seed: Seed = 0

    def build(self, task: nn.Module) -> PruneHeads:
        mixers = mixers_with_heads(task, self.parameters, "prune_heads")
        count = sum(mixer.heads for mixer in mixers.values())
        if self.heads >= count:
            raise ConfigError(f"there are {count} heads, and at least one is kept; set at most {count - 1}", "heads")
        return PruneHeads(self, mixers)


@final
class PruneHeads(Compression):
    """Sets the weights of heads to zero. mixers: by their names in the task."""

    def __init__(self, config: PruneHeadsConfig, mixers: Mapping[str, QKVMixer]) -> None:
        self.config, self.mixers = config, mixers
        self.importance: list[Tensor] = []
        self.calibration_batches = config.batches if config.score == "importance" else 0

    def calibrate(self, task: Any, batches: Iterable[Any]) -> None:
        self.importance = importance_of([*map(heads_of, self.mixers.values())], task, batches)

    def finish(self) -> None:
        scores = [self.scores(number, mixer) for number, mixer in enumerate(self.mixers.values())]
        pruned = torch.cat(scores).argsort(stable=True)[: self.config.heads]
        ends = torch.tensor([0, *(mixer.heads for mixer in self.mixers.values())]).cumsum(0).tolist()
        for first, mixer in zip(ends, self.mixers.values(), strict=False):
            for head in range(mixer.heads):
                if first + head in pruned:
                    set_to_zero(mixer, head)

    def scores(self, number: int, mixer: QKVMixer) -> Tensor:
        """Returns the scores of the heads of a mixer."""
        if self.config.score == "importance":
            own = self.importance[number].cpu()
            return own / own.norm().clamp(min=torch.finfo(own.dtype).tiny)
        if self.config.score == "random":
            return random_scores((mixer.heads,), self.config.seed, number)
        return norms_of(heads_of(mixer)).cpu()


def mixers_with_heads(task: nn.Module, roles: Iterable[str], kind: str) -> dict[str, QKVMixer]:
    """Returns the mixers with heads of the layers that have one of the roles, by their names in the task. Raises
    ConfigError, which names the kind of compression, where there is none."""
    own = {id(matrix) for matrix in matrices_of(task, roles).values()}
    mixers = {
        name: module
        for name, module in task.named_modules()
        if isinstance(module, QKVMixer) and id(module.merge.weight) in own
    }
    if not mixers:
        raise ConfigError(f"has no mixer with heads; name others, or drop {kind}", "parameters")
    return mixers


def set_to_zero(mixer: QKVMixer, head: int) -> None:
    """Sets the weights and biases of a head to zero, and its columns of the output map."""
    channels = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)
    mixer.merge.weight.data[:, channels] = 0
    for linear in (mixer.query, mixer.key, mixer.value):
        for parameter in linear.parameters(recurse=False):
            parameter.data[channels] = 0
