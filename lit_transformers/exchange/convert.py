"""Reads and writes configs and tensors by the mapping of an architecture. Parts without a place are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lit_transformers.batch import Vocabulary
from lit_transformers.config import ConfigError, Dropout, Initial, Plain, Rounding
from lit_transformers.encodings.positions import sinusoids
from lit_transformers.exchange.architectures import ARCHITECTURES, REFUSED
from lit_transformers.exchange.mapping import REQUIRED, Architecture, Family, Part, Weight
from lit_transformers.models import ModelConfig
from lit_transformers.models.cost import MOST_LAYERS
from lit_transformers.printing.error_lines import first_line
from lit_transformers.quantisation import FORM
from lit_transformers.runs.starting_weights import differences, own_names
from lit_transformers.training.config import TrainingConfig

__all__ = [
    "WeightLayout",
    "architecture_named",
    "layout_of",
    "read_config",
    "read_tensors",
    "write_config",
    "write_tensors",
]

CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "position_ids": lambda tensor: torch.arange(tensor.numel()).view_as(tensor),
    "token_type_ids": torch.zeros_like,
    "attn.bias": lambda tensor: torch.ones_like(tensor).tril(),
    "attn.masked_bias": lambda tensor: torch.full_like(tensor, -1e4),
    "embed_positions.weight": lambda table: sinusoids(torch.arange(table.size(0)), table.size(1), torch.float64),
}
"""Tensors of old checkpoints that hold no weights, by the ends of their names, and their contents: positions, segments,
the mask of the keys that a query of GPT-2 sees, the score that hides the other keys, and the sinusoids of Marian."""
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of norms in checkpoints that were converted from TensorFlow."""
SHOWN = 3
"""The most names that a message lists."""


class WeightLayout(NamedTuple):
    """The weights of the task that an architecture's come from, with all of its heads.

    shapes: of each distinct tensor by its first name. aliases: the first name by the other names of the same tensor.
    layers: for the name of each stack the numbers of its layers with separate weights. heads: of each layer.
    current_names: returns weights by the names that the task has for them, whichever older task had written them.
    """

    shapes: dict[str, torch.Size]
    aliases: dict[str, str]
    layers: dict[str, list[int]]
    heads: int
    current_names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def layout_of(family: Family, model: ModelConfig, symbols: int) -> WeightLayout:
    """Returns the layout of a model over ``symbols`` symbols. Raises ConfigError where it cannot be built."""
    deepest = max(model.depths().values(), default=0)
    if deepest > MOST_LAYERS:
        raise ConfigError(f"names {deepest:,} layers, and no network has more than {MOST_LAYERS:,}", "config.json")
    vocabulary = Vocabulary(size=symbols, boundary=0, unit="piece", byte_lengths=None)
    description = family.task.probe_data(vocabulary, 1)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            task = family.task.build(model, description, TrainingConfig())
    except RuntimeError as error:  # torch's, of sizes that no tensor can have
        raise ConfigError(f"describes no network that can be built: {first_line(error)}", "config.json") from None
    names = own_names(task)
    distinct = {ours for name, ours in names.items() if name == ours}
    numbers: dict[str, set[int]] = {}
    for name in distinct:
        if match := re.match(r"(.+?)\.blocks\.(\d+)\.", name):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    shapes = {name: tensor.shape for name, tensor in task.state_dict().items() if name in distinct}
    aliases = {name: ours for name, ours in names.items() if name != ours}
    layers = {stack: sorted(of_stack) for stack, of_stack in numbers.items()}
    return WeightLayout(shapes, aliases, layers, model.heads, task.current_names)


def architecture_named(name: Plain, place: str) -> Architecture:
    """Returns the architecture of that ``model_type``. Raises ConfigError where there is none; ``place`` names it."""
    if isinstance(name, str) and name in REFUSED:
        raise ConfigError(f"{name} cannot be mapped: {REFUSED[name]}", place)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(f"no architecture {name!r}; there are: {', '.join(sorted(ARCHITECTURES))}", place)
    return ARCHITECTURES[name]


