"""Weights that a run starts from: those of an import, or of another run's checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from datamodules import TrainedSymbols
from lit_transformers.compression.narrow import is_width
from lit_transformers.config import (
    Added,
    ConfigError,
    Dropout,
    Initial,
    MissingFileError,
    Plain,
    Rounding,
    TableLength,
    canonical_hash,
    existing,
    named_by,
    nearest,
)
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.printing.error_lines import first_line
from lit_transformers.quantisation import FORM
from lit_transformers.records.files import CHECKPOINT, replace_file
from lit_transformers.runs.code import changed_since
from lit_transformers.runs.trained_symbols import symbols_of_checkpoint, symbols_of_folder
from lit_transformers.tasks import Task
from lit_transformers.training.checkpoints import CODE, read
from lit_transformers.training.ranks import is_first_rank

__all__ = [
    "LICENCES",
    "WEIGHTS",
    "StartingWeights",
    "differences",
    "digest_of",
    "fingerprint",
    "load_teacher",
    "locate_weights",
    "of_layers",
    "own_names",
    "read_weights",
    "require_same_network",
    "start_from",
    "symbols_of_file",
    "write_weights",
]

HEADER = "lit_transformers"
"""The key under which a file of weights holds the config of their network, as JSON."""
LICENCES = "licences"
"""The key in it of the licences of earlier weights and training data, by their names."""
TABLE = "network.tokens.table.weight"
"""The tensor with a row for each symbol."""
WEIGHTS = "weights.safetensors"
"""The name of the file of weights of an import."""
LAYER = re.compile(r"(network\.stack\.blocks\.)(\d+)(\..*)")
"""The name of a tensor of a layer."""
FREE = (Dropout, Initial, Rounding, TableLength)
"""The roles of the fields in which networks may differ that one set of weights fits."""


class StartingWeights(NamedTuple):
    """model: the config of the network. architecture: the architecture of transformers whose weights were read; "" for
    weights of a run. tensors: the weights by their names in a task, each distinct one at least once. fields: the fields
    of the config.json that they came with, or the numbers of their symbols alone, by the names of such fields. symbols:
    the meaning of symbols and labels; None where it is not known. place: where the weights are from, for messages.
    notes: a line for each part that their source lacked. licences: the licence of each source of weights and data, by
    its name. task: the objective that they were trained for, as plain data; None where it is not known. unread_head:
    the reason why the fine-tuned head of their source was omitted; "" if it was not."""

    model: ModelConfig
    architecture: str
    tensors: dict[str, Tensor]
    fields: Mapping[str, Plain] = MappingProxyType({})
    symbols: TrainedSymbols | None = None
    place: str = ""
    notes: tuple[str, ...] = ()
    licences: Mapping[str, str] = MappingProxyType({})
    task: Plain = None
    unread_head: str = ""


def locate_weights(path: str, field: str) -> Path:
    """Returns the file that a source of weights in a run's config names, by itself or by its folder: below the folder
    that LIT_WEIGHTS names, or as it is. Raises MissingFileError, which names the field, where neither exists."""
    place = existing(path, "LIT_WEIGHTS")
    if place is not None and place.is_dir():
        files = [place / name for name in (WEIGHTS, CHECKPOINT) if (place / name).is_file()]
        place = files[0] if files else None
    if place is None:
        remedy = "python -m lit_transformers import and convert make such files"
        raise MissingFileError(f"{path}: no such file ({named_by('LIT_WEIGHTS')}); {remedy}", field)
    return place


def read_weights(path: Path, whole: bool = True) -> StartingWeights:
    """Returns the weights of an import (weights.safetensors) or of a run (checkpoint.ckpt), on the CPU.

    whole: whether tensors are read, without which there are none. Nothing in the file is executed. Raises ConfigError
    where the file is missing, damaged, or neither.
    """
    if not path.is_file():
        raise ConfigError("there is no such file of weights", str(path))
    if path.suffix != ".safetensors":
        contents = read(path, mmap=not whole)
        model = ModelConfig.from_dict(contents[HEADER]["config"]["model"])
        tensors = contents["state_dict"] if whole else {}
        warning = changed_since(contents[HEADER].get(CODE, {}), path.name)
        if whole and warning is not None and is_first_rank():
            print(warning, file=sys.stderr, flush=True)
        symbols = symbols_of_checkpoint(contents, str(path))
        licences, task = contents[HEADER].get(LICENCES, {}), contents[HEADER]["config"].get("task")
        return StartingWeights(model, "", tensors, symbols=symbols, place=str(path), licences=licences, task=task)
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names if whole}
            size = file.get_slice(TABLE).get_shape()[0] if TABLE in names else 0
        model, fields = ModelConfig.from_dict(header["model"]), header.get("fields", {})
        stored = _symbols_in(header, path, size)
        notes, licences = tuple(header.get("notes", ())), header.get(LICENCES, {})
        own = (str(header["architecture"]), tensors, fields, stored, str(path), notes, licences)
        return StartingWeights(model, *own, header.get("task"), header.get("unread_head", ""))
    except ConfigError:
        raise
    except KeyError:
        remedy = "read a folder of Hugging Face by: python -m lit_transformers import"
        raise ConfigError(f"holds no weights of this suite; {remedy}", str(path)) from None
    except Exception as error:
        raise ConfigError(f"is damaged or holds no weights: {first_line(error)}", str(path)) from None


def write_weights(path: Path, weights: StartingWeights) -> None:
    """Writes weights with the config of their network."""
    symbols = None if weights.symbols is None else weights.symbols.to_dict()
    described: dict[str, object] = {
        "architecture": weights.architecture,
        "model": weights.model.to_dict(),
        "symbols": symbols,
    }
    optional: dict[str, object] = {
        "fields": dict(weights.fields),
        "notes": list(weights.notes),
        LICENCES: dict(weights.licences),
    }
    optional |= {"task": weights.task, "unread_head": weights.unread_head}
    header = json.dumps(described | {name: value for name, value in optional.items() if value})
    tensors = {name: tensor.contiguous() for name, tensor in weights.tensors.items()}
    replace_file(path, lambda fresh: save_file(tensors, fresh, {HEADER: header}))


def _symbols_in(header: Mapping[str, Plain], path: Path, size: int) -> TrainedSymbols | None:
    """Returns the meaning of the symbols of a file of weights: by its header or, of an old file, by a tokenizer of
    ``size`` symbols in its folder; None where neither states it."""
    if "symbols" in header:
        return None if header["symbols"] is None else TrainedSymbols.of(header["symbols"])
    return symbols_of_folder(path.parent, size)[0]


def symbols_of_file(path: Path) -> TrainedSymbols | None:
    """Returns the meaning of the symbols of a file of weights; None where it is not known. Raises ConfigError where
    there is no such file, or it is damaged."""
    return _symbols(os.fspath(path.resolve()), *_stamp(path))


@cache
def _symbols(path: str, size: int, modified: int) -> TrainedSymbols | None:
    return read_weights(Path(path), whole=False).symbols


def start_from(
    task: Task,
    sources: Mapping[str, StartingWeights],
    head: str | None = None,
) -> list[str]:
    """Copies weights into the parts of a task, from the source of each: ``network``, or ``heads`` for all else. Returns
    a line for each part that starts anew or is left out, first those of the making of the weights.

    head: if the heads are of several tasks, the name of the head to start from.

    Weights are matched by name and shape. Of a network, only the parts that its config adds, and those that predict
    symbols from its outputs, may start anew; a longer table of positions begins with the shorter one. Raises
    ConfigError, which names the differences, where weights do not fit.
    """
    sources = {
        part: of._replace(tensors=without_quantisers(task.current_names(of.tensors))) for part, of in sources.items()
    }
    if head is not None:
        sources["heads"] = of_head(sources["heads"], task, head)
    names, tables = own_names(task), position_tables(task)
    if "network" in sources:
        require_same_network(sources["network"].model, task.model_config, sources["network"].place)
    if "heads" in sources and (reason := sources["heads"].unread_head):
        raise ConfigError(f"{reason}; name only start.network, for a new head", "start.heads")
    loaded = {name for name, first in names.items() if first in tensors_for(first, sources)}
    optional = _optional(task, sources)
    anew: dict[str, None] = {}
    resized = []
    for name, tensor in task.state_dict(keep_vars=True).items():
        if names[name] != name:
            continue
        weight = tensors_for(name, sources).get(name)
        if weight is None:
            if part_in_start(name) == "network" and "network" in sources and name not in optional:
                raise ConfigError(f"lacks {name}, which the network needs", sources["network"].place)
            anew[part_of(name, loaded)] = None
        elif tensor.shape == weight.shape:
            with torch.no_grad():
                tensor.copy_(weight)
        elif name in tables and _fit_apart_from(tables[name], tensor, weight):
            resized.append(_copy_positions(name, tables[name], tensor, weight))
        else:
            shapes = f"{tuple(weight.shape)} there and {tuple(tensor.shape)} here"
            raise ConfigError(f"{name} is {shapes}", sources[part_in_start(name)].place)
    left_out = {
        f"{part_of(name, names)} of {Path(source.place).name} is left out": None
        for part, source in sources.items()
        for name in source.tensors
        if name not in names and part_in_start(name) == part
    }
    notes = dict.fromkeys(note for source in sources.values() for note in source.notes)
    return [*notes, *(f"{part} starts anew" for part in anew), *resized, *left_out]


def without_quantisers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights without the quantisers of inputs, which each run has anew."""
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(f".{FORM}")}


