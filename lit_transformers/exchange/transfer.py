"""Imports a folder of Hugging Face as the starting point of runs, and exports such a one, or a run's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from torch import Tensor

from lit_transformers.cli.amounts import count
from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.architectures import ARCHITECTURES, ROBERTA
from lit_transformers.exchange.convert import (
    architecture_named,
    layout_of,
    read_config,
    read_tensors,
    write_config,
    write_tensors,
)
from lit_transformers.exchange.folders import (
    copy_tokenizer,
    fresh_folder,
    local_folder,
    read_checkpoint,
    read_fields,
    write_folder,
)
from lit_transformers.models import ModelConfig
from lit_transformers.runs.starting_weights import StartingWeights, read_weights, write_weights

__all__ = ["Exchanged", "export_weights", "import_weights"]

CONFIG, WEIGHTS = "config.yaml", "weights.safetensors"
"""The files of an import: the config of its network, for people and for a run.yaml, and the weights."""


class Exchanged(NamedTuple):
    """What was read or written. parameters: the numbers in all tensors. notes: a line for each part that starts anew or
    is left out."""

    architecture: str
    parameters: int
    notes: list[str]

    def lines(self) -> Iterator[str]:
        """Yields what a command prints."""
        yield f"{self.architecture}: {count(self.parameters)} parameters"
        yield from self.notes


def import_weights(source: str, directory: Path, architecture_name: str | None = None) -> Exchanged:
    """Reads a folder, or a model by its name on the hub, and writes ``directory``: config, weights and tokenizer.

    architecture_name: for a config.json that names no ``model_type``. Raises ConfigError, in one line and with nothing
    written, where something cannot be mapped.
    """
    folder = local_folder(source)
    fields = read_fields(folder)
    named = fields.get("model_type", architecture_name)
    if named is None:
        options = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(f"config.json names no model_type; say --architecture ({options})", str(folder))
    if architecture_name is not None and named != architecture_name:
        raise ConfigError(f"holds the weights of {named}, not of {architecture_name}", str(folder))
    try:
        architecture = architecture_named(named, "config.json: model_type")
        model = read_config(architecture, fields)
        layout = layout_of(model, symbols_of(fields))
        tensors, notes = read_tensors(architecture, read_checkpoint(folder), layout)
    except ConfigError as error:
        place = "" if str(error).startswith(str(folder)) else str(folder)
        raise ConfigError(str(error), place) from None
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    with fresh_folder(directory) as fresh:
        write_weights(fresh / WEIGHTS, StartingWeights(model, architecture.name, tensors))
        (fresh / CONFIG).write_text(described(architecture.name, model, directory), encoding="utf-8")
        if not copy_tokenizer(folder, fresh):
            notes = [*notes, "tokenizer: the folder has none"]
    return Exchanged(architecture.name, sum(tensor.numel() for tensor in tensors.values()), notes)


def symbols_of(fields: dict[str, Plain]) -> int:
    """Returns the size of the vocabulary. Raises ConfigError where config.json has none."""
    size = fields.get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError("wants the number of symbols", "config.json: vocab_size")
    return size


def described(architecture: str, model: ModelConfig, directory: Path) -> str:
    """Returns the text of config.yaml: what a run.yaml needs to start from these weights."""
    plain = {"model": model.to_dict(), "task": {"kind": "masked_lm"}, "weights": str(directory.resolve() / WEIGHTS)}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return f"# Imported from {architecture}. A run.yaml with these fields, and data, starts from its weights.\n{text}"


def export_weights(source: Path, directory: Path, architecture_name: str | None = None) -> Exchanged:
    """Writes a folder that transformers reads, from the checkpoint of a run or from an import.

    architecture_name: the architecture to write; by default that of the import, or else the first one that has the
    network's parts. RoBERTa has to be named, since it reads symbol 1 as padding. Raises ConfigError, in one line and
    with nothing written, where something cannot be mapped.
    """
    weights = read_weights(source / WEIGHTS if source.is_dir() else source)
    named = architecture_name or weights.architecture or None
    try:
        names = [named] if named else [name for name in ARCHITECTURES if name != ROBERTA.name]
        fields, tensors, notes = written(weights, names)
    except ConfigError as error:
        raise ConfigError(str(error), str(source)) from None
    with fresh_folder(directory) as fresh:
        write_folder(fresh, fields, tensors)
        if not source.is_dir():
            notes = [*notes, "tokenizer: left out, for it stands in the checkpoint alone"]
        elif not copy_tokenizer(source, fresh):
            notes = [*notes, "tokenizer: the import has none"]
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return Exchanged(f"{fields['model_type']} ({fields['architectures'][0]})", parameters, notes)


def written(weights: StartingWeights, names: list[str]) -> tuple[dict[str, Plain], dict[str, Tensor], list[str]]:
    """Returns the fields and the tensors of the first of these architectures that has the network's parts, and notes.

    Raises the ConfigError of the first one where none has.
    """
    errors: list[ConfigError] = []
    for name in names:
        architecture = architecture_named(name, "architecture")
        try:
            fields = write_config(architecture, weights.model, positions_of(weights))
            symbols = weights.tensors["network.tokens.table.weight"].size(0)
            layout = layout_of(read_config(architecture, fields), symbols)
            tensors, model_class, notes = write_tensors(architecture, weights.tensors, layout)
        except ConfigError as error:
            errors.append(error)
            continue
        return fields | {"vocab_size": symbols, "architectures": [model_class], "dtype": "float32"}, tensors, notes
    others = f"; and neither as {', '.join(names[1:])}" if len(names) > 1 else ""
    raise ConfigError(f"{errors[0]}{others}")


def positions_of(weights: StartingWeights) -> int:
    """Returns the number of learned positions, 0 where there are none."""
    table = weights.tensors.get("network.stack.entry.positions.weight")
    return 0 if table is None else table.size(1)
