"""The FLOPs of a training step in which parts of a network are frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from lit_transformers.maps import AdapterWeights, LinearMap, MapAdapter
from lit_transformers.models.model import Network
from lit_transformers.models.roles import EMBEDDINGS
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.stack import Stack
from lit_transformers.training.groups import ParameterGroups, networks, roles_of

__all__ = ["flops_without_gradients"]


class RowLength(NamedTuple):
    """The numbers of tokens of a row: its own, those before it, and those of its source."""

    length: int
    remembered: int
    source: int

    def flops(self, network: Network) -> int:
        return network.flops(*self)


class Applied(NamedTuple):
    """A sublayer of a layer, an adapter or a norm that follows one, or a layer that has none. modules: those with its
    parameters;
    flops: of one of the times that it is applied in a row; tokens: that it maps."""

    modules: list[nn.Module]
    flops: float
    tokens: int

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for module in self.modules for parameter in module.parameters()]

    def without_gradient(self, frozen: set[int]) -> int:
        """Returns the number of weights of maps that get no gradient: the frozen ones, unless an adapter that learns
        needs their gradient, and the fixed matrices of adapters. frozen: the ids of the frozen parameters."""
        inner = [module for outer in self.modules for module in outer.modules()]
        needed = {id(linear.weight) for linear in inner if isinstance(linear, LinearMap) and _is_needed(linear, frozen)}
        adapters = [module for module in inner if isinstance(module, AdapterWeights)]
        fixed = [buffer for adapter in adapters for buffer in adapter.buffers()]
        still = [parameter for parameter in self.parameters() if id(parameter) in frozen - needed]
        return sum(matrix.numel() for matrix in (*still, *fixed) if matrix.dim() > 1)


def flops_without_gradients(task: nn.Module, groups: ParameterGroups, flops: float, row: RowLength) -> float:
    """Returns the FLOPs for one row that a backward pass saves because groups freeze weights and adapters have fixed
    matrices. Without these it takes twice ``flops``, the FLOPs of the forward pass.

    A map takes as many FLOPs for the gradient of its weights as forward, which frozen weights save, and as many for the
    gradient of its inputs, which is saved where nothing learns in its sublayer or below it. Products of activations, as
    in attention, take twice the FLOPs of forward, or none. Maps of n weights are taken to cost 2n FLOPs a token. The
    part above the layers, softmax and heads, takes the rest of ``flops``; its maps share it by their numbers of
    weights. If they could not use up the rest, the objective reads its rows more than once, and all sublayers count
    that often.
    """
    frozen = {id(p) for name, p in task.named_parameters() if name in groups.frozen}
    names, embeddings = dict(task.named_parameters()), roles_of(task).get(EMBEDDINGS, frozenset())
    pieces = {id(network): [*_pieces(network, row)] for network in networks(task).values()}
    within = {id(p) for inner in pieces.values() for stack in inner for piece in stack for p in piece.parameters()}
    of_layers = sum(piece.flops for inner in pieces.values() for stack in inner for piece in stack)
    above = _maps_above(task, within, frozen)
    weights = sum(p.numel() for p in above)
    rest = min(flops - of_layers, 2.0 * row.length * weights)
    times = (flops - rest) / of_layers if of_layers else 1.0
    saved, is_anything_below = 0.0, False
    for network in networks(task).values():
        own = {id(p) for p in network.parameters()}
        is_below = any(names[name].requires_grad and id(names[name]) in own for name in embeddings)
        for number, stack in enumerate(pieces[id(network)]):
            if number > 1:  # a part of no stack may lie between two, as a norm does
                outside = {id(p) for p in network.parameters() if p.requires_grad} - within
                is_below = is_below or bool(outside - {id(p) for p in network.tokens.parameters()})
            for piece in stack:
                is_below = is_below or any(p.requires_grad for p in piece.parameters())
                still = piece.without_gradient(frozen)
                saved += times * (min(piece.flops, 2.0 * piece.tokens * still) if is_below else 2.0 * piece.flops)
        is_anything_below = is_anything_below or is_below
    still = sum(p.numel() for p in above if id(p) in frozen)
    return saved + rest * ((still / weights if weights else 0.0) + (not is_anything_below))


def _pieces(network: Network, row: RowLength) -> Iterator[list[Applied]]:
    """Yields, for each stack of a network, the map before its layers and the parts of these, in the order in which they
    are computed; a part that several layers share is there once for each. The FLOPs of a part are those of the network,
    less those of the network without it."""
    whole, stacks = row.flops(network), network.layers()
    applied = Counter(id(parts[0]) for layers in stacks.values() for layer in layers for parts in _parts(layer))
    widening = [m.entry.widen for m in network.modules() if isinstance(m, Stack) and m.entry.widen is not None]
    yield [Applied([widen], 2.0 * row.length * widen.weight.numel(), row.length) for widen in widening]
    for layers in stacks.values():
        reads_target = not row.source or any(isinstance(block, Block) and block.cross is not None for block in layers)
        tokens, pieces = row.length if reads_target else row.source, list[Applied]()
        for parts in (parts for layer in layers for parts in _parts(layer)):
            with _without_flops(parts):
                pieces.append(Applied(parts, (whole - row.flops(network)) / applied[id(parts[0])], tokens))
        yield pieces


def _parts(layer: nn.Module) -> Iterator[list[nn.Module]]:
    """Yields each sublayer of a layer with the norm before it, the adapters whose output is added to the output of the
    sublayer, and the norms that follow sublayers; the layer itself if it has none."""
    if not isinstance(layer, Block):
        yield [layer]
        return
    for branch in layer.branches():
        yield [branch.sublayer, branch.norm] if layer.pre else [branch.sublayer]
        if branch.adapter is not None:
            yield [branch.adapter]
        if not layer.pre:
            yield [branch.norm]


@contextmanager
def _without_flops(modules: list[nn.Module]) -> Iterator[None]:
    """Counts no FLOPs of these modules within the block."""
    for module in modules:
        module.__dict__ |= {"flops": _none, "cross_flops": _none, "query_flops": _none}
    try:
        yield
    finally:
        for module in modules:
            for name in ("flops", "cross_flops", "query_flops"):
                del module.__dict__[name]


def _none(*_: object, **__: object) -> int:
    return 0


def _is_needed(linear: LinearMap, frozen: set[int]) -> bool:
    """Whether the adapter of a map learns from the gradient of the map's weights."""
    adapter = linear.adapter
    if not isinstance(adapter, MapAdapter) or not adapter.needs_weight_gradient:
        return False
    return any(id(parameter) not in frozen for parameter in adapter.parameters())


def _maps_above(task: nn.Module, below: set[int], frozen: set[int]) -> list[nn.Parameter]:
    """Returns the weights of the maps above the layers: of heads, of the maps that prepare the softmax, and of the
    softmax of the networks whose objective predicts symbols."""
    maps: dict[int, nn.Parameter] = {}
    embeddings = {id(p) for network in networks(task).values() for p in network.roles().get(EMBEDDINGS, ())}
    for parameter in task.parameters():
        is_used = parameter.requires_grad or id(parameter) in frozen
        if parameter.dim() > 1 and is_used and id(parameter) not in below | embeddings:
            maps[id(parameter)] = parameter
    for network in networks(task).values():
        only = network.tokens.softmax_only()
        is_predicting = not only or any(p.requires_grad or id(p) in frozen for p in only)
        if is_predicting and not any(p.dim() > 1 for p in only):  # the softmax has the weights of the embedding
            maps |= {id(p): p for p in network.tokens.parameters() if p.dim() > 1}
    return [*maps.values()]