def load_teacher(teacher: Task, weights: StartingWeights, with_heads: bool) -> None:
    """Copies weights into a teacher. with_heads: whether its heads are read. Raises ConfigError, which names the first
    part, where weights that it needs are not there, for a teacher has nothing that starts anew."""
    tensors = teacher.current_names(weights.tensors)
    for name, dimension in position_tables(teacher).items():
        here, there = teacher.state_dict()[name].size(dimension), tensors[name].size(dimension)
        if here > there:
            reason = f"rows here have up to {here} tokens, and it knows {there} positions"
            raise ConfigError(f"{weights.place}: {reason}; set data.length lower", "start.teacher")
    names = own_names(teacher.heads).values() if with_heads else ()
    if lacking := sorted(name for name in names if f"heads.{name}" not in tensors):
        reason = f"lacks heads.{lacking[0]}, whose outputs are to be learned"
        way_out = "name the run that has trained it, or set task.distillation.logits to 0"
        raise ConfigError(f"{weights.place} {reason}; {way_out}", "start.teacher")
    start_from(teacher, {"network": weights, **({"heads": weights} if with_heads else {})})


def of_head(weights: StartingWeights, task: Task, head: str) -> StartingWeights:
    """Returns weights in which the heads of one source have the names of the heads of a task. Raises ConfigError for an
    unknown head."""
    first, *others = task.heads
    prefixes = {f"heads.{head}.": f"heads.{first}."} | {f"heads.{head}_{name}.": f"heads.{name}." for name in others}
    renamed, rest = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in weights.tensors.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is None:
            rest[name] = tensor
        else:
            renamed[prefixes[prefix] + name.removeprefix(prefix)] = tensor
    if not renamed:
        known = {name.split(".")[1] for name in rest if name.startswith("heads.")}
        raise ConfigError(f"{weights.place} has no head {head!r}; {nearest(head, known)}", "start.head")
    return weights._replace(tensors=rest | renamed)