def read_config(architecture: Architecture, fields: Mapping[str, Plain]) -> ModelConfig:
    """Returns our config of the model that a config.json describes. Raises ConfigError, which names the field."""
    for name, value in architecture.refused.items():
        if fields.get(name, value) != value:
            reason = f"is {fields[name]!r}, and only {value!r} can be mapped"
            raise ConfigError(reason, f"config.json: {name}")
    values, theirs = dict(architecture.fixed), dict[str, str]()
    for setting in architecture.settings:
        value = fields.get(setting.theirs, setting.default)
        if value is REQUIRED:
            raise ConfigError(f"has no {setting.theirs}", "config.json")
        try:
            value = setting.conversion.read(value, fields)
        except ConfigError as error:
            raise ConfigError(error.reason, f"config.json: {setting.theirs}") from None
        if setting.ours in theirs and values[setting.ours] != value:
            other = theirs[setting.ours]
            reason = (
                f"is {value!r} and {other} {values[setting.ours]!r}; both are {setting.ours} here, so make them equal"
            )
            raise ConfigError(reason, f"config.json: {setting.theirs}")
        values[setting.ours], theirs[setting.ours] = value, setting.theirs
    try:
        return architecture.family.model.override(values)
    except ConfigError as error:
        raise ConfigError(error.reason, f"config.json: {theirs.get(error.path, error.path)}") from None


def write_config(architecture: Architecture, model: ModelConfig, positions: int | None) -> dict[str, Plain]:
    """Returns the fields of a config.json for a model. positions: the rows of its table of positions; None without one.

    Raises ConfigError, which names the field, where the architecture has no place for a value that changes the outputs
    of the network.
    """
    if type(model) is not type(architecture.family.model):
        article_kind = (
            f"{article(model.kind)}, and {article(architecture.name)} is {article(architecture.family.model.kind)}"
        )
        raise ConfigError(f"is {article_kind}", "model")
    if positions is None and any(setting.ours == "positions.max_length" for setting in architecture.settings):
        raise ConfigError(f"has no learned positions, and {article(architecture.name)} has", "model.positions")
    model = explicit(model, positions)
    leaves = dict(model.leaves())
    no_symbols = dict.fromkeys(architecture.symbols)
    fields: dict[str, Plain] = {"model_type": architecture.name, **no_symbols, **architecture.written}
    for setting in architecture.settings:
        value = setting.conversion.write(leaves.get(setting.ours), fields)
        if value is not None:
            fields[setting.theirs] = value
    ignored = {path for role in (Initial, Dropout, Rounding) for path, _ in model.leaves_with(role)}
    unequal = [
        f"{path} is {ours!r} here and {theirs!r} there"
        for path, ours, theirs in differences(model, read_config(architecture, fields), ignored)
    ]
    if unequal:
        reason = f"cannot be written as {architecture.name}: {listed(unequal, '; ')}"
        raise ConfigError(reason, "model")
    return fields


def explicit(model: ModelConfig, positions: int | None) -> ModelConfig:
    """Returns an equal model in which sizes that follow from others are written out, as each architecture has them, and
    fields that change no output have their defaults."""
    leaves = dict(model.leaves())
    changes: dict[str, Plain] = {}
    if leaves.get("feedforward.kind") == "dense":
        changes["feedforward.chunks"] = 1
        if leaves["feedforward.width"] is None:
            changes["feedforward.width"] = 8 * model.dim // 3 if leaves["feedforward.gated"] else 4 * model.dim
    if leaves.get("mixer.head_dim") == model.dim // model.heads:
        changes["mixer.head_dim"] = None
    if leaves.get("positions.kind") == "learned" and not leaves["positions.offset"]:
        changes |= {"positions.restart": "document", "positions.max_length": positions}
    if leaves.get("decoder_depth", model.depth) is None:
        changes["decoder_depth"] = model.depth
    if "decoder_depth" in leaves and "positions.kind" in leaves and not leaves["positions.offset"]:
        changes["positions.restart"] = "segment"  # neither restarts within a source or a target
    return model.override(changes)


