"""Malformed input, made by hypothesis: values of every kind, names with every fault, plain data that is broken, files
that are cut or patched."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["broken", "cut_and_patched", "examples", "json_files", "names", "one_line", "python_values", "yaml_texts"]


def examples(count: int) -> settings:
    """Settings for ``count`` examples: the same ones every time where CI is set, so that failures repeat.

    600 inputs miss a fault of one input in a hundred once in four hundred times.
    """
    return settings(
        max_examples=count,
        derandomize="CI" in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def one_line(message: str) -> bool:
    """Whether an error message is one line, and not a page of repeated input."""
    return bool(message.strip()) and "\n" not in message and len(message) < 2000


NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, -(2**70), 10**400, True, False]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e-320, 1e308]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "\0", "\ud800", "\n", "a\nb", "../x", "/etc/passwd", "CON", "x" * 5000, "128", "1e-3", "nan", "null",
         "none", "true", "{}", "[]", "attention", "xl", "lstm", "adamw", "cpu", "auto", "ä", "\u202eabc", "=", ".", "~"]
    ),
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(["kind", "dim", "memory", "seed"])), inner, max_size=3),
    ),
    max_leaves=6,
)


class Odd:
    """Something that no config can hold."""


python_values = st.one_of(
    PLAIN,
    st.sampled_from([Odd, Odd(), len, b"bytes", 1j, ..., range(3), frozenset({1}), (), ((),), {1: 2}, {None: 0}]),
)
"""Values that a person's Python code may pass."""

yaml_texts = st.one_of(
    SCALARS.map(str),
    st.text(max_size=20),
    st.text(alphabet="{}[]:,&*!|>-?%@`'\"#=0123456789eE+_.xobinfa\n ~", max_size=14),
    st.sampled_from(
        ["2001-99-99", "0b_", "0x_", "&a [*a]", "&a {kind: *a}", "[" * 2000, "{" * 500, "!!python/object:os.system x",
         "a: &a [x]\n" + "".join(f"{b}: &{b} [{f'*{a},' * 10}]\n" for a, b in pairwise("abcdefghijk")),
         "!!binary x", "9" * 5000, "1e999", "1:99", "? a", "{a: 1, a: 2}", "- 1", "%YAML", "\x00", "\ufeff", "'", "|"]
    ),
)  # fmt: skip
"""Texts that a person, or a script gone wrong, may type after the equals sign."""


def names(paths: list[str]) -> st.SearchStrategy[str]:
    """Paths: correct ones most of the time, and correct ones with something changed, added or removed."""
    correct = st.sampled_from(paths)
    changed = st.builds(lambda path, change: change(path), correct, st.sampled_from(_CHANGES))
    return st.one_of(correct, correct, correct, changed, TEXTS, st.builds("{}.{}".format, correct, TEXTS))


_CHANGES: list[Callable[[str], str]] = [
    lambda path: path[1:],
    lambda path: path[:-1],
    lambda path: path + ".",
    lambda path: "." + path,
    lambda path: path.replace(".", ".."),
    lambda path: path.rpartition(".")[0],
    lambda path: f"{path}.kind",
    lambda path: path.upper(),
    lambda path: f" {path} ",
    lambda path: path.replace("e", "é"),
]


def broken(whole: Any) -> st.SearchStrategy[Any]:
    """A copy of plain data in which one to three values are swapped, dropped, doubled or moved."""
    return st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(_FAULTS), PLAIN), min_size=1, max_size=3).map(
        lambda faults: _broken(whole, faults)
    )


def _broken(plain: Any, faults: list[tuple[int, Callable[..., None], Any]]) -> Any:
    tree = copy.deepcopy({"": plain})
    for number, fault, value in faults:
        if positions := list(_places(tree)):
            holder, name = positions[number % len(positions)]
            fault(holder, name, value)
    return tree.get("")


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree of dicts and lists."""
    for name in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, name
        if isinstance(holder[name], dict | list):
            yield from _places(holder[name])


def _swap(holder: Any, name: Any, value: Any) -> None:
    holder[name] = value


def _drop(holder: Any, name: Any, value: Any) -> None:
    del holder[name]


def _double(holder: Any, name: Any, value: Any) -> None:
    if isinstance(holder, list):
        holder.append(copy.deepcopy(holder[name]))
    else:
        holder[f"{name} "] = copy.deepcopy(holder[name])


def _wrap(holder: Any, name: Any, value: Any) -> None:
    holder[name] = [holder[name]]


def _nest(holder: Any, name: Any, value: Any) -> None:
    for _ in range(50):
        holder[name] = {"deeper": holder[name]}


def _negate(holder: Any, name: Any, value: Any) -> None:
    if isinstance(holder[name], int | float):
        holder[name] = -holder[name] - 1


def cut_and_patched(content: bytes) -> st.SearchStrategy[bytes]:
    """The bytes of a file after a crash, a bad disk or a wrong editor."""
    cuts = st.integers(0, len(content))
    return st.one_of(
        cuts.map(lambda cut: content[:cut]),
        st.builds(lambda cut, noise: content[:cut] + noise + content[cut:], cuts, st.binary(max_size=4)),
        st.builds(lambda cut, noise: content[:cut] + noise + content[cut + len(noise) :], cuts, st.binary(max_size=4)),
        st.builds(lambda start, stop: content[: min(start, stop)] + content[max(start, stop) :], cuts, cuts),
        st.builds(lambda start, stop: content[:stop] + content[start:], cuts, cuts),
        st.binary(max_size=40),
        st.sampled_from(
            [b"", b"\0" * 512, b"[" * 100_000, b'{"a":' * 5000, content.decode("latin-1").encode("utf-16"),
             content + content, b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), b"NaN", b"null",
             b"9" * 5000]
        ),
    )  # fmt: skip


def json_files(plain: Any) -> st.SearchStrategy[bytes]:
    """A file of plain data that is malformed in its values, or in its text."""
    return st.one_of(
        broken(plain).map(lambda tree: json.dumps(tree).encode()), cut_and_patched(json.dumps(plain, indent=1).encode())
    )


_FAULTS: list[Callable[..., None]] = [_swap, _swap, _swap, _drop, _double, _wrap, _nest, _negate]
