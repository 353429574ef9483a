"""Functions paired with the first sentence of their docstrings, from source code that is installed anyway."""

from __future__ import annotations

import ast
import importlib.util
import platform
import re
import sysconfig
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, NamedTuple

from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.pairs.source import Languages, Longest
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import NOT_SOURCE, Listed, is_library, nothing_left, split_by_hash, stamps, walk
from lit_transformers.config import Fraction

__all__ = ["DocstringsConfig"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that hold further statements, or nodes that hold these."""
LEAST = 3
"""Minimum number of words of a summary; a shorter one tells less than the function's name."""


class DocstringsConfig(TextPairsConfig, kind="docstrings"):
    """Functions of the running Python's standard library and of the installed torch, without their docstrings, and the
    first sentences of these.

    Modules are split by a hash of their names. A function that differs from an earlier one only in case, numbers and
    punctuation is left out, and so is one with the same name and summary. The fingerprint carries the versions.

    validation  the fractions of the splits
    test
    """

    summaries: ClassVar[bool] = True
    usual: ClassVar[Longest] = Longest(512, 64)

    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    @property
    def languages(self) -> Languages | None:
        return None

    def corpus(self) -> IndexedCorpus:
        folders = {"python": Path(sysconfig.get_paths()["stdlib"]), "torch": _torch()}
        files = [
            Listed(path, f"{package}/{name}")
            for package, folder in folders.items()
            for path, name in walk(folder, NOT_SOURCE)
            if is_library(name)
        ]
        left_out = Counter[str]()
        prefix = f"python-{platform.python_version()}-torch-{version('torch')}-"
        return index_corpus(
            [self.to_dict(), prefix, stamps(files)], prefix, WHOLE, self._texts(files, left_out), left_out
        )

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        previous_keys = set[str]()
        for path, name in files:
            split = split_by_hash(name, self.validation, self.test)
            for function in _functions(path, left_out):
                keys = {_words(function.texts.source), _words(f"{function.name} {function.texts.targets[0]}")}
                if keys & previous_keys:
                    left_out["nearly repeated"] += 1
                else:
                    yield pair_text(name, split, function.line - 1, function.texts, path)
                previous_keys |= keys


class _DocumentedFunction(NamedTuple):
    """A function's name and line, and its source with its summary."""

    name: str
    line: int
    texts: Texts


def _torch() -> Path:
    """Returns the folder of the installed torch. Raises DataError where its source is not there."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise DataError("source docstrings: the source of torch is not installed with it")
    return Path(spec.origin).parent


def _functions(path: Path, left_out: Counter[str]) -> Iterator[_DocumentedFunction]:
    """Yields the functions of a file that have a summary; a file that this Python cannot parse is left out."""
    content = path.read_bytes()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree, lines = ast.parse(content), content.decode().split("\n")
    except (SyntaxError, ValueError):
        left_out["unreadable files"] += 1
        return
    for node in _defined(tree.body):
        if (docstring := ast.get_docstring(node)) is not None:
            summary = _summary(docstring)
            if len(node.body) < 2:
                left_out["functions of a docstring alone"] += 1
            elif len(summary.split()) < LEAST:
                left_out["short summaries"] += 1
            else:
                yield _DocumentedFunction(node.name, node.lineno, Texts(_without_docstring(node, lines), (summary,)))


def _defined(body: Iterable[ast.AST]) -> Iterator[Function]:
    """Yields the functions that statements define, at any depth; expressions define none and are not searched."""
    for statement in body:
        if isinstance(statement, Function):
            yield statement
        for name in BLOCKS:
            if inner := getattr(statement, name, None):
                yield from _defined(inner)


def _summary(docstring: str) -> str:
    """Returns the first sentence, which ends with a mark that white space follows, or with its paragraph."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def _without_docstring(node: Function, lines: list[str]) -> str:
    """Returns the source of a function without its decorators and without the lines of its docstring."""
    docstring = node.body[0]
    end = node.end_lineno or node.lineno
    remaining = [*lines[node.lineno - 1 : docstring.lineno - 1], *lines[docstring.end_lineno or docstring.lineno : end]]
    return textwrap.dedent("\n".join(remaining)).strip()


def _words(text: str) -> str:
    """Returns a text in lower case without numbers and punctuation."""
    return " ".join(re.findall(r"[a-z_]+", text.lower()))
