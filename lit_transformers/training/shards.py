"""Shards a network over the ranks (arXiv:1910.02054): weights, gradients and the optimizer's state.

A parameter is cut along its first dimension but reports its whole shape, so decay, clipping and schedules work as in
one process. The weights are gathered for a pass and sharded again after it; gradients and the optimizer's state, most
of the memory of training, are never gathered.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

__all__ = ["put_together", "shard"]


def shard(network: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the network over the ranks of the mesh, in place. A network that is already sharded stays as it is."""
    if not isinstance(network, FSDPModule):
        fully_shard(network, mesh=mesh)


def put_together(network: nn.Module) -> None:
    """Gives every rank all weights until the next training step; all ranks must call this.

    It serves evaluation, where ranks read unequal numbers of batches, so that none may wait for another in a pass.
    """
    if isinstance(network, FSDPModule):
        network.unshard()