def of_layers(weights: StartingWeights, layers: Sequence[int]) -> StartingWeights:
    """Returns weights of the network of some layers of a network, counted from 1, in the given order. Raises
    ConfigError for a layer beyond the last, and for a network whose layers are no sequence."""
    depth = dict(weights.model.leaves()).get("depth")
    numbers = {int(match[2]) for name in weights.tensors if (match := LAYER.fullmatch(name))}
    if not isinstance(depth, int) or numbers != {*range(depth)}:
        raise ConfigError(f"{weights.place} has no single sequence of layers; drop layers", "start.layers")
    if beyond := [layer for layer in layers if layer > depth]:
        raise ConfigError(f"{weights.place} has {depth} layers, and no layer {beyond[0]}", "start.layers")
    tensors = {name: tensor for name, tensor in weights.tensors.items() if not LAYER.fullmatch(name)}
    for place, layer in enumerate(layers):
        for name, tensor in weights.tensors.items():
            if (match := LAYER.fullmatch(name)) and int(match[2]) == layer - 1:
                tensors[f"{match[1]}{place}{match[3]}"] = tensor
    return weights._replace(model=weights.model.override({"depth": len(layers)}), tensors=tensors)


def part_in_start(name: str) -> str:
    """Returns the field of ``start`` that is the source of a task's tensor."""
    return "network" if name.startswith(("network.", "passage_network.")) else "heads"


