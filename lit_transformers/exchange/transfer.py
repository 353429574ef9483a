"""Imports a folder of Hugging Face as the starting point of runs, and exports such a one, or a run's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor

from lit_transformers.batch import PairDescription
from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.architectures import ARCHITECTURES
from lit_transformers.exchange.convert import (
    architecture_named,
    layout_of,
    read_config,
    read_tensors,
    write_config,
    write_tensors,
)
from lit_transformers.exchange.fine_tuned import FineTunedHead, fine_tuned_head, head_of_import, read_head
from lit_transformers.exchange.folders import (
    copy_tokenizer,
    fresh_folder,
    local_folder,
    read_checkpoint,
    read_fields,
    write_folder,
)
from lit_transformers.exchange.licences import licence_of_folder, write_licences
from lit_transformers.exchange.mapping import Family
from lit_transformers.exchange.original_fields import outgoing_fields
from lit_transformers.exchange.tokenizer_files import symbol_numbers, write_tokenizer
from lit_transformers.models import ModelConfig
from lit_transformers.printing.amounts import count
from lit_transformers.runs.starting_weights import (
    HEADER,
    WEIGHTS,
    StartingWeights,
    read_weights,
    without_quantisers,
    write_weights,
)
from lit_transformers.runs.trained_symbols import symbols_of_folder
from lit_transformers.training.checkpoints import read
from lit_transformers.trust import require_allowed

__all__ = [
    "CONFIG",
    "WEIGHTS",
    "Exchanged",
    "add_tokenizer",
    "described",
    "export_start",
    "export_weights",
    "family_of",
    "file_of",
    "import_weights",
    "imported",
    "symbols_of_weights",
    "weights_of",
    "without_adapters",
]

MOST_SYMBOLS = 1 << 31
"""The largest vocabulary that a network is built for."""

CONFIG = "config.yaml"
"""The file of an import with the config of its network, for people and for a run.yaml."""
OF_CLASS = "config.json: architectures "
"""The beginning of the message on the class of a network without its fine-tuned head."""
SEGMENTS = "network.segments.weight"
"""The vectors of segments, by which a network tells two texts apart."""


class Exchanged(NamedTuple):
    """A summary of the weights that were read or written. parameters: the numbers in all tensors. notes: a line for
    each part that starts anew or is left out."""

    architecture: str
    parameters: int
    notes: list[str]

    def lines(self) -> Iterator[str]:
        """Yields the lines that a command prints."""
        yield f"{self.architecture}: {count(self.parameters)} parameters"
        yield from self.notes


def import_weights(source: str, directory: Path, architecture_name: str | None = None) -> Exchanged:
    """Reads a folder, or a model by its name on the hub, and writes ``directory``: config, weights and tokenizer.

    architecture_name: for a config.json that names no ``model_type``. Raises ConfigError, in one line and with nothing
    written, where something cannot be mapped.
    """
    folder = local_folder(source)
    weights, notes = imported(folder, architecture_name)
    with fresh_folder(directory) as fresh:
        write_weights(fresh / WEIGHTS, weights)
        text = described(f"Imported from {weights.architecture}", weights, directory)
        (fresh / CONFIG).write_text(text, encoding="utf-8")
        copied = copy_tokenizer(folder, fresh)
        _, note = symbols_of_folder(folder, symbols_of(weights.fields))
        notes = [*notes, *([note] if note and copied else [])] if copied else [*notes, "tokenizer: the folder has none"]
    return Exchanged(weights.architecture, sum(tensor.numel() for tensor in weights.tensors.values()), notes)


def imported(folder: Path, architecture_name: str | None = None) -> tuple[StartingWeights, list[str]]:
    """Returns the weights in a folder of Hugging Face with the meanings of their symbols, and a line for each part that
    starts anew or is left out. Raises ConfigError, which names the folder, where a part cannot be mapped."""
    fields = read_fields(folder)
    named = fields.get("model_type", architecture_name)
    if named is None:
        options = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(
            f"config.json names no model_type; set architecture, or --architecture ({options})", str(folder)
        )
    if architecture_name is not None and named != architecture_name:
        raise ConfigError(f"holds the weights of {named}, not of {architecture_name}", str(folder))
    try:
        architecture = architecture_named(named, "config.json: model_type")
        model = read_config(architecture, fields)
        layout = layout_of(architecture.family, model, symbols_of(fields))
        checkpoint = read_checkpoint(folder)
        head = read_head(architecture, fields, checkpoint, model.dim)
        tensors, notes = read_tensors(architecture, checkpoint, layout)
    except ConfigError as error:
        place = "" if str(error).startswith(str(folder)) else str(folder)
        raise ConfigError(str(error), place) from None
    tensors = {name: tensor.float() for name, tensor in {**tensors, **head.tensors}.items()}
    symbols, _ = symbols_of_folder(folder, symbols_of(fields))
    if symbols is not None and head.labels is not None:
        symbols = symbols._replace(labels=head.labels)
    kept = {**fields, "model_type": architecture.name}
    weights = StartingWeights(
        model, architecture.name, tensors, kept, symbols, task=head.task, unread_head=head.refused
    )
    notes = [*head.notes, *([f"head: omitted, for {head.refused}"] if head.refused else []), *notes]
    if (licence := licence_of_folder(folder)) is not None:
        name = f"weights {fields.get('_name_or_path') or folder.resolve().name}"
        weights, notes = weights._replace(licences={name: licence}), [*notes, f"licence: {licence}"]
    return weights, [*notes, *architecture.notes]


def symbols_of(fields: Mapping[str, Plain]) -> int:
    """Returns the size of the vocabulary. Raises ConfigError where config.json has none."""
    size = fields.get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST_SYMBOLS:
        raise ConfigError(f"wants the number of symbols, at most {MOST_SYMBOLS:,}", "config.json: vocab_size")
    return size


def described(origin: str, weights: StartingWeights, directory: Path) -> str:
    """Returns the text of config.yaml: the fields that a run.yaml needs to start from these weights. origin: the source
    of the weights, for readers of the file."""
    model = weights.model
    task = weights.task or {"kind": family_of(model).task.kind}
    plain = {"model": model.to_dict(), "task": task, "start": str(directory.resolve() / WEIGHTS)}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return f"# {origin}. A run.yaml with these fields, and data, starts from its weights.\n{text}"


def family_of(model: ModelConfig) -> Family:
    """Returns the family of networks of this kind. Raises ConfigError where no architecture has it."""
    families = (architecture.family for architecture in ARCHITECTURES.values())
    family = next((family for family in families if type(family.model) is type(model.origin())), None)
    if family is None:
        raise ConfigError(f"no architecture here is of the kind {model.kind}", "model")
    return family


def file_of(source: Path) -> Path:
    """Returns the file of weights of an import's folder, or of a run, which is named itself. Raises ConfigError where
    the config of that run names a class that a file may not."""
    if source.is_dir():
        return source / WEIGHTS
    if source.is_file() and source.suffix != ".safetensors":
        require_allowed(read(source, mmap=True)[HEADER]["config"], str(source))
    return source


def weights_of(source: Path) -> StartingWeights:
    """Returns the weights of an import's folder, of a file of weights, or of a run, with the numbers of its symbols."""
    weights = read_weights(file_of(source))
    is_run = source.is_file() and source.suffix != ".safetensors"
    return weights._replace(fields=symbol_numbers(source)) if is_run else weights


