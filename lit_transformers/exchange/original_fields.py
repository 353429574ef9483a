"""The fields of config.json that imported weights came with, which go out with them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.convert import read_config
from lit_transformers.exchange.mapping import Architecture, Fields

__all__ = ["OutgoingFields", "outgoing_fields"]

NUMBERS_OF_SYMBOLS = ("_token_id", "_tokens", "bad_words_ids")
"""How the names of fields end that hold numbers of symbols: those of any architecture, for its symbols are the same."""
CODE = ("auto_map", "custom_pipelines")
"""Fields that name code of the original, which no folder here carries."""
TYPES = ("dtype", "torch_dtype")
"""The names, new and old, of the field that holds the type of the tensors."""


class OutgoingFields(NamedTuple):
    """The fields of a config.json, and a line for each field of the original that is not in it as it was."""

    fields: dict[str, Plain]
    lines: list[str]


def outgoing_fields(architecture: Architecture, written: Fields, original: Fields) -> OutgoingFields:
    """Returns the fields of a config.json that describes the network of ``written``, with those of ``original``.

    They are as in the original where that describes the same network. Where it describes another one of the same
    architecture, fields that the mapping does not have are kept; of another architecture, or of a run, which has no
    other fields, the numbers of symbols are.
    """
    kept = {name: value for name, value in original.items() if name not in CODE}
    of_weights = {"architectures": written["architectures"], **types(written, original)}
    symbols = {name: value for name, value in kept.items() if name.endswith(NUMBERS_OF_SYMBOLS)}
    symbols |= {name: written[name] for name in architecture.refused if name in symbols}
    choices: list[Fields] = [{**written, **symbols}]
    if original.get("model_type") == architecture.name:
        of_network = {name: value for name, value in written.items() if name not in (*TYPES, *architecture.symbols)}
        choices = [kept | of_weights, kept | of_network | of_weights, *choices]
    fields = next(fields for fields in choices if describes_the_same(architecture, fields, written))
    return OutgoingFields(dict(fields), list(changed(original, fields)))


def types(written: Fields, original: Fields) -> dict[str, Plain]:
    """Returns the type of the tensors, by the names that the original has for it."""
    return {name: written["dtype"] for name in TYPES if original.get(name) is not None}


def describes_the_same(architecture: Architecture, fields: Fields, written: Fields) -> bool:
    """Whether fields describe the network that ``written`` describes, over as many symbols."""
    try:
        network = read_config(architecture, fields)
    except ConfigError:
        return False
    return network == read_config(architecture, written) and fields.get("vocab_size") == written["vocab_size"]


def changed(original: Fields, fields: Fields) -> Iterator[str]:
    """Yields a line for each field that is not as in the original; of another architecture, for each number of a
    symbol, and one for all others."""
    kind = original.get("model_type")
    if kind is None:
        return
    is_other = kind != fields["model_type"]
    if is_other:
        yield f"config.json: of the fields of {kind} only the numbers of symbols are kept"
    for name in dict.fromkeys([*original, "architectures"]):
        counts = name.endswith(NUMBERS_OF_SYMBOLS) if is_other else True
        if counts and (name not in fields or fields[name] != original.get(name)):
            now = f"is {fields[name]!r}" if name in fields else "is left out"
            yield f"config.json: {name} was {original.get(name)!r} and {now}"