def tensors_for(name: str, sources: Mapping[str, StartingWeights]) -> Mapping[str, Tensor]:
    """Returns the tensors of the source that a tensor of a task comes from; none where its part has no source."""
    source = sources.get(part_in_start(name))
    return {} if source is None else source.tensors


def position_tables(module: nn.Module) -> dict[str, int]:
    """Returns the names of the tables of positions in a module, each with its dimension of positions."""
    return {
        f"{path}.{name}": dimension
        for path, part in module.named_modules()
        for name, dimension in getattr(part, "position_tables", {}).items()
    }


def _fit_apart_from(dimension: int, tensor: Tensor, weight: Tensor) -> bool:
    """Whether two tensors have one shape but for their sizes in a dimension."""
    shapes = [[size for place, size in enumerate(one.shape) if place != dimension] for one in (tensor, weight)]
    return tensor.dim() == weight.dim() and shapes[0] == shapes[1]


def _copy_positions(name: str, dimension: int, tensor: Tensor, weight: Tensor) -> str:
    """Copies the positions that two tables have in common, and returns a line on the others."""
    here, there = tensor.size(dimension), weight.size(dimension)
    common = min(here, there)
    with torch.no_grad():
        tensor.narrow(dimension, 0, common).copy_(weight.narrow(dimension, 0, common))
    what = "starts anew" if here > there else "is left out"
    return f"{name} from position {common} on {what}"


def _optional(task: Task, sources: Mapping[str, StartingWeights]) -> set[str]:
    """Returns the names of the tensors of a task's network that its source need not have: those that predict symbols,
    and those of parts that are added to the network of the source. Raises ConfigError where such a part renames a
    tensor."""
    network = task.network
    predicting = {id(p) for p in network.prediction_only()} if isinstance(network, RowNetwork) else set()
    weights = task.state_dict(keep_vars=True)
    names = {name for name, tensor in weights.items() if id(tensor) in predicting}
    if "network" in sources and (paths := additions(sources["network"].model, task.model_config)):
        with torch.random.fork_rng(devices=[]):
            bare = task.model_config.override(dict.fromkeys(paths)).build(task.data)
        known = {f"network.{name}" for name in bare.state_dict()}
        if renamed := sorted(known - weights.keys()):
            reason = f"gives {renamed[0]} another name, under which no weights fit; put it next to the other weights"
            raise ConfigError(reason, f"model.{paths[0]}")
        names |= weights.keys() - known
    return names


