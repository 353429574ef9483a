"""A network of which every rank holds a part (arXiv:1910.02054): weights, gradients and the optimizer's state.

A parameter is cut along its first dimension and keeps its shape to whoever asks, so decay, clipping and schedules see
what they see in one process. The weights are put together for a pass and taken apart after it; gradients and the
optimizer's state, most of what training holds, are never in one place.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

__all__ = ["put_together", "shard"]


def shard(network: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts the network over the ranks of the mesh, in place. One that is cut already stays as it is."""
    if not isinstance(network, FSDPModule):
        fully_shard(network, mesh=mesh)


def put_together(network: nn.Module) -> None:
    """Gives every rank all weights until the next training step; all ranks must ask.

    For a measurement: there ranks read unequal numbers of batches, and none may wait for another within one.
    """
    if isinstance(network, FSDPModule):
        network.unshard()
