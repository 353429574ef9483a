"""The roles of parameters, by which training can treat some parameters of a network differently from the others.

A parameter has several: a bias of the mixer of the third layer is of the network, of ``layer 3``, of ``mixers`` and of
``biases``. Most follow from the classes of modules. A module may name one itself, as ``role: ClassVar[str]``, which all
parameters below it have, but for those below another module that names one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from torch import nn

from lit_transformers.models.tokens import TokenEmbedding
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.stack import Stack

__all__ = [
    "ADAPTERS",
    "EMBEDDINGS",
    "HEADS",
    "LAYERS",
    "SOFTMAX",
    "Roles",
    "layers_of",
    "named_roles",
    "network_roles",
    "vectors",
]

EMBEDDINGS, SOFTMAX, LAYERS, HEADS, ADAPTERS = "embeddings", "softmax", "layers", "heads", "adapters"
BRANCHES = {"mixer": "mixers", "cross": "mixers", "feedforward": "feedforwards"}
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)

Roles = Mapping[str, Sequence[nn.Parameter]]
"""Parameters by role; one may stand in a role several times."""


class Layered(Protocol):
    """The parts of a network that roles follow from."""

    def embeddings(self) -> list[TokenEmbedding]: ...
    def layers(self) -> Mapping[str, Sequence[nn.Module]]: ...
    def modules(self) -> Iterator[nn.Module]: ...


def layers_of(network: nn.Module) -> dict[str, Sequence[nn.Module]]:
    """Returns the layers of each stack within a network by the stack's name, the lowest first. One that is applied
    several times stands there several times."""
    return {name: stack.steps() for name, stack in network.named_modules() if isinstance(stack, Stack)}


def network_roles(network: Layered) -> Roles:
    """Returns the roles that follow from the modules of a network.

    ``embeddings``: of symbols, positions and segments, with all that stands before the first layer; ``softmax``: the
    parameters that predict symbols and embed none; ``layers``, ``layer 1`` for the lowest one, ``mixers``,
    ``feedforwards`` and ``adapters``; and where there are several stacks, the name of each.
    """
    roles: dict[str, list[nn.Parameter]] = defaultdict(list)
    stacks = network.layers()
    for name, layers in stacks.items():
        for number, layer in enumerate(layers, start=1):
            own_names = [LAYERS, f"layer {number}", *([name] if len(stacks) > 1 else [])]
            for role in own_names:
                roles[role] += layer.parameters()
            for branch in layer.branches() if isinstance(layer, Block) else ():
                roles[BRANCHES[branch.name]] += branch.sublayer.parameters()
                if branch.adapter is not None:
                    roles[ADAPTERS] += branch.adapter.parameters()
    predicting = [parameter for embedding in network.embeddings() for parameter in embedding.softmax_only()]
    roles[SOFTMAX] += predicting
    known = {id(parameter) for parameter in [*roles[LAYERS], *predicting]}
    for module in network.modules():
        if isinstance(module, nn.Embedding | TokenEmbedding):
            roles[EMBEDDINGS] += [parameter for parameter in module.parameters() if id(parameter) not in known]
        elif isinstance(module, Stack):
            roles[EMBEDDINGS] += module.entry.parameters()
    return roles


def named_roles(module: nn.Module, role: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yields each parameter that has a role which a module names, or that is of a norm, with the role."""
    own = getattr(module, "role", None)
    role = own if isinstance(own, str) else role
    for parameter in module.parameters(recurse=False):
        if role:
            yield role, parameter
        if isinstance(module, NORMS):
            yield "norms", parameter
    for child in module.children():
        yield from named_roles(child, role)


def vectors(network: nn.Module) -> frozenset[int]:
    """Returns the ids of the parameters that are biases, norms and the like, which decay would pull to zero for no
    reason: those of one dimension, and those that a module names in ``vector_parameters``, such as a bias of each head.
    """
    return frozenset(
        id(parameter)
        for module in network.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() <= 1 or name in getattr(module, "vector_parameters", ())
    )