def additions(there: ModelConfig, here: ModelConfig) -> list[str]:
    """Returns the paths of the parts that are added to the network ``here`` and missing from the network ``there``."""
    lacking = {path for path, value in there.leaves_with(Added) if value is None}
    return [path for path, value in here.leaves_with(Added) if value is not None and path in lacking]


def require_same_network(there: ModelConfig, here: ModelConfig, place: str) -> None:
    """Raises ConfigError, which names the fields, where weights are those of a network that computes something else.

    Fields may differ whose role says that they do not change the outputs of trained weights: dropout, the numbers that
    fresh weights are drawn by, and lengths of tables, which shapes show. So may the parts that are added to the network
    of the weights, and the order in which a family reads through the weights of another (``ModelConfig.origin``).
    """
    there, here = there.origin(), here.origin()
    free = {path for model in (there, here) for role in FREE for path, _ in model.leaves_with(role)}
    added = additions(there, here)
    unequal = [
        row
        for row in differences(there, here, free)
        if not any(row[0] == path or row[0].startswith(f"{path}.") for path in added)
    ]
    if unequal:
        listed = "; ".join(f"model.{name} is {theirs!r} there and {ours!r} here" for name, theirs, ours in unequal[:3])
        way_out = "set these fields to the values there, or name other weights"
        if all(is_width(row[0]) for row in unequal):
            way_out += "; start.narrow chooses heads and channels"
        raise ConfigError(f"holds the weights of another network: {listed}; {way_out}", place)


def differences(first: ModelConfig, second: ModelConfig, ignored: Set[str]) -> list[tuple[str, Plain, Plain]]:
    """Returns the paths at which two configs differ, those in ``ignored`` left out, with both values."""
    values, others = dict(first.leaves()), dict(second.leaves())
    return [
        (path, values.get(path), others.get(path))
        for path in dict.fromkeys([*values, *others])
        if path not in ignored and values.get(path) != others.get(path)
    ]


def part_of(name: str, others: Iterable[str]) -> str:
    """Returns the module by which messages call a tensor that is in one of two places alone, given the names in the
    other: the largest one below the network that has nothing there, or the tensor itself. network.transform.0.weight is
    of network.transform, and network.tokens.logits.weight of network.tokens.logits, for symbols have their table."""
    words = name.split(".")
    parts = (".".join(words[:count]) for count in range(max(1, min(2, len(words) - 1)), len(words)))
    return next((part for part in parts if not any(other.startswith(f"{part}.") for other in others)), name)


def own_names(module: nn.Module) -> dict[str, str]:
    """Returns for each name of a tensor in a module the first name of the same tensor, which shared weights have
    several of."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in module.state_dict(keep_vars=True).items()}


def fingerprint(path: Path) -> str:
    """Returns a hash of the content of a file. Raises ConfigError where there is none."""
    return _hash(os.fspath(path.resolve()), *_stamp(path))


def digest_of(path: Path) -> str:
    """Returns a hash of the weights in a file and of the meaning of their symbols. The hash of a run's checkpoint does
    not depend on the time that the run took. Raises ConfigError where there is no such file, or it is damaged."""
    return _digest(os.fspath(path.resolve()), *_stamp(path))


@cache
def _digest(path: str, size: int, modified: int) -> str:
    symbols = read_weights(Path(path), whole=False).symbols
    hashed = hashlib.sha256(canonical_hash(None if symbols is None else symbols.to_dict()).encode())
    for name, tensor in sorted(_each_tensor(Path(path)), key=lambda named: named[0]):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:32]


def _each_tensor(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in a file of weights by name, each when it is requested."""
    if path.suffix != ".safetensors":
        yield from read(path, mmap=True)["state_dict"].items()
        return
    with safe_open(path, "pt") as file:
        yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118


def _stamp(path: Path) -> tuple[int, int]:
    """Returns the size of a file and when it was written. Raises ConfigError where there is none."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    return status.st_size, status.st_mtime_ns


@cache
def _hash(path: str, size: int, modified: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
