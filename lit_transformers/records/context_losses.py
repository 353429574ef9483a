"""How much of their context the arms of a study use, as ``context.json`` holds it next to the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lit_transformers.records.files import write_json
from lit_transformers.records.plan import plan_path
from lit_transformers.records.schema import Number, parse, to_plain

__all__ = ["CONTEXT", "ArmContext", "ContextLoss", "ContextUse", "load_context", "write_context"]

CONTEXT = "context.json"
"""The name of the file."""


@dataclass(frozen=True)
class ContextLoss:
    """The loss of a language model whose context is cut to ``length`` symbols, in bits per symbol.

    beyond: by how much it is above the loss with the longest context that was measured. error: the standard error of
    ``beyond`` over the positions of the sample.
    """

    length: int
    bits: Number
    beyond: Number
    error: Number


@dataclass(frozen=True)
class ArmContext:
    """The losses of an arm's run ``key`` with its context cut to rising lengths."""

    arm: str
    key: str
    losses: tuple[ContextLoss, ...]


@dataclass(frozen=True)
class ContextUse:
    """The losses of the baseline's run ``key`` with its context cut to rising lengths, or the ``reason`` why there are
    none. arms: the losses of all arms, where reference values of the data are known."""

    key: str
    losses: tuple[ContextLoss, ...] = ()
    reason: str = ""
    arms: tuple[ArmContext, ...] = ()


def write_context(runs: Path, folder: str, context: ContextUse) -> None:
    """Writes ``context.json`` to the folder of a plan."""
    write_json(plan_path(runs, folder).with_name(CONTEXT), to_plain(context))


def load_context(runs: Path, folder: str) -> ContextUse | None:
    """Reads ``context.json`` from the folder of a plan; None where there is no file.

    Raises ValueError or RecursionError, which ``first_fault`` names, where the file holds no losses, and OSError.
    """
    path = plan_path(runs, folder).with_name(CONTEXT)
    return parse(ContextUse, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