def read_tensors(
    architecture: Architecture, checkpoint: Mapping[str, Tensor], layout: WeightLayout
) -> tuple[dict[str, Tensor], list[str]]:
    """Returns the tensors of a checkpoint under our names, and a line for each head that starts anew or is left out.

    Raises ConfigError, which names the tensor, where one is missing, has another shape, is unknown, or differs from one
    that it is tied to.
    """
    remaining = prefixed(architecture, checkpoint)
    for fused in architecture.fused:
        remaining = fused.separated(remaining)
    tensors: dict[str, Tensor] = {}
    lines: list[str] = []
    for part in (architecture.encoder, *architecture.heads):
        pairs = list(expanded(part, layout))
        missing = [
            pair.theirs
            for pair in pairs
            if pair.ours in layout.shapes and not {pair.theirs, *pair.also, *pair.copies} & remaining.keys()
        ]
        whole = len([pair for pair in pairs if pair.ours in layout.shapes])
        if missing and (part is architecture.encoder or len(missing) < whole):
            raise ConfigError(f"the {part.name} lacks {listed(missing)}")
        for pair in pairs:
            lines += unread_copies(pair, remaining, layout)
            for name in (pair.theirs, *pair.also, *pair.copies):
                if name in remaining:
                    read_tensor(pair, name, remaining.pop(name), layout, tensors)
            if pair.transfer.dropped:
                lines.append(f"{pair.transfer.dropped}: left out")
    for name in architecture.family.heads:
        own = [pair.ours for pair in head_weights(architecture.family, name) if pair.ours in layout.shapes]
        if own and not any(ours in tensors for ours in own):
            lines.append(f"{name}: starts anew, for the checkpoint has none")
    return tensors, [*lines, *foreign(architecture, remaining)]


def unread_copies(pair: Weight, remaining: dict[str, Tensor], layout: WeightLayout) -> Iterator[str]:
    """Takes out copies of a tensor that differ from it, and yields a line for each, where weights are not tied: no code
    of transformers reads them then."""
    if pair.theirs in remaining and "network.tokens.logits.weight" in layout.shapes:
        for name in pair.also:
            if name in remaining and not torch.equal(remaining[name], remaining[pair.theirs]):
                del remaining[name]
                yield f"{name}: left out, for transformers reads {pair.theirs} in its place"


def read_tensor(pair: Weight, name: str, tensor: Tensor, layout: WeightLayout, tensors: dict[str, Tensor]) -> None:
    """Adds a tensor of a checkpoint to ours. Raises ConfigError for another shape or type, and where it differs from a
    tensor that it is tied to."""
    ours = layout.aliases.get(pair.ours, pair.ours)
    expected = pair.transfer.write(torch.empty(layout.shapes[ours], device="meta"), layout.heads).shape
    if tensor.shape != expected:
        raise ConfigError(f"is {tuple(tensor.shape)}, and config.json describes {tuple(expected)}", name)
    if not tensor.is_floating_point():
        raise ConfigError(f"holds {str(tensor.dtype).removeprefix('torch.')}, and weights are real numbers", name)
    value = pair.transfer.read(tensor, layout.heads)
    if not torch.equal(tensors.setdefault(ours, value), value):
        raise ConfigError("differs from the tensor that it is tied to; set tie_word_embeddings in config.json", name)


def head_weights(family: Family, name: str) -> Iterator[Weight]:
    """Yields the pairs of the head of that name in all architectures of a family."""
    for architecture in ARCHITECTURES.values():
        if architecture.family == family:
            yield from (pair for head in architecture.heads if head.name == name for pair in head.weights)


