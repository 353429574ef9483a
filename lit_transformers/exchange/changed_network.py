"""Makes weights of a network the start of another one: with another mixer, for longer rows.

A pretrained encoder becomes Longformer in this way (arXiv:2004.05150, section 5): weights that both networks have are
copied, the table of positions is repeated up to the new length, and projections of global tokens start as copies of the
projections of all tokens (section 3.1). All other new parts start anew, and each of them is named. A mixer that shares
queries and keys takes over the queries alone, so it has to learn anew whom to attend to. Mixers with a window or blocks
do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_transformers.batch import RowDescription, Vocabulary
from lit_transformers.config import Config, ConfigError, Plain, field_types
from lit_transformers.exchange.folders import fresh_folder
from lit_transformers.exchange.transfer import (
    CONFIG,
    WEIGHTS,
    Exchanged,
    add_tokenizer,
    described,
    symbols_of_weights,
    weights_of,
    without_adapters,
)
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowModelConfig, require
from lit_transformers.runs.starting_weights import StartingWeights, own_names, write_weights

__all__ = ["convert_weights", "converted"]

POSITIONS = ".entry.positions.weight"
"""How the name of a table of positions ends, (1, n, d)."""
LAYER = re.compile(r"[.]blocks[.][0-9]+[.]")
"""The place of a layer in the name of a tensor."""
STARTS_AS = {
    "mixer.global_maps.0.": "mixer.query.",
    "mixer.global_maps.1.": "mixer.key.",
    "mixer.global_maps.2.": "mixer.value.",
}
"""Parts that start as copies of others of the same layer, and those."""


class Changed(NamedTuple):
    """The weights of a changed network, by their names in a task, and a line for each part that is not as it was."""

    tensors: dict[str, Tensor]
    notes: list[str]


def convert_weights(
    source: Path, directory: Path, changes: Mapping[str, Plain], length: int | None = None, seed: int = 0
) -> Exchanged:
    """Writes ``directory``, as an import does, with the weights of ``source`` for a network with changes.

    source: the folder of an import, or the checkpoint of a run. changes: values at paths of a run's config, all below
    ``model``; if the kind of a mixer changes, fields that both kinds have keep their values unless a value is given.
    length: the longest row of the new network; None for the length of the table of positions. seed: of the weights that
    start anew. Adapters of linear maps are merged into their maps if the new network has other adapters or none.
    Raises ConfigError, in one line and with nothing written, where the network cannot be built, or a tensor that both
    networks have differs in shape.
    """
    weights = weights_of(source)
    try:
        weights, notes = converted(weights, changes, length, seed)
    except ConfigError as error:
        raise ConfigError(str(error), str(source)) from None
    with fresh_folder(directory) as fresh:
        write_weights(fresh / WEIGHTS, weights)
        (fresh / CONFIG).write_text(described(f"Converted from {source}", weights, directory), encoding="utf-8")
        notes = [*notes, *add_tokenizer(source, fresh, symbols_of_weights(weights), weights)]
    return Exchanged(str(weights.model.kind), sum(tensor.numel() for tensor in weights.tensors.values()), notes)


def converted(
    weights: StartingWeights, changes: Mapping[str, Plain], length: int | None = None, seed: int = 0
) -> tuple[StartingWeights, list[str]]:
    """Returns the weights of a network with changes, and a line for each part that is not as it was. The arguments and
    errors are those of ``convert_weights``."""
    merged = list[str]()
    require(weights.model, RowModelConfig, "convert changes")
    model = changed_model(weights.model, changes, length)
    if model.adapter != weights.model.adapter:
        weights, merged = without_adapters(weights)
    tensors, notes = changed_tensors(weights, model, length or longest(weights), seed)
    return weights._replace(model=model, architecture="", tensors=tensors), [*merged, *notes]


def changed_model(model: ModelConfig, changes: Mapping[str, Plain], length: int | None) -> ModelConfig:
    """Returns the model with changes, and with a table of positions of the new length, if it names one. Raises
    ConfigError for a path that is not below ``model``, or does not exist."""
    values: dict[str, Plain] = {}
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        if head != "model" or not rest:
            raise ConfigError("is no part of the network; name a path below model, such as model.mixer", path)
        values[rest] = with_shared_fields(model.get(rest), value) if "." not in rest else value
    if length is not None and dict(model.leaves()).get("positions.max_length") is not None:
        values.setdefault("positions.max_length", length)
    try:
        return model.override(values)
    except ConfigError as error:
        raise error.under("model") from None


def with_shared_fields(old: Plain, value: Plain) -> Plain:
    """Returns the plain form of a part of another kind, with the fields of the old part that the new one has too.

    They are not defaults of the new kind but how the weights were trained: biases, the width of heads, the scale.
    """
    if not isinstance(old, Config):
        return value
    given = value.to_dict() if isinstance(value, Config) else {"kind": value} if isinstance(value, str) else value
    kinds = next((base.kinds for base in type(old).__mro__ if issubclass(base, Config) and base.kinds), {})
    if not isinstance(given, Mapping) or given.get("kind") not in kinds:
        return value
    names = field_types(kinds[given["kind"]])
    return {name: field for name, field in old.to_dict().items() if name in names} | dict(given)


def longest(weights: StartingWeights) -> int:
    """Returns the number of learned positions. Raises ConfigError where there are none, so that a length is needed."""
    table = next((tensor for name, tensor in weights.tensors.items() if name.endswith(POSITIONS)), None)
    if table is None:
        raise ConfigError("has no table of positions, which would tell the longest row; say --length")
    return table.size(1)


def changed_tensors(weights: StartingWeights, model: ModelConfig, length: int, seed: int) -> Changed:
    """Returns the weights of a network of rows of up to ``length`` symbols, which start from old ones if possible."""
    vocabulary = Vocabulary(size=symbols_of_weights(weights), boundary=0, unit="piece", byte_lengths=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = model.build(RowDescription.for_probe(vocabulary, length))
    old = weights.tensors
    new = {f"network.{name}": tensor.detach().clone() for name, tensor in network.state_dict().items()}
    first = {f"network.{name}": f"network.{ours}" for name, ours in own_names(network).items()}
    tensors = {name: tensor for name, tensor in old.items() if not name.startswith("network.")}
    fates: dict[str, str] = {}
    for name, tensor in new.items():
        if first[name] == name:
            source, fates[name] = taken(name, old, tensor)
            tensors[name] = tensor if source is None else source.clone()
    reason = "left out, for the new network has no place for it"
    fates |= {name: reason for name in old if name.startswith("network.") and name not in new}
    return Changed(tensors, fate_lines(fates))


def fate_lines(fates: Mapping[str, str]) -> list[str]:
    """Returns a line with the fate of each module that has one, or of each tensor where the tensors of a module have
    different fates. Parts that have one fate in all layers share one line."""
    of_modules: dict[str, set[str]] = {}
    for name, fate in fates.items():
        of_modules.setdefault(name.rpartition(".")[0], set()).add(fate)
    lines: dict[tuple[str, str], list[str]] = {}
    for name, fate in fates.items():
        module = name.rpartition(".")[0]
        part = module if len(of_modules[module]) == 1 else name
        if fate:
            lines.setdefault((LAYER.sub(".blocks.*.", part), fate), []).append(part)
    layers = {match[0] for name in fates if (match := LAYER.search(name))}
    return [
        f"{part}: {fate}"
        for (everywhere, fate), parts in lines.items()
        for part in ([everywhere] if len(set(parts)) == len(layers) else dict.fromkeys(parts))
    ]


def taken(name: str, old: Mapping[str, Tensor], new: Tensor) -> tuple[Tensor | None, str]:
    """Returns the values that a tensor of the new network starts from, None where it starts anew, and its fate, empty
    for a plain copy. Raises ConfigError, which names the tensor, where its size has changed."""
    if name.endswith(POSITIONS) and name in old:
        return tiled(old[name], new.size(1))
    if name in old:
        if old[name].shape != new.shape:
            shapes = f"{tuple(old[name].shape)} in the weights and {tuple(new.shape)} in the new network"
            raise ConfigError(f"is {shapes}, and only tables of positions can be resized", name)
        return old[name], ""
    for own, copied in STARTS_AS.items():
        if own in name and (source := old.get(name.replace(own, copied))) is not None:
            return source, f"starts as {copied.removesuffix('.')}"
    return None, "starts anew"


def tiled(table: Tensor, length: int) -> tuple[Tensor, str]:
    """Returns a table of positions (1, n, d), repeated up to ``length`` rows or cut to them, and its fate, if any."""
    rows = table.size(1)
    if length == rows:
        return table, ""
    line = f"{rows} rows, repeated up to {length}" if length > rows else f"the first {length} of {rows} rows"
    return table[:, torch.arange(length) % rows], line
