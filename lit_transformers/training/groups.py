"""Parameter groups: parts of a task that learn at another rate, from a later step on, or not at all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat, Plain, Positive
from lit_transformers.models.model import Network
from lit_transformers.models.roles import EMBEDDINGS, HEADS, LAYERS, named_roles, vectors

__all__ = [
    "FROZEN_NETWORK",
    "INSTEAD_OF_FROZEN",
    "ParameterGroupConfig",
    "ParameterGroups",
    "UnfreezingConfig",
    "networks",
    "roles_of",
    "with_groups",
]

_RANGE = re.compile(rf"{LAYERS} (\d+)-(\d+)")


class ParameterGroupConfig(Config):
    """How a group of parameters learns. If several groups name a parameter, it belongs to the last of them.

    parameters: the roles of the group's parameters: network, heads, embeddings, softmax, layers, layer 1 (the lowest),
    layers 1-4, mixers, feedforwards, adapters, norms, biases, and the roles of plug-ins.
    rate: multiplies the optimizer's learning rate. layer_decay: multiplies it once more for every layer above: in a
    network of N layers by layer_decay^(N + 1 - k) for layer k, by layer_decay^(N + 1) for embeddings, and by 1 for
    parts above the layers (arXiv:1801.06146, section 3.2; exponents as in arXiv:2106.08254). decay: the weight decay of
    matrices, in place of the optimizer's; the decay of vectors does not change. from_step: the first update, counted
    from 0, in which the group learns; before it, its parameters have no gradient for the optimizer and for ``clip``.
    frozen: whether the group never learns. mode: eval puts modules whose parameters are all frozen into evaluation
    mode, without dropout (a probe, arXiv:1610.01644).
    """

    parameters: tuple[str, ...]
    rate: NonNegativeFloat = 1.0
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    decay: NonNegativeFloat | None = None
    from_step: NonNegative = 0
    frozen: bool = False
    mode: Literal["train", "eval"] = "train"

    def conflicts(self) -> Iterator[str]:
        if not self.parameters:
            yield "a group without parameters changes nothing; set parameters to roles such as [embeddings]"
        if self.rate == 0:
            yield "at a rate of 0 nothing learns; set frozen: true"
        if self.frozen and (self.rate, self.layer_decay, self.decay, self.from_step) != (1.0, 1.0, None, 0):
            yield "frozen parameters have no rate, no decay and no first step; drop them, or set frozen: false"
        if self.mode == "eval" and not self.frozen:
            yield "mode eval is for frozen parameters; set frozen: true, or mode: train"


class UnfreezingConfig(Config):
    """Gradual unfreezing from the top (ULMFiT, arXiv:1801.06146, section 3.3): heads and other parts above the layers
    learn from the start; after every ``every`` updates the next lower layer learns too, and embeddings last.

    In a network of N layers, layer k learns from update (N + 1 - k) * every on, counted from 0, and embeddings from
    update (N + 1) * every on. If ``from_step`` of a parameter's group is later, it counts. In the paper ``every`` is an
    epoch.
    """

    every: Positive


FROZEN_NETWORK = ParameterGroupConfig(parameters=("network",), frozen=True, mode="eval")
"""The group of a probe, in which only the head learns."""
_UNCHANGED = ParameterGroupConfig(parameters=("",))
INSTEAD_OF_FROZEN = "set training.groups='[{parameters: [network], frozen: true, mode: eval}]'"
"""The way out in messages: the group that freezes the network."""


def with_groups(plain: Mapping[str, Plain], task: str, training: str) -> Mapping[str, Plain]:
    """Returns plain data, in which an objective may hold ``frozen`` as it did before there were groups, with the group
    that stands for it. task, training: the names of the parts that hold the objective and the groups."""
    objective, budget = plain.get(task), plain.get(training, {})
    if not isinstance(objective, Mapping) or not isinstance(budget, Mapping) or "frozen" not in objective:
        return plain
    kept = {name: value for name, value in objective.items() if name != "frozen"}
    if not isinstance(objective["frozen"], bool):
        raise ConfigError("is true or false; set training.groups in its place", f"{task}.frozen")
    groups = [*budget.get("groups", ()), *([FROZEN_NETWORK.to_dict()] if objective["frozen"] else [])]
    return {**plain, task: kept, training: {**budget, "groups": groups}}


def networks(module: nn.Module) -> dict[str, Network]:
    """Returns the networks that a module holds by name, without those within another one."""
    if isinstance(module, Network):
        return {"": module}
    inner = ((name, networks(child)) for name, child in module.named_children())
    return {".".join(filter(None, (name, rest))): network for name, held in inner for rest, network in held.items()}


def roles_of(module: nn.Module) -> dict[str, frozenset[str]]:
    """Returns the names of the parameters of a task, or of another module, that have each role.

    Those of a network have its name as well, and all others, which are not a network's, are of ``heads``; one of
    several in a dictionary of heads is ``heads.NAME``.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    roles: dict[str, set[str]] = defaultdict(set)
    held, of_networks = networks(module), set[int]()
    for name, network in held.items():
        own = [*network.parameters()]
        of_networks |= {*map(id, own)}
        for role, parameters in {**network.roles(), **({name: own} if name else {})}.items():
            roles[role] |= {names[id(parameter)] for parameter in parameters}
    if held:
        roles[HEADS] |= {name for parameter, name in names.items() if parameter not in of_networks}
    heads = getattr(module, HEADS, None)
    for name, head in heads.items() if isinstance(heads, nn.ModuleDict) else ():
        roles[f"{HEADS}.{name}"] |= {names[id(parameter)] for parameter in head.parameters()}
    for role, parameter in named_roles(module):
        roles[role].add(names[id(parameter)])
    roles["biases"] |= {names[parameter] for parameter in vectors(module)} - roles["norms"]
    return {role: frozenset(members) for role, members in roles.items() if members}


