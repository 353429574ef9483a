"""Weights that a run starts from: those of an import, or of another run's checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from datamodules import TrainedSymbols
from lit_transformers.config import ConfigError, Dropout, MissingFileError, Plain, TableLength, existing, named_by
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.files import replace_file
from lit_transformers.runs.code import changed_since
from lit_transformers.runs.trained_symbols import symbols_of_checkpoint, symbols_of_folder
from lit_transformers.tasks import Task
from lit_transformers.training.checkpoints import CODE, read
from lit_transformers.training.ranks import is_first_rank

__all__ = [
    "StartingWeights",
    "differences",
    "fingerprint",
    "locate_weights",
    "own_names",
    "read_weights",
    "start_from",
    "symbols_of_file",
    "write_weights",
]

HEADER = "lit_transformers"
"""The key under which a file of weights holds the config of their network, as JSON."""
TABLE = "network.tokens.table.weight"
"""The tensor with a row for each symbol."""


class StartingWeights(NamedTuple):
    """model: the config of the network. architecture: that of transformers which the weights were read from; "" for
    those of a run. tensors: the weights by their names in a task, each distinct one at least once. fields: those of the
    config.json that they came with, or the numbers of their symbols alone, by the names of such fields. symbols: what
    symbols and labels stand for; None where it is not known."""

    model: ModelConfig
    architecture: str
    tensors: dict[str, Tensor]
    fields: Mapping[str, Plain] = MappingProxyType({})
    symbols: TrainedSymbols | None = None


def locate_weights(path: str) -> Path:
    """Returns the file that ``weights`` of a run's config names: below the folder that LIT_WEIGHTS names, or as it is.
    Raises MissingFileError where neither exists."""
    place = existing(path, "LIT_WEIGHTS")
    if place is None:
        remedy = "python -m lit_transformers import and convert make such files"
        raise MissingFileError(f"{path}: no such file ({named_by('LIT_WEIGHTS')}); {remedy}", "weights")
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
        return StartingWeights(model, "", tensors, symbols=symbols_of_checkpoint(contents, str(path)))
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names if whole}
            size = file.get_slice(TABLE).get_shape()[0] if TABLE in names else 0
        model, fields = ModelConfig.from_dict(header["model"]), header.get("fields", {})
        symbols = _symbols_in(header, path, size)
        return StartingWeights(model, str(header["architecture"]), tensors, fields, symbols)
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
    described = {"architecture": weights.architecture, "model": weights.model.to_dict(), "symbols": symbols}
    header = json.dumps(described | ({"fields": dict(weights.fields)} if weights.fields else {}))
    tensors = {name: tensor.contiguous() for name, tensor in weights.tensors.items()}
    replace_file(path, lambda fresh: save_file(tensors, fresh, {HEADER: header}))


def _symbols_in(header: Mapping[str, Plain], path: Path, size: int) -> TrainedSymbols | None:
    """Returns what the symbols of a file of weights stand for, by its header or, of an old file, by a tokenizer beside
    it of so many symbols; None where neither tells."""
    if "symbols" in header:
        return None if header["symbols"] is None else TrainedSymbols.of(header["symbols"])
    return symbols_of_folder(path.parent, size)[0]


def symbols_of_file(path: Path) -> TrainedSymbols | None:
    """Returns what the symbols of a file of weights stand for; None where it is not known. Raises ConfigError where
    there is no such file, or it is damaged."""
    return _symbols(os.fspath(path.resolve()), *_stamp(path))


@cache
def _symbols(path: str, size: int, modified: int) -> TrainedSymbols | None:
    return read_weights(Path(path), whole=False).symbols


def start_from(task: Task, path: Path) -> list[str]:
    """Copies weights into a task. Returns a line for each part that starts anew or is left out.

    What represents symbols has to come from the file as a whole; what predicts from that, the heads of the task and
    what the network uses for the softmax alone, may start anew. Raises ConfigError, which names what differs, where
    network and weights do not fit.
    """
    weights = read_weights(path)
    require_same_network(weights.model, task.model_config, path)
    names, tensors = own_names(task), task.current_names(weights.tensors)
    heads = {id(p) for p in task.network.prediction_only()} if isinstance(task.network, RowNetwork) else set()
    loaded = {name for name, first in names.items() if first in tensors}
    anew: dict[str, None] = {}
    for name, tensor in task.state_dict(keep_vars=True).items():
        if names[name] != name:
            continue
        if name not in tensors:
            if name.startswith("network.") and id(tensor) not in heads:
                raise ConfigError(f"lacks {name}, which the network needs", str(path))
            anew[part_of(name, loaded)] = None
        elif tensor.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)} there and {tuple(tensor.shape)} here"
            raise ConfigError(f"{name} is {shapes}", str(path))
        else:
            with torch.no_grad():
                tensor.copy_(tensors[name])
    left_out = dict.fromkeys(part_of(name, names) for name in tensors if name not in names)
    return [*(f"{part} starts anew" for part in anew), *(f"{part} of {path.name} is left out" for part in left_out)]


def require_same_network(there: ModelConfig, here: ModelConfig, path: Path) -> None:
    """Raises ConfigError, which names the fields, where weights are those of a network that computes something else.

    Dropout, the numbers that weights start from otherwise, and lengths of tables, which shapes show, may differ.
    """
    free = {"initial_std"}
    for model in (there, here):
        free |= {path for role in (Dropout, TableLength) for path, _ in model.leaves_with(role)}
    unequal = differences(there, here, free)
    if unequal:
        listed = "; ".join(f"model.{name} is {theirs!r} there and {ours!r} here" for name, theirs, ours in unequal[:3])
        raise ConfigError(f"holds the weights of another network: {listed}", str(path))


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
    """Returns a hash of the content of a file of weights. Raises ConfigError where there is none."""
    return _hash(os.fspath(path.resolve()), *_stamp(path))


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
