"""The heads of mixers and the channels of feed-forwards, and their importance to the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_transformers.maps import LinearMap
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.stacks.feedforward import FeedForward, SeparableConvolution
from lit_transformers.training.ranks import mean_over_ranks

__all__ = ["Units", "heads_of", "importance_of", "norms_of", "units_of"]


class Units(NamedTuple):
    """The parts of a sublayer whose outputs its last map adds up: heads of a mixer, or channels of a feed-forward.

    projection: the last map. number: of units; each has ``size`` inputs of the map, one unit after another.
    """

    sublayer: nn.Module
    projection: LinearMap
    number: int

    @property
    def size(self) -> int:
        """The channels of a unit."""
        return self.projection.in_features // self.number

    @property
    def are_heads(self) -> bool:
        """Whether the units are heads; if not, they are channels of a feed-forward."""
        return isinstance(self.sublayer, QKVMixer)


def units_of(sublayer: nn.Module) -> Units | None:
    """Returns the heads of a mixer or the channels of a feed-forward; None for other modules."""
    if isinstance(sublayer, QKVMixer):
        return heads_of(sublayer)
    if isinstance(sublayer, FeedForward | SeparableConvolution):
        return Units(sublayer, sublayer.narrow, sublayer.width)
    return None


def heads_of(mixer: QKVMixer) -> Units:
    """Returns the heads of a mixer."""
    return Units(mixer, mixer.merge, mixer.heads)


@torch.no_grad()
def norms_of(units: Units) -> Tensor:
    """Returns the Euclidean norm (n,) of the columns of each unit in its last map."""
    return units.projection.weight.unflatten(1, (units.number, units.size)).norm(dim=(0, 2))


def importance_of(units: Sequence[Units], task: Any, batches: Iterable[Any]) -> list[Tensor]:
    """Returns the importance (n,) of the n units of each sublayer: the sum over examples of |y dL/dy|, where y are the
    outputs of a unit at all positions (Michel et al. 2019, arXiv:1905.10650, equation 2; for channels Molchanov et al.
    2017, arXiv:1611.06440, section 2.2). task: in evaluation mode. batches: of training."""
    sums = [torch.zeros(own.number, device=own.projection.weight.device) for own in units]
    with _adding_up(units, sums):
        for batch in batches:
            task.training_step(batch, 0)["loss"].backward()
    task.zero_grad(set_to_none=True)
    return [mean_over_ranks(own) for own in sums]


@contextmanager
def _adding_up(units: Sequence[Units], sums: Sequence[Tensor]) -> Iterator[None]:
    """Adds the importance of the units of each sublayer to its sums in every backward pass within the block."""
    with ExitStack() as stack:
        for own, total in zip(units, sums, strict=True):

            def hook(module: nn.Module, inputs: tuple[Tensor, ...], own: Units = own, total: Tensor = total) -> None:
                outputs = inputs[0]

                def add(gradient: Tensor) -> None:
                    products = (outputs.detach() * gradient).unflatten(-1, (own.number, own.size))
                    total.add_(products.sum(dim=(1, 3)).abs().sum(dim=0).to(total))

                outputs.register_hook(add)

            stack.callback(own.projection.register_forward_pre_hook(hook).remove)
        yield
