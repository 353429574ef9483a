"""Structured pruning: a network that keeps some heads and feed-forward channels of a wider one, and is smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from lit_transformers.compression.compression import random_scores
from lit_transformers.compression.importance import Units, importance_of, norms_of, units_of
from lit_transformers.config import Config, ConfigError, Positive, Seed
from lit_transformers.mixer import Mixer
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.model import ModelConfig

__all__ = ["NarrowConfig", "Narrowing", "is_width", "scores_of", "with_widths_of"]

HEADS, CHANNELS = "model.heads", "model.feedforward.width"
"""The fields of the number of heads and of channels, for messages."""
WIDTHS = (".attention_heads", ".head_dim", "feedforward.width")
"""The ends of the paths of the fields, besides ``heads``, in which a narrower network differs from a wider one."""


@final
class NarrowConfig(Config):
    """The choice of the heads and feed-forward channels that a narrower network keeps of a wider one: in each layer
    those of the highest scores, in the order of the wider network. How many is stated by the network's config.

    score: ``importance``, the sum over training examples of |y dL/dy| with the outputs y of a head (Michel et al.
    2019, arXiv:1905.10650, equation 2) or of a channel (Molchanov et al. 2017, arXiv:1611.06440, section 2.2);
    ``magnitude``, the Euclidean norm of the columns of a head in the output map, or of all weights to and from a
    channel; or ``random``, a control. batches: of training, from which importance is estimated. seed: of random scores.
    """

    score: Literal["importance", "magnitude", "random"] = "importance"
    batches: Positive = 16
    seed: Seed = 0


class Cut(NamedTuple):
    """Where a tensor has a row for each unit, or for each channel of each unit.

    sublayer: its name. dimension: of the rows. size: the rows of a unit.
    """

    sublayer: str
    dimension: int
    size: int

    def apply(self, tensor: Tensor, kept: Tensor) -> Tensor:
        """Returns the rows of the kept units (n,)."""
        rows = kept[:, None] * self.size + torch.arange(self.size)
        return tensor.index_select(self.dimension, rows.flatten().to(tensor.device))


class Narrowing:
    """The differences between a wider network and a narrower one with the same names.

    units: those of each sublayer that is narrower, by its name. counts: how many of them the narrower network has.
    cuts: of the tensors with rows of units, by all of their names. heads_change: whether the configs of the networks
    state different numbers of heads. Raises ConfigError, which names the field, where the narrower network does not
    have some units of the wider one.
    """

    def __init__(self, wide: nn.Module, narrow: nn.Module, heads_change: bool) -> None:
        self.units: dict[str, Units] = {}
        self.counts: dict[str, int] = {}
        self.cuts: dict[str, Cut] = {}
        first: dict[int, str] = {}
        owner: dict[int, str] = {}
        if heads_change:
            _require_single_heads(wide)
        parts = dict(narrow.named_modules(remove_duplicate=False))
        for name, module in wide.named_modules(remove_duplicate=False):
            there, here = units_of(module), units_of(parts[name]) if name in parts else None
            if there is None or here is None or there.number == here.number:
                continue
            _require_fewer(there, here)
            sublayer = first.setdefault(id(module), name)
            self.units[sublayer], self.counts[sublayer] = there, here.number
            self._cut(name, sublayer, there, parts[name], owner)
        self._require_all_cut(wide, narrow)
        if not self.units:
            reason = "keeps all heads and channels"
            raise ConfigError(f"{reason}; lower {HEADS} or {CHANNELS}, or drop start.narrow", "start.narrow")

    def _cut(self, name: str, sublayer: str, wide: Units, narrow: nn.Module, owner: dict[int, str]) -> None:
        """Notes the cuts of a sublayer. owner: the names of sublayers by the ids of their tensors."""
        shapes = {tensor_name: tensor.shape for tensor_name, tensor in narrow.state_dict().items()}
        for tensor_name, tensor in wide.sublayer.state_dict(keep_vars=True).items():
            sizes = [*zip(tensor.shape, shapes.get(tensor_name, ()), strict=False)]
            changed = [place for place, (there, here) in enumerate(sizes) if there != here]
            if changed and owner.setdefault(id(tensor), sublayer) != sublayer:
                reason = f"layers share {tensor_name}, of which each would keep the rows of other heads"
                raise ConfigError(f"{reason}; keep their number", HEADS)
            rows = tensor.size(changed[0]) // wide.number if len(changed) == 1 else 0
            if rows and sizes[changed[0]] == (wide.number * rows, self.counts[sublayer] * rows):
                self.cuts[f"{name}.{tensor_name}"] = Cut(sublayer, changed[0], rows)

    def _require_all_cut(self, wide: nn.Module, narrow: nn.Module) -> None:
        shapes = {name: tensor.shape for name, tensor in narrow.state_dict().items()}
        for name, tensor in wide.state_dict().items():
            if name not in self.cuts and name in shapes and shapes[name] != tensor.shape:
                reason = f"{name} is {tuple(tensor.shape)} there and {tuple(shapes[name])} here"
                raise ConfigError(f"{reason}, and has no rows of single heads or channels", "start.narrow")

    def narrowed(self, tensors: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of the narrower network, given the scores (n,) of the units of each sublayer."""
        kept = {
            name: own.argsort(descending=True, stable=True)[: self.counts[name]].sort().values
            for name, own in scores.items()
        }
        return {
            name: self.cuts[name].apply(tensor, kept[self.cuts[name].sublayer]) if name in self.cuts else tensor
            for name, tensor in tensors.items()
        }

    @property
    def note(self) -> str:
        """A line on the numbers that are kept."""
        numbers = {
            f"{self.counts[name]} of {own.number} {'heads' if own.are_heads else 'feed-forward channels'}": None
            for name, own in self.units.items()
        }
        return f"each layer keeps {' and '.join(numbers)}"


