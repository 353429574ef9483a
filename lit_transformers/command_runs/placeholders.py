"""Placeholders such as ``{lr}`` in the words of a command, in environment variables and in files.

A value replaces a placeholder within its word. No content of a value splits a word into several, and no shell reads it,
unless the command is for a shell: then each value is quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from lit_transformers.config import ConfigError, Plain, nearest

__all__ = ["filled_shell_line", "filled_text", "filled_words", "names_in_text"]

PLACEHOLDER = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")
"""A placeholder, or one in doubled braces, which stands for itself in single ones."""


def names_in_text(text: str) -> list[str]:
    """Returns the names of the placeholders of a text, each once."""
    return [*dict.fromkeys(match["name"] for match in PLACEHOLDER.finditer(text) if match["name"])]


def filled_words(words: Iterable[str], values: Mapping[str, Plain]) -> list[str]:
    """Returns the words of a command with values in place of placeholders.

    A word that is nothing but a placeholder becomes as many words as its value has, where that is a list, and none
    where it is None. Raises ConfigError for a placeholder without a value, and for a list within a word.
    """
    filled = []
    for word in words:
        alone = PLACEHOLDER.fullmatch(word)
        if alone and alone["name"]:
            filled += [_text(item, alone["name"]) for item in _items(_value(alone["name"], values))]
        else:
            filled.append(filled_text(word, values))
    return filled


def filled_shell_line(line: str, values: Mapping[str, Plain]) -> str:
    """Returns a line for a shell with values in place of placeholders, each quoted as a separate word."""

    def quoted(match: re.Match[str]) -> str:
        if match["literal"]:
            return f"{{{match['literal']}}}"
        name = match["name"]
        return " ".join(shlex.quote(_text(item, name)) for item in _items(_value(name, values)))

    return PLACEHOLDER.sub(quoted, line)


def filled_text(text: str, values: Mapping[str, Plain]) -> str:
    """Returns a text with values in place of placeholders. Raises ConfigError as ``filled_words`` does."""

    def value_text(match: re.Match[str]) -> str:
        if match["literal"]:
            return f"{{{match['literal']}}}"
        return _text(_value(match["name"], values), match["name"])

    return PLACEHOLDER.sub(value_text, text)


def _value(name: str, values: Mapping[str, Plain]) -> Plain:
    if name not in values:
        reason = f"no value for the placeholder {{{name}}}; {nearest(name, values)}"
        raise ConfigError(f"{reason} To write it as it is, double the braces: {{{{{name}}}}}")
    return values[name]


def _items(value: Plain) -> list[Plain]:
    if value is None:
        return []
    return [*value] if isinstance(value, list | tuple) else [value]


def _text(value: Plain, name: str) -> str:
    """Returns a value as the text of one word. Raises ConfigError for one that is none."""
    if value is None or isinstance(value, list | tuple | Mapping):
        reason = f"is {value!r}, which is no single text; a list or null stands alone in its word: {{{name}}}"
        raise ConfigError(reason, f"params.{name}")
    text = str(value)
    if "\0" in text:
        raise ConfigError("holds a zero byte, which no command can be given", f"params.{name}")
    return text
