"""The detailed measurements of a run: its learning curves, and the sums per document of its final evaluation.

They are read from the files of a run, and written as such for one that is known from published results alone. Both are
stored at the precision that a report needs: curves are thinned to means, numbers have seven digits. A study read from
the folders of its runs and the same study read from ``results.jsonl`` therefore hold equal numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lit_transformers.records.cells import cell_of, text_of
from lit_transformers.records.files import RECORD, replace_file

Array = NDArray[np.float64]

MOST_POINTS = 120
"""The number of points that a longer curve is thinned to, each the mean of its neighbours."""

_DIGITS = 7
_SUMS = ("nats", "tokens", "bytes")


@dataclass(frozen=True)
class DocumentLosses:
    """Sums per document of the final evaluation: ``nats``, ``tokens`` and ``bytes`` of shape [documents].

    ``others`` holds, by name, the sums that only some kinds of task have, such as ``correct``.
    """

    names: tuple[str, ...]
    nats: Array
    tokens: Array
    bytes: Array
    others: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurements:
    """Learning curves by name, each [points, 2] of tokens seen (ascending) and value, and the documents, if any.

    Where a run counts no tokens, its curves have its steps in their place.
    """

    curves: Mapping[str, Array] = field(default_factory=dict)
    documents: DocumentLosses | None = None


NOTHING = Measurements()


def read_documents(path: Path, notes: list[str]) -> DocumentLosses | None:
    """Reads the sums per document in file order; None where the file is missing or, with a note, damaged."""
    try:
        require_written(path)
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header, rows = next(lines, []), list(lines)
        if not rows:
            return None
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
        ordinals, labels = columns.pop("document"), columns.pop("name")
        sums = {name: rounded(np.array(column, dtype=np.float64)) for name, column in columns.items()}
        names = [f"{ordinal} {text_of(label)}" for ordinal, label in zip(ordinals, labels, strict=True)]
        return as_documents(names, sums)
    except FileNotFoundError:
        return None
    except KeyError as error:
        problem: object = f"no column {error}"
    except (OSError, ValueError, csv.Error) as error:
        problem = error.strerror if isinstance(error, OSError) else error
    notes.append(unreadable(path, f"cannot be read ({problem})", "documents"))
    return None


def require_written(path: Path) -> None:
    """Raises ValueError for a file that is empty or holds zeros in place of text, as one that was being written when a
    machine lost its power."""
    content = path.read_bytes()
    if not content or b"\0" in content:
        raise ValueError("it holds zeros in place of text" if content else "it is empty")


def unreadable(path: Path, reason: str, content: str) -> str:
    """Returns the note on a file of a run that a report leaves out, with the way to repair it. content: its noun."""
    run = path.parent.name
    remedy = f"remove {run}/{RECORD} and run the study again, which measures the run anew from its checkpoint"
    return f"{run}/{path.name}: {reason}; the run's {content} are not used; {remedy}"


def as_documents(names: Sequence[str], sums: Mapping[str, Array]) -> DocumentLosses:
    """Builds documents from columns by name.

    Raises KeyError for a missing column, ValueError for one of the wrong length or with a value that is not finite.
    """
    for name, column in sums.items():
        if column.shape != (len(names),):
            raise ValueError(f"{len(names)} names and {column.size} values of {name}")
        if not np.isfinite(column).all():
            raise ValueError(f"a value of {name} is not finite")
    others = {name: column for name, column in sums.items() if name not in _SUMS}
    return DocumentLosses(tuple(names), sums["nats"], sums["tokens"], sums["bytes"], others)


def write_documents(path: Path, documents: DocumentLosses) -> None:
    """Writes the sums per document as a run does."""
    sums = {"nats": documents.nats, "tokens": documents.tokens, "bytes": documents.bytes, **documents.others}
    labels = (name.partition(" ")[::2] for name in documents.names)
    columns = zip(labels, *(_texts(column) for column in sums.values()), strict=True)
    rows = [[ordinal, cell_of(label), *values] for (ordinal, label), *values in columns]
    _write_table(path, ["document", "name", *sums], rows)


def write_curves(path: Path, curves: Mapping[str, Array]) -> None:
    """Writes learning curves as a run does, but for the numbers of its updates, which they do not hold."""
    rows = [
        [tokens, cell_of(name), value]
        for name, curve in curves.items()
        for tokens, value in zip(*map(_texts, curve.T), strict=True)
    ]
    _write_table(path, ["tokens", "name", "value"], rows)


def _texts(column: Array) -> list[str]:
    """Returns numbers as texts from which the same numbers are read."""
    return [repr(value) for value in column.tolist()]


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])

    replace_file(path, write)


def read_curves(path: Path, notes: list[str]) -> dict[str, Array]:
    """Reads the learning curves by name, thinned; there are none where the file is missing or, with a note, damaged.

    Of a step that was logged twice the last value counts; a truncated line, such as the last of a killed run, is
    skipped.
    """
    points: dict[str, dict[float, float]] = {}
    try:
        require_written(path)
        with path.open(encoding="utf-8", newline="", errors="replace") as file:
            for row in csv.DictReader(file):
                _add_point(points, row)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, csv.Error) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        notes.append(unreadable(path, f"cannot be read ({problem})", "curves"))
        return {}
    return {name: rounded(thinned(np.array(sorted(curve.items())))) for name, curve in points.items()}


def _add_point(points: dict[str, dict[float, float]], row: Mapping[str, str | None]) -> None:
    name, tokens, value = row.get("name"), row.get("tokens"), row.get("value")
    if not name or not tokens or not value:
        return
    try:
        x, y = float(tokens) or float(row.get("step") or 0), float(value)
    except ValueError:
        return
    if math.isfinite(x) and math.isfinite(y):
        points.setdefault(text_of(name), {})[x] = y


def thinned(curve: Array) -> Array:
    """Averages neighbouring points, so that a noisy loss becomes a smooth line; a short curve is returned as it is."""
    if len(curve) <= MOST_POINTS:
        return curve
    return np.stack([part.mean(axis=0) for part in np.array_split(curve, MOST_POINTS)])


def rounded(values: Array) -> Array:
    """Rounds to seven significant digits; whole numbers below a million stay as they are."""
    size = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    # Dividing by an exact power of ten gives the float that is nearest to the decimal number.
    scale = 10.0 ** np.clip(_DIGITS - 1 - size, 0, 22)
    return np.round(values * scale) / scale
