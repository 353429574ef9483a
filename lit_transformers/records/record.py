"""The record of a run, as ``record.json`` holds it: outcome, metrics, measured costs, gates and environment."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic_core import from_json

from lit_transformers.config import Plain
from lit_transformers.records.files import RECORD, write_json
from lit_transformers.records.measurement import Measurement
from lit_transformers.records.schema import LEFT_OUT, Number, parse, to_plain

__all__ = [
    "NOT_A_NUMBER",
    "REPEATS_WITHIN",
    "VERSION",
    "Gate",
    "Outcome",
    "Record",
    "VersionError",
    "load_record",
    "parse_record",
    "record_to_plain",
    "write_record",
]

VERSION = 1

Outcome = Literal["finished", "pruned", "failed", "invalid"]

NOT_A_NUMBER = "not-a-number"
"""How the reason of a run begins whose loss became infinite or no number."""
REPEATS_WITHIN = "a seed repeats within"
"""The entry of a protocol with how far the metrics of two runs of one seed may differ."""


@dataclass(frozen=True)
class Gate:
    """The result of one gate: its name, whether it passed, and the measured detail."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(kw_only=True)
class Record:
    """The record of one run, which is filled in during the run.

    ``reason``: why it did not finish. ``resumable``: whether a failed run was cut off from outside, so that running it
    again may succeed. ``time_limit``: in seconds, of a run that exceeded it. ``measurement``: None of a run from before
    records held it. ``cost``: where it has ``planned_tokens`` too, its ``tokens`` and ``train_flops`` count the tokens
    that the run has read; otherwise they are planned, as of a run that did not end, or from before these were counted.
    """

    version: int
    key: str
    outcome: Outcome
    reason: str | None = None
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Number | None] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    measurement: Measurement | None = None
    cost: Mapping[str, Number | None] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    resumable: Annotated[bool | None, LEFT_OUT] = None
    time_limit: Annotated[Number | None, LEFT_OUT] = None

    @property
    def diverged(self) -> bool:
        """Whether the loss of the run became infinite or no number."""
        return self.outcome == "failed" and (self.reason or "").startswith(NOT_A_NUMBER)

    @property
    def read_tokens(self) -> float | None:
        """The tokens that the run has read; None where that was not counted."""
        return self.cost.get("tokens") if "planned_tokens" in self.cost else None

    @property
    def planned_tokens(self) -> float | None:
        """The tokens that budgets count for its updates; None where none are counted."""
        return self.cost.get("planned_tokens", self.cost.get("tokens"))

    @property
    def planned_flops(self) -> float | None:
        """The FLOPs of training that budgets count for its updates; None where they are not known."""
        flops, read, planned = self.cost.get("train_flops"), self.read_tokens, self.planned_tokens
        return flops * planned / read if flops is not None and read and planned is not None else flops

    def value(self, metric: str) -> float | None:
        """Returns a number by name: a metric of the run or, below ``measured/``, a measured time, rate or memory."""
        name = metric.removeprefix("measured/")
        number = self.metrics.get(metric) if name == metric else self.measured.get(name)
        return float(number) if isinstance(number, int | float) else None

    def may_resume(self, time_limit: float | None = 0.0) -> bool:
        """Whether the run was cut off from outside, so that running it again may succeed.

        One that was cut off by a time limit may under a longer one, ``time_limit`` in seconds, or None.
        """
        if self.outcome != "failed":
            return False
        if self.time_limit is not None:
            return time_limit is None or time_limit > self.time_limit
        return self.resumable is True


class VersionError(ValueError):
    """A record was written by another version of its format."""


def write_record(directory: Path, record: Record) -> None:
    """Writes ``record.json`` to a run's directory, which is created where it is missing."""
    write_json(directory / RECORD, record_to_plain(record))


def record_to_plain(record: Record) -> dict[str, Plain]:
    """Returns a record as ``record.json`` holds it, without fields that do not apply to its outcome."""
    absent = {name for name in ("resumable", "time_limit", "measurement") if getattr(record, name) is None}
    absent |= set() if record.outcome == "finished" else {"observed"}
    return {name: value for name, value in to_plain(record).items() if name not in absent}


def load_record(path: Path) -> Record:
    """Reads a record. Raises the errors of ``parse_record``, ValueError where the file is no JSON, and OSError."""
    return parse_record(from_json(path.read_bytes()))


def parse_record(plain: Plain) -> Record:
    """Builds a record from plain data. Raises VersionError for one of another version, pydantic's ValidationError for
    other faults; ``first_fault`` names both."""
    if isinstance(plain, dict) and plain.get("version", VERSION) != VERSION:
        raise VersionError(f"made by version {reprlib.repr(plain['version'])} of this format, not {VERSION}")
    return parse(Record, plain)