def layers_above(module: nn.Module, embeddings: frozenset[str]) -> dict[str, int]:
    """Returns, by the names of parameters, the number of layers of the stack from the parameter's own layer up: 0 above
    all layers, and the number of layers plus 1 for embeddings. A layer that is applied several times counts at its last
    place."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    above: dict[str, int] = {}
    for network in networks(module).values():
        stacks = network.layers().values()
        deepest = max(map(len, stacks), default=0)
        above |= dict.fromkeys(embeddings & {names[id(parameter)] for parameter in network.parameters()}, deepest + 1)
        for layers in stacks:
            for number, layer in enumerate(layers):
                above |= {names[id(parameter)]: len(layers) - number for parameter in layer.parameters()}
    return above


class ParameterGroups:
    """The parameter groups of a module. Parameters of frozen groups require no gradient from now on."""

    def __init__(
        self,
        module: nn.Module,
        configs: Sequence[ParameterGroupConfig],
        unfreezing: UnfreezingConfig | None = None,
        steps: int | None = None,
    ) -> None:
        """unfreezing: unfreezes the layers one after another. steps: the updates of training, within which every layer
        must start to learn. Raises ConfigError for a role that no trained parameter has, a group whose parameters all
        belong to later groups, groups that leave nothing to learn at first, and a layer that would never learn."""
        self.configs = tuple(configs)
        self.group_of: dict[str, int] = {}
        self.first_steps: dict[str, int] = {}
        self._above: dict[str, int] = {}
        self._resting: list[nn.Module] = []
        if not configs and unfreezing is None:
            return
        learning = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        roles = {role: names & learning.keys() for role, names in roles_of(module).items() if names & learning.keys()}
        for number, config in enumerate(configs):
            for role in config.parameters:
                self.group_of |= dict.fromkeys(sorted(_with_role(role, roles, number)), number)
        for number in set(range(len(configs))) - {*self.group_of.values()}:
            reason = "all of its parameters belong to later groups, which count; drop it, or move it to the end"
            raise ConfigError(reason, f"training.groups.{number}")
        for name in self.frozen:
            learning[name].requires_grad_(False)
        self._above = layers_above(module, roles.get(EMBEDDINGS, frozenset()))
        every = 0 if unfreezing is None else unfreezing.every
        for name in (name for name, parameter in learning.items() if parameter.requires_grad):
            self.first_steps[name] = max(self._of(name).from_step, every * self._above.get(name, 0))
        if 0 not in self.first_steps.values():
            raise ConfigError(
                "nothing learns from the first step on; freeze less, or lower from_step", "training.groups"
            )
        last = max(self.first_steps.values())
        if every and steps is not None and last >= steps:
            most = max((steps - 1) // max(self._above[name] for name in self.first_steps if name in self._above), 0)
            reason = f"the lowest part would learn from step {last} on, but there are {steps} steps"
            way_out = f"set it to at most {most}" if most else "train longer"
            raise ConfigError(f"{reason}; {way_out}, or freeze the lowest part", "training.unfreezing.every")
        self._resting = [*self._modules_in_eval(module)]
        self.rest()

    def _of(self, name: str) -> ParameterGroupConfig:
        """Returns the group of a parameter; a group that changes nothing if no group names it."""
        return self.configs[self.group_of[name]] if name in self.group_of else _UNCHANGED

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that groups freeze."""
        return frozenset(name for name, number in self.group_of.items() if self.configs[number].frozen)

    def _modules_in_eval(self, module: nn.Module) -> Iterator[nn.Module]:
        """Yields the modules without learning parameters that have a parameter in a group of mode eval."""
        resting = {name for name, number in self.group_of.items() if self.configs[number].mode == "eval"}
        for prefix, inner in module.named_modules():
            own = dict(inner.named_parameters(prefix))
            if own.keys() & resting and not any(p.requires_grad for p in own.values()):
                yield inner

    def rest(self) -> None:
        """Puts the modules of mode eval into evaluation mode, after the whole task was put into training mode."""
        for module in self._resting:
            module.eval()

    def drop_gradients(self, module: nn.Module, step: int) -> None:
        """Drops the gradients of parameters that do not learn in update ``step`` yet, so that clipping and the
        optimizer ignore them. They are computed nevertheless, since ranks cannot add a parameter's gradient later."""
        if step < max(self.first_steps.values(), default=0):
            for name, parameter in module.named_parameters():
                if self.first_steps.get(name, 0) > step:
                    parameter.grad = None

    def divide(self, optimizer: torch.optim.Optimizer, module: nn.Module, kind: str) -> None:
        """Divides the groups of a new optimizer, so that each parameter has its rate and decay.

        kind: of the optimizer, for messages. Raises ConfigError if its groups have no rate or no decay.
        """
        if all((config.rate, config.layer_decay, config.decay) == (1.0, 1.0, None) for config in self.configs):
            return
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        without_decay, divided = vectors(module), list[dict[str, Any]]()
        for group in optimizer.param_groups:
            parts: dict[tuple[float, float | None], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                rate, decay = self._settings(names.get(id(parameter), ""))
                parts[rate, None if id(parameter) in without_decay else decay].append(parameter)
            for (rate, decay), parameters in parts.items():
                divided.append({**group, "params": parameters})
                if rate != 1.0:
                    _require(group, "lr", kind)
                    divided[-1]["lr"] = rate * group["lr"]
                if decay is not None:
                    _require(group, "weight_decay", kind)
                    divided[-1]["weight_decay"] = decay
        if isinstance(optimizer, torch.optim.LBFGS):
            way_out = "drop rate, layer_decay and decay, or set another optimizer"
            raise ConfigError(f"an optimizer {kind} has only one group; {way_out}", "training.groups")
        optimizer.param_groups[:] = divided

    def _settings(self, name: str) -> tuple[float, float | None]:
        """Returns the factor of a parameter's learning rate, and its weight decay; None for the optimizer's decay."""
        config = self._of(name)
        return config.rate * config.layer_decay ** self._above.get(name, 0), config.decay


def _with_role(role: str, roles: Mapping[str, frozenset[str]], number: int) -> frozenset[str]:
    """Returns the parameters with a role, which may be a range of layers. Raises ConfigError if no parameter has it."""
    match = _RANGE.fullmatch(role)
    first, last = map(int, match.groups()) if match else (0, -1)
    members: set[str] = set()
    for single in (f"layer {layer}" for layer in range(first, last + 1)) if first <= last else (role,):
        if single not in roles:
            layers = [name for name in roles if name.startswith("layer ")]
            names = sorted(roles.keys() - layers) + ([f"layer 1 to layer {len(layers)}"] if layers else [])
            reason = f"no trained parameter has the role {single!r}; the roles are: {', '.join(names)}"
            raise ConfigError(reason, f"training.groups.{number}.parameters")
        members |= roles[single]
    return frozenset(members)


def _require(group: Mapping[str, Any], name: str, kind: str) -> None:
    """Raises ConfigError if the groups of an optimizer have no such field."""
    if name not in group:
        what, fields = ("learning rate", "rate and layer_decay") if name == "lr" else ("weight decay", "decay")
        reason = f"an optimizer {kind} has no {what} for each of its groups; drop {fields}, or set another optimizer"
        raise ConfigError(reason, "training.groups")
