"""Writes the results of an evaluation for every document or example: its losses, and its outputs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.config import Plain
from lit_transformers.records.cells import cell_of
from lit_transformers.records.files import replace_file

__all__ = ["write_documents", "write_outputs"]


def write_documents(path: Path, losses: Sequence[Any], name: Callable[[int], str]) -> None:
    """Writes the loss of every document or example of the last evaluation; ``name`` returns the name for an ordinal."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            for index, loss in enumerate(losses):
                ordinal, *sums = loss
                if index == 0:
                    rows.writerow(["document", "name", *loss._fields[1:]])
                rows.writerow([ordinal, cell_of(name(ordinal)), *(repr(value) for value in sums)])

    replace_file(path, write)


def write_outputs(path: Path, outputs: Sequence[dict[str, Plain]]) -> None:
    """Writes the outputs for the examples of the last evaluation as JSON lines: {"id", "hypothesis", "references"}."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(output, ensure_ascii=False)}\n" for output in outputs)

    replace_file(path, write)