def prefixed(architecture: Architecture, checkpoint: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors under the names of a model with heads: a checkpoint of an encoder alone has no prefix."""
    prefix = "" if any(name.startswith(architecture.prefix) for name in checkpoint) else architecture.prefix
    named: dict[str, Tensor] = {}
    for name, tensor in checkpoint.items():
        for old, new in OLD_NAMES.items():
            name = f"{name.removesuffix(old)}{new}" if name.endswith(old) else name
        named[f"{prefix}{name}"] = tensor
    return named


def foreign(architecture: Architecture, remaining: Mapping[str, Tensor]) -> list[str]:
    """Returns a line for each head among the remaining tensors that has no place here. Raises ConfigError for others.

    Skips constants that hold the expected numbers.
    """
    lines: dict[str, None] = {}
    unknown: list[str] = []
    for name, tensor in remaining.items():
        head = next((head for head in architecture.foreign if name.startswith(head)), None)
        if head is not None:
            lines[f"{head.removesuffix('.')}: left out, for it has no place here"] = None
        elif not holds_constant(name, tensor):
            unknown.append(name)
    if unknown:
        raise ConfigError(f"holds {listed(unknown)}, and {article(architecture.name)} here has no place for it")
    return list(lines)


def holds_constant(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is one of ``CONSTANTS`` and holds the numbers that its name says."""
    constant = next((constant for end, constant in CONSTANTS.items() if name.endswith(f".{end}")), None)
    return constant is not None and torch.allclose(constant(tensor).double(), tensor.double(), atol=1e-6)


def write_tensors(
    architecture: Architecture, tensors: Mapping[str, Tensor], layout: WeightLayout
) -> tuple[dict[str, Tensor], str, list[str]]:
    """Returns tensors under the names of the architecture, the class of transformers that has these heads, and a line
    for each of our parts that is omitted. Raises ConfigError, which names the tensor, for a missing one or another
    shape."""
    checkpoint: dict[str, Tensor] = {}
    heads: set[str] = set()
    written: set[str] = set()
    tensors = layout.current_names(tensors)
    for part in (architecture.encoder, *architecture.heads):
        pairs = [pair for pair in expanded(part, layout) if pair.ours in layout.shapes]
        missing = [pair.ours for pair in pairs if pair.ours not in tensors]
        if missing and (part is architecture.encoder or len(missing) < len(pairs)):
            raise ConfigError(f"the {part.name} lacks {listed(missing)}")
        if missing:
            continue
        heads.add(part.name)
        for pair in pairs:
            if tensors[pair.ours].shape != layout.shapes[pair.ours]:
                shapes = f"{tuple(tensors[pair.ours].shape)}, and not {tuple(layout.shapes[pair.ours])}"
                raise ConfigError(f"is {shapes}, as {article(architecture.name)} has it", pair.ours)
            for name in (pair.theirs, *pair.also):
                tensor = pair.transfer.write(tensors[pair.ours], layout.heads)
                checkpoint[name] = tensor.contiguous().clone()
            written.add(pair.ours)
    omitted = {name.rpartition(".")[0] for name in tensors if name not in written and name not in layout.aliases}
    quantisers = {name.rpartition(".")[0] for name in tensors if name.endswith(f".{FORM}")}
    reason = f"omitted, for {article(architecture.name)} has no place for"
    lines = [f"{name}: {reason} it" for name in sorted(omitted - quantisers)]
    if quantisers:
        lines.append(f"quantised inputs of {len(quantisers)} linear maps: {reason} them; it reads inputs as they are")
    for fused in architecture.fused:
        checkpoint = fused.joined(checkpoint)
    model_class = next(name for name, needed in architecture.classes.items() if heads.issuperset(needed))
    return checkpoint, model_class, lines


def expanded(part: Part, layout: WeightLayout) -> Iterator[Weight]:
    """Yields the pairs of a part that the layout has, with those of a layer once for each that has its own weights."""
    for pair in part.weights:
        stack, _, own = pair.ours.partition(".blocks.{layer}")
        numbers = list(enumerate(layout.layers.get(stack, []))) if own else [(0, 0)]
        for theirs, ours in numbers:
            name = pair.ours.format(layer=ours)
            if name in layout.shapes or name in layout.aliases:
                yield pair._replace(theirs=pair.theirs.format(layer=theirs), ours=name)


def listed(names: list[str], between: str = ", ") -> str:
    """Joins the first names for a message, and says how many others there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more


def article(name: str) -> str:
    """Puts the indefinite article before a name."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
