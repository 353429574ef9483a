"""The parts of a mapping: pairs of a field in config.json and ours, and pairs of a tensor's name there and ours.

Each pair says how its value changes on the way in and on the way out, so that both directions read one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.models import EncoderConfig, ModelConfig
from lit_transformers.tasks import MaskedLMConfig, TaskConfig

__all__ = [
    "ACTIVATION",
    "AS_IS",
    "ENCODERS",
    "HALF",
    "HEAD_BIAS",
    "INTO_HEADS",
    "NARROWER",
    "ONE_VECTOR",
    "OR_NONE",
    "OR_ZERO",
    "OUT_OF_HEADS",
    "POOLER",
    "POSITIVE",
    "PREDICTION",
    "RELATION",
    "REQUIRED",
    "SAME",
    "SYMBOLS",
    "TRANSPOSED",
    "Architecture",
    "Conversion",
    "Family",
    "Fields",
    "Fused",
    "Part",
    "Setting",
    "Transfer",
    "Weight",
    "affine",
    "position_count",
    "position_table",
]

PREDICTION, POOLER, RELATION = "prediction head", "pooler", "relation head"
"""Names of heads: the prediction of symbols, that is the map before the softmax and the softmax itself, without weights
that it shares with the embeddings; the map of a row's first vector; and the map from its output to the relation of two
segments."""

Fields = Mapping[str, Plain]
"""The fields of a config.json."""

SYMBOLS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""The fields that hold the number of a symbol in every architecture."""

REQUIRED = object()
"""Stands for the default of a field that has none."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "identity",
}
"""The names of activations in transformers and ours; of several for one of ours, the first is written."""


class Conversion(NamedTuple):
    """How the value of a field in config.json becomes ours, and back. Both functions receive the other fields too."""

    read: Callable[[Plain, Fields], Plain]
    write: Callable[[Plain, Fields], Plain]


def _read_activation(name: Plain, fields: Fields) -> Plain:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ConfigError(f"no activation {name!r} here; {nearest(str(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _write_activation(name: Plain, fields: Fields) -> Plain:
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == name), None)


def position_count(skipped: int) -> Conversion:
    """Returns the conversion of the size of a position table whose first ``skipped`` rows no token reads."""
    return Conversion(
        lambda count, fields: count - skipped if isinstance(count, int) else count,
        lambda count, fields: count + skipped if isinstance(count, int) else count,
    )


SAME = Conversion(lambda value, fields: value, lambda value, fields: value)
ACTIVATION = Conversion(_read_activation, _write_activation)
NARROWER = Conversion(
    lambda width, fields: None if width == fields["hidden_size"] else width,
    lambda width, fields: fields["hidden_size"] if width is None else width,
)
"""Of the width of embeddings, which are mapped to the width of the layers only where the two differ."""

OR_NONE = Conversion(
    lambda length, fields: length if isinstance(length, int) and length > 0 else None,
    lambda length, fields: -1 if length is None else length,
)
"""Of a length that is -1 where there is none."""

OR_ZERO = Conversion(lambda length, fields: 0 if length is None else length, lambda length, fields: length)
"""Of a length that is null or 0 where there is none."""

HALF = Conversion(
    lambda window, fields: window // 2 if isinstance(window, int) else window,
    lambda window, fields: 2 * window if isinstance(window, int) else None,
)
"""Of a window that theirs counts on both sides."""

POSITIVE = Conversion(lambda count, fields: count, lambda count, fields: count or None)
"""Of a number that may not be written as 0."""


class Setting(NamedTuple):
    """A field of config.json, and the path of the same in the config of the family. Where one field of ours stands for
    two of theirs, both have to say the same.

    default: the value that transformers takes where the field is missing.
    """

    theirs: str
    ours: str
    default: Plain = REQUIRED
    conversion: Conversion = SAME


class Transfer(NamedTuple):
    """How a tensor of a checkpoint becomes ours, and back. Both functions receive the number of heads too. dropped: the
    part of the tensor that has no place here, for messages."""

    read: Callable[[Tensor, int], Tensor]
    write: Callable[[Tensor, int], Tensor]
    dropped: str = ""


AS_IS = Transfer(lambda tensor, heads: tensor, lambda tensor, heads: tensor)
TRANSPOSED = Transfer(lambda matrix, heads: matrix.T, lambda matrix, heads: matrix.T)
"""Of maps that a checkpoint holds as (inputs, outputs), as those of GPT-2."""
INTO_HEADS = Transfer(
    lambda tensor, heads: tensor.flatten(1).T, lambda tensor, heads: tensor.T.unflatten(1, (heads, -1))
)
"""Of a map into heads (d, h, k), ours (h k, d)."""
OUT_OF_HEADS = Transfer(lambda tensor, heads: tensor.flatten(1), lambda tensor, heads: tensor.unflatten(1, (heads, -1)))
"""Of a map out of heads (d, h, k), ours (d, h k)."""
HEAD_BIAS = Transfer(lambda tensor, heads: tensor[:, None], lambda tensor, heads: tensor[:, 0])
"""Of a vector for each head (h, k), ours (h, 1, k)."""
ONE_VECTOR = Transfer(lambda tensor, heads: tensor[0, 0], lambda tensor, heads: tensor[None, None])
"""Of one vector (1, 1, d), ours (d,)."""


def position_table(skipped: int = 0) -> Transfer:
    """Returns the transfer of a table of positions (n, d), of which the first ``skipped`` rows are of no token, to ours
    (1, n - skipped, d). Rows that no token reads are written as zeros."""
    return Transfer(
        lambda table, heads: table[skipped:][None],
        lambda table, heads: torch.cat([table.new_zeros(skipped, table.size(-1)), table[0]]),
        f"the first {skipped} rows of the position table, which no token reads" if skipped else "",
    )


class Weight(NamedTuple):
    """The name of a tensor in a checkpoint of transformers, and ours in a run's checkpoint. "{layer}" stands for the
    number of a layer with separate weights.

    also: names of copies, which are written too. Where weights are not tied, transformers reads ``theirs`` alone.
    copies: names of others, which some checkpoints have and none needs.
    """

    theirs: str
    ours: str
    transfer: Transfer = AS_IS
    also: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()


def affine(theirs: str, ours: str) -> tuple[Weight, Weight]:
    """Returns the pairs of a linear map's or a norm's weight and bias."""
    return Weight(f"{theirs}.weight", f"{ours}.weight"), Weight(f"{theirs}.bias", f"{ours}.bias")


class Fused(NamedTuple):
    """A tensor of a checkpoint that holds several of equal size, one after another along ``dim``.

    name: the end of its name. parts: the ends of the names that the table has for the tensors that it holds.
    """

    name: str
    parts: tuple[str, ...]
    dim: int

    def separated(self, checkpoint: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of a checkpoint, in which the parts of each such tensor replace it. Raises ConfigError,
        which names the tensor, where it cannot be divided into parts of equal size."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in checkpoint.items():
            if not name.endswith(self.name):
                tensors[name] = tensor
                continue
            if tensor.dim() <= self.dim or tensor.size(self.dim) % len(self.parts):
                raise ConfigError(f"is {tuple(tensor.shape)}, which is not {len(self.parts)} tensors in one", name)
            stem = name.removesuffix(self.name)
            pieces = tensor.chunk(len(self.parts), self.dim)
            tensors |= {f"{stem}{part}": piece for part, piece in zip(self.parts, pieces, strict=True)}
        return tensors

    def joined(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns tensors with each group that ``separated`` would return as one."""
        checkpoint = {name: tensor for name, tensor in tensors.items() if not name.endswith(self.parts)}
        for name in tensors:
            if name.endswith(self.parts[0]):
                stem = name.removesuffix(self.parts[0])
                checkpoint[f"{stem}{self.name}"] = torch.cat(
                    [tensors[f"{stem}{part}"] for part in self.parts], self.dim
                )
        return checkpoint