def without_adapters(weights: StartingWeights) -> tuple[StartingWeights, list[str]]:
    """Returns the weights of the network without adapters that computes the same, and a line where there were some.
    Raises ConfigError, which names the adapter, where there is no such network."""
    adapter = weights.model.adapter
    if adapter is None:
        return weights, []
    plain = weights.model.override({"adapter": None})
    line = f"adapter: {adapter.kind}, merged into the weights"
    return weights._replace(model=plain, tensors=adapter.merged(weights.tensors)), [line]


def export_weights(source: Path, directory: Path, architecture_name: str | None = None) -> Exchanged:
    """Writes a folder that transformers reads, from the checkpoint of a run or from an import.

    architecture_name: the architecture to write; by default that of the import, or else the first one that has the
    network's parts. RoBERTa has to be named, since it reads symbol 1 as padding. Adapters of linear maps are merged
    into their maps. The head of a fine-tuned network is written where the architecture has one that computes the same.
    Raises ConfigError, in one line and with nothing written, where something cannot be mapped.
    """
    head = fine_tuned_head_of(source)
    weights, fields, tensors, lines = mapped(source, weights_of(source), head, architecture_name)
    with fresh_folder(directory) as fresh:
        write_folder(fresh, fields, tensors)
        write_licences(fresh, weights.licences)
        notes = [*lines, *add_tokenizer(source, fresh, fields["vocab_size"], weights)]
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return Exchanged(f"{fields['model_type']} ({fields['architectures'][0]})", parameters, notes)


class Mapped(NamedTuple):
    """Weights in an architecture of transformers. weights: of the network without adapters. fields: of config.json.
    tensors: by their names there. notes: a line for each part that differs or is left out."""

    weights: StartingWeights
    fields: dict[str, Plain]
    tensors: dict[str, Tensor]
    notes: list[str]


def mapped(
    source: Path, weights: StartingWeights, head: FineTunedHead | None, architecture_name: str | None = None
) -> Mapped:
    """Returns the weights of a source with its head in an architecture. Arguments and errors are those of
    ``export_weights``."""
    named = architecture_name or weights.architecture or None
    try:
        weights = of_origin(weights)
        names = [named] if named else candidates(weights.model)
        weights, lines = without_adapters(weights)
        fields, tensors, notes = written(of_network(weights, head), names)
    except ConfigError as error:
        raise ConfigError(str(error), str(source)) from None
    if head is not None:
        fields, tensors, more = head.added(fields, tensors, weights.tensors)
        notes = [*(notes if more else (line for line in notes if not line.startswith(OF_CLASS))), *more]
    return Mapped(weights, fields, tensors, [*lines, *notes])