def _require_single_heads(network: nn.Module) -> None:
    """Raises ConfigError for a mixer whose heads are not computed one by one from maps with rows of each head."""
    for module in network.modules():
        parts = [part for part in module.modules() if part is not module]
        is_single = isinstance(module, Mixer) and not any(isinstance(part, Mixer) for part in parts)
        if is_single and not isinstance(module, QKVMixer):
            reason = f"{type(module).__name__} does not compute its heads one by one"
            raise ConfigError(f"{reason}; keep their number", HEADS)


def _require_fewer(there: Units, here: Units) -> None:
    """Raises ConfigError where a sublayer has more units than that of a wider network, or its heads compute something
    else there."""
    noun, field = ("heads", HEADS) if there.are_heads else ("channels", CHANNELS)
    if here.number > there.number:
        reason = f"is {here.number}, and each layer of start.network has {there.number} {noun}"
        raise ConfigError(f"{reason}; set it to {there.number} or fewer", field)
    if there.size != here.size:
        reason = f"heads have {there.size} channels in start.network and {here.size} here"
        raise ConfigError(f"{reason}; set it to {there.size}", "model.mixer.head_dim")
    if isinstance(there.sublayer, QKVMixer) and there.sublayer.heads_differ:
        raise ConfigError(f"{there.sublayer.heads_differ}; keep their number", HEADS)


def scores_of(
    config: NarrowConfig, narrowing: Narrowing, task: Any, batches: Callable[[], Iterable[Any]]
) -> dict[str, Tensor]:
    """Returns the scores (n,) of the units of each narrower sublayer, by its name. task: the task of the wider network,
    with its weights, in evaluation mode. batches: returns batches of training."""
    units = narrowing.units
    if config.score == "random":
        counts = [own.number for own in units.values()]
        scores = [random_scores((count,), config.seed, number) for number, count in enumerate(counts)]
    elif config.score == "magnitude":
        scores = [_magnitude(own) for own in units.values()]
    else:
        scores = importance_of([*units.values()], task, islice(batches(), config.batches))
    return dict(zip(units, scores, strict=True))


@torch.no_grad()
def _magnitude(units: Units) -> Tensor:
    """Returns the norms (n,) of the weights of units: of heads those in the output map, of channels those in all
    maps."""
    if units.are_heads:
        return norms_of(units)
    squares = units.projection.weight.square().sum(dim=0)
    for weight in units.sublayer.parameters():
        if weight.dim() > 1 and weight is not units.projection.weight:
            squares = squares + weight.square().flatten(1).sum(dim=1)
    return squares.sqrt()


def is_width(path: str) -> bool:
    """Whether a field of a network's config states the number or the width of heads, or of feed-forward channels."""
    return path == "heads" or path.endswith(WIDTHS)


def with_widths_of(model: ModelConfig, other: ModelConfig) -> ModelConfig:
    """Returns the config of a network with the numbers and widths of heads and the feed-forward channels of another
    network."""
    values = dict(other.leaves())
    paths = [path for path, _ in model.leaves() if is_width(path)]
    return model.override({path: values[path] for path in paths if path in values})