class Family(NamedTuple):
    """The counterpart of an architecture in this suite. model: the config that settings change. task: the objective
    that its weights come from, whose names they have. heads: names of the parts that start anew where a checkpoint has
    none of them."""

    model: ModelConfig
    task: TaskConfig
    heads: tuple[str, ...]


ENCODERS = Family(EncoderConfig(), MaskedLMConfig(), (PREDICTION, POOLER, RELATION))


class Part(NamedTuple):
    """Weights that a checkpoint has all of, or none of. name: how messages call the part."""

    name: str
    weights: tuple[Weight, ...]


class Architecture(NamedTuple):
    """The mapping of one architecture of transformers.

    name: its ``model_type``. prefix: of the names of the tensors of the encoder, which checkpoints of that alone leave
    out. settings, fixed: fields of config.json that vary, and paths of ours with one value for all. refused: fields of
    which one value alone can be mapped, that of transformers where they are missing. written: fields that are written
    too. symbols: fields that hold the number of a symbol, or null where there is none. encoder: the part that each
    checkpoint has. heads: parts that it may have. foreign: beginnings of the names of other heads, which are left out.
    classes: transformers' classes of a checkpoint with the heads of these names, the one with the most heads first.
    family: its counterpart here. fused: tensors that hold several. notes: lines on differences beyond weights, for
    users who read or write such a checkpoint.
    """

    name: str
    prefix: str
    settings: tuple[Setting, ...]
    fixed: Mapping[str, Plain]
    refused: Mapping[str, Plain]
    written: Mapping[str, Plain]
    symbols: tuple[str, ...]
    encoder: Part
    heads: tuple[Part, ...]
    foreign: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]
    family: Family = ENCODERS
    fused: tuple[Fused, ...] = ()
    notes: tuple[str, ...] = ()