def export_start(source: Path, directory: Path) -> Exchanged:
    """Writes ``directory`` as an import does, with the weights of a run's checkpoint or of an import, from which runs
    start. Nothing else that a checkpoint holds is written. Raises ConfigError as ``weights_of`` does, and where
    ``directory`` is not empty."""
    weights = weights_of(source)
    weights = weights._replace(tensors=distinct(without_quantisers(weights.tensors)))
    with fresh_folder(directory) as fresh:
        write_weights(fresh / WEIGHTS, weights)
        (fresh / CONFIG).write_text(described(f"Exported from {source}", weights, directory), encoding="utf-8")
        write_licences(fresh, weights.licences, "lit-transformers")
        notes = add_tokenizer(source, fresh, symbols_of_weights(weights), weights)
    return Exchanged(str(weights.model.kind), sum(tensor.numel() for tensor in weights.tensors.values()), notes)


def distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns each tensor under the first of its names, of weights that may be shared."""
    first: dict[tuple[int, torch.Size], str] = {}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not tensor.numel() or first.setdefault((tensor.data_ptr(), tensor.shape), name) == name
    }


def add_tokenizer(source: Path, folder: Path, symbols: int, weights: StartingWeights) -> list[str]:
    """Adds the tokenizer of weights over ``symbols`` symbols to a folder: the files in the folder of an import, or the
    tokenizer that the weights hold. Returns a line for each part that is missing."""
    if source.is_dir() and copy_tokenizer(source, folder):
        return []
    remedy = "name the folder of the weights, not the file, to have"
    is_file = source.suffix == ".safetensors"
    if weights.symbols is None:
        missing = f"tokenizer and generation_config.json: left out; {remedy} them"
        return [missing if is_file else "tokenizer: the weights have none"]
    notes = [f"generation_config.json: left out; {remedy} it"] if is_file else []
    ends = family_of(weights.model).task.reads is PairDescription
    segments = weights.tensors.get(SEGMENTS, ())
    line = write_tokenizer(weights.symbols, folder, symbols, ends, len(segments) > 1)
    return [*notes, *([line] if line else [])]


def fine_tuned_head_of(source: Path) -> FineTunedHead | None:
    """Returns the fine-tuned head of a run, of an import or of a file of weights; None if there is none."""
    if source.is_file() and source.suffix != ".safetensors":
        return fine_tuned_head(source)
    return head_of_import(read_weights(file_of(source), whole=False))


def of_origin(weights: StartingWeights) -> StartingWeights:
    """Returns the weights as those of a network with equal outputs, of a family that has architectures. Raises
    ConfigError, which names the difference, where there is no such network."""
    if reason := weights.model.beyond_origin():
        raise ConfigError(f"{reason}, which no architecture of transformers does", "model")
    return weights._replace(model=weights.model.origin())


def of_network(weights: StartingWeights, head: FineTunedHead | None) -> StartingWeights:
    """Returns the weights of the layers that a head reads, without the head's weights."""
    if head is None:
        return weights
    model = weights.model if head.depth is None else weights.model.override({"depth": head.depth})
    tensors = {name: tensor for name, tensor in weights.tensors.items() if not name.startswith(head.prefix)}
    return weights._replace(model=model, tensors=tensors)


def candidates(model: ModelConfig) -> list[str]:
    """Returns the names of the architectures that a network may be written as. Those that read symbol 1 as padding have
    to be named. Raises ConfigError where there is none."""
    family = family_of(model)
    return [
        name
        for name, architecture in ARCHITECTURES.items()
        if architecture.family == family and architecture.written.get("pad_token_id") != 1
    ]


def written(weights: StartingWeights, names: list[str]) -> tuple[dict[str, Plain], dict[str, Tensor], list[str]]:
    """Returns the fields and the tensors of the first of these architectures that has the network's parts, and notes.

    Raises the ConfigError of the first one where none has.
    """
    errors: list[ConfigError] = []
    for name in names:
        architecture = architecture_named(name, "architecture")
        try:
            fields = write_config(architecture, weights.model, positions_of(weights))
            symbols = symbols_of_weights(weights)
            layout = layout_of(architecture.family, read_config(architecture, fields), symbols)
            tensors, model_class, notes = write_tensors(architecture, weights.tensors, layout)
        except ConfigError as error:
            errors.append(error)
            continue
        fields |= {"vocab_size": symbols, "architectures": [model_class], "dtype": "float32"}
        fields, lines = outgoing_fields(architecture, fields, weights.fields)
        return fields, tensors, [*notes, *architecture.notes, *lines]
    others = f"; and neither as {', '.join(names[1:])}" if len(names) > 1 else ""
    raise ConfigError(f"{errors[0]}{others}")


def symbols_of_weights(weights: StartingWeights) -> int:
    """Returns the size of the vocabulary. Raises ConfigError where symbols have no table of vectors of one width."""
    table = weights.tensors.get("network.tokens.table.weight")
    if table is None:
        raise ConfigError("is no table of one vector for each symbol", "model.tokens")
    return table.size(0)


def positions_of(weights: StartingWeights) -> int | None:
    """Returns the number of learned positions; None where there are none."""
    table = weights.tensors.get("network.stack.entry.positions.weight")
    return None if table is None else table.size(1)
