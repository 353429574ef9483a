"""Shards a network over the ranks (arXiv:1910.02054): weights, gradients and the optimizer's state.

A parameter is cut along its first dimension but reports its whole shape, so decay, clipping and schedules work as in
one process. The weights are gathered for a pass and sharded again after it; gradients and the optimizer's state, most
of the memory of training, are never gathered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

__all__ = ["complete_moments", "number_by_network", "put_together", "shard"]


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


def number_by_network(state: dict[str, Any], optimizer: torch.optim.Optimizer, network: nn.Module) -> None:
    """Numbers the parameters in the state of an optimizer as the network does, in place, and not as its groups do.

    So Lightning numbers them where a network is sharded, and takes no other numbers there; elsewhere any will do.
    """
    numbers = {parameter: number for number, parameter in enumerate(network.parameters())}
    by_group = [numbers[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state["state"] = {by_group[number]: moments for number, moments in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [by_group[number] for number in group["params"]]


def complete_moments(state: dict[str, Any], network: nn.Module) -> None:
    """Adds the moments of parameters that have not learned yet to the state of an optimizer, in place: zeros, which
    they begin with. Where a network is sharded, Lightning restores the moments of all parameters or of none."""
    known = next(iter(state.get("state", {}).items()), None)
    if known is None:  # on all ranks but the first
        return
    parameters = [*network.parameters()]
    like, moments = parameters[known[0]], known[1]
    for number in (number for group in state["param_groups"] for number in group["params"]):
        if number not in state["state"]:
            state["state"][number] = {
                name: torch.zeros(parameters[number].shape if value.shape == like.shape else value.shape).to(value)
                for name, value in moments.items()
            }
